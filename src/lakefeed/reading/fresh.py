"""Tables as fresh as the journal, and all tables of a lake at one moment of the source.

A table at change set n is a version of the lake table at or below n, and the journal's changes from there to n on top.
The engine that keeps the lake works these out, too: it finds the windows, evolves columns and lets the mode plan; only
the store is another one, which composes plans of Spark (``_PlannedStore``) where the real one commits. Nothing is
written, and the rows are read when the DataFrame is used: by then the journal must still have those change sets
(``journal.keep_change_sets``) and the lake table that version (``maintenance.keep_hours``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lakefeed.change.position import Position, decode_position
from lakefeed.change.segment import StaleReason
from lakefeed.change.table import TableId, TableSchema
from lakefeed.errors import ConfigError, LakeError
from lakefeed.flow.table_state import Phase, TableState, TableStates
from lakefeed.journal.journal import Journal
from lakefeed.journal.view import JournalView
from lakefeed.lake.base import Applied
from lakefeed.lake.delta import Delta
from lakefeed.lake.engine import Engine, Enrolled
from lakefeed.lake.formats import history_at
from lakefeed.lake.history import LogCommit, TableHistory, state_at
from lakefeed.lake.iceberg import Iceberg
from lakefeed.lake.location import lake_root, table_path
from lakefeed.lake.route import Route
from lakefeed.lake.schema.decision import Decisions, decisions_file
from lakefeed.lake.schema.mapping import ColumnMapping
from lakefeed.lake.schema.policy import Policy
from lakefeed.lake.schema.projection import projected
from lakefeed.lake.spark.session import Sessions
from lakefeed.lake.store import AppendRows, MergeRows, Stamp, Step
from lakefeed.lake.table import SparkTable
from lakefeed.reading.options import STATE_FOLDER

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Moment = int | str | Position | datetime | None
"""A change set's number, a position of the source or its text, a time of the source's clock; None is now."""


def current(spark: SparkSession, lake: str | Path | Delta | Iceberg, table: str) -> DataFrame:
    """A lake table with everything that the journal has for it, merged or not: the source as it was captured last.

    ``lake`` is the lake's path or the lake itself, as in ``read_at``. No row goes through Python, nothing is written.
    LakeError if the journal no longer has the changes that the table lacks, or if one of them stops the table.
    """
    place, name = _Lake.of(spark, lake), TableId.parse(table)
    pipeline = place.pipeline_of(name)
    return pipeline.at(name, pipeline.journal.head)


def snapshot(
    spark: SparkSession, lake: str | Path | Delta | Iceberg, at: Moment = None, *, pipeline: str | None = None
) -> dict[str, DataFrame]:
    """Every table of a pipeline at one change set, by ``schema.table``: what one transaction of the source changed in
    several tables is there in all of them, or in none.

    ``at``: the newest change set, or a number, or the last one that ends at or before a position, or that has nothing
    from after a time of the source's clock. ``pipeline`` is needed where the lake has several. LakeError with the
    reason if a table cannot be given at that moment: it was copied later, or the version or the changes are gone.
    """
    chosen = _Lake.of(spark, lake).pipeline(pipeline)
    number = chosen.change_set(at)
    return {str(state.table): chosen.at(state.table, number) for state in chosen.live()}


def register_views(
    spark: SparkSession, lake: str | Path | Delta | Iceberg, at: Moment = None, *, pipeline: str | None = None
) -> tuple[str, ...]:
    """``snapshot`` as temporary views of the session, called ``schema_table``. Returns their names.

    A view shows the moment of this call. Call it again for a later one.
    """
    names = []
    for table, rows in snapshot(spark, lake, at, pipeline=pipeline).items():
        name = table.replace(".", "_")
        rows.createOrReplaceTempView(f"`{name}`")
        names.append(name)
    return tuple(names)


@dataclass(frozen=True)
class _Lake:
    spark: SparkSession
    given: str | Path | Delta | Iceberg
    root: str

    @classmethod
    def of(cls, spark: SparkSession, lake: str | Path | Delta | Iceberg) -> _Lake:
        root = lake.path if isinstance(lake, Delta | Iceberg) else lake_root(lake)
        return cls(spark, lake, root)

    def history(self, table: TableId) -> TableHistory:
        if isinstance(self.given, Delta | Iceberg):
            return self.given.history(table)
        return history_at(self.spark, self.root, table_path(self.root, table), table)

    def pipelines(self) -> dict[str, _Pipeline]:
        folder = Path(self.root) / STATE_FOLDER
        found = sorted(place for place in folder.glob("*") if (place / "commits").is_dir())
        if not found:
            raise LakeError(f"there is no pipeline's journal in {folder}", remedy="Check the lake's path.")
        return {place.name: _Pipeline(self, place.name, Journal.read(place), TableStates(place)) for place in found}

    def pipeline(self, name: str | None) -> _Pipeline:
        found = self.pipelines()
        if name is None and len(found) == 1:
            return next(iter(found.values()))
        if name is None or name not in found:
            problem = "the lake has several pipelines" if name is None else f"the lake has no pipeline '{name}'"
            raise ConfigError(problem, remedy=f"Give pipeline= one of: {', '.join(found)}.")
        return found[name]

    def pipeline_of(self, table: TableId) -> _Pipeline:
        found = self.pipelines()
        for one in found.values():
            if one.states.get(table) is not None:
                return one
        tables = sorted(str(name) for one in found.values() for name in one.states.all())
        raise LakeError(f"the lake has no table {table}", remedy=f"It has {', '.join(tables) or 'none yet'}.")


@dataclass(frozen=True)
class _Pipeline:
    lake: _Lake
    name: str
    journal: JournalView
    states: TableStates

    def live(self) -> list[TableState]:
        return sorted(self.states.in_phase(Phase.LIVE), key=lambda state: state.table)

    def change_set(self, at: Moment) -> int:
        """The number of the change set that a moment stands for."""
        if isinstance(at, str):
            at = decode_position(at)
        head, trimmed = self.journal.head, self.journal.trimmed
        if at is None:
            return head
        if isinstance(at, datetime):
            if at.tzinfo is None:
                raise ConfigError(f"the time {at} has no zone", remedy="Give it one: datetime(…, tzinfo=UTC).")
            return self._last_before(at)
        if isinstance(at, int):
            if not trimmed <= at <= head:
                raise LakeError(f"the journal has the change sets {trimmed + 1} to {head}, not {at}")
            return at
        if self.journal.end is None or at > self.journal.end:
            raise LakeError(f"the journal ends at {self.journal.end}, before {at}", remedy="Wait, then read again.")
        return max((one.number for one in self.journal.commits() if one.end <= at), default=trimmed)

    def _last_before(self, at: datetime) -> int:
        """The last change set before the first that has a change committed after ``at``."""
        from lakefeed.lake.window import last_time

        for commit in self.journal.commits():
            times = [time for segment in commit.segments if (time := last_time(segment)) is not None]
            if times and max(times) > at:
                return commit.number - 1
        return self.journal.head

    def at(self, table: TableId, number: int) -> DataFrame:
        """One table at change set ``number``, as a plan of Spark."""
        state = self.states.get(table)
        if state is None or state.phase is not Phase.LIVE:
            what = f"is {state.phase.value}: {state.reason}" if state is not None else "is not there"
            raise LakeError(f"table {table} {what}", remedy="Run `lakefeed sync`, then read again.")
        history = self.lake.history(table)
        commits = [one for one in history.commits() if _generation(one) in (None, state.generation)]
        found = state_at(commits, lambda commit: commit.upto <= number)
        if found is None or found.commit.applied is None:
            raise LakeError(
                f"table {table} cannot be read at change set {number}: no version of it from then is left",
                remedy=f"Ask for a later moment; {history.keeps_more}",
            )
        if state.high is not None and number < self.journal.head:
            reached = self.journal.position(number)
            if reached is not None and not reached >= state.high and reached != found.copied_upto:
                raise LakeError(
                    f"table {table} cannot be read at change set {number}: it was copied while the source went on, up"
                    f" to {state.high}",
                    remedy="Ask for a later moment.",
                )
        history.check(found.version)
        version = max(
            int((one.metadata or {}).get("schema_version", 0)) for one in commits if one.version <= found.version
        )
        store = _PlannedStore(
            history.read(self.lake.spark, found.version),
            Applied(number=found.commit.applied, schema_version=version, rows=None),
            table_path(self.lake.root, table),
        )
        plans = _Plans(self, store)
        entry = Enrolled(
            state.route,
            state.generation,
            settled_recorded=state.recorded_at_trim,
            settled_effective=min(state.complete_at_trim, number),
            copied_from=state.low,
            exact_at=state.high,
            ends_at=number,
        )
        result = Engine(plans, self.journal, lambda: {table: entry}, parallel=1).sync_once().tables.get(table)
        if result is not None and result.error is not None:
            raise LakeError(result.error, remedy=result.remedy)
        return store.rows


class _Plans:
    """A TableFormat of one table, whose store plans and does not commit."""

    def __init__(self, pipeline: _Pipeline, store: _PlannedStore) -> None:
        self._pipeline = pipeline
        self._store = store

    def routes(self, source: TableId) -> tuple[Route, ...]:
        return (Route.same(source),)

    columns = None  # the journal has what was taken

    def table(self, route: Route) -> SparkTable:
        lake = self._pipeline.lake
        place = decisions_file(lake.root, self._pipeline.name, route.table)
        decisions = _ReadDecisions(Policy(route.table, route.mode), place)
        store: Any = self._store  # of a TableStore, what the modes ask for
        return SparkTable(self._pipeline.name, route, store, _OneSession(lake.spark), decisions)


class _ReadDecisions(Decisions):
    """What was decided. What evolves only here is remembered for this reading and written nowhere."""

    def decide(
        self,
        after: ColumnMapping,
        path: Sequence[TableSchema],
        generation: int,
        stale: Sequence[StaleReason] = (),  # noqa: ARG002  # the seam's
    ) -> None:
        if not after.is_plain(path[-1]) or self.get(path[-1].version, generation) is not None:
            self._known[path[-1].version] = after


class _OneSession(Sessions):
    """The reader's own session, where a pipeline has one for each table."""

    def __init__(self, spark: SparkSession) -> None:
        self._own = spark

    def child(self) -> SparkSession:
        return self._own


class _PlannedStore:
    """A TableStore that keeps a plan of the rows instead of files: every step makes another plan of it."""

    reserved: tuple[str, ...] = ()

    def __init__(self, rows: DataFrame, applied: Applied, location: str) -> None:
        self.rows = rows
        self.location = location
        self._applied = applied

    def applied(self, generation: int, *, fresh: bool = True) -> Applied:  # noqa: ARG002  # the seam's
        return self._applied

    def extent(self, column: str, bounds: Any) -> None:  # noqa: ARG002  # the modes then plan a merge
        return None

    def read(self, session: SparkSession) -> DataFrame:  # noqa: ARG002
        return self.rows

    def commit(self, session: SparkSession, step: Step, stamp: Stamp) -> Applied:  # noqa: ARG002
        if isinstance(step, MergeRows):
            self.rows = step.merged(self.rows)
        elif isinstance(step, AppendRows):
            self.rows = self.rows.unionByName(step.rows)
        else:
            self.rows = step.rows
        self._applied = Applied(
            number=stamp.number or self._applied.number, schema_version=self._applied.schema_version, rows=None
        )
        return self._applied

    def lost_by(self, path: Sequence[TableSchema]) -> None:  # noqa: ARG002  # a plan loses nothing
        return None

    def evolve(self, session: SparkSession, path: Sequence[TableSchema], stamp: Stamp) -> None:  # noqa: ARG002
        self.rows = self.rows.select(*projected(path))
        version = stamp.schema_version or self._applied.schema_version
        self._applied = Applied(number=self._applied.number, schema_version=version, rows=None)


def _generation(commit: LogCommit) -> int | None:
    metadata: Mapping[str, Any] = commit.metadata or {}
    return metadata.get("generation")
