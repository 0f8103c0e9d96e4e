"""PollStream: one cycle after another over all tables, each a change set if it found anything.

Steps of one cycle:
  1. the catalog: tables that were prepared since, definitions that changed, tables that are gone
  2. the horizon, before any row is read
  3. every table that is not still being read is polled, several at a time, each on a connection of its own
  4. what has ended within the patience becomes one change set; a slow table's rows are in a later one
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from lakefeed.capture.dialect import DescribedTable, Dialect, Session
from lakefeed.capture.fit import MisfitError
from lakefeed.capture.poll.differences import DifferencesDirectory
from lakefeed.capture.poll.event import Events, change_batches
from lakefeed.capture.poll.poller import Cursor, PollResult, TablePoller
from lakefeed.capture.poll.table import PolledTable, TableSelection, polled_table, recopy_notice, text_columns
from lakefeed.change.change_set import ChangeSet, RecopyNeeded, TableBlocked, TableDropped, TableNotice
from lakefeed.change.table import TableId, TableSchema
from lakefeed.change.watermark import Mark, Watermark
from lakefeed.errors import ConfigError, LakefeedError, Retry, SourceChangedError, StateError

_CATALOG_SECONDS = 1.0
_CLOSE_SECONDS = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """``poll_seconds`` lie between two cycles that find nothing. ``parallel`` tables are read at a time. A table that
    takes longer than ``patience_seconds`` is not waited for: the others go on without it."""

    poll_seconds: float = 1.0
    parallel: int = 4
    patience_seconds: float = 1.0


@dataclass(slots=True)
class _Cycle:
    """What one cycle has found so far."""

    events: list[Events] = field(default_factory=list)
    schemas: list[TableSchema] = field(default_factory=list)
    notices: list[TableNotice] = field(default_factory=list)
    marks: dict[str, Mark] = field(default_factory=dict)


class PollStream:
    """Belongs to the stream's thread, except for what is marked: "any thread". ``position``: the last change set's end.

    ``known`` are the schemas that tables were delivered with last. ``stale``: tables that go on from a new mark once
    they are prepared again, because changes were missed or they were stopped. One whose definition changed is not among
    them: a lake table may go on without a copy.
    """

    def __init__(self, dialect: Dialect, selection: TableSelection, differences: Path | None, pace: Pace) -> None:
        self._dialect = dialect
        self._selection = selection
        self._pace = pace
        self._pollers: dict[TableId, TablePoller] = {}
        self._blocked: set[TableId] = set()
        self._polled: dict[TableId, TablePoller] = {}
        self._catalog_read_at = 0.0
        self._pool: ConnectionPool | None = None
        self._arrived: queue.SimpleQueue[tuple[DescribedTable, Mark]] = queue.SimpleQueue()
        self.differences = differences
        self.known: dict[TableId, TableSchema] = {}
        self.stale: frozenset[TableId] = frozenset()
        self.position = Watermark()

    @property
    def is_reading(self) -> bool:
        """A table takes longer than the patience, and is still being read."""
        return self._pool is not None and bool(self._pool.running)

    def polled(self) -> list[tuple[PolledTable, Mark]]:
        """What is polled, and from where. Any thread."""
        return [(one.table, one.cursor.mark) for one in list(self._pollers.values())]

    def arrive(self, source: DescribedTable, mark: Mark) -> None:
        """A table was prepared: the next cycle takes it in, unless it is polled already and not stale. Any thread."""
        self._arrived.put((source, mark))

    def seek(
        self,
        session: Session,
        position: Watermark,
        tables: Sequence[TableId],
        prepared: Mapping[str, Mark],
        connect: Callable[[], Session],
    ) -> None:
        """Go on after ``position`` with ``tables``; one that it has no mark of goes on from where it was prepared, else
        it is read from its beginning."""
        self.close()
        self._pool = ConnectionPool(connect, self._pace.parallel)
        self.position = position
        self._pollers, self._blocked = {}, self._blocked - set(tables)
        marks = {**prepared, **dict(position.marks)}
        for table, source in session.describe(tables).items():
            self._add(source, marks.get(str(table), Mark.start()))

    def cut(self, session: Session) -> ChangeSet | None:
        """One cycle. None: nothing has changed, and nothing has moved."""
        if self._pool is None:
            raise StateError("the capture is not open", remedy="Call open first.")
        cycle, pool = _Cycle(), self._pool
        self._read_catalog(session, pool, cycle)
        horizon = session.horizon()
        for table, poller in self._pollers.items():
            if table not in self._blocked and table not in pool.running:
                self._polled[table] = poller
                pool.start(table, partial(poller.poll, horizon=horizon))
        for table, result in pool.gather(self._pace.patience_seconds).items():
            self._take(session, table, result, cycle)
        start, end = self.position, Watermark.of({**dict(self.position.marks), **cycle.marks})
        rows = sum(events.count for events in cycle.events)
        self.position = end
        if not rows and not cycle.schemas and not cycle.notices and end == start:
            return None
        batches = change_batches(cycle.events, end, horizon.now_us)
        return ChangeSet(start, end, batches, rows, tuple(cycle.schemas), tuple(cycle.notices))

    def forget(self, confirmed: Watermark) -> None:
        """Differences up to ``confirmed`` are durable elsewhere."""
        marks = dict(confirmed.marks)
        for table, poller in self._pollers.items():
            if (mark := marks.get(DifferencesDirectory.mark_name(table))) is not None:
                poller.forget(mark)

    def close(self) -> None:
        """Any thread."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.close()

    def _add(self, source: DescribedTable, mark: Mark) -> None:
        """Poll a table, from ``mark`` on, as it was delivered last or as it is now."""
        known = self.known.get(source.id)
        table = polled_table(source, self._selection.rule(source.id), text_columns(known, source))
        self.known.setdefault(source.id, table.schema)
        if mark.key and len(mark.key) != len(table.key):
            mark = Mark.start(mark.era + 1)  # the table was created again with another key while no process ran
        compared = dict(self.position.marks).get(DifferencesDirectory.mark_name(source.id))
        self._pollers[source.id] = TablePoller(self._dialect, table, self.differences, mark, compared)
        self._blocked.discard(source.id)
        self.stale -= {source.id}

    def _read_catalog(self, session: Session, pool: ConnectionPool, cycle: _Cycle) -> None:
        """Step 1."""
        while not self._arrived.empty():
            source, mark = self._arrived.get()
            if source.id in self.stale or source.id not in self._pollers:
                self._add(source, mark)
        if time.monotonic() - self._catalog_read_at < min(_CATALOG_SECONDS, self._pace.poll_seconds):
            return
        idle = [table for table in self._pollers if table not in self._blocked and table not in pool.running]
        described = session.describe(idle)
        self._catalog_read_at = time.monotonic()
        for table in idle:
            if table not in described:
                del self._pollers[table]
                self._note([TableDropped(table)], cycle)
            else:
                self._evolve(session, self._pollers[table], described[table], cycle)

    def _evolve(self, session: Session, poller: TablePoller, source: DescribedTable, cycle: _Cycle) -> None:
        known = self.known[poller.id]
        if source == poller.table.source and known.same_shape(poller.table.schema):
            return
        try:
            new = polled_table(source, self._selection.rule(source.id), text_columns(known, source))
        except ConfigError as error:
            self._block(source.id, error, cycle)
            return
        poller.table = new
        if new.schema.same_shape(known):
            return
        if new.schema.key != known.key:
            poller.cursor = Cursor(Mark.start(poller.cursor.mark.era + 1))
        notice = recopy_notice(known, new.schema, partial(poller.is_filled, session))
        self._reshape(poller, notice, cycle)

    def _take(self, session: Session, table: TableId, result: PollResult | LakefeedError, cycle: _Cycle) -> None:
        """Step 4, of one table. Its own error stops that table; the database's is the caller's."""
        poller = self._pollers.get(table)
        if poller is None or poller is not self._polled.get(table):
            return  # dropped, or begun again while it was read
        if isinstance(result, LakefeedError):
            if result.retry is Retry.BACKOFF or isinstance(result, StateError | SourceChangedError):
                raise result
            if session.describe([table]).get(table) != poller.table.source:
                self._catalog_read_at = 0.0  # its definition changed under the query: the next cycle follows that first
            else:
                self._block(table, result, cycle)
        elif result.misfit is not None:
            self._retype(poller, result.misfit, cycle)
        else:
            cycle.marks[str(table)] = result.mark
            if result.compared is not None:
                cycle.marks[DifferencesDirectory.mark_name(table)] = result.compared
            cycle.events += result.events
            self._note(result.notices, cycle)

    def _retype(self, poller: TablePoller, column: str, cycle: _Cycle) -> None:
        """Values of several types make a column text for good, so that nothing is rounded, cut or nulled."""
        old = poller.table
        if column in old.ordering or column not in old.schema.names:
            self._block(old.id, MisfitError(column=column).stopped(old.id), cycle)
            return
        poller.table = polled_table(old.source, old.rule, text_columns(self.known[old.id], old.source) | {column})
        reason = f"values that the declared type does not fit make it text: {column}"
        self._reshape(poller, RecopyNeeded(old.id, reason, (column,)), cycle)

    def _reshape(self, poller: TablePoller, notice: RecopyNeeded | None, cycle: _Cycle) -> None:
        poller.cursor = replace(poller.cursor, unsettled=None)
        self.known[poller.id] = poller.table.schema
        cycle.schemas.append(poller.table.schema)
        self._note([notice] if notice is not None else [], cycle)

    def _block(self, table: TableId, error: LakefeedError, cycle: _Cycle) -> None:
        self._blocked.add(table)
        self._note([TableBlocked(table, error.message, error.remedy)], cycle)

    def _note(self, notices: Sequence[TableNotice], cycle: _Cycle) -> None:
        cycle.notices += notices
        self.stale |= {one.table for one in notices if not isinstance(one, RecopyNeeded) or one.columns is None}


class ConnectionPool:
    """Polls of several tables at a time, each on a connection of its own, so that a slow one holds up no other.

    At most ``parallel`` connections. ``start`` and ``gather`` belong to one thread; ``close`` may be any. ``running``
    are the tables whose poll was started and not gathered.
    """

    def __init__(self, connect: Callable[[], Session], parallel: int) -> None:
        self._connect = connect
        self._threads = ThreadPoolExecutor(parallel, thread_name_prefix="lakefeed-poll")
        self._idle: queue.LifoQueue[Session] = queue.LifoQueue()
        self._open: list[Session] = []
        self._is_closed = False
        self._lock = threading.Lock()
        self.running: dict[TableId, Future[PollResult]] = {}

    def start(self, table: TableId, work: Callable[[Session], PollResult]) -> None:
        self.running[table] = self._threads.submit(self._do, work)

    def gather(self, patience_seconds: float) -> Mapping[TableId, PollResult | LakefeedError]:
        """What has ended. Waits for all, but not longer than that."""
        wait(self.running.values(), timeout=patience_seconds)
        ended = {table: future for table, future in self.running.items() if future.done()}
        results: dict[TableId, PollResult | LakefeedError] = {}
        for table, future in ended.items():
            del self.running[table]
            error = future.exception()
            if error is not None and not isinstance(error, LakefeedError):
                raise error
            results[table] = future.result() if error is None else error
        return results

    def close(self) -> None:
        with self._lock:
            sessions, self._open, self._is_closed = self._open, [], True
        cancel_all(sessions)
        self._threads.shutdown(wait=False, cancel_futures=True)
        running = list(self.running.values())
        for future in running:
            if future.cancelled():
                with suppress(RuntimeError, InvalidStateError):  # whoever waits in gather learns of it by this alone
                    future.set_running_or_notify_cancel()
        wait([future for future in running if not future.cancelled()], timeout=_CLOSE_SECONDS)
        for session in sessions:
            with suppress(Exception):
                session.close()

    def _do(self, work: Callable[[Session], PollResult]) -> PollResult:
        try:
            session = self._idle.get_nowait()
        except queue.Empty:
            session = self._connect()
            with self._lock:
                self._open.append(session)
                is_closed = self._is_closed
            if is_closed:  # while it connected: nobody else closes this one
                session.close()
                raise StateError("the capture was closed", remedy="Call open first.") from None
        try:
            result = work(session)
        except BaseException:
            with self._lock:
                if session in self._open:
                    self._open.remove(session)
            with suppress(Exception):
                session.close()  # it may be in the middle of anything
            raise
        self._idle.put(session)
        return result


def cancel_all(sessions: Sequence[Session]) -> None:
    """End what runs on them. At the same time, and not longer than that: a server may answer nothing any more."""

    def cancel(session: Session) -> None:
        with suppress(Exception):  # it is being closed: what it says of that does not matter
            session.cancel()

    threads = [threading.Thread(target=cancel, args=[session], daemon=True) for session in sessions]
    until = time.monotonic() + _CLOSE_SECONDS
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, until - time.monotonic()))
