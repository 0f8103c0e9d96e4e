"""``lakefeed check`` for MySQL and MariaDB: what stands in the way, and the statement that repairs it."""

from __future__ import annotations

from collections.abc import Iterator

import pymysql

from lakefeed.capture.base import Finding, Level
from lakefeed.capture.log import Choose
from lakefeed.capture.mysql.columns import ZeroDates
from lakefeed.capture.mysql.database import Connection, Database, quoted
from lakefeed.capture.mysql.dialect import MysqlSession, read_columns, unknown_charset
from lakefeed.capture.mysql.history import GTID_MODE, wait_for_commits
from lakefeed.capture.select import refused_names
from lakefeed.errors import ConfigError, SourceSetupError

_LEAST_SECONDS = 86_400
_OLDEST = {"mysql": (8, 0), "mariadb": (10, 6)}


def check_source(database: Database, choose: Choose) -> tuple[Finding, ...]:
    """All findings. An unreachable server is an error and not a finding."""
    with database.connection() as connection:
        found = list(_of_server(database, connection))
        session = MysqlSession(database, connection, ZeroDates.STOP)
        try:
            chosen = choose(session.tables())
        except ConfigError as error:
            return (*found, Finding(level=Level.ERROR, problem=error.message, remedy=error.remedy))
        for table, (columns, key) in read_columns(connection, chosen).items():
            name, problems = f"{quoted(table.schema)}.{quoted(table.name)}", list[tuple[Level, str, str]]()
            if not key:
                problem = "no primary key: rows are matched as a whole, and each update is a delete and an insert"
                problems.append((Level.WARNING, problem, f"ALTER TABLE {name} ADD PRIMARY KEY (…);"))
            if (odd := unknown_charset(columns)) is not None:
                problem = f"the character set of its column {odd} is not known here"
                problems.append((Level.ERROR, problem, f"ALTER TABLE {name} CONVERT TO CHARACTER SET utf8mb4;"))
            for column, problem, better in refused_names(one.name for one in columns):
                remedy = f"ALTER TABLE {name} RENAME COLUMN {quoted(column)} TO {quoted(better)};"
                problems.append((Level.ERROR, problem, remedy))
            for level, problem, remedy in problems:
                found.append(Finding(level=level, problem=f"{table}: {problem}", remedy=remedy, table=table))
    return tuple(found)


def _of_server(database: Database, connection: Connection) -> Iterator[Finding]:
    def error(problem: str, remedy: str) -> Finding:
        return Finding(level=Level.ERROR, problem=problem, remedy=remedy)

    def warning(problem: str, remedy: str) -> Finding:
        return Finding(level=Level.WARNING, problem=problem, remedy=remedy)

    names = "'log_bin', 'binlog_format', 'binlog_row_image', 'binlog_row_metadata', 'binlog_row_value_options', \
'gtid_mode', 'server_id', 'binlog_expire_logs_seconds', 'expire_logs_days', 'log_slave_updates', 'log_replica_updates'"
    rows = connection.run(f"SHOW GLOBAL VARIABLES WHERE Variable_name IN ({names})")
    settings: dict[str, str] = {str(name): str(value).upper() for name, value in rows}
    flavour, version = database.flavour, connection.version
    name, _, host = str(connection.value("SELECT CURRENT_USER()")).rpartition("@")
    account = f"'{name}'@'{host}'"
    if version[:2] < _OLDEST[flavour]:
        needed = ".".join(map(str, _OLDEST[flavour]))
        yield error(f"the server is {'.'.join(map(str, version))}; {needed} or newer is needed", "Upgrade the server.")
    if settings.get("log_bin") != "ON":
        yield error("the server writes no binlog", "Set log_bin = bin in the server's file, and restart it.")
    for setting, wanted in (("binlog_format", "ROW"), ("binlog_row_image", "FULL"), ("binlog_row_metadata", "FULL")):
        if settings.get(setting, wanted) != wanted:
            problem = f"{setting} is {settings[setting]}; capture needs {wanted}"
            yield error(problem, f"SET GLOBAL {setting} = '{wanted}'; and the same in the server's file.")
    if settings.get("binlog_row_value_options", ""):
        problem = "binlog_row_value_options is PARTIAL_JSON: the log leaves out parts of JSON values"
        yield error(problem, "SET GLOBAL binlog_row_value_options = ''; and the same in the server's file.")
    if flavour == "mysql" and settings.get("gtid_mode") != "ON":
        problem = "gtid_mode is not ON: Lakefeed follows the server by file and offset, and not to a promoted replica"
        yield warning(problem, GTID_MODE)
        try:
            wait_for_commits(connection)
        except SourceSetupError as refused:
            yield error(refused.message, refused.remedy)
        except pymysql.err.OperationalError:
            remedy = f"GRANT SELECT ON performance_schema.metadata_locks TO {account};"
            yield error("the account cannot see metadata locks, which tell whether a commit is over", remedy)
    if settings.get("server_id") == "0":
        yield error("server_id is 0: the server sends its log to nobody", "SET GLOBAL server_id = 1;")
    kept = int(settings.get("binlog_expire_logs_seconds", "0") or 0)
    kept = kept or int(float(settings.get("expire_logs_days", "0") or 0) * 86_400)
    if 0 < kept < _LEAST_SECONDS:
        problem = f"the binlog is kept for {kept / 3600:.0f} h: a pipeline that is stopped for longer copies all again"
        yield warning(problem, "SET GLOBAL binlog_expire_logs_seconds = 604800; and the same in the server's file.")
    granted = " ".join(str(row[0]).upper() for row in connection.run("SHOW GRANTS"))
    for right in ("REPLICATION SLAVE", "BINLOG MONITOR" if flavour == "mariadb" else "REPLICATION CLIENT"):
        if right not in granted and "ALL PRIVILEGES ON *.*" not in granted:
            yield error(f"the account {account} has no right {right}", f"GRANT {right} ON *.* TO {account};")
    if not database.is_local and database.ssl_mode in ("DISABLED", "REQUIRED"):
        problem = f"ssl-mode={database.ssl_mode} does not verify the server"
        yield warning(problem, "Add ssl-mode=VERIFY_IDENTITY and ssl-ca=… to source.dsn.")
