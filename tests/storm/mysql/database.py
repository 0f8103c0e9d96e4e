"""MySQL and MariaDB for the storm: a server of its own, its sessions, who waits for whom, and its tables as it prints
them. Lakefeed has an account of its own, with the rights that docs/mysql.md names: that is how its sessions are known.
"""

from __future__ import annotations

import shutil
from collections import defaultdict
from pathlib import Path
from typing import Any

import pymysql
from pymysql.constants import CLIENT
from tests.storm.database import (
    ConnectionLostError,
    Database,
    Relation,
    Row,
    Session,
    StatementError,
    Wait,
    because_of,
)
from tests.storm.mysql.model import MariadbModel, MysqlModel
from tests.storm.profile import Profile

from lakefeed.testing.server.mysql import Flavour, MysqlServer

OURS = "lakefeed"

# What was committed survives the end of the process: otherwise a crash would leave a log that has more than the tables.
_SETTINGS = {
    "performance_schema": "ON",
    "performance_schema_instrument": "wait/lock/metadata/sql/mdl=ON",
    "innodb_flush_log_at_trx_commit": "1",
    "sync_binlog": "1",
}
# An application does not wait for ever, either: what ends here is its own failure unless Lakefeed was the blocker.
_SESSION = "SET SESSION lock_wait_timeout = 15, innodb_lock_wait_timeout = 15, time_zone = '+00:00'"
_CREATE = """
CREATE DATABASE storm CHARACTER SET utf8mb4; CREATE DATABASE elsewhere CHARACTER SET utf8mb4; USE storm;
CREATE TABLE elsewhere.numbers (n int PRIMARY KEY);
INSERT INTO elsewhere.numbers SELECT 1 + a.i + 16 * b.i + 256 * c.i FROM {d} a, {d} b, {d} c;
CREATE TABLE heartbeat (id bigint PRIMARY KEY, at timestamp(6) NOT NULL DEFAULT current_timestamp(6));
CREATE TABLE shared_account (id int PRIMARY KEY, balance decimal(30, 4) NOT NULL, note text);
CREATE TABLE shared_event (id bigint PRIMARY KEY AUTO_INCREMENT, what text, at timestamp DEFAULT current_timestamp);
CREATE USER lakefeed; GRANT REPLICATION SLAVE, {monitor} ON *.* TO lakefeed; GRANT SELECT ON storm.* TO lakefeed;
"""
_DIGITS = "(" + " UNION ALL ".join(f"SELECT {digit} AS i" for digit in range(16)) + ")"
_SESSIONS = "SELECT ID, USER, LEFT(COALESCE(INFO, ''), 200) FROM information_schema.PROCESSLIST"
_METADATA_LOCKS = """
SELECT t.PROCESSLIST_ID, CONCAT_WS('.', m.OBJECT_TYPE, m.OBJECT_SCHEMA, m.OBJECT_NAME), m.LOCK_TYPE, m.LOCK_STATUS
  FROM performance_schema.metadata_locks m JOIN performance_schema.threads t ON t.THREAD_ID = m.OWNER_THREAD_ID
 WHERE t.PROCESSLIST_ID IS NOT NULL AND m.OBJECT_TYPE IN ('TABLE', 'SCHEMA') AND m.OBJECT_SCHEMA <> 'performance_schema'
"""
_ROW_LOCKS: dict[Flavour, str] = {
    "mysql": """
SELECT r.PROCESSLIST_ID, b.PROCESSLIST_ID FROM performance_schema.data_lock_waits w
  JOIN performance_schema.threads r ON r.THREAD_ID = w.REQUESTING_THREAD_ID
  JOIN performance_schema.threads b ON b.THREAD_ID = w.BLOCKING_THREAD_ID""",
    "mariadb": """
SELECT r.trx_mysql_thread_id, b.trx_mysql_thread_id FROM information_schema.INNODB_LOCK_WAITS w
  JOIN information_schema.INNODB_TRX r ON r.trx_id = w.requesting_trx_id
  JOIN information_schema.INNODB_TRX b ON b.trx_id = w.blocking_trx_id""",
}
_COLUMNS = """
SELECT t.TABLE_NAME, c.COLUMN_NAME FROM information_schema.TABLES t JOIN information_schema.COLUMNS c
    ON c.TABLE_SCHEMA = t.TABLE_SCHEMA AND c.TABLE_NAME = t.TABLE_NAME
 WHERE t.TABLE_SCHEMA = 'storm' AND t.TABLE_TYPE = 'BASE TABLE' ORDER BY t.TABLE_NAME, c.ORDINAL_POSITION"""
# Type → how a value is printed so that ``lake.differences`` can read it.
_PRINTED = {
    "bit": "{c} + 0",
    "float": "{c} + 0e0",
    "timestamp": "CONCAT({c}, '+00:00')",
    **dict.fromkeys(("blob", "binary", "varbinary"), "CONCAT('\\\\x', LOWER(HEX({c})))"),
}
_GONE = frozenset({1053, 1077, 1152, 1158, 1159, 1160, 1161, 1927})  # shutdown, and connections that were cut
_LOCK_ERRORS = frozenset({1205, 1213})
_WEAK = ("SHARED_READ", "SHARED_WRITE", "SHARED", "SHARED_HIGH_PRIO", "SHARED_READ_ONLY", "INTENTION_EXCLUSIVE")


class MysqlSession(Session):
    def __init__(self, database: MysqlStorm, name: str) -> None:
        self._database = database
        self._name = name
        self._connection: pymysql.Connection[Any] | None = None

    def execute(self, statement: str) -> None:
        try:
            if self._connection is None:
                self._connection = self._database.connect(self._name)
            self._run(statement)
        except (pymysql.err.Error, OSError) as error:
            code = error.args[0] if error.args and isinstance(error.args[0], int) else 0
            if isinstance(error, OSError | pymysql.err.InterfaceError) or 2000 <= code < 2100 or code in _GONE:
                self.close()
                raise ConnectionLostError(str(error)) from error
            ours = code in _LOCK_ERRORS and self._database.waited_for_us(self._connection)
            self.close()  # with its transaction, prepared or not, and its locks
            raise StatementError(f"{code} {error.args[-1]}", ours=ours) from error

    def _run(self, statement: str) -> None:
        """A string of several statements stays one message, as an application's may be."""
        assert self._connection is not None
        with self._connection.cursor() as cursor:
            cursor.execute(statement)
            while cursor.nextset():
                pass

    def close(self) -> None:
        if self._connection is not None and self._connection.open:
            self._connection.close()
        self._connection = None


class MysqlStorm(Database):
    def __init__(self, flavour: Flavour) -> None:
        self._flavour: Flavour = flavour
        self._server = MysqlServer.start(flavour, _SETTINGS)
        self._heart = self.session("storm heartbeat")
        self._watcher: pymysql.Connection[Any] | None = None
        self._because: dict[int, str] = {}

    def source(self) -> dict[str, Any]:
        return {"kind": self._flavour, "dsn": self._server.dsn.replace("root@", f"{OURS}@"), "tables": ["storm.*"]}

    def lake_folder(self) -> str:
        return "storm"

    def connect(self, name: str, **options: Any) -> pymysql.Connection[Any]:
        options = {"database": "storm", "client_flag": CLIENT.MULTI_STATEMENTS, "program_name": name, **options}
        return self._server.connect(init_command=_SESSION, read_timeout=120, **options)

    def create(self, sessions: int) -> None:
        monitor = "BINLOG MONITOR" if self._flavour == "mariadb" else "REPLICATION CLIENT"
        with self.connect("storm create", database=None) as connection, connection.cursor() as cursor:
            cursor.execute(_CREATE.format(d=_DIGITS, monitor=monitor))
            while cursor.nextset():
                pass

    def session(self, name: str) -> Session:
        return MysqlSession(self, name)

    def model(self, number: int, profile: Profile) -> MysqlModel:
        return (MariadbModel if self._flavour == "mariadb" else MysqlModel)(number, profile)

    def beat(self, number: int) -> None:
        self._heart.execute(f"INSERT INTO heartbeat (id) VALUES ({number})")

    def waited_for_us(self, connection: pymysql.Connection[Any] | None) -> bool:
        if connection is None:
            return False
        number: int = connection.thread_id()  # type: ignore[no-untyped-call]  # the driver has no stub for it
        return number in self._because

    def waits(self) -> list[Wait]:
        """A request for a weak metadata lock waits for strong ones that are held or were asked for; a request for a
        strong one waits for every holder."""
        try:
            if self._watcher is None:
                self._watcher = self.connect("storm watcher")
            with self._watcher.cursor() as cursor:
                cursor.execute(_SESSIONS)
                sessions = {int(number): (user, text) for number, user, text in cursor.fetchall()}
                cursor.execute(_METADATA_LOCKS)
                locks = cursor.fetchall()
                cursor.execute(_ROW_LOCKS[self._flavour])
                row_locks = cursor.fetchall()
        except (pymysql.err.Error, OSError) as error:
            self._watcher = None
            raise ConnectionLostError(str(error)) from error
        blocked: dict[int, set[int]] = defaultdict(set)
        for waiter, target, wanted, status in locks:
            if status != "PENDING":
                continue
            for holder, other, kind, held in locks:
                counts = kind not in _WEAK if wanted in _WEAK else held == "GRANTED"
                if other == target and holder != waiter and counts:
                    blocked[waiter].add(holder)
        for waiter, holder in row_locks:
            blocked[waiter].add(holder)
        ours = {number: f"{user}: {text}" for number, (user, text) in sessions.items() if user == OURS}
        self._because = because_of(ours, {one: holders for one, holders in blocked.items() if one not in ours})
        return [
            Wait(f"{one} {sessions.get(one, ('?', ''))[0]}", sessions.get(one, ("", ""))[1], text)
            for one, text in self._because.items()
        ]

    def restart(self, *, crash: bool) -> None:
        self._server.halt(immediate=crash)
        self._server.resume()

    def settle(self) -> None:
        with self.connect("storm settle") as connection, connection.cursor() as cursor:
            cursor.execute("XA RECOVER")
            for _, _, _, name in cursor.fetchall():
                text = name.decode() if isinstance(name, bytes) else name  # MariaDB has bytes here
                cursor.execute(f"XA COMMIT '{text}'")

    def tables(self) -> list[Relation]:
        found: dict[str, list[str]] = defaultdict(list)
        with self.connect("storm compare") as connection, connection.cursor() as cursor:
            cursor.execute(_COLUMNS)
            for table, column in cursor.fetchall():
                found[table].append(column)
        return [Relation(name, tuple(columns)) for name, columns in found.items()]

    def rows(self, relation: Relation) -> list[Row]:
        with self.connect("storm compare", conv={}) as connection, connection.cursor() as cursor:
            cursor.execute(
                "SELECT COLUMN_NAME, DATA_TYPE FROM information_schema.COLUMNS "
                f"WHERE TABLE_SCHEMA = 'storm' AND TABLE_NAME = '{relation.name}'"
            )
            types = dict(cursor.fetchall())
            columns = ", ".join(_PRINTED.get(types[one], "{c}").format(c=f"`{one}`") for one in relation.columns)
            cursor.execute(f"SELECT {columns} FROM `{relation.name}`")
            rows = cursor.fetchall()
        return [tuple(value.encode() if isinstance(value, str) else value for value in row) for row in rows]

    def close(self, log: Path) -> None:
        self._heart.close()
        shutil.copyfile(self._server.directory / "log", log)
        self._server.close()
