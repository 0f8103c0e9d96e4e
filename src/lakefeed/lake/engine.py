"""The SyncEngine: applies the journal to every table of a lake. Knows no Spark; the table format does.

Two numbers. A table is *complete* up to a change set if it has every change up to there. What its own commits *record*
may be less: a change set without changes for a table makes no commit there. The engine keeps the first number in
memory. The flow saves both (``Enrolled``) before it trims the journal, so that after a restart the engine does not ask
for change sets that are gone and had nothing for that table.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from functools import partial

from lakefeed.change.position import Position
from lakefeed.change.segment import Counts, Window
from lakefeed.change.table import TableId
from lakefeed.errors import LakeError, LakefeedError, LeaseError, RebuildNeededError, SparkSetupError, TableStoppedError
from lakefeed.lake.base import Applied, ChangeLog, SyncResult, SyncStatus, TableFormat, TableResult
from lakefeed.lake.route import Route
from lakefeed.lake.spark.error import copy_elsewhere, first_line

CONCERNS_ALL = (SparkSetupError, LeaseError)
"""Errors that concern all tables: the whole sync fails with them."""


@dataclass(frozen=True, slots=True)
class Enrolled:
    """A lake table that the engine keeps up to date.

    ``settled_recorded`` and ``settled_effective`` are what the table recorded, and was complete up to, when the journal
    was last trimmed. ``copied_from`` and ``exact_at`` are the oldest and the newest state that the copy read: changes
    between them may be inside the copied rows. ``is_exact``: the whole copy read the newest one, so they are inside.
    ``ends_at`` is the change set with the last changes of a source table that is gone.
    """

    route: Route
    generation: int
    settled_recorded: int = 0
    settled_effective: int = 0
    copied_from: Position | None = None
    exact_at: Position | None = None
    is_exact: bool = False
    ends_at: int | None = None

    def head(self, head: int) -> int:
        """The change set that the table has to reach in a log that ends at ``head``."""
        return head if self.ends_at is None else min(head, self.ends_at)


@dataclass(frozen=True, slots=True)
class Known:
    """What the engine knows of one table: what its commits record, and up to where it is complete."""

    generation: int
    applied: Applied
    complete: int


@dataclass(frozen=True, slots=True)
class _Outcome:
    result: TableResult
    windows: tuple[Window, ...] = ()


class Engine:
    """Contract: ``lake.base.SyncEngine``. The module explains the two numbers."""

    def __init__(
        self,
        tables: TableFormat,
        log: ChangeLog,
        enrolled: Callable[[], Mapping[TableId, Enrolled]],
        *,
        parallel: int = 2,
    ) -> None:
        self._tables = tables
        self._log = log
        self._enrolled = enrolled
        # Kept: each new thread that speaks to the JVM costs a connection and a thread there.
        self._pool = ThreadPoolExecutor(max(1, parallel), thread_name_prefix="lakefeed-sync")
        self._syncing = threading.Lock()
        self._known: dict[TableId, Known | None] = {}  # replaced entry by entry, read by any thread
        self._failed: set[TableId] = set()  # the last attempt failed: read again what the table records
        self._running = False
        self._synced_once = False
        self.windows = 0
        """How many windows the engine has applied. Any thread."""
        self.workers: set[int] = set()
        """The threads that apply a window now, by the system's ids. Any thread."""

    def sync_once(self) -> SyncResult:
        """1 find the tables that are behind  2 apply their windows, several tables at a time  3 sum up."""
        with self._syncing:
            self._running = True
            try:
                head, enrolled = self._log.head, self._enrolled()
                for table in self._known.keys() - enrolled.keys():
                    self._known.pop(table)
                behind = {
                    table: entry
                    for table, entry in enrolled.items()
                    if table in self._failed
                    or (known := self.known(table, entry.generation)) is None
                    or known.complete < entry.head(head)
                }
                # Tables with nothing to apply need no thread: their first window is made here.
                outcomes: dict[TableId, _Outcome] = {}
                work: dict[TableId, Window] = {}
                for table, entry in behind.items():
                    try:
                        window = self._next_window(entry, entry.head(head))
                    except CONCERNS_ALL:
                        raise
                    except Exception as error:  # noqa: BLE001  # as in ``_sync_table``
                        outcomes[table] = self._failure(entry, error)
                        continue
                    if window is not None:
                        work[table] = window
                if len(work) == 1:
                    outcomes |= {table: self._sync_table(behind[table], one, head) for table, one in work.items()}
                else:
                    futures = {
                        table: self._pool.submit(self._sync_table, behind[table], window, head)
                        for table, window in work.items()
                    }
                    wait(futures.values())  # all of them end before an error is raised
                    outcomes |= {table: future.result() for table, future in futures.items()}
            finally:
                self._running = False
                self._synced_once = True
        windows = [window for outcome in outcomes.values() for window in outcome.windows]
        results = {table: outcome.result for table, outcome in outcomes.items()}
        if not windows:
            return SyncResult(tables=results)
        newest = max(windows, key=lambda window: window.upto)
        return SyncResult(
            change_sets=newest.upto - min(window.after for window in windows),
            counts=sum((window.counts for window in windows), Counts()),
            tables=results,
            last_seq=max((window.last_seq for window in windows if window.last_seq is not None), default=None),
            last_position=newest.end,
        )

    def status(self) -> SyncStatus:
        known = dict(self._known)
        latest = self._log.head
        last = min((found.complete if found else 0 for found in known.values()), default=latest)
        return SyncStatus(
            running=self._running,
            last_synced=last if self._synced_once else None,
            latest_available=latest,
            tables={table: found.applied if found else None for table, found in known.items()},
        )

    def known(self, table: TableId, generation: int) -> Known | None:
        """What the engine knows of a table; None until it has inspected that generation."""
        known = self._known.get(table)
        return known if known is not None and known.generation == generation else None

    def complete(self, table: TableId, generation: int) -> int | None:
        """The change set up to which the table has everything; None until the engine has inspected that generation."""
        known = self.known(table, generation)
        return known.complete if known is not None else None

    def _sync_table(self, entry: Enrolled, window: Window, head: int) -> _Outcome:
        """Apply window after window until the table is complete. One that overlaps the table's copy comes by itself."""
        done: list[Window] = []
        following: Window | None = window
        self.workers.add(threading.get_native_id())
        try:
            while following is not None:
                self._log.check(following)
                applied = self._tables.table(entry.route).apply(following, entry.generation)
                if following.segments and applied.number < following.upto:
                    raise LakeError(f"table {entry.route.table} does not record change set {following.upto}")
                self._known[entry.route.table] = Known(entry.generation, applied, following.upto)
                done.append(following)
                self.windows += 1
                following = self._next_window(entry, entry.head(head))
        except CONCERNS_ALL:
            raise
        except Exception as error:  # noqa: BLE001  # one table must not delay the others; the next sync tries again
            return self._failure(entry, error, done)
        finally:
            self.workers.discard(threading.get_native_id())
        counts = sum((window.counts for window in done), Counts())
        return _Outcome(TableResult(applied=done[-1].upto, counts=counts), tuple(done))

    def _next_window(self, entry: Enrolled, head: int) -> Window | None:
        """What is new for a table; if nothing is, None, and the engine remembers that the table is complete."""
        source, known = entry.route.source, self._inspect(entry)
        while known.complete < head:
            version, upto = known.applied.schema_version, head
            overlaps, exact_at = False, entry.exact_at
            if exact_at is not None and not self._passed_copy(entry, exact_at, known.complete):
                # Up to the first change set that reaches the copy's newest state.
                overlaps = True
                upto = _first(known.complete + 1, head, partial(self._passed_copy, entry, exact_at))
            window = self._log.window(source, known.complete, upto)
            if entry.route.mode.one_schema_per_window and window.target.version > version:
                # Up to the next change set that changes the schema.
                changed = partial(self._changes_schema, source, window.after)
                window = self._log.window(source, window.after, _first(window.after + 1, window.upto, changed))
            if window.segments or window.target.version > version or window.open_stale_reasons(version):
                copied_at = exact_at if overlaps and entry.is_exact else None
                return replace(window, exact=not overlaps, copied_at=copied_at, recorded=known.applied.number)
            known = Known(entry.generation, known.applied, window.upto)
            self._known[entry.route.table] = known
        return None

    def _changes_schema(self, source: TableId, after: int, number: int) -> bool:
        """Does change set ``number + 1`` have another schema than the first one after ``after``?"""
        versions = [self._log.window(source, after, upto).target.version for upto in (after + 1, number + 1)]
        return versions[0] != versions[1]

    def _passed_copy(self, entry: Enrolled, exact_at: Position, number: int) -> bool:
        """Does this change set, or the copy's oldest state, reach ``exact_at``? No later one is in the copied rows."""
        reached = (self._log.position(number), entry.copied_from)
        return any(one >= exact_at for one in reached if one is not None)

    def _inspect(self, entry: Enrolled) -> Known:
        """What is known of the table. Reads what the table records at first, and after a failure."""
        table = entry.route.table
        known = self.known(table, entry.generation)
        if known is not None and table not in self._failed:
            return known
        lake_table = self._tables.table(entry.route)
        applied = lake_table.applied(entry.generation)
        if applied is None:
            raise LakeError(
                f"the lake has no table {table} of generation {entry.generation} at {lake_table.location}",
                remedy=f"Start the pipeline again: {table} is then copied again.",
            )
        if applied.number > self._log.head:
            raise LakeError(
                f"table {table} has change set {applied.number}, but the journal ends at {self._log.head}",
                remedy="Restore the journal that belongs to the table, or remove the table to have it copied again.",
            )
        complete = entry.settled_effective if applied.number == entry.settled_recorded else 0
        if known is not None and known.applied.number == applied.number:
            complete = max(complete, known.complete)
        found = Known(entry.generation, applied, max(applied.number, complete))
        self._known[table] = found
        self._failed.discard(table)
        return found

    def _failure(self, entry: Enrolled, error: Exception, done: Sequence[Window] = ()) -> _Outcome:
        # The commit may or may not have happened: the next sync reads what the table records.
        table = entry.route.table
        self._known.setdefault(table, None)
        self._failed.add(table)
        own = error if isinstance(error, LakefeedError) else LakeError(f"{type(error).__name__}: {first_line(error)}")
        if own.remedy == LakeError.default_remedy:  # whoever raised it knew neither the cause nor the table
            at = self._tables.table(entry.route).location
            own = LakeError(
                f"table {table}: the lake table at {at} cannot be brought up to date: {own.message}",
                remedy="If a file of it is missing or damaged, bring that back from a backup, and the table goes on by "
                f"itself; or {copy_elsewhere(table, at)}",
            )
        result = TableResult(
            applied=self.complete(table, entry.generation) or 0,
            counts=sum((window.counts for window in done), Counts()),
            error=own.message,
            remedy=own.remedy,
            rebuild=error.cause if isinstance(error, RebuildNeededError) else None,
            is_own=isinstance(error, TableStoppedError),
        )
        return _Outcome(result, tuple(done))


def _first(low: int, high: int, holds: Callable[[int], bool]) -> int:
    """The first number in [low, high) for which ``holds``, by bisection; ``high`` if there is none."""
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle + 1, high)
    return low
