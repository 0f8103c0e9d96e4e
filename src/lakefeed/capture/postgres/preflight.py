"""``lakefeed check`` for PostgreSQL: what stands in the way, and the statement that repairs it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from lakefeed.capture.base import Finding, Level
from lakefeed.capture.log import Choose
from lakefeed.capture.postgres.catalog import SourceTable, one_reading, read_tables, sql_name, with_columns
from lakefeed.capture.postgres.database import Connection, Database, Names, quoted
from lakefeed.capture.postgres.slot import (
    Slot,
    publication_statements,
    published,
    shortcomings,
    slot_statement,
    usable_slot,
)
from lakefeed.change.table import TableId
from lakefeed.errors import ConfigError, SourceSetupError, SourceUnavailableError

OLDEST = 150_000
_REFUSED_BY_DELTA = " ,;{}()\n\t="
_ENCRYPTED = ("require", "verify-ca", "verify-full")
_LOCAL = ("localhost", "127.0.0.1", "::1")

_SERVER = """
SELECT current_user::text, (SELECT rolreplication OR rolsuper FROM pg_roles WHERE rolname = current_user),
       pg_is_in_recovery(), (SELECT count(*) FROM pg_replication_slots), (SELECT count(*) FROM pg_stat_replication),
       current_setting('wal_level'), current_setting('max_slot_wal_keep_size'), current_setting('server_encoding'),
       current_setting('max_replication_slots')::int4, current_setting('max_wal_senders')::int4"""

_PRIVILEGES = """
SELECT c.oid::int8, has_table_privilege(c.oid, 'SELECT'),
       c.relrowsecurity AND (c.relforcerowsecurity OR NOT pg_has_role(c.relowner, 'USAGE'))
       AND NOT (SELECT rolbypassrls OR rolsuper FROM pg_roles WHERE rolname = current_user)
  FROM pg_class c WHERE c.oid = ANY(%s)"""


def check_source(
    database: Database, names: Names, choose: Choose, *, provision: bool, before_images: bool
) -> tuple[Finding, ...]:
    """All findings. An unreachable server is an error and not a finding."""
    with database.connection(names.slot) as connection:
        slot, found = None, list[Finding]()
        try:
            slot = usable_slot(connection, names.slot)
        except (SourceSetupError, SourceUnavailableError) as error:
            found.append(Finding(level=Level.ERROR, problem=error.message, remedy=error.remedy))
        found = [*_of_server(database, connection, names, slot), *found]
        try:
            with one_reading(connection):
                there = read_tables(connection)
                chosen = choose({table: source.refusal for table, source in there.items()})
                tables = with_columns(connection, [there[table] for table in chosen])
        except ConfigError as error:
            return (*found, Finding(level=Level.ERROR, problem=error.message, remedy=error.remedy))
        found += _of_publication(connection, names, slot, chosen, provision=provision)
        found += _of_tables(connection, tables, before_images=before_images)
        # Tables of the schemas in question whose changes the log does not have: reported, not skipped in silence.
        schemas = {table.schema for table in chosen or there}
        for table, source in there.items():
            if (refusal := source.refusal) is not None and table.schema in schemas:
                problem = f"{table} is left out: {refusal[0]}"
                found.append(Finding(level=Level.WARNING, problem=problem, remedy=refusal[1], table=table))
    return tuple(found)


def _of_server(database: Database, connection: Connection, names: Names, slot: Slot | None) -> Iterator[Finding]:
    def error(problem: str, remedy: str) -> Finding:
        return Finding(level=Level.ERROR, problem=problem, remedy=remedy)

    def warning(problem: str, remedy: str) -> Finding:
        return Finding(level=Level.WARNING, problem=problem, remedy=remedy)

    row = connection.execute(_SERVER).fetchone()
    assert row is not None  # noqa: S101  # it has no condition
    user, replicates, in_recovery, slots_used, senders_used, wal_level, keep_size, encoding, slots, senders = row
    version = connection.info.server_version
    if version < OLDEST:
        yield error(f"PostgreSQL {version // 10000} is too old; 15 or newer is needed", "Upgrade the server.")
    if wal_level != "logical":
        problem = f"wal_level is {wal_level}; logical decoding needs logical"
        yield error(problem, "ALTER SYSTEM SET wal_level = 'logical'; and restart the server.")
    if not replicates:
        yield error(f"the role {user} may not replicate", f"ALTER ROLE {quoted(user)} REPLICATION;")
    if in_recovery:
        yield error("the server is a standby; the slot and publication are made on the primary", "Use the primary.")
    if encoding not in ("UTF8", "SQL_ASCII"):
        yield warning(f"the database's encoding is {encoding}", "It is converted to UTF-8.")
    if keep_size == "-1":
        problem = "max_slot_wal_keep_size is unlimited: a pipeline that is stopped for long can fill the server's disk"
        yield warning(problem, "ALTER SYSTEM SET max_slot_wal_keep_size = '100GB'; SELECT pg_reload_conf();")
    host, mode = connection.info.host or "/", database.parameters.get("sslmode", "prefer")
    if not host.startswith("/") and host not in _LOCAL and mode not in _ENCRYPTED:
        # T27: ``prefer``, the default, falls back to plain text without a word.
        yield warning(f"sslmode={mode} does not insist on encryption", "Add sslmode=verify-full to source.dsn.")
    if slot is not None and slot.lost is not None:
        problem = f"the slot {names.slot} was invalidated: {slot.lost}"
        yield error(problem, "Copy every table again, after uninstall.")
    if slot is not None and slot.wal_status == "unreserved":
        problem = f"the slot {names.slot} is about to lose its log"
        yield warning(problem, "Run the pipeline now, or raise the limit.")
    needed = 1 if slot is not None else 2  # the slot itself, and a temporary one while a table is copied
    for used, most, name in ((slots_used, slots, "max_replication_slots"), (senders_used, senders, "max_wal_senders")):
        if used + needed > most:
            remedy = f"ALTER SYSTEM SET {name} = {most + 4}; and restart the server."
            yield error(f"{name} is {most}, of which {used} are in use", remedy)
    if slot is None and version >= OLDEST:
        # A pooler in between answers SQL but has another backend behind each transaction.
        pids = {connection.execute("SELECT pg_backend_pid()").fetchone() for _ in range(3)}
        if pids != {(connection.info.backend_pid,)}:
            problem = "a connection pooler is in between; replication needs the server itself"
            yield error(problem, "Correct source.dsn.")


def _of_publication(
    connection: Connection, names: Names, slot: Slot | None, chosen: Sequence[TableId], *, provision: bool
) -> Iterator[Finding]:
    """What ``prepare`` will make; without ``provision`` somebody else has to, so each statement is an error."""
    for one in shortcomings(connection, names.publication):
        yield Finding(level=Level.ERROR, problem=one.problem, remedy=one.remedy)
    covered = published(connection, names.publication)
    level = Level.WARNING if provision else Level.ERROR
    missing = [table for table in chosen if covered is None or table not in covered]
    if covered is not None or not provision:
        for statement in publication_statements(names.publication, covered, missing):
            yield Finding(level=level, problem=f"{len(missing)} tables are not published yet", remedy=f"{statement};")
    if provision and covered is None and slot is not None:
        problem = f"the publication {names.publication} was dropped, so that changes are in no stream since then"
        remedy = "Start the pipeline: it is made again, and every table is copied again. Or begin again: uninstall."
        yield Finding(level=Level.WARNING, problem=problem, remedy=remedy)
    if not provision and slot is None:
        problem = "there is no replication slot, and source.provision is off"
        yield Finding(level=level, problem=problem, remedy=f"{slot_statement(names.slot)};")


def _of_tables(connection: Connection, tables: list[SourceTable], *, before_images: bool) -> Iterator[Finding]:
    """What this role may do is asked once for all tables."""
    rows = connection.execute(_PRIVILEGES, ([table.oid for table in tables],))
    granted = {oid: (reads, hidden) for oid, reads, hidden in rows}
    for table in tables:
        name, found = sql_name(table.id), list[tuple[Level, str, str]]()
        reads, hidden = granted.get(table.oid, (True, False))
        if not reads:
            found.append((Level.ERROR, "this role may not read it", f"GRANT SELECT ON {name} TO CURRENT_USER;"))
        if hidden:
            problem = "row security hides rows of it from this role"
            found.append((Level.ERROR, problem, "ALTER ROLE CURRENT_USER BYPASSRLS;"))
        if not table.key:
            problem = "no key: rows are matched as a whole, and each update is a delete and an insert"
            found.append((Level.WARNING, problem, f"ALTER TABLE {name} ADD PRIMARY KEY (…);"))
        for column in table.columns:
            fixed = "".join("_" if letter in _REFUSED_BY_DELTA else letter for letter in column.name)
            if fixed != column.name or column.name.lower().startswith("_lakefeed"):
                better = fixed.lstrip("_") or "renamed"
                remedy = f"ALTER TABLE {name} RENAME COLUMN {quoted(column.name)} TO {quoted(better)};"
                found.append((Level.ERROR, f"lake tables refuse the column name '{column.name}'", remedy))
        if before_images and (lacking := table.not_whole):
            problem = "no before images, because its replica identity does not log old rows whole"
            remedy = " ".join(f"ALTER TABLE {one} REPLICA IDENTITY FULL;" for one in lacking)
            found.append((Level.WARNING, problem, remedy))
        for level, problem, remedy in found:
            yield Finding(level=level, problem=f"{table.id}: {problem}", remedy=remedy, table=table.id)
