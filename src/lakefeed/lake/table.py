"""A lake table on Spark: a mode that plans, a store that commits. The same for every mode and format."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

from lakefeed.change.segment import Window
from lakefeed.change.table import TableSchema
from lakefeed.errors import CommitUnknownError, LakeError, LakefeedError, RebuildNeededError, TableStoppedError
from lakefeed.failpoint import hit
from lakefeed.lake.base import Applied, ChunkSource, Loaded, TableCopy, TableVersion
from lakefeed.lake.maintenance import MaintenanceOptions, MaintenanceResult
from lakefeed.lake.route import Route
from lakefeed.lake.schema.decision import Decisions
from lakefeed.lake.schema.mapping import mapped_window
from lakefeed.lake.schema.policy import Policy
from lakefeed.lake.schema.projection import steps
from lakefeed.lake.spark.error import explained, is_conflict
from lakefeed.lake.spark.job import run_job
from lakefeed.lake.spark.session import Sessions
from lakefeed.lake.spark.type import quoted, refuse_unstorable
from lakefeed.lake.store import Stamp, TableStore, not_where_expected

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_CONFLICT_TRIES = 5


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
        self.location = store.location
        self._mode = route.mode
        self._decisions = decisions or Decisions(Policy(route.table, route.mode))
        self._pipeline = pipeline
        self._store = store
        self._sessions = sessions
        self._session: SparkSession | None = None  # the table's own, made when it is needed
        self._turn = threading.Lock()
        self._key: tuple[str, ...] | None = None

    def applied(self, generation: int) -> Applied | None:
        return self._store.applied(generation)

    def load(self, copy: TableCopy, progress: Callable[[int], None]) -> Loaded:
        hit("lake.before_load")
        own = self._mode.schema(copy.schema)
        refuse_unstorable(own, added=self._mode.added_columns(), reserved=self._store.reserved)
        self._mode.check_columns(copy.schema)
        loaded = self._store.load(copy, self._mode, cache(self._sessions.child), progress)
        hit("lake.after_load")
        return loaded

    def apply(self, window: Window, generation: int) -> Applied:
        """Each of the steps is skipped if the table has it. A window without changes makes no commit.

        1 what does the table record?  2 evolve its columns, if its schema is older: one commit  3 let the mode plan the
        window's changes as a step, and commit it. After a conflict with another commit the table is read, and 3 is
        done again.
        """
        metadata = {
            "pipeline": self._pipeline,
            "table": str(window.table),
            "generation": generation,
            "change_sets": {"after": window.after, "upto": window.upto},
            "schema_version": window.target.version,
            "position": window.end.encode() if window.end is not None else None,
        }
        with self._turn:
            applied = self._store.applied(generation, fresh=False)  # 1
            if applied is None:
                raise LakeError(f"there is no table of generation {generation} at {self.location}")
            if applied.number >= window.upto:
                return applied
            if window.recorded is not None and applied.number != window.recorded:
                raise not_where_expected(self.location, applied.number, window.recorded)
            stamp = Stamp(generation=generation, number=window.upto, found=applied.number, metadata=metadata)
            target = window.target
            if target.version > applied.schema_version or window.stale_reasons:
                applied = self.evolve(window, stamp, applied)  # 2
            mapping = self._decisions.get(target.version, generation)
            self._key = target.key if mapping is None else mapping.schema(target).key
            if not window.segments:
                return applied
            own = mapped_window(window, mapping) if mapping is not None else window
            session = self._session = self._session or self._sessions.child()
            name = f"lakefeed: {self.route.table} up to change set {window.upto}"
            hit("lake.before_commit")
            for left in reversed(range(_CONFLICT_TRIES)):
                try:
                    applied = run_job(  # 3
                        session,
                        name,
                        lambda: self._store.commit(session, self._mode.step(session, own, self._store), stamp),
                        failpoint="lake.during_commit",
                    )
                    break
                except Exception as error:  # noqa: BLE001  # judged by what the table then records
                    if not left or not is_conflict(error):
                        applied = self._outcome(error, stamp)
                        break
                # Maintenance, ours or somebody's, has replaced files under us: the changes are planned again.
                found = self._store.applied(generation)
                if found is not None and found.number < applied.number:
                    raise not_where_expected(self.location, found.number, applied.number)
            hit("lake.after_commit")
            return applied

    def evolve(self, window: Window, stamp: Stamp, applied: Applied) -> Applied:
        """Settle a newer schema and the stale reasons of a window: TableStoppedError if the table cannot go on."""
        generation, version, target = stamp.generation, applied.schema_version, window.target.version
        stale = window.open_stale_reasons(version)
        if target <= version and not stale:
            return applied
        path = steps(window.schemas, version, target) if target > version else [window.target]
        before = self._decisions.at(path[0], generation)
        after = self._decisions.after(path, generation, stale)
        if target <= version:
            return applied
        self._mode.check_evolution(self.route.table, before, after, path)
        own = [self._mode.schema(before.schema(path[0])), self._mode.schema(after.schema(path[-1]))]
        refuse_unstorable(own[-1], added=self._mode.added_columns(), reserved=self._store.reserved)
        if (lost := self._store.lost_by(own)) is not None:
            self._refuse_loss(lost)
        self._decisions.decide(after, path, generation, stale)
        stamp = replace(stamp, number=None, schema_version=target)
        session = self._session = self._session or self._sessions.child()
        try:
            self._store.evolve(session, own, stamp)
        except Exception as error:  # noqa: BLE001  # judged by what the table then records
            return self._outcome(error, stamp)
        return self._store.applied(generation) or replace(applied, schema_version=target)

    def _refuse_loss(self, lost: str) -> None:
        """The rows would have to be written again under new types, and the table would lose what its owner set.

        A copy keeps that; it costs history, so that a table with history waits for a person.
        """
        table = self.route.table
        problem = f"table {table}: rows must be written again for a new type, and the lake table would lose {lost}"
        if self._mode.equals_source:
            raise RebuildNeededError(f"{problem}, which a new copy keeps", table=str(table))
        raise TableStoppedError(
            problem,
            remedy=f"Remove {lost} from the lake table: it then goes on by itself. Or copy it again, and begin a new "
            f"history: lakefeed rebuild FILE {table} --from-source.",
            table=str(table),
        )

    def states(self, generation: int) -> tuple[TableVersion, ...]:
        """A state with other columns than the source's is left out: it could not copy another table."""
        states = self._store.states(generation)
        return tuple(state for state in states if self._decisions.get(state.schema_version, generation) is None)

    def chunks(self, state: TableVersion, schema: TableSchema) -> tuple[ChunkSource, ...] | None:
        current = self._mode.current_rows()
        return self._store.chunks(state, schema, current) if current is not None else None

    def current(self, source: TableSchema, generation: int) -> DataFrame | None:
        from pyspark.sql import functions as F  # noqa: N812  # its usual name

        which = self._mode.current_rows()
        if which is None:
            return None
        rows = self._store.read(self._sessions.child())
        if which.column is not None:
            column = F.col(quoted(which.column))
            rows = rows.where(column.isNull() if which.null else column)
        live = self._decisions.at(source, generation).live
        return rows.select([F.col(quoted(one.column.name)).alias(name) for name, one in live.items() if one.since == 0])

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

    def _outcome(self, error: Exception, stamp: Stamp) -> Applied:
        """What the table records, if the commit did happen and only its answer was lost; else the error, explained."""
        if isinstance(error, LakefeedError):
            raise error
        try:
            after = self._store.applied(stamp.generation)
        except Exception as unreadable:  # noqa: BLE001  # whatever it is, the outcome is unknown
            text = f"table {self.route.table}: a commit failed and the table cannot be read back: {unreadable}"
            raise CommitUnknownError(text) from error
        if (
            after is not None
            and after.number >= (stamp.number or 0)
            and after.schema_version >= (stamp.schema_version or 0)
        ):
            return after
        raise explained(error, self.route.table) from error
