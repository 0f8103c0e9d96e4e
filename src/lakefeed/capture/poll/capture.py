"""Polling: the ChangeCapture of any database that answers SELECT.

Guarantees and limits, beyond the contract of ChangeCapture:
- Polling creates nothing in the source and writes nothing to it. Positions are watermarks: for each table, the time and
  the key of the last row before which nothing can appear any more.
- A row is delivered as a poll finds it. What happened to it between two polls is not seen, nor are deletes, unless the
  table's rule says how to find them (SoftDelete, FullDiff).
- A row is delivered once; after a restart, rows that were not settled yet (the safety lag) are delivered again.
- A change set is one cycle over all tables, not a transaction: ``capabilities.transactions`` is False.
- A change that does not move ``updated_at`` forward is not seen. FullDiff with ``compare_rows`` finds it.
- The resume point is in the ``store``. Without a durable store it is the position that ``live`` is given.
- Threads: the stream (``live``, ``confirm``) has connections of its own, and so have ``discover``, ``prepare``,
  ``snapshot`` and ``keys``: they never wait for a poll, and the next cycle picks up what they prepared. ``_lock``
  guards what both sides write: the confirmed watermark and the wanted tables."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from lakefeed.capture.base import (
    Capabilities,
    ChangeCapture,
    Continuity,
    Finding,
    Lag,
    SnapshotPlan,
    TableSize,
    of_kind,
    opened,
)
from lakefeed.capture.dialect import Dialect, Key, Session
from lakefeed.capture.poll.poller import DifferencesDirectory, refuse_timeless, resume_mark
from lakefeed.capture.poll.selection import TableSelection
from lakefeed.capture.poll.source import FullDiff, Pace, TableRule
from lakefeed.capture.poll.store import FileWatermarkStore, MemoryWatermarkStore, WatermarkStore
from lakefeed.capture.poll.stream import Connections, PollStream
from lakefeed.capture.poll.table import PolledTable, TableReads, with_nulls
from lakefeed.capture.snapshot import TableChunk, TableChunkReader, keyed_chunks, plan_chunks
from lakefeed.change.change_set import ChangeSet
from lakefeed.change.choice import Choices
from lakefeed.change.position import Position
from lakefeed.change.table import Comments, TableId, TableSchema
from lakefeed.change.watermark import Mark, Watermark
from lakefeed.errors import CheckpointError, DecodeError, SourceChangedError
from lakefeed.storage.base import Storage

BUSY_SECONDS = 5.0
"""How long, at least, a drain continues with a source that always has more."""


class Polling(ChangeCapture):
    """One database, one pipeline. ``rules`` are by table pattern; see ``TableRule`` and ``TableSelection``.
    ``differences`` is the directory where full comparisons leave what they found (see ``differences``). A pipeline sets
    it by ``keep_state``."""

    kind = Watermark.kind

    def __init__(
        self, connector: Dialect, *, tables: Sequence[str] = ("*",), rules: Mapping[str, TableRule] | None = None,
        store: WatermarkStore | None = None, differences: Path | None = None, pace: Pace | None = None,
    ) -> None:  # fmt: skip
        self._dialect = connector
        rules = dict(rules or {})
        self.capabilities = Capabilities(
            deletes=bool(rules) and all(rule.deletes is not None for rule in rules.values()), transactions=False,
            schema_changes=True, snapshot_resume=True, every_change=False, current_chunks=True,
        )  # fmt: skip
        self._selection = TableSelection(connector, tables, rules)
        self._store: WatermarkStore = store if store is not None else MemoryWatermarkStore()
        self._pace = pace or Pace()
        self._stream = PollStream(connector, self._selection, differences, self._pace)
        self._connections: Connections | None = None
        self._closed = threading.Event()
        self._polled_at = 0.0
        self._lock = threading.Lock()
        self._confirmed: Watermark | None = None
        self._wanted: dict[TableId, Mark | None] = {}
        """Tables to poll whatever the position has: prepared ones with their mark, and those that the flow expects."""

    def represent(self, choices: Choices) -> None:
        self._dialect = self._dialect.represent(choices)
        self._selection.represent(self._dialect, choices)
        self._stream.represent(self._dialect)

    def sizes(self, tables: Sequence[TableId]) -> Mapping[TableId, TableSize]:
        with closing(self._dialect.connect()) as session:
            return session.sizes(tables)

    def comments(self, table: TableId) -> Comments:
        with closing(self._dialect.connect()) as session:
            return session.comments(table)

    def open(self) -> None:
        if self._connections is not None:
            return
        connections = Connections(self._dialect)
        with connections.use():
            saved = self._store.identity()
            if saved not in (None, connections.identity):
                raise SourceChangedError(f"the watermarks belong to {saved}, not to {connections.identity}")
        if saved is not None:
            marks = {table: self._store.load(table) for table in self._store.tables()}
            self._confirmed = Watermark.of({table: mark for table, mark in marks.items() if mark is not None})
        self._connections = connections
        self._closed.clear()

    def close(self) -> None:
        self._closed.set()
        connections, self._connections = self._connections, None
        self._stream.close()
        if connections is not None:
            connections.close()

    def identity(self) -> str | None:
        connections = opened(self._connections)
        return connections.identity if self._confirmed is not None else None

    def continuity(self, position: Position | None, tables: Sequence[TableId]) -> Continuity:
        opened(self._connections)
        if position is None and self._confirmed is None:
            return Continuity.FRESH
        with self._lock:
            self._confirmed = self._confirmed if position is None else of_kind(position, Watermark)
            self._wanted = {**dict.fromkeys(tables), **self._wanted}
        return Continuity.RESUMED

    def recall(self, schemas: Sequence[TableSchema]) -> None:
        self._stream.known |= {schema.table: schema for schema in schemas}

    def discover(self) -> tuple[TableSchema, ...]:
        with opened(self._connections).use(fresh=True) as session:
            return tuple(polled.schema for polled in self._selection.polled(session, self._stream.known).values())

    def wants(self, table: TableId) -> bool:
        return self._selection.wants(table)

    def prepare(self, tables: Sequence[TableId]) -> Watermark:
        stream, marks = self._stream, dict[str, Mark]()
        with opened(self._connections).use(fresh=True) as session:
            horizon = session.horizon()
            for table in tables:
                polled = self._described(session, table)
                if table not in stream.known and polled.source.misfits:
                    # A new table is scanned first: polls would never find its old values.
                    mixed = TableReads(polled, session).mixed_columns() - polled.ordering
                    polled = self._selection.table(polled.source, mixed=mixed)
                refuse_timeless(session, polled)
                mark = {**self._marks(), **dict(stream.position.marks)}.get(str(table))
                if mark is None or table in stream.stale:
                    mark = resume_mark(session, polled, horizon, mark)
                marks[str(table)] = mark
                stream.known[table] = polled.schema
                stream.arrived.put((polled.source, mark))
        with self._lock:
            known = self._marks()
            self._wanted |= {table: marks[str(table)] for table in tables}
            return self._save({table: mark for table, mark in marks.items() if table not in known})

    def snapshot(self, table: TableId, *, chunk_rows: int = 250_000) -> SnapshotPlan:
        with opened(self._connections).use(fresh=True) as session:
            return self._plan(session, self._described(session, table), chunk_rows)

    def reread(
        self,
        known: TableSchema,
        *,
        keys: Sequence[Key] | None = None,
        chunk_rows: int = 250_000,
        where: Sequence[str] = (),
    ) -> SnapshotPlan:
        with closing(self._dialect.connect()) as session:
            polled = self._described(session, known.table, known)
            whole = self._chunk(session, polled)
            whole = replace(whole, where=(*whole.where, *where))
            if keys is not None:
                return SnapshotPlan(polled.schema, keyed_chunks(whole, keys), len(keys))
            return SnapshotPlan(polled.schema, *plan_chunks(session, whole, chunk_rows))

    def keep_state(self, state: Storage) -> None:
        """Keeps differences there, and watermarks, which are older than the journal's first position.

        Differences need a directory: with an object store there is none, and so no full comparison either.
        """
        if state.directory is not None:
            self._stream.differences = state.directory / "differences"
        if type(self._store) is MemoryWatermarkStore:
            self._store = FileWatermarkStore("watermark.json", state.below())

    def keys(
        self, table: TableId, *, known: TableSchema | None = None, chunk_rows: int = 1_000_000, whole_rows: bool = False
    ) -> SnapshotPlan:
        with closing(self._dialect.connect()) as session:
            return self._plan(session, self._described(session, table, known), chunk_rows, keys_only=not whole_rows)

    def differences(self, table: TableId) -> Path | None:
        root = self._stream.differences
        return DifferencesDirectory(root, table).path if root is not None else None

    def full_diff(self, table: TableId) -> FullDiff | None:
        deletes = self._selection.rule(table).deletes
        return deletes if isinstance(deletes, FullDiff) else None

    def chunk(self, data: Mapping[str, Any]) -> PolledChunk:
        rows = TableChunk.from_json(self._dialect, data)
        try:
            position = Watermark.parse(data["position"])
        except (KeyError, CheckpointError) as error:
            raise DecodeError(f"the plan of a copy of {rows.table} has no watermark") from error
        polled = replace(self._selection.table(rows.source), schema=rows.schema)
        own = {field.name: getattr(rows, field.name) for field in fields(rows)}
        return PolledChunk(**own, polled=polled, position=position)

    def live(self, after: Position | None, *, wait_seconds: float = 1.0) -> Iterator[ChangeSet]:
        with self._lock:
            start = (self._confirmed or Watermark()) if after is None else of_kind(after, Watermark)
            if self._confirmed is None:
                self._confirmed = start
        self._seek(start)
        return self._change_sets(wait_seconds)

    def _change_sets(self, wait_seconds: float) -> Iterator[ChangeSet]:
        """What the next cycle finds; a heartbeat if it finds nothing in time; ends once the capture is closed. Without
        a wait, a heartbeat means that polls which began after the last heartbeat (or ``live``) have read each table to
        its end, slow ones included. If every cycle finds something, because the tables are written to all the time, the
        heartbeat comes once that is so and some seconds have passed."""
        stream, pace, began = self._stream, self._pace, time.monotonic()
        until = began + wait_seconds
        while not self._closed.is_set():
            change_set, due_at = None, self._polled_at + pace.poll_seconds
            if wait_seconds > 0:
                self._closed.wait(max(0.0, min(due_at, until) - time.monotonic()))
            is_enough = stream.is_read and time.monotonic() > began + BUSY_SECONDS
            if (not is_enough) if wait_seconds == 0 else time.monotonic() >= due_at:
                try:
                    change_set = stream.cut()
                except Exception:  # closed in the meantime: a session, the threads or a poll is gone
                    if not self._closed.is_set():
                        raise
                if self._closed.is_set():
                    return  # an interrupted cycle says nothing about the source
                self._polled_at = time.monotonic() if change_set is None else 0.0
            if change_set is not None:
                yield change_set
            elif stream.is_read if wait_seconds == 0 else time.monotonic() >= until:
                yield ChangeSet(stream.position, stream.position)
                stream.begin_round()
                began = time.monotonic()
            else:
                continue
            until = time.monotonic() + wait_seconds

    def confirm(self, position: Position) -> None:
        opened(self._connections)
        marks = of_kind(position, Watermark).marks
        try:
            with self._lock:
                known = self._marks()
                moved = [(table, mark) for table, mark in marks if mark != known.get(table)]
                later = {t: mark for t, mark in moved if t not in known or mark.compare(known[t]) != -1}
                confirmed = self._save(later) if later else Watermark.of(known)
        except BaseException:
            self._seek(self._confirmed or Watermark())  # read again what was not saved
            raise
        self._stream.forget(confirmed)

    def lag(self) -> Lag:
        """The age of the oldest row that has not been read, over all tables."""
        with closing(self._dialect.connect()) as session:
            now, oldest = session.horizon().now_us, []
            for poller in list(self._stream.pollers.values()):
                rows, _ = TableReads(poller.table, session).changes(poller.mark, 1)
                oldest += [int(poller.table.times(rows)[0])] if rows.num_rows else []
        return Lag(seconds=max(0.0, (now - min(oldest)) / 1e6) if oldest else 0.0)

    def check(self) -> tuple[Finding, ...]:
        return self._selection.check()

    def uninstall(self) -> tuple[str, ...]:
        opened(self._connections)
        with self._lock:
            removed = self._store.remove()
            self._confirmed, self._wanted = None, {}
        self._stream.position = Watermark()
        return removed

    def _seek(self, start: Watermark) -> None:
        """Start with the tables that the position has, that were prepared, or that the flow expects; if there are none,
        with all. A table without a mark in the position continues from where it was prepared, or is read from its
        start."""
        connections = opened(self._connections)
        with connections.use() as session:
            chosen = self._selection.polled(session, self._stream.known).keys()
        marks = dict(start.marks)
        with self._lock:
            wanted = dict(self._wanted)
        tables = sorted({table for table in chosen if str(table) in marks or table in wanted} or chosen)
        froms = {table: marks.get(str(table)) or wanted.get(table) or Mark.start() for table in tables}
        self._stream.seek(connections, start, froms)
        if self._closed.is_set():  # meanwhile, by another thread
            self._stream.close()

    def _marks(self) -> dict[str, Mark]:
        """The confirmed marks."""
        return dict(self._confirmed.marks) if self._confirmed is not None else {}

    def _save(self, marks: Mapping[str, Mark]) -> Watermark:
        """Call under the lock. Saves the identity even without tables. Returns what is confirmed."""
        self._store.save(opened(self._connections).identity or "", marks)
        self._confirmed = Watermark.of({**self._marks(), **marks})
        return self._confirmed

    def _plan(self, session: Session, polled: PolledTable, chunk_rows: int, *, keys_only: bool = False) -> SnapshotPlan:
        """The chunks of a table, or only of its keys."""
        whole = self._chunk(session, polled)
        chunks, rows = plan_chunks(session, replace(whole, names=polled.key) if keys_only else whole, chunk_rows)
        return SnapshotPlan(polled.schema, chunks, rows)

    def _chunk(self, session: Session, polled: PolledTable) -> PolledChunk:
        """One chunk with the whole table."""
        return PolledChunk(
            self._dialect, polled.source, polled.schema,
            names=tuple(name for name in polled.read_names if name not in polled.unread),
            where=TableReads(polled, session).existing(), exact=polled.ordering, polled=polled,
            position=self._confirmed or Watermark(),
        )  # fmt: skip

    def _described(self, session: Session, table: TableId, known: TableSchema | None = None) -> PolledTable:
        return self._selection.table(session.described(table), known or self._stream.known.get(table))


@dataclass(frozen=True, kw_only=True)
class PolledChunk(TableChunk):
    """Rows of ``polled``: everything up to ``position``, which was confirmed when the chunk was planned, and newer."""

    polled: PolledTable
    position: Watermark

    def open(self) -> PolledChunkReader:
        return PolledChunkReader(self)

    def to_json(self) -> dict[str, Any]:
        """Everything but the dialect and the rule, which come from the configuration."""
        return {**super().to_json(), "position": self.position.text()}


class PolledChunkReader(TableChunkReader):
    """An open chunk; see ``ChunkReader``. Its ``high`` has the time of the newest row that it has read: up to there its
    rows may be newer than those of other chunks."""

    _chunk: PolledChunk
    _newest = Mark.start().instant_us

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        chunk, own = self._chunk, self._chunk.schema.arrow
        for batch in super().__iter__():
            if chunk.names == chunk.schema.key:  # keys alone have no time
                yield batch
            else:
                times = chunk.polled.times(batch, expect_order=False)
                self._newest = int(times.max(initial=self._newest))
                yield with_nulls(batch, own)

    @property
    def low(self) -> Watermark:
        return self._chunk.position

    @property
    def high(self) -> Watermark:
        """Valid once all rows are read."""
        marks, name = dict(self.low.marks), str(self._chunk.table)
        before = marks.get(name, Mark.start())
        is_newer = self._newest > before.instant_us
        return Watermark.of({**marks, name: Mark(self._newest, (), before.era)} if is_newer else marks)
