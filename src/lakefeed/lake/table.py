"""A lake table on Spark: a mode that plans, a store that commits. The same for every mode and format."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from lakefeed.change.segment import Window
from lakefeed.change.table import Comments, TableSchema
from lakefeed.errors import CommitUnknownError, LakeError, LakefeedError, RebuildNeededError, TableStoppedError
from lakefeed.failpoint import hit
from lakefeed.lake.base import Applied, ChunkSource, Loaded, TableCopy, TableVersion
from lakefeed.lake.layout import Difference
from lakefeed.lake.maintenance import MaintenanceOptions, MaintenanceResult
from lakefeed.lake.route import Route
from lakefeed.lake.rule.changes import ruled_window, source_rows, touched_by_window
from lakefeed.lake.rule.copy import RenamedChunk, StagedGroups, ruled_batches, touched_by_source
from lakefeed.lake.rule.record import TableRule
from lakefeed.lake.rule.resolve import Resolved, resolved
from lakefeed.lake.rule.rows import RowRule
from lakefeed.lake.schema.decision import Decisions
from lakefeed.lake.schema.mapping import ColumnMapping, mapped_window
from lakefeed.lake.schema.policy import Policy
from lakefeed.lake.schema.projection import steps
from lakefeed.lake.spark.driver import Driver
from lakefeed.lake.spark.error import explained, is_conflict, server_lost, session_lost
from lakefeed.lake.spark.job import run_job
from lakefeed.lake.spark.session import Sessions
from lakefeed.lake.spark.type import quoted, refuse_unstorable
from lakefeed.lake.store import Stamp, TableStore, is_only_added, not_where_expected

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from lakefeed.lake.base import MadeBy

_CONFLICT_TRIES = 5


class SparkTable:
    """Contract: ``lake.base.LakeTable``. ``decisions`` has the table's column mapping, ``rule`` the rule that makes its
    rows. ``staging`` is a directory for the copy of a table whose rule Spark evaluates. The parts of one stored table
    share ``turn``, and write one at a time."""

    def __init__(
        self,
        pipeline: str,
        route: Route,
        store: TableStore,
        sessions: Sessions,
        decisions: Decisions | None = None,
        rule: TableRule | None = None,
        staging: str | None = None,
        turn: AbstractContextManager[Any] | None = None,
    ) -> None:
        self.route = route
        self.location = store.location
        self._mode = route.mode
        self._decisions = decisions or Decisions(Policy(route.table, route.mode))
        self._rule = rule or TableRule(RowRule(), route.table)
        self._staging = staging or f"{store.location}/_staged"
        self._pipeline = pipeline
        self._store = store
        self._sessions = sessions
        self._session: SparkSession | None = None  # the table's own, made at its first use
        self._turn = turn or threading.RLock()
        self._key: tuple[str, ...] | None = None
        self._resolved: Resolved | None = None
        self._is_laid_out = store.layout.is_empty

    def applied(self, generation: int) -> Applied | None:
        return self._store.applied(generation)

    def check(self, schema: TableSchema, before: TableSchema | None = None) -> tuple[str, ...]:
        session = cache(self._sessions.child)
        if before is not None:
            self._refuse_uncovered([before, schema])
        ruled = self._checked(schema, session)
        if before is not None:
            self._refuse_made_otherwise(resolved(self._rule.rule, before, self.route.table, session), ruled)
        return ruled.needed

    def _checked(self, schema: TableSchema, session: Callable[[], SparkSession]) -> Resolved:
        """The rule on the source's schema. TableStoppedError if the lake cannot have such a table."""
        self._refuse_alike(schema)
        ruled = resolved(self._rule.rule, schema, self.route.table, session)
        own = self._mode.schema(ruled.schema)
        refuse_unstorable(own, added=self._mode.added_columns(), reserved=self._store.reserved)
        self._mode.check_columns(ruled.schema)
        layout = self._store.layout
        for name in (*(one.column for one in layout.partitions), *(layout.cluster_by or ())):
            if name not in ruled.schema.names:
                raise TableStoppedError(
                    f"table {self.route.table}: partition_by or cluster_by names {name}, which is no column of it",
                    remedy=f"Correct the rule for {schema.table}; the columns are {', '.join(ruled.schema.names)}.",
                    table=str(self.route.table),
                )
        return ruled

    def load(self, copy: TableCopy, progress: Callable[[int], None]) -> Loaded:
        hit("lake.before_load")
        session = cache(self._sessions.child)
        ruled = self._checked(copy.schema, session)
        self._refuse_other_types(ruled)
        self._rule.begin(copy.generation)
        called = dict(zip(ruled.source.names, ruled.schema.names, strict=False))
        by_column = {called[name]: text for name, text in copy.comments.columns.items() if name in called}
        copy = replace(copy, comments=Comments(copy.comments.table, by_column))
        staged: StagedGroups | None = None
        if not ruled.is_renaming or self._store.parts:
            count = partial(self._rule.add, copy.generation)
            staged = StagedGroups(ruled, self._staging, session, count, self._store.parts)
            copy = replace(copy, schema=ruled.schema, ruled=staged)
        elif ruled.schema.names != copy.schema.names:
            names = ruled.schema.names
            copy = replace(copy, schema=ruled.schema, chunks=[RenamedChunk(chunk, names) for chunk in copy.chunks])
        early = {called[name]: name for name, _ in self._rule.rule.early if name in called}
        copy = replace(copy, wrote=lambda files: self._rule.add(copy.generation, touched_by_source(files, early)))
        try:
            loaded = self._store.load(copy, self._mode, session, progress)
        except Exception as error:
            cause = error.__cause__ if isinstance(error, LakefeedError) else error
            if cause is None or not self._store.layout.properties:
                raise
            raise self._explained(cause) from cause
        if staged is not None:
            staged.clear()
        hit("lake.after_load")
        return loaded

    def made_by(self, schema: TableSchema, mapping: ColumnMapping, generation: int) -> MadeBy | None:
        self._rule.require(generation)
        if self._rule.rule.is_empty:
            return None
        session = cache(self._sessions.child)
        ruled = resolved(self._rule.rule, mapping.schema(schema), self.route.table, session)
        return self._rule.rule, ruled, partial(ruled_batches, session)

    def rule(self, generation: int | None = None) -> RowRule:
        if generation is not None:
            self._rule.require(generation)
        return self._rule.rule

    def touched(self, generation: int) -> Mapping[str, int]:
        return self._rule.touched(generation)

    def is_in_place(self, path: Sequence[TableSchema]) -> bool:
        return self._store.is_in_place([self._mode.schema(one) for one in path])

    def laid_out_otherwise(self) -> tuple[Difference, ...]:
        return () if self._store.layout.is_empty else self._store.laid_out_otherwise()

    def apply(self, window: Window, generation: int) -> Applied:
        """Skips each step that the table has. A window without changes makes no commit.

        1 read what the table records  2 evolve its columns, if its schema is older: one commit  3 let the mode plan the
        window's changes as a step, and commit it. After a conflict with another commit, read the table and do 3 again.
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
            if self._rule.required != generation:
                self._rule.require(generation)
            stamp = Stamp(generation=generation, number=window.upto, found=applied.number, metadata=metadata)
            target = window.target
            if target.version > applied.schema_version or window.stale_reasons:
                applied = self.evolve(window, stamp, applied)  # 2
            mapping = self._decisions.get(target.version, generation)
            own = mapped_window(window, mapping) if mapping is not None else window
            if not self._rule.rule.is_plain:
                own = ruled_window(own, self._ruled(own.target))
            self._key = own.target.key
            if not window.segments:
                return applied
            session = self._session = self._session or self._sessions.child()
            if not self._is_laid_out:
                if any(one.in_place for one in self._store.laid_out_otherwise()):
                    try:
                        self._store.lay_out(Driver(session).child())
                    except Exception as error:
                        raise self._explained(error) from error
                self._is_laid_out = True
            name = f"lakefeed: {self.route.table} up to change set {window.upto}"
            hit("lake.before_commit")
            for left in reversed(range(_CONFLICT_TRIES)):
                try:
                    applied = run_job(  # 3
                        session,
                        name,
                        lambda session=session: self._store.commit(  # type: ignore[misc]
                            session, self._mode.step(session, own, self._store), stamp
                        ),
                        failpoint="lake.during_commit",
                    )
                    break
                except Exception as error:  # noqa: BLE001  # what the table records decides
                    lost = session_lost(error)
                    self._discard()
                    if not left or not (lost or is_conflict(error)):
                        applied = self._outcome(error, stamp)
                        break
                    session = self._own_session()  # if it was lost, the table says below whether it has committed
                # Maintenance, ours or somebody else's, has replaced files meanwhile: plan the changes again.
                found = self._store.applied(generation)
                if found is not None and found.number < applied.number:
                    raise not_where_expected(self.location, found.number, applied.number)
            if not self._rule.rule.is_empty or any(one.replaced for one in window.segments):
                self._rule.add(generation, touched_by_window(session, own, dict(self._rule.rule.early)))
            hit("lake.after_commit")
            return applied

    def _discard(self) -> None:
        """Give up a session of Spark Connect after an error: its server may go on with the statement, under the
        session's settings, by which it only stages what it writes."""
        if self._session is not None and not Driver(self._session).has_jvm:
            self._session = None

    def _own_session(self) -> SparkSession:
        self._session = self._session or self._sessions.child()
        return self._session

    def _ruled(self, schema: TableSchema) -> Resolved:
        """The rule on one schema. Keeps the last answer, because Spark analyzes expressions for it."""
        if self._resolved is None or self._resolved.source != schema:
            self._resolved = resolved(self._rule.rule, schema, self.route.table, self._own_session)
        return self._resolved

    def evolve(self, window: Window, stamp: Stamp, applied: Applied) -> Applied:
        """Settle a window's newer schema and its stale reasons: TableStoppedError if the table cannot go on."""
        generation, version, target = stamp.generation, applied.schema_version, window.target.version
        stale = window.open_stale_reasons(version)
        if target <= version and not stale:
            return applied
        path = steps(window.schemas, version, target) if target > version else [window.target]
        self._refuse_alike(path[-1])
        self._refuse_uncovered(path)
        before = self._decisions.at(path[0], generation)
        after = self._decisions.after(path, generation, stale)
        if target <= version:
            return applied
        self._mode.check_evolution(self.route.table, before, after, path)
        ruled = [self._ruled(before.schema(path[0])), self._ruled(after.schema(path[-1]))]
        self._refuse_made_otherwise(*ruled)
        own = [self._mode.schema(one.schema) for one in ruled]
        refuse_unstorable(own[-1], added=self._mode.added_columns(), reserved=self._store.reserved)
        if self.route.part is not None:
            self._refuse_other_types(ruled[-1])
            if not is_only_added(own):
                self._refuse_loss(f"the rows of the other parts of {self.route.part.table}")
        elif not self._store.can_evolve(own):
            self._refuse_rewrite()
        elif (lost := self._store.lost_by(own)) is not None:
            self._refuse_loss(lost)
        self._decisions.decide(after, path, generation, stale)
        stamp = replace(stamp, number=None, schema_version=target)
        session = self._own_session()
        try:
            self._store.evolve(session, own, stamp)
        except Exception as error:  # noqa: BLE001  # what the table records decides
            self._discard()
            return self._outcome(error, stamp)
        return self._store.applied(generation) or replace(applied, schema_version=target)

    def _refuse_other_types(self, ruled: Resolved) -> None:
        """TableStoppedError if a part of a union has a column that the stored table has with another type."""
        part = self.route.part
        if part is not None and (unlike := self._store.other_type(self._mode.schema(ruled.schema))) is not None:
            raise TableStoppedError(
                f"table {self.route.table}: the lake table {part.table}, which several source tables feed, has "
                f"{unlike}",
                remedy="Give the column the same type in all these source tables, with types: {column: string} or a "
                f"CAST in transform, and copy them again: lakefeed rebuild FILE {part.table} --from-source",
                table=str(self.route.table),
            )

    def _refuse_loss(self, lost: str) -> None:
        """The error if rewriting all rows under new types would lose something that the table's owner has set.

        A new copy keeps it, but costs history: so a table with history stops, and the others are copied again.
        """
        table = self.route.table
        problem = f"table {table}: Lakefeed must rewrite the rows for a new type, and the lake table would lose {lost}"
        if self._mode.equals_source:
            raise RebuildNeededError(f"{problem}, which a new copy keeps", table=str(table))
        raise TableStoppedError(
            problem,
            remedy=f"Remove {lost} from the lake table: it then goes on by itself. Or copy the table again, which "
            f"begins a new history: lakefeed rebuild FILE {table} --from-source.",
            table=str(table),
        )

    def _refuse_rewrite(self) -> None:
        """The error for rows that must be written again where only a copy can do that (``TableStore.can_evolve``)."""
        table = self.route.table
        problem = f"table {table}: Lakefeed must rewrite the rows for a new type, which is not safe on Spark Connect"
        if self._mode.equals_source:
            raise RebuildNeededError(problem, table=str(table))
        raise TableStoppedError(
            problem,
            remedy="Sync once with a classic session, that is with spark.master instead of spark.remote. Or copy the "
            f"table again, which begins a new history: lakefeed rebuild FILE {table} --from-source.",
            table=str(table),
        )

    def _refuse_alike(self, source: TableSchema) -> None:
        """TableStoppedError for columns of the source that differ only in case: Spark, which reads the journal, takes
        them for one. Other names in the lake do not help."""
        alike = {one.lower(): one for one in source.names}
        for name in source.names:
            if alike[name.lower()] != name:
                raise TableStoppedError(
                    f"table {self.route.table}: columns '{name}' and '{alike[name.lower()]}' of {source.table} differ "
                    "only in case, and Spark takes them for the same",
                    remedy=f"Leave one of them out: columns: ['*', '!{name}'] in the rule for {source.table} in "
                    "lake.tables. Or give it another name in the source.",
                    table=str(self.route.table),
                )

    def _refuse_uncovered(self, path: Sequence[TableSchema]) -> None:
        """TableStoppedError if a column with a mask or an expression may have another name now: its values would get
        into the lake as they are. If columns have no lasting ids, any new one may be that column."""
        old, new, rule = path[0], path[-1], self._rule.rule
        covered = {name for name, _ in (*rule.mask, *rule.transform)}
        called = {one.id: one.name for one in new.columns if one.id is not None}
        for name in old.names:
            now = called.get(old.column(name).id or "", name)
            if name in covered and now == name and name not in new.names:
                now = next((one for one in new.names if one not in old.names and one not in covered), name)
            if name not in covered or now in (name, *covered):
                continue
            raise TableStoppedError(
                f"table {self.route.table}: the rule for {old.table} masks or makes the column {name}, but the source "
                f"has {now} instead, whose values would get into the lake as they are",
                remedy=f"Write {now} beside {name} in mask or transform of that rule, if it has the same values. Then "
                f"copy the table again: lakefeed rebuild FILE {self.route.table} --from-source",
                table=str(self.route.table),
            )

    def _refuse_made_otherwise(self, before: Resolved, after: Resolved) -> None:
        """TableStoppedError if older rows have another value or type in a column that the rule makes."""
        own = {one.column.name.lower(): one.column.id for one in before.columns if one.rule is not None}
        for one in after.columns:
            was = own.get(one.column.name.lower(), one.column.id) or ""
            if was != one.column.id and was.startswith("rule."):
                table, name = self.route.table, one.column.name
                raise TableStoppedError(
                    f"table {table}: its rule makes a column {name}, and now the source has a column of that name",
                    remedy="Name the rule's column otherwise in transform; or remove it from transform, to get the "
                    f"source's. Then copy the table again: lakefeed rebuild FILE {table} --from-source",
                    table=str(table),
                )
        kinds = {one.column.name: one.column.type for one in before.columns if one.rule is not None}
        changed = [
            one.column.name
            for one in after.columns
            if one.rule is not None and kinds.get(one.column.name, one.column.type) != one.column.type
        ]
        if changed:
            table = self.route.table
            raise TableStoppedError(
                f"table {table}: the source's columns have changed, and {changed[0]}, which its rule makes, now has "
                "another type than in the lake table",
                remedy=f"Copy the table again: lakefeed rebuild FILE {table} --from-source. Or CAST the expression to "
                "the type that it had.",
                table=str(table),
            )

    def states(self, generation: int) -> tuple[TableVersion, ...]:
        """Leaves out states with other columns than the source's: no table can be copied from them."""
        states = self._store.states(generation) if self.route.part is None else ()
        return tuple(state for state in states if self._decisions.get(state.schema_version, generation) is None)

    def chunks(self, state: TableVersion, schema: TableSchema) -> tuple[ChunkSource, ...] | None:
        current = self._mode.current_rows()
        if current is None or self.route.part is not None:
            return None
        recorded = self._rule.newest()
        if recorded is None:
            return self._store.chunks(state, schema, current)
        if recorded.rule is None or recorded.rule.has_values:
            return None  # the table's rows are not the source's
        ruled = resolved(recorded.rule, schema, self.route.table, self._own_session)
        renamed = self._store.chunks(state, ruled.schema, current)
        return tuple(RenamedChunk(chunk, schema.names) for chunk in renamed)

    def current(self, source: TableSchema, generation: int) -> DataFrame | None:
        from pyspark.sql import functions as F  # noqa: N812  # its usual name

        which = self._mode.current_rows()
        if which is None:
            return None
        rows = self._store.read(self._sessions.child())
        if which.column is not None:
            column = F.col(quoted(which.column))
            rows = rows.where(column.isNull() if which.null else column)
        mapping = self._decisions.at(source, generation)
        self._rule.require(generation)
        if not self._rule.rule.is_plain:
            ruled = self._ruled(mapping.schema(source))
            if not ruled.key_is_plain:
                raise LakeError(
                    f"Lakefeed cannot compare table {self.route.table} with its source: a part of the key is masked",
                    remedy="Find deletes by soft_delete, or compare a lake table of the same source without that mask.",
                )
            rows = source_rows(rows, ruled, tuple(ruled.plain))
        lake = {name: one.column.name for name, one in mapping.live.items() if one.since == 0}
        return rows.select([F.col(quoted(own)).alias(name) for name, own in lake.items() if own in rows.columns])

    def maintain(self, options: MaintenanceOptions, key: Sequence[str]) -> MaintenanceResult:
        """``key`` may be that of the copy. The key of the newest changes counts instead, if there were any."""
        key = self._key if self._key is not None else key
        try:
            return self._store.maintain(self._sessions.child, options, key)
        except Exception as error:
            if not options.insists or not is_conflict(error):
                raise
        with self._turn:
            return self._store.maintain(self._sessions.child, options, key)

    def _outcome(self, error: Exception, stamp: Stamp) -> Applied:
        """What the table records, if the commit happened and only its answer was lost; else raises our own error."""
        if isinstance(error, LakefeedError):
            raise error
        try:
            after = self._store.applied(stamp.generation)
        except Exception as unreadable:  # noqa: BLE001  # whatever the reason, the outcome is unknown
            text = f"table {self.route.table}: a commit failed, and Lakefeed cannot read the table: {unreadable}"
            raise CommitUnknownError(text) from error
        if (
            after is not None
            and after.number >= (stamp.number or 0)
            and after.schema_version >= (stamp.schema_version or 0)
        ):
            return after
        raise self._explained(error) from error

    def _explained(self, error: BaseException) -> LakefeedError:
        if server_lost(error) is not None:
            self._session = None  # the next try makes a new one
        properties = self._store.layout.properties
        return explained(error, self.route.table, self.route.source, properties, str(self.location))
