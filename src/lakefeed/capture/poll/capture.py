"""Polling: the ChangeCapture of any database that can be asked with SELECT.

Guarantees and limits, beyond the contract of ChangeCapture:
- Nothing is created in the source and nothing is written to it. Positions are watermarks: for each table the time and
  the key of the last row that nothing can come before any more.
- A row is delivered as a poll finds it. What happened to it between two polls is not seen, nor are deletes, unless the
  table's rule says how to find them (SoftDelete, FullDiff).
- A row is delivered once; after a restart, rows that were not settled yet (the safety lag) are delivered again.
- A change set is one cycle over all tables, not a transaction: ``capabilities.transactions`` is False.
- A change that does not move ``updated_at`` forward is not seen. FullDiff with ``compare_rows`` finds it.
- The resume point is the ``store``. Without a durable one it is the position that ``live`` is given.
- Threads: the stream has one session, which ``live`` and ``confirm`` use. ``discover``, ``prepare``, ``snapshot`` and
  ``keys`` connect for themselves and never wait for a poll; the next cycle takes in what they prepared. ``_lock``
  guards what both sides write: the confirmed watermark, the prepared tables, the open sessions.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from lakefeed.capture.base import Capabilities, ChangeCapture, Continuity, Finding, Lag, SnapshotPlan
from lakefeed.capture.dialect import DescribedTable, Dialect, Session
from lakefeed.capture.fit import MisfitError
from lakefeed.capture.poll.differences import DifferencesDirectory
from lakefeed.capture.poll.poller import mixed_columns, refuse_timeless, resume_mark
from lakefeed.capture.poll.preflight import check_source
from lakefeed.capture.poll.query import Queries
from lakefeed.capture.poll.rule import FullDiff, TableRule
from lakefeed.capture.poll.snapshot import PolledChunk, plan_snapshot
from lakefeed.capture.poll.store import FileWatermarkStore, MemoryWatermarkStore, WatermarkStore
from lakefeed.capture.poll.stream import Pace, PollStream, cancel_all
from lakefeed.capture.poll.table import PolledTable, TableSelection, polled_table, text_columns
from lakefeed.capture.snapshot import TableChunk, combined
from lakefeed.change.change_set import ChangeSet
from lakefeed.change.position import Position
from lakefeed.change.table import TableId, TableSchema
from lakefeed.change.watermark import Mark, Watermark
from lakefeed.errors import SourceChangedError, SourceSetupError, StateError

_CLOSE_SECONDS = 3.0


class Polling(ChangeCapture):
    """One database, one pipeline. ``rules`` are by table pattern; see ``TableRule`` and ``TableSelection``.

    ``differences`` is the directory where full comparisons leave what they found (see ``differences``). A pipeline
    says where, by ``keep_state``.
    """

    kind = Watermark.kind

    def __init__(
        self,
        connector: Dialect,
        *,
        tables: Sequence[str] = ("*",),
        rules: Mapping[str, TableRule] | None = None,
        store: WatermarkStore | None = None,
        differences: Path | None = None,
        pace: Pace | None = None,
    ) -> None:
        self._dialect = connector
        rules = dict(rules or {})
        self.capabilities = Capabilities(
            deletes=bool(rules) and all(rule.deletes is not None for rule in rules.values()),
            before_images=False,
            transactions=False,
            schema_changes=True,
            exact_snapshot=False,
            snapshot_resume=True,
            every_change=False,
            current_chunks=True,
        )
        self._selection = TableSelection(connector, tables, rules)
        self._store: WatermarkStore = store if store is not None else MemoryWatermarkStore()
        self._pace = pace or Pace()
        self._stream = PollStream(connector, self._selection, differences, self._pace)
        self._cycle = threading.Lock()
        self._session: Session | None = None
        self._lock = threading.Lock()
        self._sessions: set[Session] = set()
        self._identity = ""
        self._is_known = False
        self._confirmed = Watermark()
        self._expected: set[TableId] = set()
        self._prepared: dict[TableId, Mark] = {}
        self._polled_at = 0.0
        self._closed = threading.Event()

    def open(self) -> None:
        if self._session is not None:
            return
        session = self._dialect.connect()
        try:
            self._identity = session.identity()
            saved = self._store.identity()
            if saved is not None and saved != self._identity:
                raise SourceChangedError(f"the watermarks belong to {saved}, not to {self._identity}")
        except BaseException:
            session.close()
            raise
        if saved is not None:
            marks = {table: self._store.load(table) for table in self._store.tables()}
            self._confirmed = Watermark.of({table: mark for table, mark in marks.items() if mark is not None})
            self._is_known = True
        with self._lock:
            self._session = session
            self._sessions.add(session)
        self._closed.clear()

    def close(self) -> None:
        self._closed.set()
        with self._lock:
            sessions, self._session = list(self._sessions), None
            self._sessions.clear()
        cancel_all(sessions)
        self._stream.close()
        # Whoever is in the middle of a statement sees that it was cancelled; then nobody uses the sessions.
        is_idle = self._cycle.acquire(timeout=_CLOSE_SECONDS)
        for session in sessions:
            with suppress(Exception):
                session.close()
        if is_idle:
            self._cycle.release()

    def identity(self) -> str | None:
        self._require_open()
        return self._identity if self._is_known else None

    def continuity(self, position: Position | None, tables: Sequence[TableId]) -> Continuity:
        self._require_open()
        if position is None and not self._is_known:
            return Continuity.FRESH
        with self._lock:
            if position is not None:
                self._confirmed, self._is_known = _own(position), True
            self._expected |= set(tables)
        return Continuity.RESUMED

    def recall(self, schemas: Sequence[TableSchema]) -> None:
        self._stream.known |= {schema.table: schema for schema in schemas}

    def discover(self) -> tuple[TableSchema, ...]:
        with self._connected() as session:
            return tuple(polled.schema for polled in self._there(session).values())

    def wants(self, table: TableId) -> bool:
        return self._selection.wants(table)

    def prepare(self, tables: Sequence[TableId]) -> Watermark:
        marks: dict[TableId, Mark] = {}
        with self._connected() as session:
            horizon = session.horizon()
            for table in tables:
                source, polled = self._described(session, table)
                if table not in self._stream.known and source.misfits:
                    # A new table is read through first: no poll would ever find its old values.
                    mixed = mixed_columns(self._dialect, session, polled) - polled.ordering
                    polled = polled_table(source, polled.rule, mixed)
                refuse_timeless(self._dialect, session, polled)
                confirmed = dict(self._confirmed.marks).get(str(table))
                before = dict(self._stream.position.marks).get(str(table)) or confirmed or self._prepared.get(table)
                mark = before
                if before is None or table in self._stream.stale:
                    era = before.era if before is not None else 0
                    try:
                        mark = resume_mark(self._dialect, session, polled, horizon, era)
                    except MisfitError as error:
                        raise error.stopped(table) from error
                    mark = before if before is not None and mark.compare(before) == -1 else mark
                assert mark is not None  # noqa: S101  # one of the two is there
                marks[table] = mark
                self._stream.known[table] = polled.schema
                self._stream.arrive(source, mark)
        with self._lock:
            known = dict(self._confirmed.marks)
            self._save({str(table): mark for table, mark in marks.items() if str(table) not in known})
            self._prepared |= marks
            self._is_known = True
            return self._confirmed

    def snapshot(self, table: TableId, *, chunk_rows: int = 250_000) -> SnapshotPlan:
        with self._connected() as session:
            _, polled = self._described(session, table)
            return plan_snapshot(self._dialect, session, polled, self._confirmed, chunk_rows)

    def keep_state(self, directory: Path) -> None:
        """Differences, and the watermarks, which stand in for the journal's first position: they are older."""
        self._stream.differences = directory / "differences"
        if isinstance(self._store, MemoryWatermarkStore) and not isinstance(self._store, FileWatermarkStore):
            self._store = FileWatermarkStore(directory / "watermark.json")

    def keys(
        self,
        table: TableId,
        *,
        known: TableSchema | None = None,
        chunk_rows: int = 1_000_000,
        whole_rows: bool = False,
    ) -> SnapshotPlan:
        with closing(self._dialect.connect()) as session:
            _, polled = self._described(session, table, known)
            return plan_snapshot(self._dialect, session, polled, self._confirmed, chunk_rows, keys_only=not whole_rows)

    def differences(self, table: TableId) -> Path | None:
        root = self._stream.differences
        return DifferencesDirectory(root, table).path if root is not None else None

    def full_diff(self, table: TableId) -> FullDiff | None:
        deletes = self._selection.rule(table).deletes
        return deletes if isinstance(deletes, FullDiff) else None

    def chunk(self, data: Mapping[str, Any]) -> PolledChunk:
        rows = TableChunk.from_json(self._dialect, data)
        return PolledChunk.from_json(rows, self._selection.rule(rows.table), data)

    def live(self, after: Position | None, *, wait_seconds: float = 1.0) -> Iterator[ChangeSet]:
        with self._lock:
            start = self._confirmed if after is None else _own(after)
            if not self._is_known:
                self._confirmed, self._is_known = start, True
        self._seek(start)
        return self._change_sets(wait_seconds)

    def confirm(self, position: Position) -> None:
        self._require_open()
        marks = _own(position).marks
        try:
            with self._lock:
                known = dict(self._confirmed.marks)
                later = {
                    table: mark
                    for table, mark in marks
                    if table not in known or (mark != known[table] and mark.compare(known[table]) != -1)
                }
                if later:
                    self._save(later)
        except BaseException:
            self._seek(self._confirmed)  # what is not saved is read again
            raise
        self._stream.forget(self._confirmed)

    def lag(self) -> Lag:
        """How old the oldest row is that has not been read, over all tables."""
        with closing(self._dialect.connect()) as session:
            now, oldest = session.horizon().now_us, []
            for polled, mark in self._stream.polled():
                schema = polled.arrow(polled.read_names)
                rows = combined(session.read(Queries(self._dialect, polled).changes(mark, 1), schema), schema)
                oldest += [int(polled.times(rows)[0])] if rows.num_rows else []
        return Lag(seconds=max(0.0, (now - min(oldest)) / 1e6) if oldest else 0.0)

    def check(self) -> tuple[Finding, ...]:
        return check_source(self._dialect, self._selection)

    def uninstall(self) -> tuple[str, ...]:
        self._require_open()
        with self._lock:
            removed = self._store.remove()
            self._is_known, self._confirmed = False, Watermark()
            self._prepared, self._expected = {}, set()
        self._stream.position = Watermark()
        return removed

    def _change_sets(self, wait_seconds: float) -> Iterator[ChangeSet]:
        """What the next cycle finds; a heartbeat if it finds nothing in time; the end once the capture is closed.

        Without a wait, "nothing" means that every table has been read: a slow one is waited for then.
        """
        until = time.monotonic() + wait_seconds
        while not self._closed.is_set():
            pause = self._polled_at + self._pace.poll_seconds - time.monotonic()
            if wait_seconds > 0 and pause > 0:
                self._closed.wait(min(pause, max(0.0, until - time.monotonic())))
            change_set = None
            if wait_seconds == 0 or pause <= 0 or time.monotonic() < until:
                try:
                    with self._cycle:
                        change_set = self._stream.cut(self._require_open())
                except Exception:  # closed in the middle: a session, the threads or a poll is gone
                    if not self._closed.is_set():
                        raise
                if self._closed.is_set():
                    return  # what was interrupted by that says nothing of the source
                self._polled_at = time.monotonic() if change_set is None else 0.0
            if change_set is None:
                if time.monotonic() < until or (wait_seconds == 0 and self._stream.is_reading):
                    continue
                change_set = ChangeSet(self._stream.position, self._stream.position)
            yield change_set
            until = time.monotonic() + wait_seconds

    def _seek(self, start: Watermark) -> None:
        """Tables that the position has, that were prepared, or that the flow expects; without any, all there are."""
        with self._cycle:
            session = self._require_open()
            chosen, marks = set(self._there(session)), dict(start.marks)
            with self._lock:
                prepared, expected = dict(self._prepared), set(self._expected)
            named = {table for table in chosen if str(table) in marks}
            wanted = (named | expected | set(prepared)) & chosen or chosen
            self._stream.seek(
                session, start, sorted(wanted), {str(table): mark for table, mark in prepared.items()}, self._connect
            )

    def _save(self, marks: Mapping[str, Mark]) -> None:
        """Under the lock. A store of no tables still gets the identity."""
        self._store.save(self._identity, marks)
        self._confirmed = Watermark.of({**dict(self._confirmed.marks), **marks})

    def _there(self, session: Session) -> dict[TableId, PolledTable]:
        described = session.describe(self._selection.tables(session.tables()))
        return self._selection.polled(described, self._stream.known)

    def _described(
        self, session: Session, table: TableId, known: TableSchema | None = None
    ) -> tuple[DescribedTable, PolledTable]:
        source = session.describe([table]).get(table)
        if source is None:
            raise SourceSetupError(f"there is no table {table}", remedy="Correct source.tables, or create the table.")
        texts = text_columns(known or self._stream.known.get(table), source)
        return source, polled_table(source, self._selection.rule(table), texts)

    @contextmanager
    def _connected(self) -> Iterator[Session]:
        """A session of the caller's own, which ``close`` ends."""
        self._require_open()
        session = self._connect()
        with self._lock:
            self._sessions.add(session)
        try:
            yield session
        finally:
            with self._lock:
                self._sessions.discard(session)
            session.close()

    def _connect(self) -> Session:
        """A connection to the very database that was opened: behind one name there may be another one later."""
        session = self._dialect.connect()
        try:
            if (found := session.identity()) != self._identity:
                raise SourceChangedError(f"{found} answers now, and not {self._identity}, which was opened")
        except BaseException:
            session.close()
            raise
        return session

    def _require_open(self) -> Session:
        session = self._session
        if session is None:
            raise StateError("the capture is not open", remedy="Call open first.")
        return session


def _own(position: Position) -> Watermark:
    if not isinstance(position, Watermark):
        raise SourceChangedError(f"{position.encode()} is a position of another kind of source, not of polling")
    return position
