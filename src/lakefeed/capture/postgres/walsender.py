"""Walsender: the replication connection, as a LogReader. It reads pieces that consist of whole messages. For the
relations that a piece describes, it asks the catalog on a second connection; the answer travels in the piece.

A transaction with a row that the server cannot print (a bytea of 600 MB has 1.2 GB of text) would end the stream for
all tables. From the point where the text failed up to its COMMIT, such a transaction is read in binary form instead;
the decoder finds out which tables are concerned. Changing the publication would not help: the server uses the one that
was in force when the row was written.
"""

from __future__ import annotations

import os
import struct
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from itertools import pairwise

import numpy as np
import psycopg

from lakefeed.capture.log import LogReader
from lakefeed.capture.postgres.catalog import read_facts, wait_for_commits
from lakefeed.capture.postgres.database import STREAM, Connection, Database, Names, quoted
from lakefeed.capture.postgres.pgoutput import CHANGES, PIECE_BYTES, WalPiece, committed, described, without
from lakefeed.capture.postgres.slices import Messages, join
from lakefeed.capture.postgres.slot import head, read_slot
from lakefeed.capture.postgres.values import EPOCH_US, TOO_LARGE
from lakefeed.capture.postgres.wire import UNSENDABLE, open_wire, wait_ready
from lakefeed.change.lsn import PostgresLsn
from lakefeed.errors import LakefeedError, PositionLostError, SourceError, SourceUnavailableError

_LOG, _KEEPALIVE = ord("w"), ord("k")
_HEAD_BYTES, _KEEPALIVE_BYTES = 25, 18  # the first precedes each message of the log: w, start, end, time
_STATUS_SECONDS = 1.0  # an idle server only rarely reports by itself how far it has come
_BURST = 500
# With a backlog over TCP, a pause lets the buffers fill, which is nearly twice as fast. On a unix socket it hurts.
GULP_SECONDS = 0.02
_FREE_SECONDS = 3.0  # wait for a slot that an earlier connection still holds: the server notices its end a little later
_CLOSE_SECONDS, _VISIBLE_SECONDS, _ASK_SECONDS, _ANSWER_SECONDS = 2.0, 2.0, 0.01, 1.0

# The spelling of the wait event depends on the version.
_ACTIVITY = """
SELECT wait_event ILIKE 'WalSenderWaitForWal', (extract(epoch FROM clock_timestamp()) * 1000000)::int8
  FROM pg_stat_activity WHERE pid = %s"""


class Walsender(LogReader[PostgresLsn, WalPiece]):
    """See ``LogReader``: the messages strictly after ``after``. Only ``confirm`` moves the slot."""

    def __init__(
        self,
        database: Database,
        names: Names,
        after: PostgresLsn,
        publications: Sequence[str] = (),
        examine: Callable[[Connection], None] = lambda _: None,
    ) -> None:
        """``examine`` gets each connection before it streams, and raises if it leads to another server."""
        self._examine = examine
        self._database, self._names, self._busy = database, names, threading.Lock()
        self._publications = tuple(publications) or (names.publication,)
        self._asked = self._failed = self._is_settled = self._is_closed = False
        self._reported, self._reported_at = PostgresLsn(0), 0.0
        self._after, self._given = after, 0  # the last COMMIT read, and how many changes after it were handed out
        self._error: psycopg.Error | None = None
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_write, False)  # a full pipe wakes the reader just as well
        self._owned, self._stream = ExitStack(), ExitStack()
        for end in (self._wake_read, self._wake_write):
            self._owned.callback(os.close, end)
        try:
            self._catalog = self._owned.enter_context(closing(database.connect(names.slot)))
            self._owned.callback(self._stream.close)
            with database.errors():
                slot = read_slot(self._catalog, names.slot)
            # The position of the slot, not ``after``: starting to read confirms nothing.
            self._confirmed = slot.confirmed if slot is not None else PostgresLsn(0)
            self._start()
        except BaseException:
            self._owned.close()
            raise

    @property
    def pid(self) -> int:
        return int(self._connection.info.backend_pid)  # the server's process

    def read(self, wait_seconds: float) -> WalPiece | None:
        with self._busy:
            try:
                piece = self._settled() if wait_seconds <= 0 else self._next(wait_seconds)
                if piece is None or not (tables := described(piece.run)):
                    return piece
                facts = read_facts(self._catalog, tables)
                # A commit is in the log before the catalog shows it. So a column that the catalog lacks was added a
                # moment ago, or has been renamed or dropped since.
                live = {oid: {one.name for one in table.columns} for oid, (_, table) in facts.tables.items() if table}
                if any(column.name not in live.get(one.id, {column.name}) for one in tables for column in one.columns):
                    wait_for_commits(self._catalog, _VISIBLE_SECONDS)
                    facts = read_facts(self._catalog, tables)
                return replace(piece, facts=facts)
            except BaseException as error:
                self._failed = True
                if isinstance(error, psycopg.Error):
                    raise self._mapped(error) from error
                raise

    def size(self, piece: WalPiece) -> int:
        return piece.run.data.nbytes if len(piece.run) else 0

    def joined(self, pieces: Sequence[WalPiece]) -> list[WalPiece]:
        """Catalog facts do not apply to earlier pieces, so a piece with facts starts a new one."""
        firsts = [index for index, piece in enumerate(pieces) if piece.facts.tables or index == 0]
        return [
            replace(pieces[end - 1], run=join([piece.run for piece in pieces[first:end]]), facts=pieces[first].facts)
            for first, end in pairwise((*firsts, len(pieces)))
        ]

    def beat(self) -> None:
        with self._busy, self._database.errors():
            self._report()

    def wake(self) -> None:
        with suppress(OSError):
            os.write(self._wake_write, b"x")

    def confirm(self, position: PostgresLsn) -> None:
        """Let the server forget up to ``position``; it is told within a second."""
        self._confirmed = max(self._confirmed, position)

    def close(self) -> None:
        """Report the last confirmed position to the server, then release the slot. Never raises."""
        if self._is_closed:
            return
        self._is_closed = True
        if not self._busy.acquire(timeout=0.1):  # a read hangs; make it fail now
            self._failed = True
            self._connection.sever()
            self._catalog.sever()
            if not self._busy.acquire(timeout=1.0):
                return
        with suppress(psycopg.Error):
            if not self._failed:
                self._reported_at = 0.0
                self._report()
                self._wire.end()
                until = time.monotonic() + _CLOSE_SECONDS
                # The slot is free when the command is complete, not when the stream has ended.
                while not self._wire.is_over and (left := until - time.monotonic()) > 0:
                    self._wire.read()
                    wait_ready((self._connection.pgconn.socket,), min(left, 0.1) if not self._wire.is_over else 0.0)
        self._owned.close()

    def _start(self, *, binary: bool = False) -> None:
        """Read the log from the last COMMIT on, on a new connection, skipping the changes after it that were handed
        out."""
        self._is_binary, self._skip, self._described = binary, self._given, set[str]()
        self._stream.close()
        connection = self._database.connect(self._names.slot, STREAM, replication=True)
        self._connection = self._stream.enter_context(closing(connection))
        with self._database.errors():
            self._examine(connection)
        self._wire = self._stream.enter_context(closing(open_wire(connection)))
        self._gulps = not (connection.info.host or "/").startswith("/")
        publications = ",".join(map(quoted, self._publications)).replace("'", "''")
        options = f"(proto_version '1', publication_names '{publications}', binary '{str(binary).lower()}')"
        command = f"START_REPLICATION SLOT {quoted(self._names.slot)} LOGICAL {self._after.text()} {options}"
        until = time.monotonic() + _FREE_SECONDS
        while True:
            try:
                return self._wire.start(command)
            except psycopg.Error as error:
                if not isinstance(error, psycopg.errors.ObjectInUse) or time.monotonic() > until:
                    raise self._mapped(error) from error
                time.sleep(0.05)

    def _next(self, wait_seconds: float) -> WalPiece | None:
        """What arrives within that time; of a backlog, as much as is decoded at once. None if nothing arrives, or after
        ``wake``."""
        until = time.monotonic() + wait_seconds
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        while True:
            self._report()
            piece = self._received()
            if piece.messages:
                break
            if self._wire.is_over:
                raise SourceUnavailableError(f"{self._database}: the server ended the replication stream")
            if (left := until - time.monotonic()) <= 0:
                return None
            if self._wake_read in wait_ready((self._connection.pgconn.socket, self._wake_read), min(left, 1.0)):
                os.read(self._wake_read, 4096)
                return None
        runs = [piece.run]
        self.in_burst = self._gulps and piece.messages >= _BURST
        while self._gulps and piece.messages >= _BURST and sum(run.data.nbytes for run in runs) < PIECE_BYTES:
            time.sleep(GULP_SECONDS)
            try:
                piece = self._received()
            except psycopg.Error as error:
                self._error = error  # raised by the next read: what arrived before it is returned first
                break
            runs.append(piece.run)
        return replace(piece, run=join(runs))

    def _received(self) -> WalPiece:
        """What has arrived by now; does not wait."""
        try:
            messages = self._wire.read()
        except UNSENDABLE as error:
            if self._is_binary:  # a row of more than 1 GB in either form, or some other fault
                tables = " or ".join(sorted(self._described)) or "a table"
                problem = (
                    f"PostgreSQL cannot send the transaction after {self._after.text()}, perhaps a row of {tables}"
                )
                again = "run `lakefeed uninstall`, which drops the slot, then `lakefeed sync`, which copies every table"
                remedy = f"{TOO_LARGE} If the log cannot be read past it: {again} again."
                raise SourceError(
                    f"{self._database}: {problem}: {str(error).splitlines()[0]}", remedy=remedy
                ) from error
            self._start(binary=True)
            return WalPiece(messages=1)
        if messages is None:
            return WalPiece()
        log, idle_at, sent_us = messages.kinds == _LOG, None, 0
        for index in np.flatnonzero(messages.kinds == _KEEPALIVE).tolist():
            if len(message := messages.message(index)) >= _KEEPALIVE_BYTES:
                position, sent, asks = struct.unpack_from(">Qq?", message, 1)
                idle_at, sent_us = PostgresLsn(position), sent + EPOCH_US
                self._asked = self._asked or asks
        ends = messages.ends[log]  # a message that is only a header becomes empty, and the decoder refuses it
        run = Messages(messages.data, np.minimum(messages.begins[log] + _HEAD_BYTES, ends), ends)
        if self._is_binary:
            run, skipped = without(run, self._skip)
            self._skip -= skipped
            self._described |= {f"{one.schema}.{one.name}" for one in described(run)}
        if whole := committed(run):
            self._after = PostgresLsn(int.from_bytes(run.message(whole - 1)[10:18], "big"))  # as in the decoder
            self._given = 0
        self._given += int(np.isin(run[whole:].kinds, CHANGES).sum())
        if self._is_binary and whole:
            self._start()
            idle_at = None  # the new connection reads the rest again
        idle_at = None if log[-1] else idle_at
        return WalPiece(run, idle_at=idle_at, messages=len(messages), sent_us=sent_us)

    def _settled(self) -> WalPiece | None:
        """The next piece; None once the server has said that its log, up to where it ends now, has nothing more. How
        far the server has come is returned before that.

        The server replies to a request, then checks how far the log is flushed, then decodes or sleeps. So a server
        that sleeps after a reply has sent everything; whatever is still on its way arrives before the reply to a later
        request, even if the log ends inside a record. Replies to earlier requests are recognised by their time."""
        if self._is_settled:
            self._is_settled = False
            return None
        target, (_, since_us) = head(self._catalog), self._activity()
        asleep, until = False, time.monotonic() + _ANSWER_SECONDS
        while time.monotonic() < until:
            self._asked = True
            piece = self._next(_ASK_SECONDS)
            if piece is None:
                continue
            if len(piece.run) or piece.idle_at is None:
                return piece
            answered = piece.sent_us > since_us
            # A large transaction has such replies in its middle, too.
            if not self._given and (piece.idle_at >= target or (answered and asleep)):
                self._is_settled = True
                return piece
            if answered:
                asleep, since_us = self._activity()
        return WalPiece()

    def _activity(self) -> tuple[bool, int]:
        """Whether the walsender waits for more log, and the current time of the server's clock."""
        is_waiting, now = self._catalog.execute(_ACTIVITY, (self.pid,)).fetchone() or (False, 0)
        return is_waiting is True, now

    def _report(self) -> None:
        """Send a standby status update: everything confirmed is applied. It requests a reply now and then, so that
        silence is noticed."""
        now, position = time.monotonic(), self._confirmed
        late = now - self._reported_at >= _STATUS_SECONDS
        if self._asked or late or position > self._reported:
            asked, self._asked = self._asked or late, False
            micros, value = time.time_ns() // 1000 - EPOCH_US, position.value
            self._wire.write(struct.pack(">cQQQqB", b"r", value, value, value, micros, int(asked)))
            self._reported, self._reported_at = position, now

    def _mapped(self, error: psycopg.Error) -> LakefeedError:
        """PositionLostError if the slot or its log is gone. For an invalidated slot the SQLSTATE does not say so."""
        lost = isinstance(error, (psycopg.errors.UndefinedObject, psycopg.errors.UndefinedFile))
        if isinstance(error, psycopg.errors.ObjectNotInPrerequisiteState):
            with suppress(psycopg.Error):
                slot = read_slot(self._catalog, self._names.slot)
                lost = slot is None or slot.lost is not None
        if lost:
            return PositionLostError(f"{self._database}: {str(error).splitlines()[0]}")
        return self._database.mapped(error)
