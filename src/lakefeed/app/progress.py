"""Progress of sync and run on stderr: bars on a terminal, lines elsewhere, nothing for machines."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from lakefeed.app.output import (
    counted,
    is_quiet,
    is_structured,
    seconds_text,
    sentence,
    show_event,
    show_note,
    with_file,
)
from lakefeed.change.segment import Counts
from lakefeed.change.table import TableId
from lakefeed.errors import LakefeedError
from lakefeed.flow.report.listener import Listener
from lakefeed.flow.result import CycleResult
from lakefeed.journal.commit import Commit
from lakefeed.lake.full_diff import FullDiffResult

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

_LINE_SECONDS = 5.0
"""The time between two lines about the same thing: they must not fill the log of a service that runs for months."""


@contextmanager
def progress(*, quiet: bool, cycles: bool = True) -> Iterator[Display]:
    """The listener for stderr: bars on a terminal, else lines. With ``quiet`` or ``--quiet`` it shows nothing.

    Without ``cycles`` it does not show what a cycle has applied: the command does at its end.
    """
    if quiet or is_quiet():
        yield Display()
    elif is_structured():
        yield Events()
    elif sys.stderr.isatty():
        with _bars() as bars:
            yield Bars(bars)
    else:
        yield Lines(cycles=cycles)


class Display(Listener):
    """Shows nothing. ``reported`` are the tables whose errors it has shown: the command does not repeat them."""

    def __init__(self) -> None:
        self.reported: set[TableId] = set()
        self._standing_by = ""

    def announce(self, text: str) -> None:
        """Show that something slow begins: the start of Spark."""


class CycleObjects(Listener):
    """Passes every cycle that applied something to ``show``."""

    def __init__(self, show: Callable[[CycleResult], None]) -> None:
        self._show = show

    def applied(self, result: CycleResult) -> None:
        self._show(result)


class Events(Display):
    """One JSON line for each event, with ``event``, ``table`` and figures as fields: ``--log-format json``."""

    def announce(self, text: str) -> None:
        _event("starting", text)

    def snapshot_started(self, table: TableId, rows_estimate: int) -> None:
        _event("snapshot_started", f"{table}: copying", table=table, rows_estimate=rows_estimate)

    def snapshot_done(self, table: TableId, rows: int, seconds: float) -> None:
        _event("snapshot_done", f"{table}: copied", table=table, rows=rows, seconds=round(seconds, 3))

    def captured(self, commit: Commit) -> None:
        figures = {"change_set": commit.number, "rows": commit.counts.total, "bytes": commit.bytes}
        _event("captured", f"change set {commit.number} is in the journal", figures, position=commit.end.encode())

    def applied(self, result: CycleResult) -> None:
        counts = result.counts
        if counts.total:
            figures = {"inserted": counts.inserted, "updated": counts.updated, "deleted": counts.deleted}
            tables = sorted(map(str, result.tables))
            _event("applied", _counts_text(counts), figures, tables=tables, seconds=round(result.seconds, 3))

    def full_diff_done(self, table: TableId, result: FullDiffResult) -> None:
        _event("full_diff_done", _diff_text(table, result), table=table, deleted=result.deleted, changed=result.changed)

    def table_error(self, table: TableId, message: str, remedy: str) -> None:
        self.reported.add(table)
        _event("table_error", message, {"level": "error"}, table=table, remedy=remedy)

    def retrying(self, error: Exception, seconds: float) -> None:
        remedy = error.remedy if isinstance(error, LakefeedError) else None
        text = retrying_text(error, seconds)
        _event("retrying", text, {"level": "warning"}, error=type(error).__name__, remedy=remedy, seconds=seconds)


def _event(event: str, message: str, more: Mapping[str, Any] | None = None, **fields: object) -> None:
    show_event(message, {"event": event, **fields, **(more or {})})


class NamedLines(Listener):
    """One line for each event that matters to people, with the pipeline's name: several pipelines run at once."""

    def __init__(self, pipeline: str) -> None:
        self._pipeline = pipeline
        self._standing_by = ""

    def snapshot_done(self, table: TableId, rows: int, seconds: float) -> None:
        show_note(f"{self._pipeline}: {table}: copied {counted(rows, 'row')} in {seconds_text(seconds)}")

    def table_error(self, table: TableId, message: str, remedy: str) -> None:
        show_note(f"{self._pipeline}: {table_error_text(table, message, remedy)}")

    def retrying(self, error: Exception, seconds: float) -> None:
        show_note(f"{self._pipeline}: {retrying_text(error, seconds)}")

    def standing_by(self, error: Exception) -> None:
        if self._standing_by != str(error):
            self._standing_by = str(error)
            show_note(f"{self._pipeline}: standing by: {error}")


class Lines(Display):
    """One line for each event."""

    def __init__(self, *, cycles: bool = True) -> None:
        super().__init__()
        self._cycles = cycles
        self._lock = threading.Lock()
        self._rows: dict[TableId, int] = {}
        self._next_line: dict[TableId | None, float] = {}
        self._unreported = Counts()

    def announce(self, text: str) -> None:
        show_note(text)

    def snapshot_started(self, table: TableId, rows_estimate: int) -> None:
        with self._lock:
            self._rows.pop(table, None)
        show_note(f"{table}: copying about {counted(rows_estimate, 'row')}")

    def snapshot_progress(self, table: TableId, rows: int) -> None:
        with self._lock:
            total = self._rows[table] = self._rows.get(table, 0) + rows
            self._next_line.setdefault(table, time.monotonic() + _LINE_SECONDS)
            due = self._due(table)
        if due:
            show_note(f"{table}: {counted(total, 'row')} so far")

    def snapshot_done(self, table: TableId, rows: int, seconds: float) -> None:
        show_note(f"{table}: copied {counted(rows, 'row')} in {seconds_text(seconds)}")

    def applied(self, result: CycleResult) -> None:
        with self._lock:
            self._unreported += result.counts
            is_due = self._cycles and self._unreported.total and self._due(None)
            text = _counts_text(self._unreported) if is_due else None
            if text:
                self._unreported = Counts()
        if text:
            show_note(text)

    def full_diff_progress(self, table: TableId, chunks: int, total: int) -> None:
        with self._lock:
            due = self._due(table)
        if due:
            show_note(f"{table}: comparing, {chunks} of {total} chunks read")

    def full_diff_done(self, table: TableId, result: FullDiffResult) -> None:
        show_note(_diff_text(table, result))

    def table_error(self, table: TableId, message: str, remedy: str) -> None:
        self.reported.add(table)
        show_note(table_error_text(table, message, remedy))

    def standing_by(self, error: Exception) -> None:
        if (text := standby_text(error)) != self._standing_by:
            self._standing_by = text
            show_note(text)

    def retrying(self, error: Exception, seconds: float) -> None:
        show_note(retrying_text(error, seconds))

    def _due(self, about: TableId | None) -> bool:
        """Is a line due? True at most once in five seconds for each table, and for the cycles (None)."""
        now = time.monotonic()
        if now < self._next_line.get(about, 0.0):
            return False
        self._next_line[about] = now + _LINE_SECONDS
        return True


class Bars(Display):
    """A bar for each table under copy, and lines above the bars for the rest.

    Rows of a table that nobody announced get a bar without an end: a display must never fail the work that it shows.
    """

    def __init__(self, bars: Progress) -> None:
        super().__init__()
        self._bars = bars
        self._tasks: dict[TableId, TaskID] = {}
        self._diffs: dict[TableId, TaskID] = {}
        self._idle = bars.add_task("Working", total=None)

    def announce(self, text: str) -> None:
        self._bars.update(self._idle, description=text)

    def snapshot_started(self, table: TableId, rows_estimate: int) -> None:
        self._forget(table)  # a copy that failed and begins again
        self._tasks[table] = self._bars.add_task(str(table), total=rows_estimate or None)

    def snapshot_progress(self, table: TableId, rows: int) -> None:
        if table not in self._tasks:
            self.snapshot_started(table, 0)
        self._bars.advance(self._tasks[table], rows)

    def snapshot_done(self, table: TableId, rows: int, seconds: float) -> None:
        self._forget(table)
        self._say(f"{table}: copied {counted(rows, 'row')} in {seconds_text(seconds)}")

    def applied(self, result: CycleResult) -> None:
        if result.counts.total:
            self._bars.update(self._idle, description=_counts_text(result.counts))
        else:
            self._bars.update(self._idle, description="Working")

    def full_diff_progress(self, table: TableId, chunks: int, total: int) -> None:
        if table not in self._diffs:
            self._diffs[table] = self._bars.add_task(f"{table}, comparing", total=total)
        self._bars.update(self._diffs[table], completed=chunks)

    def full_diff_done(self, table: TableId, result: FullDiffResult) -> None:
        if (task := self._diffs.pop(table, None)) is not None:
            self._bars.remove_task(task)
        self._say(_diff_text(table, result))

    def table_error(self, table: TableId, message: str, remedy: str) -> None:
        self.reported.add(table)
        self._say(table_error_text(table, message, remedy))

    def standing_by(self, error: Exception) -> None:
        if (text := standby_text(error)) != self._standing_by:
            self._standing_by = text
            self._say(text)

    def retrying(self, error: Exception, seconds: float) -> None:
        self._say(retrying_text(error, seconds))

    def _forget(self, table: TableId) -> None:
        if (task := self._tasks.pop(table, None)) is not None:
            self._bars.remove_task(task)

    def _say(self, text: str) -> None:
        self._bars.console.print(with_file(text), markup=False, highlight=False)


@contextmanager
def _bars() -> Iterator[Progress]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, Task, TextColumn, TimeElapsedColumn
    from rich.text import Text

    class Share(ProgressColumn):
        """``1,200 of 5,000``; empty without a known total."""

        def render(self, task: Task) -> Text:
            return Text("" if task.total is None else f"{task.completed:,.0f} of {task.total:,.0f}")

    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(bar_width=24), Share())
    with Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True), transient=True) as bars:
        yield bars


def table_error_text(table: TableId, message: str, remedy: str) -> str:
    """Error and remedy. Names the table once, even if the message has it."""
    about = "" if str(table) in message else f"{table}: "
    return f"Error: {about}{sentence(message)}\nRemedy: {remedy}"


def standby_text(error: Exception) -> str:
    text = error.message if isinstance(error, LakefeedError) else str(error)
    return f"Standing by: {text}"


def retrying_text(error: Exception, seconds: float) -> str:
    text = error.message if isinstance(error, LakefeedError) else str(error)
    return f"{text} (trying again in {seconds_text(seconds)})"


def _diff_text(table: TableId, result: FullDiffResult) -> str:
    found = "refused" if result.refused else f"{result.deleted:,} deleted, {result.changed:,} different"
    compared = f"{counted(result.lake_rows, 'row')} with {result.source_rows:,}"
    return f"{table}: compared {compared} of the source in {seconds_text(result.seconds)}: {found}"


def _counts_text(counts: Counts) -> str:
    return f"{counts.inserted:,} inserted, {counts.updated:,} updated, {counts.deleted:,} deleted"
