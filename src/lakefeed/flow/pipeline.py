"""Pipeline: one source, one journal, one lake. This is what users write.

    with Pipeline(Sqlite("shop.db"), Delta(spark, "lake"), name="shop") as pipeline:
        pipeline.sync_once()      # or pipeline.run(), until stop()

It has two sides with the journal between them: the capture side makes changes durable, the lake side applies them.
Tables are copied beside both. ``sync_once`` does one after the other in the caller's thread; ``run`` gives the capture
side and the copies a thread each, so that neither a slow lake nor a long copy delays the changes of other tables. What
the journal has and the lake does not have yet is bounded: beyond ``max_backlog_bytes`` capture waits.
"""

from __future__ import annotations

import logging
import re
import shlex
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from lakefeed.capture.base import Continuity, Finding, Level, SnapshotPlan, Source
from lakefeed.change.table import TableId, TableSchema
from lakefeed.errors import (
    ConfigError,
    HangError,
    LakeError,
    LakefeedError,
    LeaseError,
    SourceChangedError,
    StateError,
    StorageUnavailableError,
    TableStoppedError,
    for_reader,
    told,
    without_signature,
)
from lakefeed.flow.capture_side import source_forgot
from lakefeed.flow.full_diff import FullDiffs
from lakefeed.flow.maintenance import maintain_tables
from lakefeed.flow.options import PipelineOptions
from lakefeed.flow.plan.migration import MigratedTable, plan_migration
from lakefeed.flow.plan.start import Plan, make_plan
from lakefeed.flow.rebuild import Rebuild, Rebuilt
from lakefeed.flow.report.activity import Activity
from lakefeed.flow.report.answer import Asker
from lakefeed.flow.report.listener import Listener, Listeners
from lakefeed.flow.result import CycleResult
from lakefeed.flow.run_loop import OpenPipeline, RunLoop
from lakefeed.flow.shape import UNUSED, Shape
from lakefeed.flow.status import Liveness, PipelineStatus, read_status
from lakefeed.flow.table_state import Phase, TableStates
from lakefeed.journal.journal import Journal
from lakefeed.journal.lease import lease_holder
from lakefeed.lake.base import Lake, TableResult
from lakefeed.lake.full_diff import FullDiffResult
from lakefeed.lake.maintenance import MaintenanceResult
from lakefeed.lake.route import Route, settled
from lakefeed.storage.base import Storage
from lakefeed.storage.location import storage_at

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

_ROUNDS = 3
"""Rounds of copying and capturing in one sync; the next sync catches a table that changes faster than that."""

_STATUS_SECONDS, _STATUS_GRACE_SECONDS = 1.5, 0.3
"""How long ``status`` waits for the source and the lake, and then for what it derives from their answers."""

_LEFT_SECONDS = 300.0
"""How long a call waits for what the last ``run`` left behind, usually a long merge."""

_RELEASE_SECONDS = 2.0
"""How long a pipeline with a thread that hangs waits for what has its lease."""

_STANDBY_SECONDS = 5.0
"""How often, at least, a standby asks an object store for the lease."""

_NAME = re.compile(r"[a-z0-9][a-z0-9_-]*")


class Pipeline:
    """Keeps the tables of a lake equal to the tables of a source.

    The first ``sync_once`` or ``run`` takes the pipeline's lease, and ``close`` releases it (a ``with`` block does
    both); meanwhile a second process is refused. ``status``, ``check`` and ``stop`` may be called from any thread and
    need no lease. An error of one table is in the result and in the status, and the others go on. An exception concerns
    the whole pipeline; after the remedy, the next call continues where it stopped.
    """

    def __init__(
        self,
        source: Source,
        lake: Lake,
        *,
        name: str = "lakefeed",
        options: PipelineOptions | None = None,
        listener: Listener | None = None,
        journal: str | Path | None = None,
        storage_options: Mapping[str, str] | None = None,
    ) -> None:
        """``journal``: the location of the journal and all other state, if not below the lake's path.

        It is a directory, or the URL of an object store, to which ``storage_options`` apply: docs/object-stores.md.
        """
        if not _NAME.fullmatch(name):
            raise ConfigError(f"'{name}' cannot name a pipeline; use lower-case letters, digits, '-' and '_'")
        self.name = name
        self._states = storage_at(journal or lake.path, storage_options).below("_lakefeed")
        self.state: Storage = self._states.below(name)
        """The location of the journal and all other state."""
        self._options = options or PipelineOptions()
        self._activity = Activity()
        self._listener = Listeners((self._activity, listener or Listener()))
        self._asker = Asker()
        self._capture = source.bind(name)
        self._capture.keep_state(self.state)
        self._tables = lake.bind(name)
        self._capture.represent(self._tables.choices)
        self._work = threading.Lock()
        self._stopping, self._wake = threading.Event(), threading.Event()
        self._opened: OpenPipeline | None = None
        self.file: str | None = ""
        """The configuration file that its errors name; empty if there is none. See ``LakefeedError.file``."""
        self._has_state = False  # it existed, or other pipelines' states have been searched
        self._left: list[threading.Thread] = []
        self.hanging: tuple[str, ...] = ()
        """What the last ``run`` left behind when it was stopped; it goes on in a daemon thread until it ends."""

    def __repr__(self) -> str:
        return f"<Pipeline {self.name}, state in {self.state}>"

    @property
    def root(self) -> Path:
        """The directory of its state. StateError if that is in an object store."""
        if self.state.directory is None:
            raise StateError(f"the state is at {self.state}, not in a directory", remedy="Use state instead of root.")
        return self.state.directory

    @classmethod
    def from_yaml(
        cls, path: str | Path, *, spark: SparkSession | None = None, listener: Listener | None = None
    ) -> Pipeline:
        """The pipeline of a configuration file, as the commands use it. A ConfigError names every mistake in the file.

        Without ``spark``, it builds its own session when it needs one.
        """
        from lakefeed.app.build import build_pipeline
        from lakefeed.app.config import load_config

        pipeline = build_pipeline(load_config(Path(path)), spark=spark, listener=listener)
        pipeline.file = shlex.quote(str(path))
        return pipeline

    @contextmanager
    def _naming_file(self) -> Iterator[None]:
        """Gives errors that leave the block this pipeline's file: see ``LakefeedError.file``."""
        try:
            yield
        except LakefeedError as error:
            error.file = self.file
            raise

    def check(self) -> tuple[Finding, ...]:
        """Preflight of source, routes and journal: what would stop a sync, each with its remedy. Changes nothing.

        For a pipeline that was renamed, that is the only finding: what the new name lacks in the source does not
        matter.
        """
        with self._naming_file():
            return tuple(told(finding, self.file) for finding in self._findings())

    def _findings(self) -> tuple[Finding, ...]:
        with suppress(LakefeedError):  # the capture's own checks report or raise it, too
            if (renamed := self._renamed_before()) is not None:
                return (Finding(level=Level.ERROR, problem=renamed.message, remedy=renamed.remedy),)
        findings = self._capture.check()
        if any(finding.level is Level.ERROR for finding in findings):
            return findings
        opens = self._opened is None
        try:
            if opens:
                self._capture.open()
            offered = self._capture.discover()
            gap = self._gap()
        finally:
            if opens:
                self._capture.close()
        every = (route for one in offered for route in self._tables.routes(one.table))
        routes, clashes = settled(every, TableStates(self.state).fed())
        found = [
            Finding(level=Level.ERROR, problem=one.problem, remedy=one.remedy, table=one.second.source)
            for one in clashes
        ]
        found += [Finding(level=Level.ERROR, problem=one, remedy=UNUSED) for one in self._tables.unused(offered)]
        found += self._table_findings(offered, routes)
        if gap is not None:
            found.append(Finding(level=Level.ERROR, problem=gap.message, remedy=gap.remedy))
        return *findings, *found

    def plan(self) -> Plan:
        """What a start would do: tables to copy with their approximate rows and bytes, columns with their types, what a
        changed configuration would rebuild. Changes nothing, starts no Spark. Not while this object is
        working. ConfigError for a pipeline that was renamed, as in ``sync_once``."""
        with self._work, self._naming_file():
            self._close()
            if (renamed := self._renamed_before()) is not None:
                raise renamed
            made = make_plan(self._capture, self._tables, self.state)
            return replace(made, tables=tuple(told(one, self.file) for one in made.tables))

    def plan_migration(self, migrate: Callable[[], None]) -> list[MigratedTable]:
        """What a migration of the source would mean for the lake tables. The source of this pipeline is a scratch
        database with the source's tables but none of its rows; ``migrate`` runs the migration there."""
        with self._work, self._naming_file():
            self._close()
            return plan_migration(self._capture, self._tables, migrate)

    def sync_once(self, *, tables: Sequence[str] = ()) -> CycleResult:
        """One cycle: copy what the lake does not have yet, capture, apply.

        ``tables`` are glob patterns of lake tables, schema.table or table; if given, only these are copied and applied
        to. The changes of all tables are captured. ConfigError for a pattern without a match.

        When this returns, the lake has everything that was committed in the source before the call, except for tables
        with an error in the result: those that failed now, and those that failed before and are paused. LakeError if
        ``max_backlog_bytes`` of changes wait for tables that fail, and the source may have more.
        Safe to call from several threads: one works, the others wait and then find nothing to do.
        """
        with self._work, self._naming_file():
            started, mistake = time.monotonic(), None
            try:
                opened = self._open()
                if (mistake := opened.hold_others(tables)) is not None:
                    raise mistake
                captured, result = self._cycle(opened)
                if opened.copies.has_staged or opened.lake.ended:  # tables to copy again, or for the first time
                    more, later = self._cycle(opened)
                    captured, result = captured + more, result.then(later)
            except BaseException as error:
                # Also for Ctrl-C: the next call opens again what was interrupted half-way. A mistake in the call
                # concerns the caller, and not the status.
                self._close(None if error is mistake else error)
                raise
            paused = {
                table: TableResult(applied=0, error=text, remedy=remedy)
                for table, (text, remedy) in opened.errors.all().items()
                if table not in result.tables and opened.errors.is_paused(table) and not opened.errors.is_held(table)
            }
            result = replace(
                result, tables={**paused, **result.tables}, change_sets=captured, seconds=time.monotonic() - started
            )
            self._listener.applied(result)
            opened.report_now(is_complete=not (tables or result.errors))
            return replace(result, tables={table: told(one, self.file) for table, one in result.tables.items()})

    def run(self, for_seconds: float | None = None, *, standby: bool = False) -> None:
        """Sync continuously until ``stop`` is called or ``for_seconds`` have passed.

        ``standby``: while another process runs the pipeline, wait, and take over when it ends or, on an object store,
        has been silent for ``JournalOptions.lease_seconds``. Without it, that is a LeaseError.
        """
        if not self._work.acquire(blocking=False):
            raise StateError("the pipeline is already working", remedy="Call stop() and wait for run() to return.")
        try:
            pause = min(_STANDBY_SECONDS, self._options.journal.lease_seconds / 9) if self.state.is_remote else 1.0
            loop = RunLoop(
                self._open,
                self._close,
                self._options,
                self._listener,
                self._stopping,
                self._wake,
                standby_seconds=pause if standby else None,
            )
            try:
                with self._naming_file():
                    loop.run(for_seconds)
            finally:
                self.hanging, self._left = loop.hanging, loop.left
        finally:
            self._stopping.clear()
            self._close()
            self._work.release()

    def stop(self) -> None:
        """Make ``run`` return after the current step: a merge, or one group of chunks of a copy.

        It returns within ten seconds, whatever hangs: that is then left behind in its thread and listed in ``hanging``.
        Nothing is lost; safe in a signal handler. If no ``run`` is active, the next one returns at once.
        """
        self._stopping.set()
        self._wake.set()

    def status(self) -> PipelineStatus:
        """The state of the pipeline, whoever runs it. Starts no Spark, waits for no sync, and answers within two
        seconds.

        ``unanswered`` lists what has not answered by then (the source, a lake table, the disk of the state directory).
        """
        until = time.monotonic() + _STATUS_SECONDS
        lag = self._asker.begin({"source": self._capture.lag})

        def read() -> PipelineStatus:
            return read_status(self.state, self._tables, lambda: lag.answers(until).get("source"), self._asker, until)

        found = self._asker.begin({"status": read}).answers(until + _STATUS_GRACE_SECONDS).get("status")
        if isinstance(found, Exception):
            raise found
        if found is None:
            found = PipelineStatus(
                verdict="stalled",
                reason=f"the state at {self.state} does not answer",
                remedy="Check the disk or the file system that it is on; status asks again each time.",
                unanswered=("state directory",),
            )
        tables = {
            table: replace(
                told(one, self.file),
                compared=one.compared and told(one.compared, self.file),
                layout=tuple(for_reader(text, self.file) for text in one.layout),
            )
            for table, one in found.tables.items()
        }
        blocked = tuple(told(one, self.file) for one in found.blocked)
        return replace(told(found, self.file), tables=tables, blocked=blocked)

    def rebuild(self, table: str, *, from_source: bool = False) -> Rebuilt:
        """Make a lake table again, as the configuration now describes it, from the retained journal or from the source.

        The next ``sync_once`` or ``run`` brings it up to date. LeaseError while another process runs the pipeline.
        """
        with self._work, self._naming_file():
            self._close()
            journal = Journal.open(self.state, options=self._options.journal)
            try:
                blocked = Liveness.read(self.state).blocked
                work = Rebuild(journal, TableStates(self.state), self._tables, self._listener, blocked)
                return work.run(TableId.parse(table), from_source=from_source)
            finally:
                journal.close()

    def maintain(self) -> Mapping[TableId, MaintenanceResult]:
        """Pack small files and remove old ones, in every live table, now; beside a running process if there is one."""
        return maintain_tables(TableStates(self.state), self._tables, self._options.maintenance)

    def full_diff(
        self, *tables: str, max_deleted_share: float | None = None, resume: bool = False
    ) -> Mapping[TableId, FullDiffResult]:
        """Compare polled tables with the lake now; without a name, all of them. See ``flow.full_diff``.

        Works beside a running process, which then delivers what is found; otherwise the next ``sync_once`` does.
        ``max_deleted_share`` overrides the rule's. ``resume``: continue an interrupted comparison, which finds what was
        deleted before it began. The result contains tables that are refused; an error is raised.
        """
        with self._naming_file():
            diffs = FullDiffs.of(self.state, self._capture, TableStates(self.state), self._tables, self._listener)
            return {
                state.source: diffs.compare(state, max_deleted_share=max_deleted_share, resume=resume)
                for state in diffs.chosen(tables)
            }

    def uninstall(self) -> tuple[str, ...]:
        """Remove what was installed in the source, and rename the pipeline's state directory. The lake tables stay.

        No state is deleted: a journal that the lake had not fully applied is still there.
        """
        with self._work, self._naming_file():
            self._close()
            holder = lease_holder(self.state)
            if holder is not None:
                raise LeaseError(f"pipeline {self.name} is being run by process {holder.pid}")
            self._capture.open()
            try:
                removed = self._capture.uninstall()
            finally:
                self._capture.close()
            if self.state.has_folder():
                self.state.move(self._states.below(f"{self.name}.uninstalled-{time.time_ns() // 1_000_000}"))
            return removed

    def close(self) -> None:
        """Release the source and the lease. The pipeline can be used again."""
        self.stop()
        with self._work:
            self._stopping.clear()
            self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _cycle(self, opened: OpenPipeline) -> tuple[int, CycleResult]:
        """Copies and changes, then the lake. Captured changes may ask for another copy, so that one call is enough."""
        captured, result = 0, CycleResult()

        def has_room() -> bool:
            nonlocal result
            while opened.lake.is_full:
                result = result.then(opened.lake.sync())
                pause = opened.errors.verdict_seconds()
                if pause is None:
                    break
                time.sleep(pause)
            return not opened.lake.is_full

        for _ in range(_ROUNDS):
            opened.copies.enrol()
            result = result.then(opened.copies.load())
            captured += opened.capture.drain(has_room)
            if not opened.copies.has_staged:
                break
        opened.capture.repair()
        result = result.then(opened.lake.sync())
        if opened.lake.is_full:
            too_slow = (
                "capture has stopped: more than max_backlog_bytes of changes wait for the lake, which is too slow"
            )
            raise opened.lake.full_error() or LakeError(too_slow, remedy="Call again.")
        return captured, result

    def _open(self) -> OpenPipeline:
        """What an earlier ``run`` of this object left behind must end first: both would write to the lake tables."""
        for thread in self._left:
            thread.join(_LEFT_SECONDS)
            if thread.is_alive():
                text = f"{thread.name} of the last run still hangs, and cannot be ended"
                raise StateError(text, remedy="Restart this process.")
        if self._opened is None and not self._has_state and (renamed := self._renamed_before()) is not None:
            # Before anything is created in the source: a renamed pipeline would get a second resume point there.
            raise renamed
        self._has_state = True
        if self._opened is None:
            self._opened = OpenPipeline(
                self._capture, self._tables, self.state, self._options, self._listener, self._activity
            )
        return self._opened

    def _gap(self) -> LakefeedError | None:
        """Why capture could not continue where the journal ends. Not checked while a process runs it: both move
        then."""
        if not self.state.has_folder("commits") or lease_holder(self.state) is not None:
            return None
        journal = Journal.read(self.state)
        try:
            known, identity, end = journal.identity, self._capture.identity(), journal.end
            if known is not None and identity is not None and known != identity:
                if end is None:
                    return SourceChangedError(f"the journal {self.state} belongs to {known}, not to {identity}")
                end = self._capture.take_over(known, end)
            sources = {state.source for state in TableStates(self.state).in_phase(Phase.COPYING, Phase.LIVE)}
            continuity = self._capture.continuity(end, sorted(sources))
            return source_forgot(journal.end) if continuity is Continuity.FRESH and journal.head > 0 else None
        except LakefeedError as error:
            return error
        finally:
            journal.close()

    def _table_findings(self, offered: Sequence[TableSchema], routes: Mapping[TableId, Route]) -> Iterator[Finding]:
        """What prevents single lake tables from being made: names, types, and rules that do not fit."""
        shape = Shape(self._tables.columns, self._tables.sensitive, self._tables.choices)
        schemas = {one.table: one for one in offered}
        live = {state.table: state for state in TableStates(self.state).in_phase(Phase.LIVE)}
        for route in sorted(routes.values(), key=lambda route: route.table):
            try:
                plan = shape.planned(SnapshotPlan(schemas[route.source], (), 0))
                needed = self._tables.table(route).check(plan.schema)
                if route.table in live:
                    self._tables.table(route).rule(live[route.table].generation)
                for one in self._tables.table(route).laid_out_otherwise():
                    if not one.in_place:
                        again = f"lakefeed rebuild FILE {route.table} --from-source"
                        problem = f"{route.table}: {one.text}"
                        yield Finding(level=Level.WARNING, problem=problem, remedy=again, table=route.source)
                statement = self._capture.unsent(route.source) if needed else None
                if statement is not None:
                    problem = (
                        f"{route.table}: its rule needs {', '.join(needed)}, and the source sends no large values "
                        "that an update leaves alone: such an update of a row that the lake lacks stops the table"
                    )
                    yield Finding(level=Level.WARNING, problem=problem, remedy=statement, table=route.source)
            except TableStoppedError as error:
                yield Finding(level=Level.ERROR, problem=error.message, remedy=error.remedy, table=route.source)

    def _renamed_before(self) -> ConfigError | None:
        """The error if another pipeline keeps some of the lake tables. None for a pipeline that has run.

        If no other pipeline has its state next to this one's, the source is not asked.
        """
        if self.state.has_folder() or not self._states.has_folder():
            return None
        opens = self._opened is None
        try:
            if opens:
                self._capture.open()
            offered = self._capture.discover()
        finally:
            if opens:
                self._capture.close()
        routes, _ = settled((route for one in offered for route in self._tables.routes(one.table)), {})
        for other in filter(_NAME.fullmatch, self._states.folders()):
            shared = sorted(TableStates(self._states.below(other)).all().keys() & routes.keys())
            if shared:
                names = f"tables {shared[0]} and {len(shared) - 1} more belong"
                if len(shared) == 1:
                    names = f"table {shared[0]} belongs"
                return ConfigError(
                    f"the lake {names} to the pipeline '{other}', not to '{self.name}'",
                    remedy=f"To continue that pipeline, set pipeline: {other}. "
                    "To keep both, set another lake.path for this one.",
                )
        return None

    def _close(self, error: BaseException | None = None) -> None:
        """``error`` is the reason for closing: the status reports it to other processes.

        Not if another process has the lease: then the status belongs to that process.
        """
        opened, self._opened = self._opened, None
        try:
            # An unavailable store takes no report; everything is closed all the same.
            with suppress(StorageUnavailableError):
                if isinstance(error, Exception) and not isinstance(error, LeaseError) and self.state.has_folder():
                    text, remedy = without_signature(f"{type(error).__name__}: {error}"), None
                    if isinstance(error, LakefeedError):
                        text, remedy = error.message, error.remedy
                    last = Liveness.read(self.state)  # what it says about single tables still holds
                    replace(last, at=time.time(), error=text, remedy=remedy).write(self.state)
        finally:
            if opened is not None:
                is_hanging = isinstance(error, HangError) or any(thread.is_alive() for thread in self._left)
                opened.close(release_seconds=_RELEASE_SECONDS if is_hanging else None)
