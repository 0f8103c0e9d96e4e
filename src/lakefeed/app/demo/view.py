"""What the demo shows while it runs: a table that is drawn again and again, or a line now and then."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lakefeed.app.demo.shop import TABLES
from lakefeed.app.output import seconds_text
from lakefeed.change.table import TableId
from lakefeed.flow.listener import Listener
from lakefeed.flow.result import CycleResult

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from lakefeed.flow.status import PipelineStatus

_RATE_SECONDS = 5.0
_LINE_SECONDS = 2.0


class Meter(Listener):
    """Counts what reaches the lake, over all and in the last seconds. Called from the pipeline's threads."""

    def __init__(self, note: Callable[[str], None]) -> None:
        self._note = note
        self._lock = threading.Lock()
        self._recent: deque[tuple[float, int]] = deque()
        self._copied = 0
        self.changes = 0

    def snapshot_done(self, table: TableId, rows: int, seconds: float) -> None:
        self._note(f"  {table}: copied {rows:,} rows in {seconds_text(seconds)}")
        with self._lock:
            self._copied += rows

    def applied(self, result: CycleResult) -> None:
        with self._lock:
            # The cycle of a copy reports its rows as inserted; a copied row is not a change.
            changes, self._copied = result.counts.total - self._copied, 0
            self.changes += changes
            self._recent.append((time.monotonic(), changes))

    def table_error(self, table: TableId, message: str, remedy: str) -> None:
        self._note(f"  {table}: {message}\n  Remedy: {remedy}")

    def retrying(self, error: Exception, seconds: float) -> None:
        self._note(f"  {error} (trying again in {seconds_text(seconds)})")

    @property
    def per_second(self) -> float:
        with self._lock:
            since = time.monotonic() - _RATE_SECONDS
            while self._recent and self._recent[0][0] < since:
                self._recent.popleft()
            return sum(count for _, count in self._recent) / _RATE_SECONDS


@dataclass(frozen=True, slots=True)
class Moment:
    """One look at everything."""

    source_rows: dict[str, int]
    status: PipelineStatus
    changes: int
    per_second: float

    def lake_rows(self, table: str) -> int | None:
        found = self.status.tables.get(TableId("main", table))
        return found.rows if found else None

    def state(self, table: str) -> str:
        found = self.status.tables.get(TableId("main", table))
        return found.state if found else "waiting"

    @property
    def live(self) -> bool:
        """Every table is copied, and the first changes have come through."""
        copied = all(self.state(table) in ("live", "catching up") for table in TABLES)
        return copied and self.changes > 0

    @property
    def summary(self) -> str:
        applied = [found.applied or 0 for found in self.status.tables.values()]
        behind = self.status.journal_head - min(applied, default=0)
        lag = self.status.lag
        waiting = "unknown" if lag.rows is None else f"{lag.rows:,} changes in the source"
        return f"lag: {waiting}, {behind} change sets in the journal · {self.per_second:,.0f} changes/s"


class View:
    """Shows moments on a terminal (in place) or elsewhere (a line every two seconds)."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._update: Callable[[RenderableType], None] | None = None
        self._next_line = 0.0

    def note(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False)

    @contextmanager
    def live(self) -> Iterator[None]:
        """While the block lasts, moments are drawn in place if that is possible."""
        if not self._console.is_terminal:
            yield
            return
        from rich.live import Live

        with Live(console=self._console, refresh_per_second=4) as live:
            self._update = live.update
            yield
        self._update = None

    def show(self, moment: Moment) -> None:
        if self._update is not None:
            self._update(_drawn(moment))
        elif time.monotonic() >= self._next_line:
            self._next_line = time.monotonic() + _LINE_SECONDS
            rows = "  ".join(f"{name} {moment.source_rows[name]:,}→{_rows(moment, name)}" for name in TABLES)
            self.note(f"  {rows}  {moment.summary}")


def _drawn(moment: Moment) -> RenderableType:
    from rich.table import Table

    table = Table(caption=moment.summary, caption_justify="left", title="source → lake", title_justify="left")
    for name, justify in (("table", "left"), ("source rows", "right"), ("lake rows", "right"), ("state", "left")):
        table.add_column(name, justify="right" if justify == "right" else "left")
    for name in TABLES:
        table.add_row(name, f"{moment.source_rows[name]:,}", _rows(moment, name), moment.state(name))
    return table


def _rows(moment: Moment, table: str) -> str:
    rows = moment.lake_rows(table)
    return "-" if rows is None else f"{rows:,}"
