"""SQLite for the storm: a file in WAL mode, its sessions, who holds the write lock, and its tables as they are."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import Any

from tests.storm.database import ConnectionLostError, Database, Relation, Row, Session, StatementError, Wait
from tests.storm.profile import Profile
from tests.storm.sqlite.model import SqliteModel

_BUSY_SECONDS = 15.0
"""An application does not wait for ever, either: what ends here is its own failure unless Lakefeed had the lock."""
_CREATE = """
CREATE TABLE heartbeat (id INTEGER PRIMARY KEY, at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%d %H:%M:%f', 'now')));
CREATE TABLE shared_account (id INTEGER PRIMARY KEY, balance REAL NOT NULL, note TEXT);
CREATE TABLE shared_event (id INTEGER PRIMARY KEY AUTOINCREMENT, what TEXT, at TEXT DEFAULT CURRENT_TIMESTAMP);
"""
# sqlite.org/walformat.html and lockingv3.html: the write lock is a byte of the -shm file; VACUUM and switches of the
# journal mode lock the pending, reserved and shared bytes of the database.
_WAL_WRITE_BYTE = 120
_FILE_LOCKS = range(0x40000000, 0x40000000 + 512)
_CRASHING_WRITER = """
import sqlite3, sys, time
connection = sqlite3.connect(sys.argv[1], timeout=15, isolation_level=None)
connection.execute("BEGIN IMMEDIATE")
connection.execute("PRAGMA cache_size = 1")  # so that some of it is in the file already
connection.executemany("INSERT INTO shared_event (what) VALUES (?)", [(f"lost {n}" * 50,) for n in range(2000)])
print("written", flush=True)
time.sleep(60)
"""


class SqliteSession(Session):
    def __init__(self, database: SqliteStorm, name: str) -> None:
        self._database = database
        self._name = name
        self._connection: sqlite3.Connection | None = None
        self._epoch = 0

    def execute(self, statement: str) -> None:
        if self._connection is not None and self._epoch != self._database.epoch:
            self.close()
            raise ConnectionLostError("the application was restarted")
        if self._connection is None:
            self._epoch = self._database.epoch
            self._connection = self._database.connect()
        self._database.running[self._name] = statement
        try:
            self._connection.execute(statement).fetchall()
        except sqlite3.Error as error:
            ours = "_lakefeed" in str(error)
            if getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
                ours = self._database.holder() is not None
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            # An index's column cannot be dropped until Lakefeed has noticed that the index is gone (docs/sqlite.md).
            raise StatementError(str(error), ours=ours, passes="drop column" in str(error)) from error
        finally:
            self._database.running.pop(self._name, None)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None


class SqliteStorm(Database):
    def __init__(self) -> None:
        self._directory = Path(tempfile.mkdtemp(prefix="lakefeed-sqlite-"))
        self._path = self._directory / "storm.db"
        self.running: dict[str, str] = {}
        """Session → the statement that it runs at this moment."""
        self.epoch = 0
        """Sessions of an older epoch connect again."""
        self._heart = self.session("storm heartbeat")

    def source(self) -> dict[str, Any]:
        return {"kind": "sqlite", "path": str(self._path), "tables": ["*"]}

    def lake_folder(self) -> str:
        return "main"

    def connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self._path, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False)
        connection.create_function("sleep", 1, time.sleep)
        return connection

    def create(self, sessions: int) -> None:
        with closing(self.connect()) as connection:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.executescript(_CREATE)

    def session(self, name: str) -> Session:
        return SqliteSession(self, name)

    def model(self, number: int, profile: Profile) -> SqliteModel:
        return SqliteModel(number, profile)

    def beat(self, number: int) -> None:
        self._heart.execute(f"INSERT INTO heartbeat (id) VALUES ({number})")

    def holder(self) -> int | None:
        """The process that keeps writers waiting, if it is not this one: all sessions of the application are here."""
        try:
            shared, file = (Path(f"{self._path}{suffix}").stat().st_ino for suffix in ("-shm", ""))
        except FileNotFoundError:
            return None
        for line in Path("/proc/locks").read_text().splitlines():
            words = line.split()
            if words[1] != "POSIX" or words[3] != "WRITE":
                continue
            pid, inode, first = int(words[4]), int(words[5].rpartition(":")[2]), int(words[6])
            is_lock = (inode == shared and first == _WAL_WRITE_BYTE) or (inode == file and first in _FILE_LOCKS)
            if is_lock and pid != os.getpid():
                return pid
        return None

    def waits(self) -> list[Wait]:
        """Every statement that runs while another process has the write lock; what only reads ends soon anyway."""
        holder = self.holder()
        if holder is None:
            return []
        return [Wait(name, text[:200], f"process {holder}") for name, text in list(self.running.items())]

    def restart(self, *, crash: bool) -> None:
        """All sessions connect again; after a crash the log of a writer that died in its transaction is left."""
        if crash:
            command = [sys.executable, "-c", _CRASHING_WRITER, str(self._path)]
            with subprocess.Popen(command, stdout=subprocess.PIPE) as writer:
                assert writer.stdout is not None
                writer.stdout.readline()
                writer.kill()
        self.epoch += 1

    def settle(self) -> None:
        """Nothing outlives its session."""

    def tables(self) -> list[Relation]:
        listed = "SELECT name FROM pragma_table_list WHERE schema = 'main' AND type = 'table' ORDER BY name"
        with closing(self.connect()) as connection:
            found = []
            for (name,) in connection.execute(listed).fetchall():
                if name.startswith(("sqlite_", "_lakefeed_")):
                    continue
                columns = connection.execute(f"PRAGMA table_xinfo({name})").fetchall()
                has_key = any(column[5] for column in columns)
                found.append(Relation(name, (*(() if has_key else ("_rowid",)), *(column[1] for column in columns))))
        return found

    def rows(self, relation: Relation) -> list[Row]:
        """Every value in the text form that docs/sqlite.md promises; a blob in a column of blobs as its digits."""
        with closing(self.connect()) as connection:
            columns = connection.execute(f"PRAGMA table_xinfo({relation.name})").fetchall()
            are_blobs = {column[1] for column in columns if "BLOB" in column[2].upper()}
            names = ", ".join("rowid" if name == "_rowid" else name for name in relation.columns)
            rows = connection.execute(f"SELECT {names} FROM {relation.name}").fetchall()

        def printed(value: Any, column: str) -> bytes | None:
            if isinstance(value, bytes):
                return (f"\\x{value.hex()}" if column in are_blobs else f"X'{value.hex().upper()}'").encode()
            return None if value is None else (value if isinstance(value, str) else repr(value)).encode()

        return [tuple(map(printed, row, relation.columns)) for row in rows]

    def close(self, log: Path) -> None:
        """There is no log; the database itself is left there."""
        self._heart.close()
        with closing(self.connect()) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        shutil.copyfile(self._path, log.with_name("source.db"))
        shutil.rmtree(self._directory, ignore_errors=True)
