"""``Postgres``: what a user writes to capture a PostgreSQL database, by logical decoding (pgoutput); and what stands in
the way of that, with the statement that repairs it (``lakefeed check``).

Beyond the contract of ChangeCapture: positions are the ends of commit records. Nothing is written to the source but the
pipeline's own slot and publication. Tables whose changes the log does not have (no key and no full replica identity,
unlogged) are never published: the application's own updates would be refused. Generated columns are not captured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import partial

from lakefeed.capture.base import Capabilities, ChangeCapture, Finding, Level
from lakefeed.capture.builder import Limits
from lakefeed.capture.log import Choose
from lakefeed.capture.log_capture import LogCapture
from lakefeed.capture.postgres.catalog import SourceTable, one_reading, read_tables, sql_name, with_columns
from lakefeed.capture.postgres.database import Connection, Connections, Database, Names, quoted
from lakefeed.capture.postgres.dialect import PostgresDialect
from lakefeed.capture.postgres.facts import TableFacts
from lakefeed.capture.postgres.pgoutput import PgoutputDecoder
from lakefeed.capture.postgres.resume import Coverage, PostgresResumePoint, read_coverage
from lakefeed.capture.postgres.slot import Slot, slot_statement, usable_slot
from lakefeed.change.lsn import PostgresLsn
from lakefeed.change.table import TableId
from lakefeed.errors import ConfigError, SourceSetupError, SourceUnavailableError

OLDEST, _REFUSED_BY_DELTA = 150_000, " ,;{}()\n\t="
_ENCRYPTED, _LOCAL = ("require", "verify-ca", "verify-full"), ("localhost", "127.0.0.1", "::1")
_ERROR, _WARNING = Level.ERROR, Level.WARNING

_SERVER = """
SELECT current_user::text, (SELECT rolreplication OR rolsuper FROM pg_roles WHERE rolname = current_user),
       pg_is_in_recovery(), current_setting('wal_level'), current_setting('max_slot_wal_keep_size'),
       current_setting('server_encoding'), (SELECT count(*) FROM pg_replication_slots),
       current_setting('max_replication_slots')::int4, (SELECT count(*) FROM pg_stat_replication),
       current_setting('max_wal_senders')::int4"""

_PRIVILEGES = """
SELECT c.oid::int8, has_table_privilege(c.oid, 'SELECT'),
       c.relrowsecurity AND (c.relforcerowsecurity OR NOT pg_has_role(c.relowner, 'USAGE'))
       AND NOT (SELECT rolbypassrls OR rolsuper FROM pg_roles WHERE rolname = current_user)
  FROM pg_class c WHERE c.oid = ANY(%s)"""

_Found = tuple[bool, Level, str, str]  # whether it is so, how bad that is, the problem and what repairs it


@dataclass(frozen=True)
class Postgres:
    """A PostgreSQL database, 15 or newer.

    ``dsn`` is a libpq connection string or URI; the password may come from PGPASSWORD or a password file instead, and
    is not shown by ``repr``. ``tables`` are glob patterns (see ``capture.select``) over ``schema.table``.
    ``text_columns`` are patterns over ``schema.table.column``: those columns are kept as PostgreSQL prints them.
    With ``before_images`` rows are delivered as they were before each update and delete, too, of tables with REPLICA
    IDENTITY FULL. Without ``provision``, publication and slot must be there already: ``check`` prints the statements.
    """

    dsn: str = field(repr=False)
    _: KW_ONLY
    tables: Sequence[str] = ("public.*",)
    capture: str = "log"
    provision: bool = True
    text_columns: Sequence[str] = ()
    before_images: bool = False
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        Database(self.dsn)
        if self.capture != "log":
            raise ConfigError(f"source.capture: '{self.capture}' is not a way to capture PostgreSQL; there is log")
        for name in ("tables", "text_columns"):
            value = getattr(self, name)
            if isinstance(value, str):
                raise ConfigError(f"source.{name}: must be a list of patterns, not {value!r}")
            object.__setattr__(self, name, tuple(value))  # frozen and hashable, whatever the user gave
        if not self.tables:
            raise ConfigError("source.tables: must be a list of patterns with at least one")

    def bind(self, pipeline: str) -> ChangeCapture:
        database, names = Database(self.dsn), Names(pipeline)
        connections, text_columns = Connections(database, names.slot), tuple(self.text_columns)
        facts = TableFacts(connections, names.publication, text_columns, provision=self.provision)
        return LogCapture(
            PostgresLsn,
            Capabilities(
                before_images=self.before_images, schema_changes=True, exact_snapshot=True, snapshot_resume=True
            ),
            tables=self.tables,
            dialect=PostgresDialect(self.dsn, text_columns, application_name=names.readers),
            resume=PostgresResumePoint(connections, names, provision=self.provision),
            decoder=partial(PgoutputDecoder, facts.resolve, before_images=self.before_images),
            facts=facts,
            check=partial(check_source, database, names, provision=self.provision, before_images=self.before_images),
            limits=self.limits,
        )


def check_source(
    database: Database, names: Names, choose: Choose, *, provision: bool, before_images: bool
) -> tuple[Finding, ...]:
    """All findings. An unreachable server is an error and not a finding."""
    with database.connection(names.slot) as connection:
        slot, refused = None, list[_Found]()
        try:
            slot = usable_slot(connection, names.slot)
        except (SourceSetupError, SourceUnavailableError) as error:
            refused = [(True, _ERROR, error.message, error.remedy)]
        found = _findings([*_of_server(database, connection, names, slot), *refused])
        try:
            with one_reading(connection):
                there = read_tables(connection)
                chosen = choose({table: source.refusal for table, source in there.items()})
                tables = with_columns(connection, [there[table] for table in chosen])
        except ConfigError as error:
            return (*found, *_findings([(True, _ERROR, error.message, error.remedy)]))
        coverage = read_coverage(connection, names.publication)
        found += _findings(_of_publication(coverage, names, slot, chosen, provision=provision))
        granted = {row[0]: row for row in connection.execute(_PRIVILEGES, ([table.oid for table in tables],))}
        for table in tables:
            _, reads, hides = granted.get(table.oid, (0, True, False))
            found += _findings(_of_table(table, reads=reads, hides=hides, before_images=before_images), table.id)
        # Tables of the schemas in question whose changes the log does not have: reported, not skipped in silence.
        schemas = {table.schema for table in chosen or there}
        for name, source in there.items():
            if (refusal := source.refusal) is not None and name.schema in schemas:
                found += _findings([
                    (True, _WARNING, f"left out: {refusal.reason}", refusal.remedy),
                    (coverage.member(name) is not None, _ERROR,
                     "it is published all the same, so that UPDATE and DELETE of it may fail",
                     f"{coverage.removal(name)};"),
                ], name)  # fmt: skip
    return tuple(found)


def _findings(found: Sequence[_Found], table: TableId | None = None) -> list[Finding]:
    of = f"{table}: " if table is not None else ""
    so = [(level, f"{of}{problem}", remedy) for is_so, level, problem, remedy in found if is_so]
    return [Finding(level=level, problem=problem, remedy=remedy, table=table) for level, problem, remedy in so]


def _of_server(database: Database, connection: Connection, names: Names, slot: Slot | None) -> list[_Found]:
    (user, replicates, in_recovery, wal_level, keep_size, encoding, *in_use) = connection.one(_SERVER)
    version, needed = connection.info.server_version, 1 if slot is not None else 2  # a temporary one for a copy, too
    host, mode = connection.info.host or "/", database.parameters.get("sslmode", "prefer")
    # T27: ``prefer``, the default, falls back to plain text without a word.
    is_open = not host.startswith("/") and host not in _LOCAL and mode not in _ENCRYPTED
    lost, status = (slot.lost, slot.report["wal_status"]) if slot is not None else (None, None)
    is_converted, pids = encoding not in ("UTF8", "SQL_ASCII"), {(connection.info.backend_pid,)}
    if slot is None and version >= OLDEST:  # a pooler answers SQL, but has another backend behind each transaction
        pids |= {connection.one("SELECT pg_backend_pid()") for _ in range(3)}
    return [
        (version < OLDEST, _ERROR, f"PostgreSQL {version // 10000} is too old; 15 or newer is needed", "Upgrade it."),
        (wal_level != "logical", _ERROR, f"wal_level is {wal_level}; logical decoding needs logical",
         "ALTER SYSTEM SET wal_level = 'logical'; and restart the server."),
        (not replicates, _ERROR, f"the role {user} may not replicate", f"ALTER ROLE {quoted(user)} REPLICATION;"),
        (in_recovery, _ERROR, "the server is a standby; slot and publication are made elsewhere", "Use the primary."),
        (is_converted, _WARNING, f"the database's encoding is {encoding}", "It is converted to UTF-8."),
        (keep_size == "-1", _WARNING,
         "max_slot_wal_keep_size is unlimited: a pipeline that is stopped for long can fill the server's disk",
         "ALTER SYSTEM SET max_slot_wal_keep_size = '100GB'; SELECT pg_reload_conf();"),
        (is_open, _WARNING, f"sslmode={mode} does not insist on encryption", "Add sslmode=verify-full to source.dsn."),
        (lost is not None, _ERROR, f"the slot {names.slot} was invalidated: {lost}",
         "Copy every table again, after uninstall."),
        (status == "unreserved", _WARNING, f"the slot {names.slot} is about to lose its log",
         "Run the pipeline now, or raise the limit."),
        *(
            (used + needed > most, _ERROR, f"{name} is {most}, of which {used} are in use",
             f"ALTER SYSTEM SET {name} = {most + 4}; and restart the server.")
            for used, most, name in ((*in_use[:2], "max_replication_slots"), (*in_use[2:], "max_wal_senders"))
        ),
        (len(pids) > 1, _ERROR, "a connection pooler is in between; replication needs the server itself",
         "Correct source.dsn."),
    ]  # fmt: skip


def _of_publication(
    coverage: Coverage, names: Names, slot: Slot | None, chosen: Sequence[TableId], *, provision: bool
) -> list[_Found]:
    """What ``prepare`` will make; without ``provision`` somebody else has to, so each statement is an error."""
    is_there, statement = coverage.members is not None, coverage.statement(chosen)
    missing = sum(coverage.member(table) is None for table in chosen)
    return [
        *((True, _ERROR, one.problem, one.remedy) for one in coverage.shortcomings),
        (statement is not None and (is_there or not provision), _WARNING if provision else _ERROR,
         f"{missing} tables are not published yet", f"{statement};"),
        (provision and not is_there and slot is not None, _WARNING,
         f"the publication {names.publication} was dropped, so that changes are in no stream since then",
         "Start the pipeline: it is made again, and every table is copied again. Or begin again: uninstall."),
        (not provision and slot is None, _ERROR, "there is no replication slot, and source.provision is off",
         f"{slot_statement(names.slot)};"),
    ]  # fmt: skip


def _of_table(table: SourceTable, *, reads: bool, hides: bool, before_images: bool) -> list[_Found]:
    name = sql_name(table.id)
    renames = []
    for column in (one.name for one in table.columns):
        fixed = "".join("_" if letter in _REFUSED_BY_DELTA else letter for letter in column)
        if fixed != column or column.lower().startswith("_lakefeed"):
            remedy = f"ALTER TABLE {name} RENAME COLUMN {quoted(column)} TO {quoted(fixed.lstrip('_') or 'renamed')};"
            renames.append((True, _ERROR, f"lake tables refuse the column name '{column}'", remedy))
    return [
        (not reads, _ERROR, "this role may not read it", f"GRANT SELECT ON {name} TO CURRENT_USER;"),
        (hides, _ERROR, "row security hides rows of it from this role", "ALTER ROLE CURRENT_USER BYPASSRLS;"),
        (not table.key, _WARNING, "no key: rows are matched as a whole, and each update is a delete and an insert",
         f"ALTER TABLE {name} ADD PRIMARY KEY (…);"),
        *renames,
        (before_images and bool(table.not_whole), _WARNING,
         "no before images, because its replica identity does not log old rows whole",
         " ".join(f"ALTER TABLE {one} REPLICA IDENTITY FULL;" for one in table.not_whole)),
    ]  # fmt: skip
