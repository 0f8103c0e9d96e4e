"""The SyncEngine: applies the journal to every table of a lake. Knows no Spark; the table format does.

``complete`` and ``recorded``. A table is *complete* up to a change set if everything for it up to there is in it; what
its own commits *record* may be less, because change sets without changes for a table make no commit there. The engine
keeps the first in memory. Before the journal is trimmed the flow saves both (``Enrolled``), so that a restart does not
ask for change sets that are gone and had nothing for that table.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, replace

from lakefeed.change.position import Position
from lakefeed.change.segment import Counts, Window
from lakefeed.change.table import TableId
from lakefeed.errors import LakeError, LakefeedError, LeaseError, RebuildNeededError, SparkSetupError
from lakefeed.lake.base import Applied, ChangeLog, SyncResult, SyncStatus, TableFormat, TableResult
from lakefeed.lake.mode import Temporal
from lakefeed.lake.route import Route

CONCERNS_ALL = (SparkSetupError, LeaseError)
"""Errors that are no table's own: the whole sync fails with them."""


@dataclass(frozen=True, slots=True)
class Enrolled:
    """A lake table that the engine is to keep up.

    Which one and of which generation; what was saved when the journal was last trimmed; ``copied_from`` and
    ``exact_at``, the oldest and the newest state that its copy was read at: changes between them may be inside the
    copied rows; ``ends_at``, the change set with the last changes of a source table that is gone.
    """

    route: Route
    generation: int
    settled_recorded: int = 0
    settled_effective: int = 0
    copied_from: Position | None = None
    exact_at: Position | None = None
    ends_at: int | None = None

    def head(self, head: int) -> int:
        """Up to where the table follows a log that ends at ``head``."""
        return head if self.ends_at is None else min(head, self.ends_at)


@dataclass(frozen=True, slots=True)
class Known:
    """What the engine knows of one table: what its commits say, and up to where it is complete."""

    generation: int
    applied: Applied
    complete: int


@dataclass(frozen=True, slots=True)
class _Outcome:
    result: TableResult
    windows: tuple[Window, ...] = ()


class Engine:
    """See ``lake.base.SyncEngine`` for the contract and the module for the two numbers."""

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
        # Kept, because each new thread that speaks to the JVM costs a connection and a thread there.
        self._pool = ThreadPoolExecutor(max(1, parallel), thread_name_prefix="lakefeed-sync")
        self._syncing = threading.Lock()
        self._known: dict[TableId, Known | None] = {}  # replaced entry by entry, read by any thread
        self._doubtful: set[TableId] = set()  # the last attempt failed: the table itself must be asked
        self._running = False
        self._synced_once = False

    def sync_once(self) -> SyncResult:
        with self._syncing:
            self._running = True
            try:
                return self._sync(self._log.head, self._enrolled())
            finally:
                self._running = False
                self._synced_once = True

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
        """What the engine knows of a table; None before it has looked at that generation."""
        known = self._known.get(table)
        return known if known is not None and known.generation == generation else None

    def complete(self, table: TableId, generation: int) -> int | None:
        """Up to where the table has everything; None before the engine has looked at that generation."""
        known = self.known(table, generation)
        return known.complete if known is not None else None

    def _sync(self, head: int, enrolled: Mapping[TableId, Enrolled]) -> SyncResult:
        for table in self._known.keys() - enrolled.keys():
            self._known.pop(table)
        behind = {table: entry for table, entry in enrolled.items() if self._is_behind(table, entry, head)}
        return _summed(self._bring(behind, head)) if behind else SyncResult()

    def _is_behind(self, table: TableId, entry: Enrolled, head: int) -> bool:
        complete = self.complete(table, entry.generation)
        return complete is None or complete < entry.head(head) or table in self._doubtful

    def _bring(self, behind: Mapping[TableId, Enrolled], head: int) -> dict[TableId, _Outcome]:
        """Each table on its own, several at a time; tables with nothing to do need no thread."""
        outcomes: dict[TableId, _Outcome] = {}
        work: dict[TableId, Window] = {}
        for table, entry in behind.items():
            try:
                window = self._window(entry, entry.head(head))
            except CONCERNS_ALL:
                raise
            except Exception as error:  # noqa: BLE001  # as in ``_bring_one``
                outcomes[table] = self._failed(entry, error)
                continue
            if window is not None:
                work[table] = window
        if len(work) == 1:
            outcomes |= {table: self._bring_one(behind[table], window, head) for table, window in work.items()}
        elif work:
            futures = {
                table: self._pool.submit(self._bring_one, behind[table], window, head) for table, window in work.items()
            }
            wait(futures.values())
            outcomes |= {table: future.result() for table, future in futures.items()}
        return outcomes

    def _bring_one(self, entry: Enrolled, window: Window, head: int) -> _Outcome:
        """Window after window, until the table is complete: the one that overlaps its copy is applied by itself."""
        done: list[Window] = []
        following: Window | None = window
        try:
            while following is not None:
                self._apply(entry, following)
                done.append(following)
                following = self._window(entry, entry.head(head))
        except CONCERNS_ALL:
            raise
        except Exception as error:  # noqa: BLE001  # one table must not hold up the others; the next sync tries again
            return self._failed(entry, error, done)
        counts = sum((window.counts for window in done), Counts())
        return _Outcome(TableResult(applied=done[-1].upto, counts=counts), tuple(done))

    def _window(self, entry: Enrolled, head: int) -> Window | None:
        """What is new for a table; None if nothing is, which is then known."""
        known = self._look(entry)
        if known.complete >= head:
            return None
        overlap = self._overlap(entry, known.complete, head)
        window = self._log.window(entry.route.source, known.complete, overlap or head)
        version = known.applied.schema_version
        if isinstance(entry.route.mode, Temporal) and window.target.version > version:
            window = self._of_one_schema(entry.route.source, window)
        if window.segments or window.target.version > version or window.open_doubts(version):
            return replace(window, exact=overlap is None)
        self._known[entry.route.table] = Known(entry.generation, known.applied, window.upto)
        return self._window(entry, head) if window.upto < head else None

    def _of_one_schema(self, source: TableId, window: Window) -> Window:
        """The window's change sets up to the next one that changes the schema.

        A history judges changes by the columns that its table has. So a change to a column that is dropped later
        opens its version first, as if nobody had waited.
        """
        low, high = window.after + 1, window.upto
        version = self._log.window(source, window.after, low).target.version
        while low < high:  # the last change set that has that version, by bisection
            middle = (low + high + 1) // 2
            is_same = self._log.window(source, window.after, middle).target.version == version
            low, high = (middle, high) if is_same else (low, middle - 1)
        return self._log.window(source, window.after, low)

    def _overlap(self, entry: Enrolled, complete: int, head: int) -> int | None:
        """The change set up to which changes may be inside the copied rows; None once the table is past that."""
        if self._reached(entry, complete):
            return None
        low, high = complete, head  # the first change set that reaches the copy's newest state, by bisection
        while low + 1 < high:
            middle = (low + high) // 2
            low, high = (low, middle) if self._reached(entry, middle) else (middle, high)
        return high

    def _reached(self, entry: Enrolled, number: int) -> bool:
        places = (self._log.position(number), entry.copied_from)
        return entry.exact_at is None or any(place >= entry.exact_at for place in places if place is not None)

    def _look(self, entry: Enrolled) -> Known:
        table = entry.route.table
        known = self._known.get(table)
        if known is not None and known.generation == entry.generation and table not in self._doubtful:
            return known
        lake_table = self._tables.table(entry.route)
        applied = lake_table.applied(entry.generation)
        if applied is None:
            raise LakeError(
                f"the lake has no table {table} of generation {entry.generation} at {lake_table.location}",
                remedy=f"Start the pipeline again: {table} is then copied anew.",
            )
        if applied.number > self._log.head:
            raise LakeError(
                f"table {table} has change set {applied.number}, but the journal ends at {self._log.head}",
                remedy="Restore the journal that belongs to the table, or remove the table to have it copied anew.",
            )
        settled = entry.settled_effective if applied.number == entry.settled_recorded else 0
        if known is not None and known.applied.number == applied.number and known.generation == entry.generation:
            settled = max(settled, known.complete)
        found = Known(entry.generation, applied, max(applied.number, settled))
        self._known[table] = found
        self._doubtful.discard(table)
        return found

    def _apply(self, entry: Enrolled, window: Window) -> None:
        lake_table = self._tables.table(entry.route)
        self._log.check(window)
        lake_table.apply(window, entry.generation)
        applied = lake_table.applied(entry.generation)
        if applied is None or (window.segments and applied.number < window.upto):
            raise LakeError(f"table {entry.route.table} does not record change set {window.upto} after its commit")
        self._known[entry.route.table] = Known(entry.generation, applied, window.upto)

    def _failed(self, entry: Enrolled, error: Exception, done: Sequence[Window] = ()) -> _Outcome:
        # The commit may or may not have happened: the next sync asks the table itself.
        table = entry.route.table
        number = self.complete(table, entry.generation) or 0
        self._known.setdefault(table, None)
        self._doubtful.add(table)
        message = error.message if isinstance(error, LakefeedError) else f"{type(error).__name__}: {error}"
        remedy = error.remedy if isinstance(error, LakefeedError) else LakeError.default_remedy
        counts = sum((window.counts for window in done), Counts())
        rebuild = isinstance(error, RebuildNeededError)
        result = TableResult(applied=number, counts=counts, error=message, remedy=remedy, rebuild=rebuild)
        return _Outcome(result, tuple(done))


def _summed(outcomes: Mapping[TableId, _Outcome]) -> SyncResult:
    windows = [window for outcome in outcomes.values() for window in outcome.windows]
    tables = {table: outcome.result for table, outcome in outcomes.items()}
    if not windows:
        return SyncResult(tables=tables)
    newest = max(windows, key=lambda window: window.upto)
    return SyncResult(
        change_sets=newest.upto - min(window.after for window in windows),
        counts=sum((window.counts for window in windows), Counts()),
        tables=tables,
        last_seq=max((window.last_seq for window in windows if window.last_seq is not None), default=None),
        last_position=newest.end,
    )
