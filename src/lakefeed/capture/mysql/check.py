"""``lakefeed check`` for MySQL and MariaDB: what prevents capture, and the statements that repair it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain

import pymysql

from lakefeed.capture.base import Finding, Level, Statement
from lakefeed.capture.log import Choose
from lakefeed.capture.mysql.database import Connection, Database, quoted
from lakefeed.capture.mysql.dialect import MysqlDialect, MysqlSession, read_columns, unknown_charset
from lakefeed.capture.mysql.history import GTID_MODE, wait_for_commits
from lakefeed.capture.mysql.resume import MysqlResumePoint
from lakefeed.capture.select import refused_names
from lakefeed.change.choice import is_literal
from lakefeed.errors import ConfigError, PositionLostError, SourceChangedError, SourceSetupError

_LEAST_SECONDS = 86_400
_OLDEST = {"mysql": (8, 0), "mariadb": (10, 6)}
_WANTED = {"binlog_format": "ROW", "binlog_row_image": "FULL", "binlog_row_metadata": "FULL"}
_NAMES = (
    "log_bin", *_WANTED, "binlog_row_value_options", "gtid_mode", "server_id", "binlog_expire_logs_seconds",
    "expire_logs_days",
)  # fmt: skip
_TOO = "-- and set the same in the server's option file"
_ERROR, _WARNING = Level.ERROR, Level.WARNING
_NO_SELECT = 1142

Problem = tuple[Level, str, str]
"""Level, problem, remedy."""


def check_source(
    database: Database, resume: MysqlResumePoint, patterns: Sequence[str], choose: Choose
) -> tuple[Finding, ...]:
    """All findings. An unreachable server raises an error."""
    with database.connection() as connection:
        rows = connection.run(f"SHOW GLOBAL VARIABLES WHERE Variable_name IN {_NAMES}")
        settings = {str(name): str(value).upper() for name, value in rows}
        kept_seconds = int(settings.get("binlog_expire_logs_seconds", "0") or 0)
        kept_seconds = kept_seconds or int(float(settings.get("expire_logs_days", "0") or 0) * 86_400)
        name, _, host = str(connection.value("SELECT CURRENT_USER()")).rpartition("@")
        account = f"'{name}'@'{host}'"
        hidden = list(_hidden_databases(connection, patterns, account))
        of_server = chain(_of_server(connection, settings, account), _of_log(resume, kept_seconds), hidden)
        found = [Finding(level=level, problem=problem, remedy=remedy) for level, problem, remedy in of_server]
        if hidden:
            return tuple(found)  # patterns cannot match what the account cannot see
        dialect = MysqlDialect(database.dsn, database.flavour)
        try:
            chosen = choose(MysqlSession(database, connection, dialect).tables())
        except ConfigError as error:
            unseen = f"The server shows {account} only what it may read: GRANT SELECT ON `the database`.* TO {account};"
            remedy = f"{error.remedy or 'Correct source.tables.'} {unseen}"
            return (*found, Finding(level=_ERROR, problem=error.message, remedy=remedy))
        for table, (columns, key) in read_columns(connection, chosen).items():
            sql, problems = f"{quoted(table.schema)}.{quoted(table.name)}", list[Problem]()
            try:
                connection.run(f"SELECT 1 FROM {sql} LIMIT 0")  # noqa: S608  # a quoted name
            except pymysql.err.OperationalError as refused:
                if refused.args[0] != _NO_SELECT:
                    raise
                grant = Statement(f"GRANT SELECT ON {sql} TO {account};")
                problems.append((_ERROR, f"the account {account} may not read it", grant))
            if not key:
                problem = "no primary key: rows are matched as a whole, and each update is a delete and an insert"
                problems.append((_WARNING, problem, f"ALTER TABLE {sql} ADD PRIMARY KEY (…);"))
            if (odd := unknown_charset(columns)) is not None:
                remedy = Statement(f"ALTER TABLE {sql} CONVERT TO CHARACTER SET utf8mb4;")
                problems.append((_ERROR, f"Lakefeed cannot decode the character set of its column {odd}", remedy))
            for column, problem, better in refused_names(one.name for one in columns):
                remedy = Statement(f"ALTER TABLE {sql} RENAME COLUMN {quoted(column)} TO {quoted(better)};")
                problems.append((_ERROR, problem, remedy))
            for level, problem, remedy in problems:
                found.append(Finding(level=level, problem=f"{table}: {problem}", remedy=remedy, table=table))
    return tuple(found)


def _hidden_databases(connection: Connection, patterns: Sequence[str], account: str) -> Iterator[Problem]:
    """Databases that a pattern names and the account cannot see. The server does not say whether they exist."""
    there = {str(row[0]).lower() for row in connection.run("SHOW DATABASES")}
    for schema in dict.fromkeys(one.partition(".")[0] for one in patterns if "." in one and not one.startswith("!")):
        if is_literal(schema) and schema.lower() not in there:
            problem = f"the database {schema} does not exist, or the account {account} has no privileges in it"
            grant = f"GRANT SELECT ON {quoted(schema)}.* TO {account}; -- or correct source.tables"
            yield _ERROR, problem, Statement(grant)


def _of_server(connection: Connection, settings: dict[str, str], account: str) -> Iterator[Problem]:
    database, version = connection.database, connection.version
    if version[:2] < (oldest := _OLDEST[database.flavour]):
        have, need = (".".join(map(str, one)) for one in (version, oldest))
        yield _ERROR, f"the server is {have}; {need} or newer is needed", "Upgrade the server."
    if settings.get("log_bin") != "ON":
        yield _ERROR, "the server writes no binlog", "Set log_bin = bin in the server's option file, and restart it."
    for name, wanted in _WANTED.items():
        if settings.get(name, wanted) != wanted:
            remedy = Statement(f"SET GLOBAL {name} = '{wanted}'; {_TOO}, then have applications reconnect")
            yield _ERROR, f"{name} is {settings[name]}; capture needs {wanted}", remedy
    if settings.get("binlog_row_value_options", ""):
        problem = "binlog_row_value_options is PARTIAL_JSON: the log leaves out parts of JSON values"
        yield _ERROR, problem, Statement(f"SET GLOBAL binlog_row_value_options = ''; {_TOO}")
    if database.flavour == "mysql" and settings.get("gtid_mode") != "ON":
        problem = "gtid_mode is not ON: Lakefeed tracks file and offset, and cannot follow a promoted replica"
        yield _WARNING, problem, Statement(GTID_MODE)
        try:
            wait_for_commits(connection)
        except SourceSetupError as refused:
            yield _ERROR, refused.message, refused.remedy
        except pymysql.err.OperationalError:
            remedy = Statement(f"GRANT SELECT ON performance_schema.metadata_locks TO {account};")
            yield _ERROR, "the account cannot see metadata locks, which show whether a commit has finished", remedy
    if settings.get("server_id") == "0":
        yield _ERROR, "server_id is 0: the server sends its log to nobody", Statement("SET GLOBAL server_id = 1;")
    granted = [str(row[0]).upper().removeprefix("GRANT ").partition(" ON ") for row in connection.run("SHOW GRANTS")]
    rights = {one.strip() for names, _, scope in granted if scope.startswith("*.*") for one in names.split(",")}
    for right in ("REPLICATION SLAVE", "BINLOG MONITOR" if database.flavour == "mariadb" else "REPLICATION CLIENT"):
        if not {right, "ALL PRIVILEGES"} & rights:
            remedy = Statement(f"GRANT {right} ON *.* TO {account};")
            yield _ERROR, f"the account {account} lacks the privilege {right}", remedy
    if not database.is_local and database.ssl_mode in ("DISABLED", "REQUIRED"):
        problem = f"ssl-mode={database.ssl_mode} does not verify the server"
        yield _WARNING, problem, "Add ssl-mode=VERIFY_IDENTITY and ssl-ca=… to source.dsn."


def _of_log(resume: MysqlResumePoint, kept_seconds: int) -> Iterator[Problem]:
    """Whether the server keeps its binlog long enough, and still has what the pipeline needs next."""
    if 0 < kept_seconds < _LEAST_SECONDS:
        hours = f"{kept_seconds / 3600:.1f} h"
        problem = f"the binlog is kept for {hours}: a pipeline that stops for longer must copy every table again"
        yield _WARNING, problem, Statement(f"SET GLOBAL binlog_expire_logs_seconds = 604800; {_TOO}")
    if (position := resume.find()) is None:
        return
    try:
        resume.examine(position)
    except (PositionLostError, SourceChangedError) as error:
        yield _ERROR, error.message, error.remedy
        return
    except SourceSetupError:  # a privilege is missing; another finding reports that
        return
    away = resume.away_seconds()
    if kept_seconds and away > kept_seconds / 2:
        hours = f"{away / 3600:.1f} h, and the server keeps its log for {kept_seconds / 3600:.1f} h"
        problem = f"nothing was confirmed for {hours}: once the log is purged, every table is copied again"
        remedy = f"SET GLOBAL binlog_expire_logs_seconds = {4 * int(away)}; {_TOO}; and run the pipeline"
        yield _WARNING, problem, Statement(remedy)
