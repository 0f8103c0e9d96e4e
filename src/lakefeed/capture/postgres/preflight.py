"""``lakefeed check`` for PostgreSQL: what prevents capture, and the statements that repair it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from lakefeed.capture.base import Finding, Level, Statement
from lakefeed.capture.log import Choose
from lakefeed.capture.postgres.catalog import SourceTable, one_reading, read_tables, sql_name, with_columns
from lakefeed.capture.postgres.database import Connection, Database, Names, quoted
from lakefeed.capture.postgres.publication import Coverage, Publications, Wanted, read_publications
from lakefeed.capture.postgres.slot import Slot, slot_statement, usable_slot
from lakefeed.capture.select import refused_names
from lakefeed.change.table import TableId
from lakefeed.errors import ConfigError, SourceSetupError, SourceUnavailableError

_ENCRYPTED, _LOCAL = ("require", "verify-ca", "verify-full"), ("localhost", "127.0.0.1", "::1")
OLDEST, _ERROR, _WARNING = 150_000, Level.ERROR, Level.WARNING

_SERVER = """
SELECT current_user::text, (SELECT rolreplication OR rolsuper FROM pg_roles WHERE rolname = current_user),
       pg_is_in_recovery(), current_setting('wal_level'), current_setting('max_slot_wal_keep_size'),
       current_setting('server_encoding'), (SELECT count(*) FROM pg_replication_slots),
       current_setting('max_replication_slots')::int4, (SELECT count(*) FROM pg_stat_replication),
       current_setting('max_wal_senders')::int4,
       (SELECT coalesce(string_agg(slot_name, ', ' ORDER BY slot_name), '') FROM pg_replication_slots
         WHERE slot_type = 'physical' AND active AND NOT temporary),
       coalesce(current_setting('synchronized_standby_slots', true), 'not there')"""

_RIGHTS = """
SELECT has_database_privilege(current_database(), 'CREATE'), current_database()::text,
       (SELECT pg_has_role(pubowner, 'USAGE') FROM pg_publication WHERE pubname = %s),
       (SELECT count(*) FROM pg_class c WHERE c.oid = ANY(%s) AND NOT pg_has_role(c.relowner, 'USAGE'))"""

_PRIVILEGES = """
SELECT c.oid::int8, has_table_privilege(c.oid, 'SELECT'), has_schema_privilege(c.relnamespace, 'USAGE'),
       c.relrowsecurity AND (c.relforcerowsecurity OR NOT pg_has_role(c.relowner, 'USAGE'))
       AND NOT (SELECT rolbypassrls OR rolsuper FROM pg_roles WHERE rolname = current_user)
  FROM pg_class c WHERE c.oid = ANY(%s)"""

_Found = tuple[bool, Level, str, str]  # whether the problem exists, its level, the problem, the remedy


def check_source(
    database: Database, asked: Callable[[], Wanted], choose: Choose, *, provision: bool, before_images: bool
) -> tuple[Finding, ...]:
    """All findings. An unreachable server raises an error."""
    wanted = asked()
    names, choices = wanted.names, wanted.choices
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
                chosen = choose({table: source.refusal(choices) for table, source in there.items()})
                tables = with_columns(connection, [there[table] for table in chosen])
        except ConfigError as error:
            return (*found, *_findings([(True, _ERROR, error.message, error.remedy)]))
        there |= {table.id: table for table in tables}
        published = read_publications(connection, wanted, there)
        version = connection.info.server_version
        found += _findings(_of_publication(published, slot, tables, version, provision=provision))
        (user,) = connection.one("SELECT current_user::text")
        unpublished = [table.oid for table in tables if published.member(table) is None]
        if provision and unpublished:
            found += _findings(_of_rights(connection, published, user, tables, unpublished))
        granted = {oid: rights for oid, *rights in connection.execute(_PRIVILEGES, ([one.oid for one in tables],))}
        for table in tables:
            reads, enters, hides = granted.get(table.oid, (True, True, False))
            rights = {"reads": reads, "enters": enters, "hides": hides}
            found += _findings(_of_table(table, user, before_images=before_images, **rights), table.id)
            found += _findings(_of_columns(table, published), table.id)
        # Tables in the chosen schemas whose changes the log does not have: reported, not skipped in silence.
        schemas = {table.schema for table in chosen or there}
        for name, source in there.items():
            if (refusal := source.refusal(choices)) is not None and name.schema in schemas:
                found += _findings([
                    (True, _WARNING, f"left out: {refusal.reason}", refusal.remedy),
                    (published.main.member(name) is not None, _ERROR,
                     "it is published all the same, so PostgreSQL may refuse UPDATE and DELETE on it",
                     Statement(f"{published.main.removal(name)};")),
                ], name)  # fmt: skip
    return tuple(found)


def _findings(found: Sequence[_Found], table: TableId | None = None) -> list[Finding]:
    of = f"{table}: " if table is not None else ""
    so = [(level, f"{of}{problem}", remedy) for is_so, level, problem, remedy in found if is_so]
    return [Finding(level=level, problem=problem, remedy=remedy, table=table) for level, problem, remedy in so]


def _of_server(database: Database, connection: Connection, names: Names, slot: Slot | None) -> list[_Found]:
    (user, replicates, in_recovery, wal_level, keep_size, encoding, *in_use, standbys, awaited) = connection.one(
        _SERVER
    )
    version, needed = connection.info.server_version, 1 if slot is not None else 2  # a copy needs a temporary one, too
    host, mode = connection.info.host or "/", database.parameters.get("sslmode", "prefer")
    # ``prefer``, the default, silently falls back to plain text.
    is_open = not host.startswith("/") and host not in _LOCAL and mode not in _ENCRYPTED
    lost, status = (slot.lost, slot.report["wal_status"]) if slot is not None else (None, None)
    is_converted, pids = encoding not in ("UTF8", "SQL_ASCII"), {(connection.info.backend_pid,)}
    if slot is None and version >= OLDEST:  # behind a pooler, each transaction may have another backend
        pids |= {connection.one("SELECT pg_backend_pid()") for _ in range(3)}
    return [
        (version < OLDEST, _ERROR, f"PostgreSQL {version // 10000} is too old; 15 or newer is needed", "Upgrade it."),
        (wal_level != "logical", _ERROR, f"wal_level is {wal_level}; logical decoding needs logical",
         Statement("ALTER SYSTEM SET wal_level = 'logical'; -- then restart the server")),
        (not replicates, _ERROR, f"the role {user} lacks the attribute REPLICATION",
         Statement(f"ALTER ROLE {quoted(user)} REPLICATION;")),
        (in_recovery, _ERROR, "the server is a standby; slot and publication need the primary", "Use the primary."),
        (is_converted, _WARNING, f"the database's encoding is {encoding}", "It is converted to UTF-8."),
        (keep_size == "-1", _WARNING,
         "max_slot_wal_keep_size is unlimited: a pipeline that is stopped for long can fill the server's disk",
         Statement("ALTER SYSTEM SET max_slot_wal_keep_size = '100GB'; SELECT pg_reload_conf();")),
        (is_open, _WARNING, f"sslmode={mode} does not require encryption", "Add sslmode=verify-full to source.dsn."),
        (bool(standbys) and not awaited, _WARNING,
         "synchronized_standby_slots is empty: a promoted standby may lack captured changes, and all is copied again",
         Statement(f"ALTER SYSTEM SET synchronized_standby_slots = '{standbys}'; SELECT pg_reload_conf();")),
        (slot is not None and slot.report.get("failover") is False, _WARNING,
         f"the slot {names.slot} does not survive a fail-over",
         "Start the pipeline with source.provision, which changes that: lakefeed sync FILE"),
        (lost is not None, _ERROR, f"the slot {names.slot} was invalidated: {lost}",
         "Begin again, which copies every table: lakefeed uninstall FILE, then lakefeed sync FILE"),
        (status == "unreserved", _WARNING, f"the slot {names.slot} is about to lose its log",
         "Run the pipeline now, or raise the limit."),
        *(
            (used + needed > most, _ERROR, f"{name} is {most}, of which {used} are in use",
             Statement(f"ALTER SYSTEM SET {name} = {most + 4}; -- then restart the server"))
            for used, most, name in ((*in_use[:2], "max_replication_slots"), (*in_use[2:], "max_wal_senders"))
        ),
        (len(pids) > 1, _ERROR, "a connection pooler is in between; replication needs a direct connection",
         "Correct source.dsn."),
    ]  # fmt: skip


def _of_columns(table: SourceTable, published: Publications) -> list[_Found]:
    """What column lists mean for a table, and whether only its inserts are captured for lack of a key."""
    coverage, columns = published.of(table), published.wanted.columns(table)
    again = f"{coverage.removal(table.id)}; {Coverage(coverage.name, members={}).statement({table.id: columns})};"
    is_full = published.wanted.column_lists and not columns and any(
        not published.wanted.choices.of(table.id).takes(one.name) for one in table.columns if one.name not in table.key
    )  # fmt: skip
    return [
        (coverage is published.inserts, _WARNING,
         "it has no key, and only its inserts are captured (keyless: inserts); updates and deletes are not seen",
         "Compare now and then: lakefeed verify FILE. To capture all changes, give the table a primary key."),
        (bool(columns) and coverage.member(table.id) is not None and table.id not in coverage.hidden, _WARNING,
         "it is published with all its columns, although some are left out; once they are not, it is copied again",
         Statement(again)),
        (is_full, _WARNING,
         "its replica identity is FULL, so columns that are left out still leave the server", "Give it a primary key."),
    ]  # fmt: skip


def _of_publication(
    published: Publications, slot: Slot | None, tables: Sequence[SourceTable], version: int, *, provision: bool
) -> list[_Found]:
    """What ``prepare`` will create. Without ``provision`` somebody else has to, so each statement is an error."""
    coverage, names = published.main, published.wanted.names
    is_there, statement = coverage.members is not None, "; ".join(published.statements(tables))
    missing = sum(published.member(table) is None for table in tables)
    return [
        *((True, _ERROR, one.problem, Statement(one.remedy)) for one in published.shortcomings),
        (bool(statement) and (is_there or not provision), _WARNING if provision else _ERROR,
         f"{missing} {'table is' if missing == 1 else 'tables are'} not published yet", Statement(f"{statement};")),
        (provision and not is_there and slot is not None, _WARNING,
         f"the publication {names.publication} was dropped, so no stream has the changes since then",
         "Start the pipeline: it recreates the publication, and every table is copied again: lakefeed sync FILE"),
        (not provision and slot is None, _ERROR, "there is no replication slot, and source.provision is off",
         Statement(f"{slot_statement(names.slot, version)};")),
    ]  # fmt: skip


def _of_rights(
    connection: Connection,
    published: Publications,
    user: str,
    tables: Sequence[SourceTable],
    unpublished: Sequence[int],
) -> list[_Found]:
    """What keeps this role from publishing tables itself. Somebody with the privileges publishes them for it, once."""
    coverage = published.main
    creates, database, alters, foreign = connection.one(_RIGHTS, coverage.name, list(unpublished))
    is_there, statement = coverage.members is not None, Statement(f"{'; '.join(published.statements(tables))};")
    own = "one of the tables" if foreign == 1 else f"{foreign} of the tables"
    return [
        (bool(foreign), _ERROR, f"the role {user} does not own {own}, so it may not publish them", statement),
        (not foreign and is_there and not alters, _ERROR,
         f"the role {user} does not own the publication {coverage.name}, so it may not add tables to it", statement),
        (not foreign and not is_there and not creates, _ERROR,
         f"the role {user} may not create a publication in the database {database}",
         Statement(f"GRANT CREATE ON DATABASE {quoted(database)} TO {quoted(user)};")),
    ]  # fmt: skip


def _of_table(
    table: SourceTable, user: str, *, reads: bool, enters: bool, hides: bool, before_images: bool
) -> list[_Found]:
    name, role = sql_name(table.id), quoted(user)
    rename = f"ALTER TABLE {name} RENAME COLUMN {{}} TO {{}};"
    return [
        (not enters, _ERROR, f"the role {user} may not use its schema",
         Statement(f"GRANT USAGE ON SCHEMA {quoted(table.id.schema)} TO {role};")),
        (not reads, _ERROR, f"the role {user} may not read it", Statement(f"GRANT SELECT ON {name} TO {role};")),
        (hides, _ERROR, f"row security hides rows from the role {user}", Statement(f"ALTER ROLE {role} BYPASSRLS;")),
        (not table.key, _WARNING, "no key: rows are matched as a whole, and each update is a delete and an insert",
         f"ALTER TABLE {name} ADD PRIMARY KEY (…);"),
        *((True, _ERROR, problem, Statement(rename.format(quoted(column), quoted(better))))
          for column, problem, better in refused_names(one.name for one in table.columns)),
        (before_images and bool(table.not_whole), _WARNING,
         "no before images, because its replica identity does not log old rows whole",
         Statement(" ".join(f"ALTER TABLE {one} REPLICA IDENTITY FULL;" for one in table.not_whole))),
    ]  # fmt: skip
