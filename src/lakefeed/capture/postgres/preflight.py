"""``lakefeed check`` for PostgreSQL: what stands in the way, and the statement that repairs it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lakefeed.capture.base import Finding, Level
from lakefeed.capture.postgres.catalog import SourceTable, one_reading, read_tables, sql_name, with_columns
from lakefeed.capture.postgres.database import Connection, Database, Names, quoted
from lakefeed.capture.postgres.resume import (
    publication_statements,
    published,
    read_slot,
    shortcomings,
    slot_statement,
    usable_slot,
)
from lakefeed.change.table import TableId
from lakefeed.errors import ConfigError, SourceSetupError, SourceUnavailableError

Choose = Callable[[Mapping[TableId, SourceTable]], Sequence[TableId]]
Problem = tuple[Level, str, str]

_PRIVILEGES = """
SELECT c.oid::int8, has_table_privilege(c.oid, 'SELECT'),
       c.relrowsecurity AND (c.relforcerowsecurity OR NOT pg_has_role(c.relowner, 'USAGE'))
       AND NOT (SELECT rolbypassrls OR rolsuper FROM pg_roles WHERE rolname = current_user)
  FROM pg_class c WHERE c.oid = ANY(%s)"""

OLDEST = 150_000
_REFUSED_BY_DELTA = " ,;{}()\n\t="
_ENCRYPTED = ("require", "verify-ca", "verify-full")
_LOCAL = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True, slots=True)
class _Server:
    settings: Mapping[str, str]
    version: int
    user: str
    replicates: bool
    in_recovery: bool
    slots_used: int
    senders_used: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckOptions:
    """What of the source's configuration preflight has to know."""

    provision: bool = True
    before_images: bool = False


def check_source(database: Database, names: Names, choose: Choose, options: CheckOptions) -> tuple[Finding, ...]:
    """All findings. An unreachable server is an error and not a finding."""
    with database.connection(names.slot) as connection:
        server = _server(connection)
        found = [Finding(level=level, problem=problem, remedy=remedy) for level, problem, remedy in _of_server(server)]
        found += [_finding(*one) for one in _of_transport(database, connection)]
        found += [_finding(*one) for one in _of_slot(connection, names, server)]
        try:
            with one_reading(connection):
                there = read_tables(connection)
                chosen = choose(there)
                tables = with_columns(connection, [there[table] for table in chosen])
        except ConfigError as error:
            return (*found, Finding(level=Level.ERROR, problem=error.message, remedy=error.remedy))
        found += _of_publication(connection, names, chosen, provision=options.provision)
        found += _of_tables(connection, tables)
        found += _without_before_images(tables) if options.before_images else ()
        found += _left_out(there, chosen)
    return tuple(found)


def _finding(level: Level, problem: str, remedy: str) -> Finding:
    return Finding(level=level, problem=problem, remedy=remedy)


def _server(connection: Connection) -> _Server:
    wanted = ("wal_level", "max_replication_slots", "max_wal_senders", "max_slot_wal_keep_size", "server_encoding")
    rows: Any = connection.execute("SELECT name, setting FROM pg_settings WHERE name = ANY(%s)", (list(wanted),))
    row = connection.execute(
        "SELECT current_user::text, (SELECT rolreplication OR rolsuper FROM pg_roles WHERE rolname = current_user),"
        " pg_is_in_recovery(), (SELECT count(*) FROM pg_replication_slots), (SELECT count(*) FROM pg_stat_replication)"
    ).fetchone()
    assert row is not None  # noqa: S101  # it has no condition
    return _Server(dict(rows.fetchall()), connection.info.server_version, *row)


def _of_server(server: _Server) -> Iterator[Problem]:
    if server.version < OLDEST:
        yield (
            Level.ERROR,
            f"PostgreSQL {server.version // 10000} is too old; 15 or newer is needed",
            "Upgrade the server.",
        )
    if server.settings["wal_level"] != "logical":
        problem = f"wal_level is {server.settings['wal_level']}; logical decoding needs logical"
        yield Level.ERROR, problem, "ALTER SYSTEM SET wal_level = 'logical'; and restart the server."
    if not server.replicates:
        yield Level.ERROR, f"the role {server.user} may not replicate", f"ALTER ROLE {quoted(server.user)} REPLICATION;"
    if server.in_recovery:
        yield (
            Level.ERROR,
            "the server is a standby; the slot and publication are made on the primary",
            "Use the primary.",
        )
    if server.settings["server_encoding"] not in ("UTF8", "SQL_ASCII"):
        yield (
            Level.WARNING,
            f"the database's encoding is {server.settings['server_encoding']}",
            "It is converted to UTF-8.",
        )
    if server.settings["max_slot_wal_keep_size"] == "-1":
        problem = "max_slot_wal_keep_size is unlimited: a pipeline that is stopped for long can fill the server's disk"
        yield Level.WARNING, problem, "ALTER SYSTEM SET max_slot_wal_keep_size = '100GB'; SELECT pg_reload_conf();"


def _of_transport(database: Database, connection: Connection) -> Iterator[Problem]:
    """T27: ``prefer``, the default, falls back to plain text without a word."""
    host = connection.info.host or "/"
    mode = database.parameters.get("sslmode", "prefer")
    if not host.startswith("/") and host not in _LOCAL and mode not in _ENCRYPTED:
        yield Level.WARNING, f"sslmode={mode} does not insist on encryption", "Add sslmode=verify-full to source.dsn."


def _of_slot(connection: Connection, names: Names, server: _Server) -> Iterator[Problem]:
    try:
        slot = usable_slot(connection, names.slot)
    except (SourceSetupError, SourceUnavailableError) as error:
        yield Level.ERROR, error.message, error.remedy
        return
    if slot is not None and slot.lost is not None:
        yield (
            Level.ERROR,
            f"the slot {names.slot} was invalidated: {slot.lost}",
            "Copy every table again, after uninstall.",
        )
    if slot is not None and slot.wal_status == "unreserved":
        yield (
            Level.WARNING,
            f"the slot {names.slot} is about to lose its log",
            "Run the pipeline now, or raise the limit.",
        )
    needed = 1 if slot is not None else 2  # the slot itself, and a temporary one while a table is copied
    for used, name in ((server.slots_used, "max_replication_slots"), (server.senders_used, "max_wal_senders")):
        most = int(server.settings[name])
        if used + needed > most:
            problem = f"{name} is {most}, of which {used} are in use"
            yield Level.ERROR, problem, f"ALTER SYSTEM SET {name} = {most + 4}; and restart the server."
    if read_slot(connection, names.slot) is None and connection.info.server_version >= OLDEST:
        yield from _pooler(connection)


def _pooler(connection: Connection) -> Iterator[Problem]:
    """A pooler in between answers SQL but has another backend behind each transaction."""
    pids = {connection.execute("SELECT pg_backend_pid()").fetchone() for _ in range(3)}
    if len(pids) > 1 or pids != {(connection.info.backend_pid,)}:
        yield (
            Level.ERROR,
            "a connection pooler is in between; replication needs the server itself",
            "Correct source.dsn.",
        )


def _of_publication(
    connection: Connection, names: Names, chosen: Sequence[TableId], *, provision: bool
) -> Iterator[Finding]:
    """What ``prepare`` will make; without ``provision`` somebody else has to, so each statement is an error."""
    for one in shortcomings(connection, names.publication):
        yield _finding(Level.ERROR, one.problem, one.remedy)
    covered = published(connection, names.publication)
    level = Level.WARNING if provision else Level.ERROR
    missing = [table for table in chosen if covered is None or table not in covered]
    if covered is not None or not provision:
        for statement in publication_statements(names.publication, covered, missing):
            yield _finding(level, f"{len(missing)} tables are not published yet", f"{statement};")
    slot = read_slot(connection, names.slot)
    if provision and covered is None and slot is not None:
        problem = f"the publication {names.publication} was dropped, so that changes are in no stream since then"
        remedy = "Start the pipeline: it is made again, and every table is copied again. Or begin again: uninstall."
        yield _finding(Level.WARNING, problem, remedy)
    if not provision and slot is None:
        statement = slot_statement(names.slot)
        yield _finding(level, "there is no replication slot, and source.provision is off", f"{statement};")


def _of_tables(connection: Connection, tables: list[SourceTable]) -> Iterator[Finding]:
    """What this role may do is asked once for all tables."""
    rows = connection.execute(_PRIVILEGES, ([table.oid for table in tables],))
    granted = {oid: (reads, hidden) for oid, reads, hidden in rows}
    for table in tables:
        for level, problem, remedy in _of_table(table, *granted.get(table.oid, (True, False))):
            yield Finding(level=level, problem=f"{table.id}: {problem}", remedy=remedy, table=table.id)


def _of_table(table: SourceTable, reads: bool, hidden: bool) -> Iterator[Problem]:
    name = sql_name(table.id)
    if not reads:
        yield Level.ERROR, "this role may not read it", f"GRANT SELECT ON {name} TO CURRENT_USER;"
    if hidden:
        yield Level.ERROR, "row security hides rows of it from this role", "ALTER ROLE CURRENT_USER BYPASSRLS;"
    if not table.key:
        problem = "no key: rows are matched as a whole, and each update is a delete and an insert"
        yield Level.WARNING, problem, f"ALTER TABLE {name} ADD PRIMARY KEY (…);"
    for column in table.columns:
        fixed = "".join("_" if letter in _REFUSED_BY_DELTA else letter for letter in column.name)
        if fixed != column.name or column.name.lower().startswith("_lakefeed"):
            better = fixed.lstrip("_") or "renamed"
            remedy = f"ALTER TABLE {name} RENAME COLUMN {quoted(column.name)} TO {quoted(better)};"
            yield Level.ERROR, f"lake tables refuse the column name '{column.name}'", remedy


def _without_before_images(tables: Sequence[SourceTable]) -> Iterator[Finding]:
    for table in tables:
        if lacking := table.not_whole:
            problem = f"{table.id}: no before images, because its replica identity does not log old rows whole"
            remedy = " ".join(f"ALTER TABLE {one} REPLICA IDENTITY FULL;" for one in lacking)
            yield Finding(level=Level.WARNING, problem=problem, remedy=remedy, table=table.id)


def _left_out(there: Mapping[TableId, SourceTable], chosen: Sequence[TableId]) -> Iterator[Finding]:
    """Tables of the schemas in question whose changes the log does not have: reported, not skipped in silence."""
    schemas = {table.schema for table in chosen or there}
    for table, source in there.items():
        if source.refusal is not None and table.schema in schemas:
            reason, remedy = source.refusal
            yield Finding(level=Level.WARNING, problem=f"{table} is left out: {reason}", remedy=remedy, table=table)
