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
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lakefeed.capture.base import Capabilities, ChangeCapture, Continuity, Finding, Lag, SnapshotPlan
from lakefeed.capture.dialect import DescribedTable, Dialect, Session
from lakefeed.capture.poll.choice import Choice
from lakefeed.capture.poll.chunk import PolledChunk, plan_polled
from lakefeed.capture.poll.drift import text_columns
from lakefeed.capture.poll.findings import FindingsDirectory
from lakefeed.capture.poll.followed import Followed, follow
from lakefeed.capture.poll.follower import Follower
from lakefeed.capture.poll.preflight import check_source, oldest_unread_us
from lakefeed.capture.poll.reading import fitting, mixed_columns, resume_mark
from lakefeed.capture.poll.rule import FullDiff, TableRule
from lakefeed.capture.poll.store import FileWatermarkStore, MemoryWatermarkStore, Saved, WatermarkStore
from lakefeed.capture.poll.stream import Pace, PollStream
from lakefeed.change.change_set import ChangeSet
from lakefeed.change.position import Position
from lakefeed.change.table import TableId, TableSchema
from lakefeed.change.watermark import Mark, Watermark
from lakefeed.errors import SourceChangedError, SourceSetupError, StateError


class Polling(ChangeCapture):
    """One database, one pipeline. ``rules`` are by table pattern; see ``TableRule`` and ``Choice``.

    ``findings`` is the directory where full comparisons leave what they found (see ``findings``). A pipeline says
    where, by ``keep_state``.
    """

    kind = Watermark.kind

    def __init__(
        self,
        connector: Dialect,
        *,
        tables: Sequence[str] = ("*",),
        rules: Mapping[str, TableRule] | None = None,
        store: WatermarkStore | None = None,
        findings: Path | None = None,
        pace: Pace | None = None,
    ) -> None:
        self._connector = connector
        self._rules = dict(rules or {})
        self.capabilities = Capabilities(
            deletes=bool(self._rules) and all(rule.deletes is not None for rule in self._rules.values()),
            before_images=False,
            transactions=False,
            schema_changes=True,
            exact_snapshot=False,
            snapshot_resume=True,
            every_change=False,
        )
        self._choice = Choice(connector, tables, self._rules)
        self._store: WatermarkStore = store if store is not None else MemoryWatermarkStore()
        self._pace = pace or Pace()
        self._findings = findings
        self._stream = PollStream(connector, self._choice, findings, self._pace)
        self._session: Session | None = None
        self._identity = ""
        self._is_known = False
        self._confirmed = Watermark()
        self._expected: set[TableId] = set()
        self._prepared: dict[TableId, Mark] = {}
        self._polled_at = 0.0
        self._closed = threading.Event()
        self._lock = threading.RLock()  # close may come from another thread while live waits

    def open(self) -> None:
        with self._lock:
            if self._session is None:
                self._session = self._connector.connect()
                self._identity = self._session.identity()
                self._closed.clear()
                self._adopt_saved()

    def close(self) -> None:
        self._closed.set()
        self._stream.close()
        with self._lock:
            session, self._session = self._session, None
            if session is not None:
                session.close()

    def identity(self) -> str | None:
        with self._working():
            return self._identity if self._is_known else None

    def continuity(self, position: Position | None, tables: Sequence[TableId]) -> Continuity:
        with self._working():
            if position is None and not self._is_known:
                return Continuity.FRESH
            if position is not None:
                self._confirmed = _own(position)
                self._is_known = True
            self._expected |= set(tables)
            return Continuity.RESUMED

    def recall(self, schemas: Sequence[TableSchema]) -> None:
        self._stream.known |= {schema.table: schema for schema in schemas}

    def discover(self) -> tuple[TableSchema, ...]:
        with self._working() as session:
            return tuple(followed.schema for followed in self._followed(session).values())

    def wants(self, table: TableId) -> bool:
        return self._choice.wants(table)

    def prepare(self, tables: Sequence[TableId]) -> Watermark:
        with self._working() as session:
            horizon = session.horizon()
            marks = dict(self._confirmed.marks)
            current = dict(self._stream.position.marks)
            for table in tables:
                source, followed = self._taken_in(session, table)
                Follower(self._connector, followed, None).refuse_timeless(session)
                before = current.get(str(table)) or marks.get(str(table)) or self._prepared.get(table)
                mark = before
                if before is None or table in self._stream.stale:
                    with session.consistent(), fitting(table):
                        mark = resume_mark(self._connector, session, followed, horizon, before.era if before else 0)
                    mark = before if before is not None and mark.compare(before) == -1 else mark
                assert mark is not None  # noqa: S101  # one of the two is there
                self._take_in(source, followed, mark)
                marks.setdefault(str(table), mark)
            self._save(Watermark.of(marks))
            return self._confirmed

    def snapshot(self, table: TableId, *, chunk_rows: int = 250_000) -> SnapshotPlan:
        with self._working() as session:
            _, followed = self._required(session, table)
            with fitting(table):
                chunks, rows = plan_polled(
                    self._connector, session, followed, self._confirmed, chunk_rows, keys_only=False
                )
            return SnapshotPlan(followed.schema, chunks, rows)

    def keep_state(self, directory: Path) -> None:
        """Findings, and the watermark itself: it is older than the journal's first position, which it stands in for."""
        self._findings = self._stream.findings = directory / "findings"
        if isinstance(self._store, MemoryWatermarkStore):
            self._store = FileWatermarkStore(directory / "watermark.json")

    def keys(
        self,
        table: TableId,
        *,
        known: TableSchema | None = None,
        chunk_rows: int = 1_000_000,
        whole_rows: bool = False,
    ) -> SnapshotPlan:
        """On a connection of its own: a table of many rows is not counted and cut in the stream's time."""
        session = self._connector.connect()
        try:
            _, followed = self._required(session, table, known)
            with fitting(table):
                chunks, rows = plan_polled(
                    self._connector, session, followed, self._confirmed, chunk_rows, keys_only=not whole_rows
                )
            return SnapshotPlan(followed.schema, chunks, rows)
        finally:
            session.close()

    def findings(self, table: TableId) -> Path | None:
        """Where a full comparison of ``table`` leaves what it found; None if there is no such place."""
        return FindingsDirectory(self._findings, table).place if self._findings is not None else None

    def full_diff(self, table: TableId) -> FullDiff | None:
        deletes = self._choice.rule(table).deletes
        return deletes if isinstance(deletes, FullDiff) else None

    def copied(self, table: TableId) -> None:
        """Nothing is kept open for a copy."""

    def chunk(self, data: Mapping[str, Any]) -> PolledChunk:
        table = TableId.parse(data["schema"]["table"])
        return PolledChunk.from_json(self._connector, self._choice.rule(table), data)

    def live(self, after: Position | None, *, wait_seconds: float = 1.0) -> Iterator[ChangeSet]:
        with self._working() as session:
            start = self._confirmed if after is None else _own(after)
            self._confirmed = start if after is not None and not self._is_known else self._confirmed
            self._is_known = True
            self._seek(session, start)
        return self._change_sets(wait_seconds)

    def confirm(self, position: Position) -> None:
        own = _own(position)
        with self._working() as session:
            if own.compare(self._confirmed) == -1:
                return
            try:
                self._save(own)
            except BaseException:
                self._seek(session, self._confirmed)  # what is not saved is read again
                raise
            self._stream.forget(own)

    def lag(self) -> Lag:
        """How old the oldest row is that has not been read. On a connection of its own."""
        session = self._connector.connect()
        try:
            now = session.horizon().now_us
            oldest = oldest_unread_us(self._connector, session, self._stream.followed())
        finally:
            session.close()
        return Lag(seconds=0.0 if oldest is None else max(0.0, (now - oldest) / 1e6))

    def check(self) -> tuple[Finding, ...]:
        return check_source(self._connector, self._choice)

    def uninstall(self) -> tuple[str, ...]:
        with self._working():
            removed = self._store.remove()
            self._is_known, self._confirmed = False, Watermark()
            self._prepared, self._expected = {}, set()
            self._stream.position = Watermark()
            return removed

    def _change_sets(self, wait_seconds: float) -> Iterator[ChangeSet]:
        while (change_set := self._next(wait_seconds)) is not None:
            yield change_set

    def _next(self, wait_seconds: float) -> ChangeSet | None:
        """What the next cycle finds, a heartbeat if it finds nothing in time, None once the capture is closed.

        Without a wait, "nothing" means that every table has been read: a slow one is waited for then.
        """
        until = time.monotonic() + wait_seconds
        while not self._closed.is_set():
            pause = self._polled_at + self._pace.poll_seconds - time.monotonic()
            if wait_seconds > 0 and pause > 0:
                self._closed.wait(min(pause, max(0.0, until - time.monotonic())))
            if wait_seconds == 0 or pause <= 0 or time.monotonic() < until:
                with self._working() as session:
                    change_set = self._stream.cut(session)
                if self._closed.is_set():
                    return None  # what was interrupted by that says nothing of the source
                self._polled_at = time.monotonic() if change_set is None else 0.0
                if change_set is not None:
                    return change_set
            if time.monotonic() >= until and not (wait_seconds == 0 and self._stream.is_reading):
                return ChangeSet(self._stream.position, self._stream.position)
        return None

    def _seek(self, session: Session, start: Watermark) -> None:
        """Tables that the position has, that were prepared, or that the flow expects; without any, all there are."""
        chosen = set(self._followed(session))
        named = {table for table in chosen if str(table) in dict(start.marks)}
        wanted = (named | self._expected | set(self._prepared)) & chosen or chosen
        self._stream.seek(session, start, sorted(wanted))
        for table in wanted - named:
            if table in self._prepared and (source := session.describe([table]).get(table)) is not None:
                self._stream.add(source, self._prepared[table])

    def _take_in(self, source: DescribedTable, followed: Followed, mark: Mark) -> None:
        """Known to the stream from its next cycle on."""
        self._prepared[source.id] = mark
        self._is_known = True
        self._stream.known[source.id] = followed.schema
        if source.id in self._stream.stale or source.id not in self._stream.tables:
            self._stream.add(source, mark)

    def _save(self, position: Watermark) -> None:
        self._store.save(Saved(self._identity, position))
        self._confirmed = position

    def _adopt_saved(self) -> None:
        """What an earlier process left in the store; never another database's."""
        saved = self._store.load()
        if saved is None:
            return
        if saved.identity != self._identity:
            raise SourceChangedError(f"the watermarks belong to {saved.identity}, not to {self._identity}")
        self._confirmed, self._is_known = saved.watermark, True

    def _followed(self, session: Session) -> dict[TableId, Followed]:
        return self._choice.followed(session.describe(self._choice.tables(session.tables())), self._stream.known)

    def _required(
        self, session: Session, table: TableId, known: TableSchema | None = None
    ) -> tuple[DescribedTable, Followed]:
        source = session.describe([table]).get(table)
        if source is None:
            raise SourceSetupError(f"there is no table {table}", remedy="Correct source.tables, or create the table.")
        texts = text_columns(known or self._stream.known.get(table), source)
        return source, follow(source, self._choice.rule(table), texts)

    def _taken_in(self, session: Session, table: TableId) -> tuple[DescribedTable, Followed]:
        """A table to be copied. One that is new is looked through first: no poll would ever find its old values."""
        source, followed = self._required(session, table)
        if table in self._stream.known or not source.misfits:
            return source, followed
        wrong = mixed_columns(self._connector, session, followed) - followed.ordering
        return source, follow(source, followed.rule, wrong)

    @contextmanager
    def _working(self) -> Iterator[Session]:
        with self._lock:
            if self._session is None:
                raise StateError("the capture is not open", remedy="Call open first.")
            yield self._session


def _own(position: Position) -> Watermark:
    if not isinstance(position, Watermark):
        raise SourceChangedError(f"{position.encode()} is a position of another kind of source, not of polling")
    return position
