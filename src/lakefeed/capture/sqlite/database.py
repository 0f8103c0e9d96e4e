"""Connections to a SQLite file, which file it is, and the one place where SQLite's errors become Lakefeed's.

Every connection is in autocommit mode with explicit BEGINs, has a busy timeout, so that nothing waits for a lock
without a limit, and never changes the file's journal mode."""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple
from urllib.parse import quote

from lakefeed.errors import SourceError, SourceSetupError, SourceUnavailableError, StateError

Mode = Literal["ro", "rw"]

LOCKED = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def quoted(name: str) -> str:
    """``name`` as an SQL identifier, safe for any name."""
    return '"' + name.replace('"', '""') + '"'


@dataclass(frozen=True, slots=True)
class Database:
    """The path of the file, and how long to wait for its locks. ``immutable``: nobody writes to it while it is read."""

    path: str
    busy_timeout_seconds: float = 5.0
    immutable: bool = False

    @contextmanager
    def connection(self) -> Iterator[sqlite3.Connection]:
        """A read-only connection for one block, with the driver's errors mapped."""
        with self.errors(), closing(self.connect("ro")) as connection:
            yield connection

    def connect(self, mode: Mode) -> sqlite3.Connection:
        """A new connection, which the caller closes. Any thread may use it, one at a time."""
        if sqlite3.sqlite_version_info < (3, 37):  # PRAGMA table_list, which shows shadow tables and WITHOUT ROWID
            problem = f"this Python has SQLite {sqlite3.sqlite_version}, Lakefeed needs 3.37 or newer"
            raise SourceSetupError(problem, remedy="Use a Python that is built with a newer SQLite.")
        with self.errors():
            try:
                return self._connect("mode=ro&immutable=1" if self.immutable else f"mode={mode}")
            except sqlite3.OperationalError:
                if mode == "rw" or self.immutable or not os.access(self.path, os.W_OK):
                    raise
                # Nobody has this WAL database open, and only a writer can create its shared memory file.
                connection = self._connect("mode=rw")
                connection.execute("PRAGMA query_only = 1")
                return connection

    def _connect(self, options: str) -> sqlite3.Connection:
        address, seconds = f"file:{quote(str(Path(self.path).absolute()))}?{options}", self.busy_timeout_seconds
        connection = sqlite3.connect(address, seconds, isolation_level=None, check_same_thread=False, uri=True)
        try:
            connection.execute("SELECT count(*) FROM sqlite_master").fetchone()  # connecting alone reads nothing
        except sqlite3.Error:
            connection.close()
            raise
        return connection

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Turns the driver's errors inside the block into Lakefeed's."""
        try:
            yield
        except sqlite3.Error as error:
            path, code = self.path, getattr(error, "sqlite_errorcode", None)
            if code is None:  # misuse detected by Python's module, usually a closed connection
                raise StateError(f"{path}: {error}", remedy="Open the capture before it is used.") from error
            kind: type[SourceError] = SourceSetupError
            problem, remedy = f"{path}: {error}", None
            match code & 0xFF:
                case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED | sqlite3.SQLITE_PROTOCOL:
                    kind, problem = SourceUnavailableError, f"{path} is locked by another connection ({error})"
                case sqlite3.SQLITE_IOERR | sqlite3.SQLITE_FULL | sqlite3.SQLITE_NOMEM:
                    kind, problem = SourceUnavailableError, f"{path} cannot be read or written right now ({error})"
                case sqlite3.SQLITE_CANTOPEN if not Path(path).exists():
                    kind, problem = SourceUnavailableError, f"{path} does not exist"
                    remedy = "Put the file back; Lakefeed then goes on."
                case sqlite3.SQLITE_NOTADB | sqlite3.SQLITE_CORRUPT:
                    problem = f"{path} is not a usable SQLite database ({error})"
                    remedy = "Check the path; if it is the right file, restore it from a backup."
                case sqlite3.SQLITE_READONLY | sqlite3.SQLITE_PERM | sqlite3.SQLITE_AUTH | sqlite3.SQLITE_CANTOPEN:
                    problem = f"{path} cannot be opened or written ({error})"
                    remedy = f"Give this user write permission: chmod u+rw {path}, and its directory. If nobody writes"
                    remedy += " to it (read-only media), poll it with SqlitePolling(…, immutable=True)."
            raise kind(problem, remedy=remedy) from error


@contextmanager
def transaction(connection: sqlite3.Connection, kind: Literal["DEFERRED", "IMMEDIATE"]) -> Iterator[None]:
    """One transaction: DEFERRED to read one state, IMMEDIATE to write. Rolled back if the block raises."""
    connection.execute(f"BEGIN {kind}")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        with suppress(sqlite3.Error):  # the first error is the one to report
            connection.execute("ROLLBACK")
        raise


class FileStamp(NamedTuple):
    """Which file a database is, and what its last write left: of the file itself, and of its WAL if it has one. Every
    commit by any process changes it, once the last write is so long over that another one has another time."""

    inode: tuple[int, int]
    sizes: tuple[int, int]
    times_ns: tuple[int, int]

    @property
    def written_at(self) -> float:
        return max(self.times_ns) / 1e9


def inode_of(path: str) -> tuple[int, int] | None:
    with suppress(OSError):
        found = Path(path).stat()
        return found.st_dev, found.st_ino
    return None


class OpenedFile:
    """The very file that was opened, and connections to it: the path may lead to another file later. Any thread.

    Restoring or compacting a database usually puts a new file in place of the old one by a rename. A connection stays
    with the old file, which nobody writes to any more, and SQLite does not report that. Create this object before the
    file is opened: then a file that is replaced in between is reported, not overlooked.

    ``use`` lends a connection for a block. Between ``keep`` and ``close`` one spare connection of each mode is kept for
    the next use, because opening costs more than a short query. Nobody waits: two simultaneous uses have two
    connections, and a connection that is lent while ``close`` is called is closed by its own use."""

    def __init__(self, database: Database, inode: tuple[int, int] | None) -> None:
        self.database = database
        self.inode = inode
        self._lock = threading.Lock()  # guards the two below; never held for long
        self._spares: dict[Mode, sqlite3.Connection] = {}
        self._keeps = False

    @property
    def is_there(self) -> bool:
        """Whether the path still leads to this file."""
        return self.inode is not None and self.inode == inode_of(self.database.path)

    def stamp(self) -> FileStamp | None:
        """None if it is not there any more."""
        try:
            file = os.stat(self.database.path)  # noqa: PTH116  # twenty times a second: pathlib takes three times as long
        except OSError:
            return None
        if (file.st_dev, file.st_ino) != self.inode:
            return None
        try:
            wal = os.stat(f"{self.database.path}-wal")  # noqa: PTH116
        except OSError:
            wal = None
        sizes = (file.st_size, wal.st_size if wal else -1)
        return FileStamp(self.inode, sizes, (file.st_mtime_ns, wal.st_mtime_ns if wal else 0))

    def require(self) -> None:
        """SourceUnavailableError unless the file is there. After the file is opened again, its position is checked."""
        if not self.is_there:
            problem = f"{self.database.path} is no longer the file that was opened: it was replaced or removed"
            remedy = "If there is no new file, put it back."
            raise SourceUnavailableError(problem, remedy=remedy)

    def keep(self) -> None:
        self._keeps = True

    @contextmanager
    def use(self, mode: Mode = "ro") -> Iterator[sqlite3.Connection]:
        with self.database.errors():
            self.require()
            with self._lock:
                spare = self._spares.pop(mode, None)
            connection = spare or self.database.connect(mode)
            try:
                self.require()  # the file may have been replaced in between
                yield connection
            finally:
                with self._lock:
                    is_kept = self._keeps and self._spares.setdefault(mode, connection) is connection
                if not is_kept:
                    connection.close()

    def close(self) -> None:
        """Close the spare connections. Idempotent."""
        with self._lock:
            self._keeps, spares, self._spares = False, self._spares, {}
        for connection in spares.values():
            connection.close()
