"""Pipeline: one source, one journal, one lake. What users hold in their hands.

    with Pipeline(Sqlite("shop.db"), Delta(spark, "lake"), name="shop") as pipeline:
        pipeline.sync_once()      # or pipeline.run(), until stop()

Two sides, one journal between them: the capture side makes changes durable, the lake side applies them. ``sync_once``
runs them one after the other in the caller's thread; ``run`` gives the capture side a thread of its own, so that a
slow lake never holds up the source. What lies between is bounded by bytes: beyond ``max_backlog_bytes`` capture waits.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self

from lakefeed.capture.base import Finding, Lag, Source
from lakefeed.capture.compare import Comparable
from lakefeed.change.table import TableId
from lakefeed.errors import ConfigError, LakefeedError, LeaseError, StateError
from lakefeed.flow.full_diff import FullDiffs
from lakefeed.flow.listener import Listener
from lakefeed.flow.loop import RunLoop
from lakefeed.flow.maintenance import maintain_tables
from lakefeed.flow.options import PipelineOptions
from lakefeed.flow.rebuild import Rebuild, Rebuilt
from lakefeed.flow.result import CycleResult
from lakefeed.flow.session import Session
from lakefeed.flow.status import PipelineStatus, Pulse, read_status
from lakefeed.flow.table_state import TableStates
from lakefeed.journal.journal import Journal
from lakefeed.journal.lease import lease_holder
from lakefeed.lake.base import Lake, TableResult
from lakefeed.lake.full_diff import FullDiffResult
from lakefeed.lake.maintenance import MaintenanceResult

_ROUNDS = 3
"""Of copying and capturing in one sync: a table that changes faster than that is caught by the next sync."""

_NAME = re.compile(r"[a-z0-9][a-z0-9_-]*")


class Pipeline:
    """Keeps the tables of a lake equal to the tables of a source.

    The first ``sync_once`` or ``run`` takes the pipeline's lease and ``close`` gives it back (a ``with`` block does
    both); a second process is refused meanwhile. ``status``, ``check`` and ``stop`` may be called from any thread and
    need no lease. An error of one table is in the result and in the status, and the others go on; what is raised
    concerns the whole pipeline, and calling again after the remedy goes on where it stopped.
    """

    def __init__(
        self,
        source: Source,
        lake: Lake,
        *,
        name: str = "lakefeed",
        options: PipelineOptions | None = None,
        listener: Listener | None = None,
    ) -> None:
        if not _NAME.fullmatch(name):
            raise ConfigError(f"'{name}' cannot name a pipeline; use lower-case letters, digits, '-' and '_'")
        self.name = name
        self.root = Path(lake.path) / "_lakefeed" / name
        self._options = options or PipelineOptions()
        self._listener = listener or Listener()
        self._capture = source.bind(name)
        if isinstance(self._capture, Comparable):
            self._capture.keep_state(self.root)
        self._tables = lake.bind(name)
        self._work = threading.Lock()
        self._stopping = threading.Event()
        self._session: Session | None = None

    def check(self) -> tuple[Finding, ...]:
        """Preflight of the source: findings, each with its remedy. Changes nothing."""
        return self._capture.check()

    def sync_once(self) -> CycleResult:
        """One cycle: copy what the lake does not have yet, capture all that is there, apply it.

        Safe to call from several threads: one works, the others wait and then find nothing to do.
        """
        with self._work:
            started = time.monotonic()
            session = self._open()
            try:
                captured, loaded = self._gather(session)
                result = session.lake.sync(loaded)
                if session.capture.has_staged or session.lake.ended:  # tables to be copied anew, or for the first time
                    more, loaded = self._gather(session)
                    captured, result = captured + more, result.then(session.lake.sync(loaded))
            except LakefeedError as error:
                self._close(error)
                raise
            session.pulse()
            result = replace(result, change_sets=captured, seconds=time.monotonic() - started)
            self._listener.applied(result)
            return result

    def run(self, for_seconds: float | None = None) -> None:
        """Sync continuously until ``stop`` is called or ``for_seconds`` have passed."""
        if not self._work.acquire(blocking=False):
            raise StateError("the pipeline is already working", remedy="Call stop() and wait for run() to return.")
        try:
            self._stopping.clear()
            loop = RunLoop(self._open, self._close, self._options, self._listener, self._stopping)
            loop.run(for_seconds)
        finally:
            self._close()
            self._work.release()

    def stop(self) -> None:
        """Make ``run`` return after the step that is under way. Nothing is lost; safe in a signal handler."""
        self._stopping.set()

    def status(self) -> PipelineStatus:
        """How the pipeline stands, whoever runs it. Starts no Spark and never waits for a sync."""
        return read_status(self.root, self._tables, self._lag())

    def rebuild(self, table: str, *, from_source: bool = False) -> Rebuilt:
        """Make a lake table anew as the lake says it is to be, from the retained journal or from the source.

        The next ``sync_once`` or ``run`` brings it up to date. LeaseError while another process runs the pipeline.
        """
        with self._work:
            self._close()
            journal = Journal.open(self.root, options=self._options.journal)
            try:
                work = Rebuild(journal, TableStates(self.root), self._tables, self._listener)
                return work.run(TableId.parse(table), from_source=from_source)
            finally:
                journal.close()

    def maintain(self) -> Mapping[TableId, MaintenanceResult]:
        """Pack small files and remove old ones, of every live table, now. Beside a running process if need be."""
        return maintain_tables(TableStates(self.root), self._tables, self._options.maintenance)

    def full_diff(
        self, *tables: str, max_deleted_share: float | None = None, resume: bool = False
    ) -> Mapping[TableId, FullDiffResult]:
        """Compare tables that are polled with the lake, now; all of them without a name. See ``flow.full_diff``.

        Beside a running process if need be: it delivers what is found, otherwise the next ``sync_once`` does.
        ``max_deleted_share`` instead of the rule's. ``resume``: go on with a comparison that was interrupted, which
        finds what was deleted before that one began. A table that is refused is in the answer; an error is raised.
        """
        diffs = FullDiffs.of(self.root, self._capture, TableStates(self.root), self._tables, self._listener)
        chosen = diffs.chosen(tables)
        return {
            record.source: diffs.compare(record, max_deleted_share=max_deleted_share, resume=resume)
            for record in chosen
        }

    def uninstall(self) -> tuple[str, ...]:
        """Remove what was installed in the source, and put the pipeline's state aside. The lake tables stay.

        The state is renamed, not deleted: a journal that the lake had not applied in full is still there to look at.
        """
        with self._work:
            self._close()
            holder = lease_holder(self.root)
            if holder is not None:
                raise LeaseError(f"pipeline {self.name} is being run by process {holder.pid}")
            self._capture.open()
            try:
                removed = self._capture.uninstall()
            finally:
                self._capture.close()
            if self.root.exists():
                self.root.rename(self.root.with_name(f"{self.name}.uninstalled-{time.time_ns() // 1_000_000}"))
            return removed

    def close(self) -> None:
        """Release the source and the lease. The pipeline can be used again."""
        self.stop()
        with self._work:
            self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _gather(self, session: Session) -> tuple[int, dict[TableId, TableResult]]:
        """Copies and changes. What is captured may ask for another copy, so that one call leaves the lake right."""
        captured, loaded = 0, dict[TableId, TableResult]()
        for _ in range(_ROUNDS):
            session.capture.enrol()
            loaded |= session.lake.load()
            captured += session.capture.drain()
            if not session.capture.has_staged:
                break
        return captured, loaded

    def _open(self) -> Session:
        if self._session is None:
            self._session = Session(self._capture, self._tables, self.root, self._options, self._listener)
        return self._session

    def _close(self, error: LakefeedError | None = None) -> None:
        """``error`` is what made it necessary: the status tells it to other processes."""
        session, self._session = self._session, None
        if error is not None and self.root.exists():
            Pulse(at=time.time(), error=error.message, remedy=error.remedy).write(self.root)
        if session is not None:
            session.close()

    def _lag(self) -> Lag:
        try:
            return self._capture.lag()
        except LakefeedError:
            return Lag()  # unknown, which the status says: a source that cannot be asked must not break the status
