"""Walsender: the replication connection, as a LogReader. What it reads comes in pieces with whole messages.

The catalog is asked on a second connection, once for all relations that a piece describes, and the answer travels
inside the piece: the decoder asks nobody.

A transaction with a row that the server cannot print (a bytea of 600 MB has 1.2 GB of text) would end the stream for
all tables. It is read in binary form instead, from where the text ended to its COMMIT, and the decoder says which
tables are concerned. The publication is no way out: the server goes by what it was when the row was written.
"""

from __future__ import annotations

import os
import struct
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np
import psycopg

from lakefeed.capture.log import LogReader
from lakefeed.capture.postgres.catalog import CatalogFacts, read_facts, wait_for_commits
from lakefeed.capture.postgres.database import STREAM, Database, Names, quoted
from lakefeed.capture.postgres.pgoutput import CHANGES, PIECE_BYTES, WalPiece, committed, described, without
from lakefeed.capture.postgres.slot import head, read_slot
from lakefeed.capture.postgres.values import EPOCH_US, TOO_LARGE, Messages, joined
from lakefeed.capture.postgres.wire import UNSENDABLE, open_wire, wait_ready
from lakefeed.change.lsn import PostgresLsn
from lakefeed.errors import LakefeedError, PositionLostError, SourceError, SourceUnavailableError

_LOG, _KEEPALIVE = ord("w"), ord("k")
_HEAD_BYTES = 25  # before each message of the log: w, start, end, time
_KEEPALIVE_BYTES = 18
_STATUS_SECONDS = 1.0  # an idle server says by itself only now and then how far it has come
_BURST = 500
GULP_SECONDS = 0.02
"""With a backlog over TCP, a pause between reads lets the buffers fill: the walsender wakes up less often and is nearly
twice as fast. On a unix socket the same pause is harmful."""
_CLOSE_SECONDS = 2.0
_FREE_SECONDS = 3.0
"""How long to wait for a slot that a connection of before still has: the server notices its end a little later."""
_ASK_SECONDS = 0.01
_ANSWER_SECONDS = 1.0
_VISIBLE_SECONDS = 2.0

# The wait event is spelled in two ways, by version.
_ACTIVITY = """
SELECT wait_event ILIKE 'WalSenderWaitForWal', (extract(epoch FROM clock_timestamp()) * 1000000)::int8
  FROM pg_stat_activity WHERE pid = %s"""


@dataclass(frozen=True, slots=True)
class Arrival:
    """What has come: ``messages`` of the server, among them a run of the log. ``idle_at`` if its last word was that it
    has nothing more up to there; it said so at ``sent_us`` (its clock, microseconds since 1970)."""

    messages: int = 0
    run: Messages | None = None
    idle_at: PostgresLsn | None = None
    sent_us: int = 0


class Walsender(LogReader[PostgresLsn, WalPiece]):
    """See ``LogReader``: the messages strictly after ``after``. ``confirm`` is the only thing that moves the slot."""

    def __init__(self, database: Database, names: Names, after: PostgresLsn) -> None:
        self._database = database
        self._names = names
        self._busy = threading.Lock()
        self._asked = False
        self._reported = PostgresLsn(0)
        self._reported_at = 0.0
        self._failed = self._is_settled = self._in_transaction = self._is_closed = self._is_binary = False
        self._after, self._given = after, 0
        """The last COMMIT that was given, and how many messages of the transaction behind it."""
        self._skipped = 0
        self._described: set[str] = set()
        self._error: psycopg.Error | None = None
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_write, False)  # a full pipe wakes as well as one byte more
        self._catalog = database.connect(names.slot)
        try:
            with database.errors():
                slot = read_slot(self._catalog, names.slot)
            # Where the slot is, and not ``after``: reading on confirms nothing.
            self._confirmed = slot.confirmed if slot is not None else PostgresLsn(0)
            self._connect()
        except BaseException:
            self._catalog.close()
            raise
        try:
            self._start()
        except BaseException:
            self._release()
            raise

    @property
    def pid(self) -> int:
        """The server's process."""
        return int(self._connection.info.backend_pid)

    def read(self, wait_seconds: float) -> WalPiece | None:
        with self._busy:
            try:
                arrival = self._settled() if wait_seconds <= 0 else self._next(wait_seconds)
                return self._piece(arrival) if arrival is not None else None
            except UNSENDABLE as error:
                if self._is_binary:  # a row of more than 1 GB in any form
                    self._failed = True
                    raise SourceError(
                        f"{self._database}: PostgreSQL cannot send a row of {' or '.join(sorted(self._described))},"
                        f" written after {self._after.text()}: {str(error).splitlines()[0]}",
                        remedy=f"{TOO_LARGE} The log cannot be read past it: run `lakefeed uninstall`, which drops"
                        " the slot, then `lakefeed sync`, which copies every table again.",
                    ) from error
                self._restart(binary=True)
                return WalPiece()
            except BaseException as error:
                self._failed = True
                if isinstance(error, psycopg.Error):
                    raise self._mapped(error) from error
                raise

    def size(self, piece: WalPiece) -> int:
        return piece.run.data.nbytes if piece.run is not None else 0

    def beat(self) -> None:
        with self._busy, self._database.errors():
            self._report()

    def wake(self) -> None:
        with suppress(OSError):
            os.write(self._wake_write, b"x")

    def confirm(self, position: PostgresLsn) -> None:
        """The server may forget up to ``position``; it is told within a second."""
        self._confirmed = max(self._confirmed, position)

    def close(self) -> None:
        """Tell the server the last confirmed position, then leave the slot. Never raises."""
        if self._is_closed:
            return
        self._is_closed = True
        if not self._busy.acquire(timeout=0.1):  # a read hangs, and fails now
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
        self._release()

    def _release(self) -> None:
        self._wire.close()
        for connection in (self._connection, self._catalog):
            with suppress(psycopg.Error):
                connection.close()
        for end in (self._wake_read, self._wake_write):
            os.close(end)

    def _connect(self) -> None:
        self._connection = self._database.connect(self._names.slot, STREAM, replication=True)
        self._wire = open_wire(self._connection)
        self._gulps = not (self._connection.info.host or "/").startswith("/")

    def _restart(self, *, binary: bool) -> None:
        """Read the log again from the last COMMIT on; what was given of the next transaction is not given again."""
        self._is_binary, self._skipped, self._described = binary, 0, set()
        self._wire.close()
        self._connection.close()
        self._connect()
        self._start()

    def _start(self) -> None:
        publication = quoted(self._names.publication).replace("'", "''")
        command = (
            f"START_REPLICATION SLOT {quoted(self._names.slot)} LOGICAL {self._after.text()}"
            f" (proto_version '1', publication_names '{publication}', binary '{str(self._is_binary).lower()}')"
        )
        until = time.monotonic() + _FREE_SECONDS
        while True:
            try:
                self._wire.start(command)
            except psycopg.errors.ObjectInUse as error:
                if time.monotonic() > until:
                    raise self._mapped(error) from error
                time.sleep(0.05)
            except psycopg.Error as error:
                raise self._mapped(error) from error
            else:
                return

    def _next(self, wait_seconds: float) -> Arrival | None:
        """What comes within that time, and with a backlog as much as is decoded at once; None if nothing does, or
        somebody called ``wake``."""
        until = time.monotonic() + wait_seconds
        if self._error is not None:
            error, self._error = self._error, None
            raise error
        while True:
            self._report()
            arrival = self._received()
            if arrival.messages:
                runs = [arrival.run] if arrival.run is not None else []
                self.in_burst = arrival.messages >= _BURST and self._gulps
                while arrival.messages >= _BURST and self._gulps:
                    if sum(one.data.nbytes for one in runs) >= PIECE_BYTES:
                        break
                    time.sleep(GULP_SECONDS)
                    try:
                        arrival = self._received()
                    except psycopg.Error as error:
                        self._error = error  # for the next read: what came before it is given first
                        break
                    runs += [arrival.run] if arrival.run is not None else []
                run = joined(runs) if runs else None
                if run is not None:
                    self._in_transaction = committed(run) < len(run)
                return replace(arrival, run=run)
            if self._wire.is_over:
                raise SourceUnavailableError(f"{self._database}: the server ended the replication stream")
            left = until - time.monotonic()
            if left <= 0:
                return None
            ready = wait_ready((self._connection.pgconn.socket, self._wake_read), min(left, 1.0))
            if self._wake_read in ready:
                os.read(self._wake_read, 4096)
                return None

    def _received(self) -> Arrival:
        """What has come by now, without a wait."""
        messages = self._wire.read()
        if messages is None:
            return Arrival()
        log, idle_at, sent_us = messages.kinds == _LOG, None, 0
        for index in np.flatnonzero(messages.kinds == _KEEPALIVE).tolist():
            if len(message := messages.message(index)) >= _KEEPALIVE_BYTES:
                position, sent, asks = struct.unpack_from(">Qq?", message, 1)
                idle_at, sent_us = PostgresLsn(position), sent + EPOCH_US
                self._asked = self._asked or asks
        ends = messages.ends[log]  # one that is nothing but its head is empty, which the decoder refuses
        run = Messages(messages.data, np.minimum(messages.begins[log] + _HEAD_BYTES, ends), ends)
        return Arrival(len(messages), run if len(run) else None, None if log[-1] else idle_at, sent_us)

    def _settled(self) -> Arrival | None:
        """What comes next; None if the server has said that nothing more is in its log up to its head of now. How far
        it has come is handed out before that.

        The server answers, then looks how far the log is flushed, then decodes or sleeps: so one that sleeps after an
        answer has sent everything, and what is still on its way comes before an answer that it gives after that, also
        where the log ends inside a record. Answers to earlier questions do not count, which their time tells.
        """
        if self._is_settled:
            self._is_settled = False
            return None
        target, (_, since_us) = head(self._catalog), self._activity()
        asleep = False
        until = time.monotonic() + _ANSWER_SECONDS
        while time.monotonic() < until:
            self._asked = True
            arrival = self._next(_ASK_SECONDS)
            if arrival is None:
                continue
            if arrival.run is not None or arrival.idle_at is None:
                return arrival
            answered = arrival.sent_us > since_us
            # A large transaction has such answers in the middle, too.
            if not self._in_transaction and (arrival.idle_at >= target or (answered and asleep)):
                self._is_settled = True
                return arrival
            if answered:
                asleep, since_us = self._activity()
        return Arrival()

    def _activity(self) -> tuple[bool, int]:
        """Whether the walsender waits for more log, and the time now by the server's clock."""
        row = self._catalog.execute(_ACTIVITY, (self.pid,)).fetchone()
        return (row[0] is True, int(row[1])) if row is not None else (False, 0)

    def _piece(self, arrival: Arrival) -> WalPiece:
        run = arrival.run
        if run is None:
            return WalPiece(idle_at=arrival.idle_at)
        if self._is_binary:
            run, skipped = without(run, self._given - self._skipped)
            self._skipped += skipped
        whole = committed(run)
        if whole:
            self._after = PostgresLsn(int.from_bytes(run.message(whole - 1)[10:18], "big"))  # as the decoder has it
            self._given = 0
        self._given += int(np.isin(run[whole:].kinds, CHANGES).sum())
        if whole and self._is_binary:
            self._restart(binary=False)
        facts, tables = CatalogFacts(), described(run)
        self._described |= {f"{one.schema}.{one.name}" for one in tables} if self._is_binary else set()
        if tables:
            facts = read_facts(self._catalog, tables)
            # A commit is in the log before the catalog shows it: a column that the catalog does not have was added a
            # moment ago, or was renamed or dropped since.
            live = {
                oid: {column.name for column in source.columns}
                for oid, (_, source) in facts.tables.items()
                if source is not None
            }
            if any(column.name not in live.get(one.id, {column.name}) for one in tables for column in one.columns):
                wait_for_commits(self._catalog, _VISIBLE_SECONDS)
                facts = read_facts(self._catalog, tables)
        return WalPiece(run if len(run) else None, facts, None if self._is_binary or whole else arrival.idle_at)

    def _report(self) -> None:
        """Standby status update: written, flushed and applied up to what was confirmed. The server is asked to answer,
        so that its silence is noticed."""
        now = time.monotonic()
        late = now - self._reported_at >= _STATUS_SECONDS
        if not (self._asked or late or self._confirmed > self._reported):
            return
        asked, self._asked = self._asked or late, False
        position = self._confirmed
        micros = time.time_ns() // 1000 - EPOCH_US
        value = position.value
        self._wire.write(struct.pack(">cQQQqB", b"r", value, value, value, micros, int(asked)))
        self._reported, self._reported_at = position, now

    def _mapped(self, error: psycopg.Error) -> LakefeedError:
        """A slot or a log that is gone is PositionLostError, by its SQLSTATE; of an invalidated slot the server says
        no more than that it is not in the right state."""
        lost = isinstance(error, (psycopg.errors.UndefinedObject, psycopg.errors.UndefinedFile))
        if isinstance(error, psycopg.errors.ObjectNotInPrerequisiteState):
            with suppress(psycopg.Error):
                slot = read_slot(self._catalog, self._names.slot)
                lost = slot is None or slot.lost is not None
        if lost:
            return PositionLostError(f"{self._database}: {str(error).splitlines()[0]}")
        return self._database.mapped(error)
