"""A lake table on Spark: a mode that plans, a store that commits. The same for every format."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from lakefeed.change.segment import Window
from lakefeed.change.table import TableSchema
from lakefeed.errors import CommitUnknownError, LakeError, LakefeedError
from lakefeed.failpoint import hit
from lakefeed.lake.base import Applied, ChunkSource, Loaded, TableCopy, TableVersion
from lakefeed.lake.decision import Decisions
from lakefeed.lake.followed import window_of
from lakefeed.lake.following import Policy
from lakefeed.lake.job import run_job
from lakefeed.lake.maintenance import MaintenanceOptions, MaintenanceResult
from lakefeed.lake.outcome import explained, is_conflict
from lakefeed.lake.plan import planned_step
from lakefeed.lake.projection import steps
from lakefeed.lake.route import Route
from lakefeed.lake.shape import Shape
from lakefeed.lake.sparktype import quoted, refuse_unstorable
from lakefeed.lake.store import Stamp, TableStore
from lakefeed.lake.tracking import refuse_loss, refuse_unknown

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


_CONFLICT_TRIES = 5


class Sessions:
    """Child sessions of one session, which is asked for when the first is needed."""

    def __init__(self, spark: Callable[[], SparkSession], settings: Mapping[str, str]) -> None:
        self._spark = spark
        self._settings = settings
        self._lock = threading.Lock()
        self._parent: SparkSession | None = None

    def child(self) -> SparkSession:
        with self._lock:
            if self._parent is None:
                self._parent = self._spark()
            session = self._parent.newSession()
        for name, value in self._settings.items():
            session.conf.set(name, value)
        return session


class SparkTable:
    """See ``lake.base.LakeTable`` for the contract. ``decisions`` say which columns the table has."""

    def __init__(
        self,
        pipeline: str,
        route: Route,
        store: TableStore,
        sessions: Sessions,
        decisions: Decisions | None = None,
    ) -> None:
        self.route = route
        self._decisions = decisions or Decisions(Policy(route.table, route.mode))
        self._pipeline = pipeline
        self._store = store
        self._sessions = sessions
        self._own: SparkSession | None = None
        self._turn = threading.Lock()
        self._shape = Shape(route.mode)
        self._key: tuple[str, ...] | None = None

    @property
    def location(self) -> str:
        return self._store.location

    def applied(self, generation: int) -> Applied | None:
        return self._store.recorded(generation)

    def load(self, copy: TableCopy, progress: Callable[[int], None]) -> Loaded:
        hit("lake.before_load")
        refuse_unstorable(self._shape.schema(copy.schema), added=self._shape.added())
        refuse_unknown(self.route.mode, copy.schema)
        loaded = self._store.load(copy, self._shape, self._session, progress)
        hit("lake.after_load")
        return loaded

    def apply(self, window: Window, generation: int) -> None:
        """1 evolve the schema, if it is older  2 change the rows. Each is one commit, skipped if the table has it.

        A window without changes commits nothing: there is nothing in it that could be lost.
        """
        with self._turn:
            recorded = self.applied(generation)
            if recorded is None:
                raise LakeError(f"there is no table of generation {generation} at {self.location}")
            if recorded.number >= window.upto:
                return
            self._settle(window, generation, recorded.schema_version)
            self._key = self._decisions.at(window.target, generation).schema(window.target).key
            if window.segments:
                self._change(window, generation)

    def states(self, generation: int) -> tuple[TableVersion, ...]:
        """A state with other columns than the source's is left out: it could not copy another table."""
        states = self._store.states(generation)
        return tuple(state for state in states if not self._decisions.has(state.schema_version, generation))

    def chunks(self, state: TableVersion, schema: TableSchema) -> tuple[ChunkSource, ...] | None:
        current = self._shape.current()
        return self._store.chunks(state, schema, current) if current is not None else None

    def current(self, source: TableSchema, generation: int) -> DataFrame | None:
        from pyspark.sql import functions as F  # noqa: N812  # its usual name

        which = self._shape.current()
        if which is None:
            return None
        rows = self._store.read(self._sessions.child())
        if which.column is not None:
            column = F.col(quoted(which.column))
            rows = rows.where(column.isNull() if which.null else column)
        live = self._decisions.at(source, generation).live
        return rows.select([F.col(quoted(fed.column.name)).alias(name) for name, fed in live.items() if fed.since == 0])

    def maintain(self, options: MaintenanceOptions, key: Sequence[str]) -> MaintenanceResult:
        """``key`` may be that of the copy: the newest that changes came with is what counts."""
        key = self._key if self._key is not None else key
        try:
            return self._store.maintain(self._sessions.child, options, key)
        except Exception as error:
            if not options.insists or not is_conflict(error):
                raise
        with self._turn:
            return self._store.maintain(self._sessions.child, options, key)

    def _settle(self, window: Window, generation: int, version: int) -> None:
        """The schema and what is said against the rows of before: TableStoppedError if the table cannot go on."""
        doubts, is_newer = window.open_doubts(version), window.target.version > version
        path = steps(window.schemas, version, window.target.version) if is_newer else [window.target]
        if not doubts and not is_newer:
            return
        before = self._decisions.at(path[0], generation)
        after = self._decisions.after(path, generation, doubts)
        if not is_newer:
            return
        refuse_loss(self.route.mode, self.route.table, before, after, path)
        own = [self._shape.schema(before.schema(path[0])), self._shape.schema(after.schema(path[-1]))]
        refuse_unstorable(own[-1], added=self._shape.added())
        self._decisions.decide(after, path, generation, doubts)
        target = window.target.version
        stamp = Stamp(generation=generation, schema_version=target, metadata=self._metadata(window, generation))
        with self._committing(stamp) as session:
            self._store.evolve(session, own, stamp)

    def _change(self, window: Window, generation: int) -> None:
        stamp = Stamp(generation=generation, number=window.upto, metadata=self._metadata(window, generation))
        own = window_of(window, self._decisions.at(window.target, generation))
        hit("lake.before_commit")
        with self._committing(stamp) as session:

            def work() -> None:
                self._store.commit(session, planned_step(session, self.route.mode, own, self._store), stamp)

            name = f"lakefeed: {self.route.table} up to change set {window.upto}"
            for left in reversed(range(_CONFLICT_TRIES)):
                try:
                    run_job(session, name, work, failpoint="lake.during_commit")
                    break
                except Exception as error:
                    # Maintenance, ours or somebody's, has replaced files under us: the same changes, planned again.
                    if not left or not is_conflict(error):
                        raise
        hit("lake.after_commit")

    @contextmanager
    def _committing(self, stamp: Stamp) -> Iterator[SparkSession]:
        """The table's session; an error inside is judged by what the table then says."""
        session = self._session()
        try:
            yield session
        except LakefeedError:
            raise
        except Exception as error:
            try:
                after = self.applied(stamp.generation)
            except Exception as unreadable:  # noqa: BLE001  # whatever it is, the outcome is unknown
                text = f"table {self.route.table}: a commit failed and the table cannot be read back: {unreadable}"
                raise CommitUnknownError(text) from error
            if (
                after is not None
                and after.number >= (stamp.number or 0)
                and after.schema_version >= (stamp.schema_version or 0)
            ):
                return  # the commit did happen; only its answer was lost
            raise explained(error, self.route.table) from error

    def _metadata(self, window: Window, generation: int) -> dict[str, Any]:
        return {
            "pipeline": self._pipeline,
            "table": str(window.table),
            "generation": generation,
            "change_sets": {"after": window.after, "upto": window.upto},
            "schema_version": window.target.version,
            "position": window.end.encode() if window.end is not None else None,
        }

    def _session(self) -> SparkSession:
        if self._own is None:
            self._own = self._sessions.child()
        return self._own
