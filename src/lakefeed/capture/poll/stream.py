"""PollStream: one cycle after another over all tables; each is a change set if it found anything.

Steps of one cycle:
  1. read the catalog: tables prepared since, changed definitions, dropped tables
  2. read the horizon, before any row
  3. poll every table that is not still being read, several at a time, each on a connection of its own
  4. what has finished within the patience becomes one change set; the rows of a slow table are in a later one"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeVar

from lakefeed.capture.base import opened
from lakefeed.capture.dialect import DescribedTable, Dialect, Session
from lakefeed.capture.fit import MisfitError, became_text
from lakefeed.capture.poll.poller import Events, PollResult, TablePoller, change_batches, mark_name
from lakefeed.capture.poll.selection import TableSelection
from lakefeed.capture.poll.source import Pace
from lakefeed.capture.poll.table import TableReads, recopy_notice
from lakefeed.change.change_set import ChangeSet, RecopyNeeded, TableBlocked, TableDropped, TableNotice
from lakefeed.change.table import TableId, TableSchema
from lakefeed.change.watermark import Mark, Watermark
from lakefeed.errors import ConfigError, LakefeedError, Retry, SourceChangedError, StateError

T = TypeVar("T")

_CATALOG_SECONDS = 1.0
_CLOSE_SECONDS = 2.0


class Connections:
    """Sessions to one database, kept for the next use. Any thread may use them, several at a time. All lead to the
    database ``identity``, by default the one that the first session finds: the same name may lead to another one later.
    ``start`` runs work in ``parallel`` threads."""

    def __init__(self, dialect: Dialect, identity: str | None = None, parallel: int = 1) -> None:
        self._dialect = dialect
        self._threads = ThreadPoolExecutor(parallel, thread_name_prefix="lakefeed-poll")
        self._idle: list[Session] = []
        self._used: set[Session] = set()
        self._is_closed = False
        self._changed = threading.Condition()
        self.identity = identity

    @contextmanager
    def use(self, *, fresh: bool = False) -> Iterator[Session]:
        """A session that nobody else uses meanwhile; a ``fresh`` one is not kept. StateError once all are closed. While
        all others are fresh, the one that is not is always the same, so that a session may remember (``horizon``)."""
        with self._changed:
            idle = self._idle.pop() if self._idle and not fresh else None
        session = idle or self._dialect.connect()
        with self._changed:
            self._used.add(session)
        is_usable = False  # after an error it may be in any state
        try:
            if self._is_closed:
                raise StateError("the capture was closed", remedy="Call open first.")
            if idle is None:
                found = session.identity()
                if self.identity not in (None, found):
                    raise SourceChangedError(f"the database is now {found}, not {self.identity}, which was opened")
                self.identity = found
            yield session
            is_usable = True
        finally:
            with self._changed:
                self._used.discard(session)
                is_kept = is_usable and not fresh and not self._is_closed
                if is_kept:
                    self._idle.append(session)
                self._changed.notify_all()
            if not is_kept:
                with suppress(Exception):
                    session.close()

    def start(self, work: Callable[[Session], T]) -> Future[T]:
        """Run ``work`` in another thread, with a session."""

        def do() -> T:
            with self.use() as session:
                return work(session)

        return self._threads.submit(do)

    def close(self) -> None:
        """End what runs on them; work that waits for a thread ends with StateError. Returns within seconds, even if the
        server no longer answers."""
        self._threads.shutdown(wait=False)
        with self._changed:
            self._is_closed = True
            idle, self._idle, used = self._idle, [], list(self._used)

        def cancel(session: Session) -> None:
            with suppress(Exception):  # it is being closed, so its errors do not matter
                session.cancel()

        for session in used:  # concurrently, so that one that hangs does not hold up the others
            threading.Thread(target=cancel, args=[session], daemon=True).start()
        with self._changed:
            self._changed.wait_for(lambda: not self._used, 2 * _CLOSE_SECONDS)
            left = list(self._used)
        for session in [*idle, *left]:
            with suppress(Exception):
                session.close()


@dataclass(slots=True)
class _Cycle:
    """What one cycle has found so far."""

    events: list[Events] = field(default_factory=list)
    schemas: list[TableSchema] = field(default_factory=list)
    notices: list[TableNotice] = field(default_factory=list)
    marks: dict[str, Mark] = field(default_factory=dict)


class _Poll(NamedTuple):
    """A poll that was started and not collected yet."""

    poller: TablePoller
    result: Future[PollResult]
    round: int


class PollStream:
    """Belongs to the stream's thread, except for ``arrived``, ``close``, and reading ``pollers``: any thread.
    ``position`` is the end of the last change set. ``arrived`` are tables that were prepared: the next cycle adds them,
    unless they are polled already and not stale. ``known`` are the schemas that tables were last delivered with.
    ``stale`` are tables that continue from a new mark once they are prepared again, because changes were missed or they
    were stopped. A table whose definition changed is not among them: its lake table may go on without a copy."""

    def __init__(self, dialect: Dialect, selection: TableSelection, differences: Path | None, pace: Pace) -> None:
        self._dialect = dialect
        self._selection = selection
        self._pace = pace
        self._catalog: Connections | None = None
        self._readers: Connections | None = None
        self._polls: dict[TableId, _Poll] = {}
        self._blocked: set[TableId] = set()
        self._round = 0
        self._unread: set[TableId] | None = None
        self._catalog_read_at = 0.0
        self.pollers: dict[TableId, TablePoller] = {}
        self.arrived: queue.SimpleQueue[tuple[DescribedTable, Mark]] = queue.SimpleQueue()
        self.differences = differences
        self.known: dict[TableId, TableSchema] = {}
        self.stale: frozenset[TableId] = frozenset()
        self.position = Watermark()

    def represent(self, dialect: Dialect) -> None:
        self._dialect = dialect

    def seek(self, catalog: Connections, position: Watermark, tables: dict[TableId, Mark]) -> None:
        """Continue after ``position`` with ``tables``, each from its mark."""
        self.close()
        self._catalog, self._readers = catalog, Connections(self._dialect, catalog.identity, self._pace.parallel)
        self.position = position
        self.pollers, self._polls, self._blocked = {}, {}, self._blocked - tables.keys()
        self.begin_round()
        with catalog.use() as session:
            for table, source in session.describe(list(tables)).items():
                self._add(source, tables[table])

    def begin_round(self) -> None:
        """From here on ``is_read`` means: polls that began after this call have read each table to its end."""
        self._round += 1
        self._unread, self._catalog_read_at = None, 0.0

    @property
    def is_read(self) -> bool:
        """See ``begin_round``. Blocked tables are not read to their end, and do not count."""
        return self._unread is not None and not self._unread & (self.pollers.keys() - self._blocked)

    def cut(self) -> ChangeSet | None:
        """One cycle. None if nothing changed and no mark moved."""
        catalog, readers, cycle = opened(self._catalog), opened(self._readers), _Cycle()
        with catalog.use() as session:
            self._read_catalog(session, cycle)  # 1
            horizon = session.horizon()  # 2
        if self._unread is None:
            self._unread = set(self.pollers)
        for table, poller in self.pollers.items():  # 3
            if table not in self._blocked and table not in self._polls:
                result = readers.start(partial(poller.poll, horizon=horizon))
                self._polls[table] = _Poll(poller, result, self._round)
        wait([poll.result for poll in self._polls.values()], timeout=self._pace.patience_seconds)
        for table, poll in list(self._polls.items()):  # 4
            if poll.result.done():
                del self._polls[table]
                if self.pollers.get(table) is poll.poller:  # neither dropped nor restarted while it was read
                    self._take(catalog, table, poll, cycle)
        start, end = self.position, Watermark.of({**dict(self.position.marks), **cycle.marks})
        rows = sum(len(events.times) for events in cycle.events)
        self.position = end
        if not rows and not cycle.schemas and not cycle.notices and end == start:
            return None
        batches = change_batches(cycle.events, end, horizon.now_us)
        return ChangeSet(start, end, batches, rows, tuple(cycle.schemas), tuple(cycle.notices))

    def forget(self, confirmed: Watermark) -> None:
        """Remove differences up to ``confirmed``: they are durable elsewhere."""
        marks = dict(confirmed.marks)
        for table, poller in self.pollers.items():
            if poller.differences is not None and (mark := marks.get(mark_name(table))) is not None:
                poller.differences.forget(mark)

    def close(self) -> None:
        """Any thread. Running polls end with an error."""
        readers, self._readers = self._readers, None
        if readers is not None:
            readers.close()

    def _add(self, source: DescribedTable, mark: Mark) -> None:
        """Poll a table from ``mark`` on, with the schema it was last delivered with, or its current one."""
        table = self._selection.table(source, self.known.get(source.id))
        self.known.setdefault(source.id, table.schema)
        if mark.key and len(mark.key) != len(table.key):
            mark = Mark.start(mark.era + 1)  # the table was re-created with another key while no process ran
        compared = dict(self.position.marks).get(mark_name(source.id))
        self.pollers[source.id] = TablePoller(table, self.differences, mark, compared)
        self._blocked.discard(source.id)
        self.stale -= {source.id}

    def _read_catalog(self, session: Session, cycle: _Cycle) -> None:
        while not self.arrived.empty():
            new, mark = self.arrived.get()
            if new.id in self.stale or new.id not in self.pollers:
                self._add(new, mark)
        if time.monotonic() - self._catalog_read_at < min(_CATALOG_SECONDS, self._pace.poll_seconds):
            return
        idle = [table for table in self.pollers if table not in self._blocked and table not in self._polls]
        described = session.describe(idle)
        self._catalog_read_at = time.monotonic()
        for table in idle:
            poller, known, source = self.pollers[table], self.known[table], described.get(table)
            if source is None:
                del self.pollers[table]
                self._note([TableDropped(table)], cycle)
            elif source != poller.table.source or not known.same_shape(poller.table.schema):
                try:
                    poller.table = self._selection.table(source, known)
                except ConfigError as error:
                    self._block(table, error, cycle)
                    continue
                schema = poller.table.schema
                if not schema.same_shape(known):
                    if schema.key != known.key:
                        poller.begin_again()
                    reads = TableReads(poller.table, session)
                    notice = recopy_notice(known, schema, partial(reads.is_filled, mark=poller.mark))
                    self._reshape(poller, notice, cycle)

    def _take(self, catalog: Connections, table: TableId, poll: _Poll, cycle: _Cycle) -> None:
        """Collect the result of one poll. A table's own error stops that table; the database's goes to the caller."""
        poller = poll.poller
        try:
            result = poll.result.result()
        except (LakefeedError, MisfitError) as caught:
            error, old = caught.stopped(table) if isinstance(caught, MisfitError) else caught, poller.table
            if isinstance(caught, MisfitError) and caught.remedy is None:
                column = caught.column
                if column in old.schema.names and column not in old.ordering:
                    poller.table = self._selection.table(old.source, self.known[table], [column])
                    self._reshape(poller, became_text(table, [column]), cycle)
                    return
            if error.retry is Retry.BACKOFF or isinstance(error, StateError | SourceChangedError):
                raise
            with catalog.use() as session:
                is_same = session.describe([table]).get(table) == old.source
            if is_same:
                self._block(table, error, cycle)
            else:  # its definition changed under the query: the next cycle adapts to that first
                self._catalog_read_at = 0.0
            return
        cycle.marks[str(table)] = poller.mark
        if poller.compared is not None:
            cycle.marks[mark_name(table)] = poller.compared
        cycle.events += result.events
        self._note(result.notices, cycle)
        if self._unread is not None and result.is_end and poll.round == self._round:
            self._unread.discard(table)

    def _reshape(self, poller: TablePoller, notice: RecopyNeeded | None, cycle: _Cycle) -> None:
        poller.unsettled = None
        self.known[poller.table.id] = poller.table.schema
        cycle.schemas.append(poller.table.schema)
        self._note([notice] if notice is not None else [], cycle)

    def _block(self, table: TableId, error: LakefeedError, cycle: _Cycle) -> None:
        self._blocked.add(table)
        self._note([TableBlocked(table, error.message, error.remedy)], cycle)

    def _note(self, notices: Sequence[TableNotice], cycle: _Cycle) -> None:
        cycle.notices += notices
        self.stale |= {one.table for one in notices if not isinstance(one, RecopyNeeded) or one.columns is None}
