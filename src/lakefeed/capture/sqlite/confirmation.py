# ruff: noqa: S608 (names in SQL are quoted by database.quoted; values are bound)
"""Confirmed positions: kept in the source's meta table, and the log before them pruned.

Writing to the source costs its writers time, so both are done at most about once a second or every 10,000 rows, in
small transactions, and never wait long for a lock: what could not be written now is written next time.
"""

from __future__ import annotations

import sqlite3
import threading
import time

from lakefeed.capture.sqlite.database import Database, OpenedFile, transaction
from lakefeed.capture.sqlite.meta import Names, put, read_head
from lakefeed.change.position import SqliteSequence
from lakefeed.errors import StateError

_EVERY_SECONDS = 1.0
_EVERY_ROWS = 10_000
_PRUNED_ROWS = 5_000  # in one transaction: a few milliseconds
_BUDGET_SECONDS = 0.1
_CLOSING_SECONDS = 2.0
_LOCK_SECONDS = 0.25
_KEPT = ("confirmed", "verified")


class Confirmations:
    """Owned by one resume point; its own connection, opened when first needed. Any thread.

    Written to is only the ``file`` that the capture reads: in another one the position means something else.
    ``verified`` (see Meta) is noted by whoever reads the log and kept on the same occasion.
    """

    def __init__(self, database: Database, file: OpenedFile, names: Names) -> None:
        self._database = Database(database.path, min(_LOCK_SECONDS, database.busy_timeout_seconds))
        self._file = file
        self._names = names
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._wanted: SqliteSequence | None = None
        self._written: SqliteSequence | None = None
        self._written_at = float("-inf")
        self.verified = 0

    def confirm(self, position: SqliteSequence) -> None:
        """Note a position; write it if it is time to."""
        with self._lock:
            if self._wanted is None or position > self._wanted:
                self._wanted = position
            rows = self._wanted.sequence - (self._written.sequence if self._written else 0)
            if time.monotonic() - self._written_at >= _EVERY_SECONDS or rows >= _EVERY_ROWS:
                self._write(self._wanted, _BUDGET_SECONDS)

    def settle(self) -> None:
        """While the source is quiet: write what is left, as soon as it is time to."""
        with self._lock:
            is_due = time.monotonic() - self._written_at >= _EVERY_SECONDS
            if self._wanted is not None and self._wanted != self._written and is_due:
                self._write(self._wanted, _BUDGET_SECONDS)

    def close(self) -> None:
        """Write what is left. Idempotent."""
        with self._lock:
            try:
                if self._wanted is not None and self._wanted != self._written and self._file.is_there:
                    self._write(self._wanted, _CLOSING_SECONDS)
            finally:
                self._wanted = self._written = None
                if self._connection is not None:
                    self._connection.close()
                    self._connection = None

    def _write(self, position: SqliteSequence, budget_seconds: float) -> None:
        """Save the position, then prune. What a lock keeps from being written now is written next time.

        The confirmed row itself stays in the log, so that numbers only grow.
        """
        log, meta, until = self._names.log, self._names.meta, time.monotonic() + budget_seconds
        with self._database.errors():
            try:
                if self._connection is None:
                    self._connection = self._database.connect("rw")
                connection = self._connection
                self._file.require()
                with transaction(connection, "IMMEDIATE"):
                    head = read_head(connection, self._names)
                    if position > head:
                        # Pruning beyond the head would make the log count from 1 again.
                        self._wanted = self._written
                        raise StateError(f"cannot confirm {position}: the log's head is {head}")
                    kept = dict(connection.execute(f"SELECT key, value FROM {meta} WHERE key IN (?, ?)", _KEPT))
                    confirmed = max(position, SqliteSequence.parse(kept["confirmed"]))
                    verified = max(self.verified, int(kept["verified"]))
                    put(connection, self._names, {"confirmed": confirmed.text(), "verified": verified})
                self._written, self._written_at = position, time.monotonic()
                while time.monotonic() < until:
                    (low,) = connection.execute(f"SELECT min(seq) FROM {log}").fetchone()
                    if low is None or low >= confirmed.sequence:
                        return
                    limit = min(confirmed.sequence, low + _PRUNED_ROWS)
                    connection.execute(f"DELETE FROM {log} WHERE seq < ?", (limit,))
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode & 0xFF not in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
                    raise
