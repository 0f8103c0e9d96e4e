"""A lake table at one change set: a version of it at or before that, with the journal's changes from there on top.

The engine that maintains the lake also computes these: it finds the windows, evolves columns and lets the mode plan.
Only the store differs: it composes Spark plans (``_PlannedStore``) where the real one commits. Nothing is written, and
rows are read when the DataFrame is used: by then the journal must still have those change sets and the lake table that
version (``pin`` keeps both).

What was read from a lake is kept for the next reading in this process: change sets, table states and log entries never
change, so a reading costs only what is new since the previous one.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lakefeed.change.choice import NOTHING_CHOSEN
from lakefeed.change.position import Position, decode_position
from lakefeed.change.segment import StaleReason
from lakefeed.change.table import TableId, TableSchema
from lakefeed.errors import ConfigError, LakeError
from lakefeed.flow.table_state import Phase, TableState, TableStates
from lakefeed.journal.journal import Journal
from lakefeed.journal.layout import Layout
from lakefeed.lake.base import Applied
from lakefeed.lake.delta import Delta
from lakefeed.lake.engine import Engine, Enrolled
from lakefeed.lake.formats import history_at
from lakefeed.lake.history import LogCommit, TableHistory, state_at
from lakefeed.lake.iceberg import Iceberg
from lakefeed.lake.kept import KeptRuns, keeping
from lakefeed.lake.layout import Layout as TableLayout
from lakefeed.lake.location import lake_root, table_path
from lakefeed.lake.route import Route
from lakefeed.lake.rule.record import TableRule, read_rule, rule_file
from lakefeed.lake.rule.rows import RowRule
from lakefeed.lake.schema.decision import Decisions, decisions_file
from lakefeed.lake.schema.mapping import ColumnMapping
from lakefeed.lake.schema.policy import Evolution, Policy
from lakefeed.lake.schema.projection import projected
from lakefeed.lake.spark.session import Sessions
from lakefeed.lake.spark.type import quoted
from lakefeed.lake.store import AppendRows, MergeRows, Stamp, Step
from lakefeed.lake.table import SparkTable
from lakefeed.lake.window import last_time
from lakefeed.reading.options import STATE_FOLDER
from lakefeed.storage.base import Storage
from lakefeed.storage.location import storage_at

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Moment = int | str | Position | datetime | None
"""The number of a change set, a position of the source or its text, a time of the source's clock; None means now."""

AnyLake = str | Path | Delta | Iceberg
"""A lake's path, or the lake itself, which is needed for tables in a catalog."""

KEEPS_MORE = "Ask for a later moment; journal.keep_seconds, or a lakefeed.pin, keeps change sets longer."


@dataclass(frozen=True)
class ReadLake:
    """The pipelines of one lake, and the versions of its tables. ``journal``: where their state is, if elsewhere."""

    spark: SparkSession
    given: AnyLake
    root: str
    journal: str | None = None

    @classmethod
    def of(cls, spark: SparkSession, lake: AnyLake, journal: str | Path | None = None) -> ReadLake:
        return cls(spark, lake, root_of(lake), str(journal) if journal is not None else None)

    def history(self, table: TableId, stored: TableId | None = None) -> TableHistory:
        """The history of a table, possibly as part of the table ``stored``."""
        if isinstance(self.given, Delta | Iceberg):
            return self.given.history(table, stored)
        # The format is the table's own.
        return history_at(self.spark, self.root, table_path(self.root, stored or table), table, stored)

    def pipeline(self, name: str | None) -> ReadPipeline:
        name, place = pipeline_place(self.journal or self.root, name)
        journal, runs = _journal(place)  # first: newer states then show what a trim since has removed
        return ReadPipeline(self, name, journal, TableStates(place), runs)

    def pipeline_of(self, table: TableId) -> ReadPipeline:
        """The pipeline that maintains a lake table."""
        tables: list[TableId] = []
        for name, place in _places(self.journal or self.root).items():
            states = TableStates(place).all()
            stored = {state.route.stored for state in states.values()}
            if table in states or table in stored:
                return self.pipeline(name)
            tables += stored
        raise LakeError(
            f"the lake has no table {table}", remedy=f"It has {', '.join(map(str, sorted(tables))) or 'none yet'}."
        )


def root_of(lake: AnyLake) -> str:
    return lake.path if isinstance(lake, Delta | Iceberg) else lake_root(lake)


def pipeline_place(root: str, name: str | None) -> tuple[str, Storage]:
    """The name and the state of a lake's pipeline; ``name`` may be None if there is only one."""
    found = _places(root)
    if name is None and len(found) == 1:
        return next(iter(found.items()))
    if name is None or name not in found:
        problem = "the lake has several pipelines" if name is None else f"the lake has no pipeline '{name}'"
        raise ConfigError(problem, remedy=f"Give pipeline= one of: {', '.join(found)}.")
    return name, found[name]


def _places(root: str) -> dict[str, Storage]:
    states = storage_at(root).below(STATE_FOLDER)
    found = {name: states.below(name) for name in states.folders() if states.has_folder(f"{name}/{Layout.commits}")}
    if not found:
        raise LakeError(
            f"there is no pipeline's journal in {states}",
            remedy="Check the lake's path. Where journal.path is another place, give that: journal=….",
        )
    return found


@dataclass(slots=True)
class _Known:
    """A journal as this process has read it, and its newest commit file then: another file means another journal."""

    turn: threading.Lock = field(default_factory=threading.Lock)
    journal: Journal | None = None
    newest: tuple[object, ...] | None = None
    runs: KeptRuns = field(default_factory=KeptRuns)


_known: dict[str, _Known] = {}
_known_lock = threading.Lock()


def _journal(place: Storage) -> tuple[Journal, KeptRuns]:
    """The current journal, and what is kept of it; if this process has read it before, only the rest is read."""
    with _known_lock:
        known = _known.setdefault(str(place), _Known())
    with known.turn:
        journal = known.journal
        if journal is not None and known.newest is not None and _newest_file(place, journal) == known.newest:
            journal.refresh()
        else:
            if journal is not None:
                known.runs.forget()
                journal.release()
            journal, known.runs = Journal.read(place), KeptRuns()
            known.journal = journal
        known.newest = _newest_file(place, journal)
        return journal, known.runs


def _newest_file(place: Storage, journal: Journal) -> tuple[object, ...] | None:
    return place.state(f"{Layout.commits}/{journal.head:020d}.json")


@dataclass(frozen=True)
class ReadPipeline:
    """One pipeline as of the creation of this object."""

    lake: ReadLake
    name: str
    journal: Journal
    states: TableStates
    runs: KeptRuns | None = None

    def live(self) -> list[TableState]:
        return sorted(self.states.in_phase(Phase.LIVE), key=lambda state: state.table)

    def change_set(self, at: Moment) -> int:
        """The number of the change set for a moment. LakeError if the journal does not reach it."""
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
                raise LakeError(f"the journal has the change sets {trimmed + 1} to {head}, not {at}", remedy=KEEPS_MORE)
            return at
        if self.journal.end is None or not at <= self.journal.end:
            raise LakeError(f"the journal ends at {self.journal.end}, before {at}", remedy="Wait, then read again.")
        begins = self.journal.commit(trimmed + 1).start
        if begins is not None and not at >= begins:
            raise LakeError(f"the journal begins at {begins}, after {at}", remedy=KEEPS_MORE)
        return max((one.number for one in self.journal.commits() if one.end <= at), default=trimmed)

    def _last_before(self, at: datetime) -> int:
        """The last change set before the first one with a change committed after ``at``."""
        for commit in self.journal.commits():
            for segment in commit.segments:
                self.journal.fetch(segment)
            times = [time for segment in commit.segments if (time := last_time(segment)) is not None]
            if times and max(times) > at:
                return commit.number - 1
        return self.journal.head

    def tables(self) -> list[TableId]:
        """The lake tables that can be read; the parts of a union count as one."""
        return sorted({state.route.stored for state in self.live()})

    def parts(self, table: TableId) -> list[TableState]:
        """The parts of a union that have rows; none for any other table."""
        every = self.states.in_phase(Phase.LIVE, Phase.DROPPED)
        return sorted((one for one in every if one.part and one.part.table == table), key=lambda one: one.table)

    def at(self, table: TableId, number: int) -> DataFrame:
        """One table at change set ``number``, as a Spark plan. A union has the rows of all its parts."""
        if parts := self.parts(table):
            return reduce(
                lambda one, other: one.unionByName(other, allowMissingColumns=True),
                (self.at(part.table, number) for part in parts),
            )
        state, journal = self.states.get(table), self.journal
        if state is None or state.phase not in (Phase.LIVE, Phase.DROPPED):
            what = f"is {state.phase.value}: {state.reason}" if state is not None else "is not there"
            raise LakeError(f"table {table} {what}", remedy="Run `lakefeed sync`, then read again.")
        refused = f"table {table} cannot be read at change set {number}"
        history = self.lake.history(table, state.route.stored)
        # In the log of a union, commits of other parts do not change this one.
        commits = [
            one
            for one in history.commits()
            if _generation(one) in (None, state.generation)
            and (state.part is None or one.metadata is None or one.metadata.get("table") == str(state.source))
        ]
        found = state_at(commits, lambda commit: commit.upto <= number)
        if found is None or found.commit.applied is None:
            raise LakeError(
                f"{refused}: no version of it from then is left",
                remedy=f"Ask for a later moment; {history.keeps_more}",
            )
        if state.high is not None and number < journal.head:
            reached = journal.position(number)
            if reached is not None and not reached >= state.high and reached != found.copied_upto:
                raise LakeError(
                    f"{refused}: it was copied while the source went on, up to {state.high}",
                    remedy="Ask for a later moment.",
                )
        applied, recorded = found.commit.applied, state.recorded_at_trim
        complete = max(applied, min(state.complete_at_trim, number) if applied == recorded else 0)
        if complete < min(number, journal.trimmed):
            raise LakeError(
                f"{refused}: the version before it has the change sets up to {complete}, and the journal no longer"
                f" has {complete + 1} to {journal.trimmed}",
                remedy=KEEPS_MORE,
            )
        history.check(found.version)
        # By their order in the log: the ids of Iceberg's snapshots have none.
        until = [one.version for one in commits].index(found.version) + 1
        version = max(int((one.metadata or {}).get("schema_version", 0)) for one in commits[:until])
        rows = history.read(self.lake.spark, found.version)
        if state.part is not None:
            rows = rows.where(rows[quoted(state.part.column)] == state.part.value)
        store = _PlannedStore(
            rows,
            Applied(number=applied, schema_version=version, rows=None),
            table_path(self.lake.root, state.route.stored),
        )
        entry = Enrolled(
            state.route,
            state.generation,
            settled_recorded=recorded,
            settled_effective=min(state.complete_at_trim, number),
            copied_from=state.low,
            exact_at=state.high,
            is_exact=state.high is not None and (state.is_exact or state.high == state.exact_at),
            ends_at=min(number, state.last_change_set or number),
        )
        plans = _Plans(self, store, state.evolution)
        with keeping(self.runs):
            result = Engine(plans, journal, lambda: {table: entry}, parallel=1).sync_once().tables.get(table)
        if result is not None and result.error is not None:
            raise LakeError(f"{refused}: {result.error}", remedy=result.remedy)
        return store.rows


class _Plans:
    """A TableFormat with one table, whose store plans instead of committing."""

    def __init__(self, pipeline: ReadPipeline, store: _PlannedStore, evolution: Evolution) -> None:
        self._pipeline = pipeline
        self._store = store
        self._evolution = evolution

    def routes(self, source: TableId) -> tuple[Route, ...]:
        return (Route.same(source),)

    columns = None  # the journal has only what was taken
    sensitive = None
    choices = NOTHING_CHOSEN

    def matching(self, source: TableId) -> tuple[str, ...]:  # noqa: ARG002  # nobody asks
        return ()

    def unused(self, schemas: Iterable[TableSchema]) -> tuple[str, ...]:  # noqa: ARG002  # nobody asks
        return ()

    def evolution(self, route: Route) -> Evolution:  # noqa: ARG002  # it is of one table
        return self._evolution

    def progress(self) -> object:
        return None

    def newest_commit(self, route: Route) -> str | None:  # noqa: ARG002  # nobody asks
        return None

    def scratch(self, path: str) -> _Plans:  # noqa: ARG002  # the seam's; nothing is written here
        return self

    def table(self, route: Route) -> SparkTable:
        lake = self._pipeline.lake
        place = decisions_file(storage_at(lake.root), self._pipeline.name, route.table)
        decisions = _ReadDecisions(Policy(route.table, route.mode, self._evolution), place)
        store: Any = self._store  # has the part of TableStore that modes use
        rule = _ReadRule(
            self._rule(route), route.table, rule_file(storage_at(lake.root), self._pipeline.name, route.table)
        )
        return SparkTable(self._pipeline.name, route, store, _OneSession(lake.spark), decisions, rule)

    def _rule(self, route: Route) -> RowRule:
        """The rule that makes the rows: that of the given lake, or the one that the pipeline has recorded."""
        lake = self._pipeline.lake
        recorded = read_rule(rule_file(storage_at(lake.root), self._pipeline.name, route.table))
        if recorded is None:
            return RowRule()
        if isinstance(lake.given, Delta | Iceberg):
            given = lake.given.rule(route)
            if given.fingerprint == recorded.fingerprint:
                return given
        if recorded.rule is None:
            raise LakeError(
                f"table {route.table} is made by a rule with a secret in it ({recorded.described}), which is not "
                "in the lake",
                remedy="Give the lake with its rules and its salt instead of its path: "
                "Delta(spark, path, rules=[…], salt=…).",
            )
        return recorded.rule


class _ReadRule(TableRule):
    """The rule by which the rows were made; it has not changed, and nothing is counted."""

    def require(self, generation: int) -> None:
        """Always satisfied: it is the recorded rule."""

    def add(self, generation: int, touched: Mapping[str, int]) -> None:
        """Reading changes no values."""


class _ReadDecisions(Decisions):
    """What was decided. What evolves only here is kept for this reading and written nowhere."""

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
    """A TableStore that keeps a plan of the rows instead of files: every step makes a new plan from it."""

    reserved: tuple[str, ...] = ()
    layout = TableLayout()

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
            self.rows = self.rows.unionByName(step.rows, allowMissingColumns=True)
        else:
            self.rows = step.rows
        self._applied = Applied(
            number=stamp.number or self._applied.number, schema_version=self._applied.schema_version, rows=None
        )
        return self._applied

    def other_type(self, schema: TableSchema) -> None:  # noqa: ARG002  # the parts of a union are put together later
        return None

    def can_evolve(self, path: Sequence[TableSchema]) -> bool:  # noqa: ARG002  # the seam's
        return True

    def lost_by(self, path: Sequence[TableSchema]) -> None:  # noqa: ARG002  # a plan loses nothing
        return None

    def evolve(self, session: SparkSession, path: Sequence[TableSchema], stamp: Stamp) -> None:  # noqa: ARG002
        self.rows = self.rows.select(*projected(path))
        version = stamp.schema_version or self._applied.schema_version
        self._applied = Applied(number=self._applied.number, schema_version=version, rows=None)


def _generation(commit: LogCommit) -> int | None:
    metadata: Mapping[str, Any] = commit.metadata or {}
    return metadata.get("generation")
