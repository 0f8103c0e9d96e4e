"""A pipeline at work: what it keeps open, and ``run`` with its three threads.

    stream     capture → journal: appends, acts on notices, confirms            (``capture_side``)
    copies     discovers, prepares, plans and copies tables                     (``copies``)
    lake       journal → live tables, trim, liveness                            (``lake_side``)

None waits for another; the stream alone waits while the lake is ``max_backlog_bytes`` behind. The caller's thread waits
for the end, and looks whether all three show signs of life (``watchdog``). What hangs at the end (a read of a source
that does not answer, a Spark job) is left behind in its thread: it can still do what a second process could, and the
lake tables refuse that. A transient error (the source is away, the journal's disk is full) closes everything, waits,
and opens it again: the start is the one well-tested way back to a known state. Any other error ends ``run`` and is
raised there.
"""

from __future__ import annotations

import errno
import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path

from lakefeed.capture.base import ChangeCapture, Comparable
from lakefeed.change.table import TableId
from lakefeed.errors import ConfigError, JournalError, JournalFullError, LakefeedError, LeaseError, Retry
from lakefeed.flow.capture_side import CaptureSide
from lakefeed.flow.copies import TableCopies, wanted_of_source
from lakefeed.flow.full_diff import FullDiffs, FullDiffThread
from lakefeed.flow.lake_side import LakeSide
from lakefeed.flow.maintenance import MaintenanceThread
from lakefeed.flow.options import PipelineOptions
from lakefeed.flow.report.activity import Activity
from lakefeed.flow.report.listener import Listener
from lakefeed.flow.report.recorded import RecordedFile
from lakefeed.flow.reread.repair import Repairs
from lakefeed.flow.reread.resnapshot import Resnapshots
from lakefeed.flow.retry import Backoff, TableErrors
from lakefeed.flow.shape import Shape
from lakefeed.flow.status import BlockedSource, Liveness
from lakefeed.flow.table_state import Phase, TableStates
from lakefeed.flow.warm_up import warm_up
from lakefeed.flow.watchdog import Watchdog
from lakefeed.journal.journal import Journal
from lakefeed.lake.base import TableFormat
from lakefeed.lake.mode import Mirror
from lakefeed.storage.base import Storage
from lakefeed.storage.location import storage_at

log = logging.getLogger(__name__)

_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.5, 30.0
_TURN_SECONDS, _LOOK_SECONDS = 1.0, 1.0
_REPORT_SECONDS, _STORE_REPORT_SECONDS = (1.0, 10.0), (5.0, 30.0)
"""Between two reports, if there is news and if there is none; to an object store, where each is a request."""
_ENROL_PATIENCE_SECONDS = 30.0
_STOP_SECONDS, _CLOSED_SECONDS = 4.0, 1.0
"""How long the threads may take to end by themselves, and after the capture has been closed under them."""


class OpenPipeline:
    """Everything that is open while a pipeline works. It holds the lease all the time."""

    def __init__(
        self,
        capture: ChangeCapture,
        tables: TableFormat,
        root: Path | Storage,
        options: PipelineOptions,
        listener: Listener,
        activity: Activity | None = None,
    ) -> None:
        self.root = root = storage_at(root)
        self._activity = activity or Activity()
        self._tables = tables
        self._listener = listener
        self._reported_at = 0.0
        self._reported_news: object = None
        self._hang_seconds = options.hang_seconds
        self.turns = {"stream": 0, "copies": 0, "lake": 0}
        """What the threads of ``RunLoop`` count up each time they have got on: see ``watchdog``."""
        self._enrol_seconds = options.enrol_seconds
        self._enrol_backoff = Backoff(_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS)
        self._enrol_error: LakefeedError | None = None
        self._enrol_failed_at = 0.0
        try:
            self.journal = Journal.open(root, options=options.journal)
        except OSError as error:
            kind = JournalFullError if error.errno in (errno.ENOSPC, errno.EDQUOT) else JournalError
            raise kind(f"the pipeline's directory {root} cannot be written: {error.strerror or error}") from error
        try:
            self._recorded = RecordedFile(root, tables)
            for folder in ("", "tables", "full-diff"):  # what a crash left half-written
                root.below(folder).clean()
            states = self._states = TableStates(root)
            self.errors = TableErrors(states, listener)
            shape = Shape(tables.columns, tables.sensitive, tables.choices)
            self.copies = TableCopies(
                capture,
                self.journal,
                states,
                tables,
                shape,
                self.errors,
                listener,
                is_applying=lambda table: self.lake.is_applying(table),
                report=self._rows_came,
            )
            self.lake = LakeSide(
                tables,
                self.journal,
                states,
                self.errors,
                options,
                listener,
                may_trim=lambda: not self.copies.is_planning,
            )
            repairs = Repairs(root, capture, self.journal, states, shape)
            resnapshots = Resnapshots(root, capture, self.journal, states, shape)
            self.capture = CaptureSide(
                capture, self.journal, states, self.copies, shape, listener, repairs, resnapshots
            )
            self.maintenance = MaintenanceThread(
                states, tables, options.maintenance, options.maintenance_seconds, self.lake.recorded
            )
            diffs = FullDiffs(root, capture, states, tables, listener) if isinstance(capture, Comparable) else None
            self.full_diff = FullDiffThread(diffs, listener)
            capture.represent(wanted_of_source(tables.choices, self.journal, states))
            self.capture.open()
        except BaseException:
            self.close()
            raise

    def hold_others(self, patterns: Sequence[str]) -> ConfigError | None:
        """Until the next call, leave lake tables alone that no pattern matches. Without a pattern, all take part.

        Returns the error for a pattern that matches none; then all are held.
        """
        self.errors.is_held = lambda _table: bool(patterns)
        if not patterns:
            return None
        self.copies.enrol()  # makes new tables known; all are held, so none is copied
        there, chosen = sorted(self._states.all()), set[TableId]()
        for pattern in patterns:
            matched = [table for table in there if fnmatchcase(str(table if "." in pattern else table.name), pattern)]
            if not matched:
                names = ", ".join(map(str, there)) or "none yet"
                return ConfigError(f"no lake table matches '{pattern}'", remedy=f"The lake tables are {names}.")
            chosen.update(matched)
        self.errors.is_held = lambda table: table not in chosen
        return None

    def enrol(self) -> float:
        """Prepare and plan new tables. Returns after how many seconds to do that again.

        A transient error (a lock on one table, say) delays copies but not the stream. If it persists, it is raised:
        everything is then opened again, in case the connection is the cause.
        """
        try:
            self.copies.enrol()
        except LakefeedError as error:
            if self._enrol_error is None:
                self._enrol_failed_at = time.monotonic()
            if error.retry is not Retry.BACKOFF or time.monotonic() - self._enrol_failed_at > _ENROL_PATIENCE_SECONDS:
                raise
            self._enrol_error = error
            self.report_now()
            pause = self._enrol_backoff.failed()
            self._listener.retrying(error, pause)
            return pause
        self._enrol_error = None
        self._enrol_backoff.reset()
        return self._enrol_seconds

    def warm_up(self, over: Callable[[], bool]) -> None:
        """See the module ``warm_up``. Runs in a thread of its own."""
        states = self._states.all().values()
        live = [(one.mode, one.schema) for one in states if one.phase is Phase.LIVE and one.schema is not None]
        warm_up(self._tables, {one.mode for one in states} or {Mirror()}, over, live)

    def watch(self, stream: threading.Thread, copies: threading.Thread, lake: threading.Thread) -> Watchdog:
        """From here on the lease is renewed only while all three show that they live."""
        watchdog = Watchdog(self._hang_seconds, self._tables.progress)
        engine = self.lake.engine
        watchdog.watch("the stream", stream, lambda: self.turns["stream"])
        watchdog.watch("the copying of tables", copies, lambda: self.turns["copies"], uses_spark=True)
        watchdog.watch(
            "the merging of changes",
            lake,
            lambda: (self.turns["lake"], engine.windows),
            helpers=lambda: tuple(engine.workers),
            uses_spark=True,
        )
        self.journal.renew_while(watchdog.is_renewing)
        return watchdog

    def _rows_came(self) -> None:
        self.turns["copies"] += 1
        self.report()

    def report(self) -> None:
        """For other processes: this one is alive, and this cannot go on. At most once a second. Any thread.

        What waits in the journal is news each time, because it grows older.
        """
        silent_seconds = time.monotonic() - self._reported_at
        with_news, without = _STORE_REPORT_SECONDS if self.root.is_remote else _REPORT_SECONDS
        if silent_seconds < with_news:
            return
        backlog_bytes, lag_seconds = self.lake.backlog()
        self._activity.waiting(backlog_bytes, lag_seconds)
        if backlog_bytes or silent_seconds >= without or self._news() != self._reported_news:
            self._report(self._liveness())

    def report_now(self, *, is_complete: bool = False) -> None:
        """``is_complete`` as in ``Liveness``."""
        self._activity.waiting(*self.lake.backlog())
        self._report(replace(self._liveness(), is_complete=is_complete))
        if is_complete:
            self.record(now=True)

    def record(self, *, now: bool = False, goes_on: Callable[[], bool] = lambda: True) -> None:
        """For a `status` of another process: what the lake tables record, as in ``RecordedFile``. Any thread."""
        self._recorded.update(self._states.all().values(), now=now, goes_on=goes_on)

    def _report(self, liveness: Liveness) -> None:
        self._reported_at, self._reported_news = time.monotonic(), self._news()
        liveness.write(self.root)

    def _news(self) -> object:
        """Another value whenever a report would say something else, but for times that pass. Cheap."""
        errors = (self.capture.confirm_error, self._enrol_error, self.errors.all(), self.copies.clashes)
        return self._activity.events, *errors

    def _liveness(self) -> Liveness:
        error = self.capture.confirm_error or self._enrol_error or self.lake.full_error(is_running=True)
        return Liveness(
            at=time.time(),
            error=error.message if error else None,
            remedy=error.remedy if error else None,
            tables={str(table): texts for table, texts in self.errors.all().items()},
            capture_waits=error is None and self.lake.is_full,
            activity=self._activity.report(),
            blocked=tuple(
                BlockedSource(table=one.second.table, source=one.second.source, error=one.problem, remedy=one.remedy)
                for one in self.copies.clashes
            ),
        )

    def close(self, *, release_seconds: float | None = None) -> None:
        """``release_seconds``: how long to wait for an append or a trim under way, which has the lease until its end.

        One that hangs longer is left behind with the lease. That is not renewed then, or goes with the process.
        """
        try:
            if hasattr(self, "_states"):
                self._states.close()
            if hasattr(self, "capture"):
                self.capture.close()
        finally:
            if release_seconds is None:
                self.journal.close()
            else:
                closing = threading.Thread(target=self.journal.close, name="lakefeed-release", daemon=True)
                closing.start()
                closing.join(release_seconds)


class RunLoop:
    """One ``run``. ``open_pipeline`` and ``close_pipeline`` are the pipeline's own."""

    def __init__(
        self,
        open_pipeline: Callable[[], OpenPipeline],
        close_pipeline: Callable[[LakefeedError], None],
        options: PipelineOptions,
        listener: Listener,
        stopping: threading.Event,
        wake: threading.Event,
        *,
        standby_seconds: float | None = None,
    ) -> None:
        """``wake`` is set after ``stopping``, so that nobody has to poll that.

        ``standby_seconds``: while another process has the lease, wait for it, and ask again after so long."""
        self._open_pipeline = open_pipeline
        self._close_pipeline = close_pipeline
        self._options = options
        self._listener = listener
        self._stopping = stopping
        self._wake = wake
        self._standby_seconds = standby_seconds
        self._deadline = float("inf")
        self.hanging: tuple[str, ...] = ()
        """What had not ended when ``run`` was over, and was left behind."""
        self.left: list[threading.Thread] = []

    def run(self, for_seconds: float | None) -> None:
        self._deadline = float("inf") if for_seconds is None else time.monotonic() + for_seconds
        backoff = Backoff(_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS)
        while not self._is_over():
            started = time.monotonic()
            try:
                self._work(self._open_pipeline())
                return
            except LakefeedError as error:
                self._close_pipeline(error)
                if self._standby_seconds is not None and isinstance(error, LeaseError):
                    self._listener.standing_by(error)
                    self._stopping.wait(min(self._standby_seconds, max(0.0, self._deadline - time.monotonic())))
                    continue
                if error.retry is not Retry.BACKOFF:
                    raise
                if time.monotonic() - started > _LONGEST_PAUSE_SECONDS:
                    backoff.reset()  # it worked for a while, so this is a new failure
                pause = backoff.failed()
                self._listener.retrying(error, pause)
                self._stopping.wait(min(pause, max(0.0, self._deadline - time.monotonic())))

    def _work(self, opened: OpenPipeline) -> None:
        """All threads until it is over or one of them fails; the others are then stopped, and the error is raised."""
        over, news, ended, options = threading.Event(), threading.Event(), self._wake, self._options
        ended.clear()  # before anybody asks whether it is over: a stop from here on sets it
        merged = threading.Event()
        failures: list[BaseException] = []

        def wait_for_room() -> None:
            opened.turns["stream"] += 1
            while opened.lake.is_full and not over.is_set():
                opened.turns["stream"] += 1
                over.wait(min(1.0, options.interval_seconds))

        def stream() -> None:
            opened.capture.stream(over, wait_for_room, news.set)

        def copy() -> None:
            next_enrol = 0.0
            while not over.is_set():
                opened.turns["copies"] += 1
                if time.monotonic() >= next_enrol:
                    next_enrol = opened.enrol() + time.monotonic()
                result = opened.copies.load(lambda: over.is_set() or self._is_over())
                if result.tables:
                    self._listener.applied(result)
                    news.set()
                over.wait(min(1.0, options.enrol_seconds))

        def goes_on() -> bool:
            opened.turns["lake"] += 1
            opened.report()
            return not over.is_set()

        def apply() -> None:
            # At once if there is something; the interval is the minimum between two syncs that had something to do.
            while not over.is_set():
                started = time.monotonic()
                opened.turns["lake"] += 1
                news.clear()  # before the sync: what comes while it works is for the next one
                result = opened.lake.sync()
                opened.report()
                opened.record(goes_on=goes_on)
                if not result.tables:
                    news.wait(_TURN_SECONDS)
                    continue
                self._listener.applied(replace(result, seconds=time.monotonic() - started))
                merged.set()
                due = started + options.interval_seconds
                while (rest := due - time.monotonic()) > 0 and not over.wait(min(rest, _TURN_SECONDS)):
                    opened.turns["lake"] += 1
                    opened.report()
            if not failures:
                opened.lake.trim()

        threads = [
            _started("lakefeed-capture", stream, failures, ended),
            _started("lakefeed-copies", copy, failures, ended),
            _started("lakefeed-lake", apply, failures, ended),
        ]
        watchdog = opened.watch(*threads)
        opened.maintenance.start()
        opened.full_diff.start()
        if options.warm_up:  # nobody waits for it, not even at the end
            work = partial(opened.warm_up, lambda: over.is_set() or merged.is_set())
            threading.Thread(target=work, name="lakefeed-warm-up", daemon=True).start()
        try:
            while not self._is_over() and not failures:
                ended.wait(min(_LOOK_SECONDS, max(0.0, self._deadline - time.monotonic())))
                watchdog.look()
        finally:
            over.set()
            news.set()
            self.hanging = self._left(opened, threads, _STOP_SECONDS if watchdog.hanging is None else _CLOSED_SECONDS)
            failed = list(failures)  # what closing raises in a thread is no error
            if self.hanging:
                opened.capture.close()  # ends calls to a source that does not answer
                self.hanging = self._left(opened, threads, _CLOSED_SECONDS)
            self.left = [thread for thread in threads if thread.is_alive()]
            if self.hanging:
                log.warning("not ended in time, and left behind: %s", ", ".join(self.hanging))
        if failed:
            raise failed[0]

    def _left(self, opened: OpenPipeline, threads: Sequence[threading.Thread], seconds: float) -> tuple[str, ...]:
        """Stop everything that works beside the three threads. Returns the names of all that have not ended in time."""
        until = time.monotonic() + seconds
        others = {"a full comparison": opened.full_diff.stop, "maintenance": opened.maintenance.stop}
        for stop in others.values():
            stop(0.0)  # tell all of them before waiting for any
        for thread in threads:
            thread.join(max(0.0, until - time.monotonic()))
        names = [thread.name for thread in threads if thread.is_alive()]
        return (*names, *(name for name, stop in others.items() if not stop(max(0.0, until - time.monotonic()))))

    def _is_over(self) -> bool:
        return self._stopping.is_set() or time.monotonic() >= self._deadline


def _started(
    name: str, work: Callable[[], None], failures: list[BaseException], ended: threading.Event
) -> threading.Thread:
    """Start a thread whose error goes into ``failures``, for the thread that called ``run``."""

    def guarded() -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001  # raised by ``run``
            failures.append(error)
            ended.set()

    thread = threading.Thread(target=guarded, name=name, daemon=True)
    thread.start()
    return thread
