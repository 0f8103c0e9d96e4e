"""The demo from beginning to end, and what it shows meanwhile.

1 build the shop   2 start the writer   3 replicate live   4 stop the writer, then the pipeline   5 drain   6 compare
"""

from __future__ import annotations

import fcntl
import shutil
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from lakefeed.app.build import build_pipeline
from lakefeed.app.config import load_config
from lakefeed.app.demo.shop import TABLES, Writer, build_shop, count_rows
from lakefeed.app.output import counted, seconds_text, show_object, show_table, show_text
from lakefeed.app.supervise import Supervised
from lakefeed.change.table import TableId
from lakefeed.errors import ConfigError, LakefeedError
from lakefeed.flow.listener import Listener
from lakefeed.flow.result import CycleResult
from lakefeed.verify.compare import Comparison, compare_at

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from lakefeed.flow.status import PipelineStatus

_WRITER_RATE = 100.0
"""Transactions a second: lively, and easy for a small machine that runs the writer, Spark and this at once."""

_LONGEST_START_SECONDS = 300.0
"""Until the first changes must have come through: the first start downloads Spark's jars."""

_SHOW_SECONDS, _LINE_SECONDS, _RATE_SECONDS = 1.0, 2.0, 5.0
MARKER = ".lakefeed-demo"

_CONFIGURATION = """\
pipeline: shop
source:
  kind: sqlite
  path: shop.db
  capture: trigger
  tables: ["*"]
lake:
  path: ./lake
  format: delta
  mode: mirror
sync:
  interval_seconds: 1
"""


@dataclass(frozen=True, slots=True)
class DemoDirectory:
    """Where everything of one demo is."""

    directory: Path

    @property
    def database(self) -> Path:
        return self.directory / "shop.db"

    @property
    def configuration(self) -> Path:
        return self.directory / "shop.yaml"

    def table(self, name: str) -> Path:
        return self.directory / "lake" / "main" / name


@contextmanager
def fresh_directory(directory: Path) -> Iterator[DemoDirectory]:
    """An empty directory with a configuration in it, for this process alone while the block lasts."""
    if directory.exists() and not directory.is_dir():
        raise ConfigError(f"{directory} is a file", remedy="Choose another directory: lakefeed demo --directory NAME")
    if directory.exists() and any(directory.iterdir()) and not (directory / MARKER).exists():
        raise ConfigError(
            f"{directory} has files in it that no demo made, so the demo does not touch it",
            remedy="Choose another directory: lakefeed demo --directory NAME",
        )
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / MARKER).open("a") as marker:
        try:
            fcntl.flock(marker, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(
                f"another demo is running in {directory}",
                remedy="Wait for it, or choose another directory: lakefeed demo --directory NAME",
            ) from None
        for entry in directory.iterdir():
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            elif entry.name != MARKER:
                entry.unlink()
        demo = DemoDirectory(directory)
        demo.configuration.write_text(_CONFIGURATION)
        yield demo


class Meter(Listener):
    """Counts what reaches the lake, over all and in the last seconds. Called from the pipeline's threads."""

    def __init__(self, note: Callable[[str], None]) -> None:
        self._note = note
        self._lock = threading.Lock()
        self._recent: deque[tuple[float, int]] = deque()
        self._copied = 0
        self.changes = 0

    def snapshot_done(self, table: TableId, rows: int, seconds: float) -> None:
        self._note(f"  {table}: copied {counted(rows, 'row')} in {seconds_text(seconds)}")
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
    """Both sides at one time."""

    source_rows: dict[str, int]
    status: PipelineStatus
    changes: int
    per_second: float

    def lake_rows_text(self, table: str) -> str:
        found = self.status.tables.get(TableId("main", table))
        return f"{found.rows:,}" if found and found.rows is not None else "-"

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
        waiting = "unknown" if lag.rows is None else f"{counted(lag.rows, 'change')} in the source"
        return f"lag: {waiting}, {counted(behind, 'change set')} in the journal · {self.per_second:,.0f} changes/s"


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
            from rich.table import Table

            table = Table(caption=moment.summary, caption_justify="left", title="source → lake", title_justify="left")
            table.add_column("table")
            table.add_column("source rows", justify="right")
            table.add_column("lake rows", justify="right")
            table.add_column("state")
            for name in TABLES:
                table.add_row(name, f"{moment.source_rows[name]:,}", moment.lake_rows_text(name), moment.state(name))
            self._update(table)
        elif time.monotonic() >= self._next_line:
            self._next_line = time.monotonic() + _LINE_SECONDS
            rows = "  ".join(f"{name} {moment.source_rows[name]:,}→{moment.lake_rows_text(name)}" for name in TABLES)
            self.note(f"  {rows}  {moment.summary}")


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the demo found."""

    demo: DemoDirectory
    tables: tuple[Comparison, ...]
    transactions: int
    changes: int
    seconds: float

    @property
    def equal(self) -> bool:
        return all(table.equal for table in self.tables)


def run_demo(directory: Path, seconds: float, *, as_json: bool) -> int:
    """Run it, show the result, and return the exit code: 0 equal, 1 different."""
    from rich.console import Console

    with fresh_directory(directory) as demo:
        outcome = replicate(demo, seconds, View(Console(stderr=as_json, soft_wrap=True)))
    if as_json:
        tables = {
            str(table.table): {
                "source_rows": table.source_rows,
                "lake_rows": table.lake_rows,
                "equal": table.equal,
                "differences": list(table.differences),
            }
            for table in outcome.tables
        }
        show_object(
            {
                "equal": outcome.equal,
                "tables": tables,
                "transactions": outcome.transactions,
                "changes": outcome.changes,
                "directory": str(demo.directory),
                "seconds": round(outcome.seconds, 3),
            }
        )
    else:
        show_outcome(outcome)
    return 0 if outcome.equal else 1


def replicate(demo: DemoDirectory, seconds: float, view: View) -> Outcome:
    """Steps 1 to 6, for ``seconds`` after every table has become live."""
    started = time.monotonic()
    build_shop(demo.database)
    view.note(f"Built a shop in {demo.database}; a writer changes it all the time.")
    meter, config = Meter(view.note), load_config(demo.configuration)
    with build_pipeline(config, listener=meter) as pipeline:
        writer = Writer(demo.database, seconds=seconds + _LONGEST_START_SECONDS, rate=_WRITER_RATE)
        try:
            view.note("Starting Spark (some seconds; the first time it fetches its jars, up to a minute) …")
            running = Supervised(pipeline)
            with running.signals(), view.live():
                running.start()
                is_live, deadline = False, time.monotonic() + _LONGEST_START_SECONDS
                while running.alive and not running.stopping and time.monotonic() < deadline:
                    now = Moment(count_rows(demo.database), pipeline.status(), meter.changes, meter.per_second)
                    view.show(now)
                    if now.live and not is_live:
                        is_live, deadline = True, time.monotonic() + seconds
                    running.wait(_SHOW_SECONDS)
                if running.stopping:
                    raise KeyboardInterrupt
                if not running.alive:
                    running.finish()  # it ended by itself: raise why
                transactions = writer.stop()
                running.stop()
                running.finish()
        finally:
            writer.kill()
        view.note(f"The writer has stopped after {transactions:,} transactions. Draining and comparing …")
        for name, failed in pipeline.sync_once().errors.items():  # if it never got live, this says why
            raise LakefeedError(f"{name}: {failed.error}", remedy=failed.remedy)
    tables = tuple(
        compare_at(table, config.source.verify_reader(table), demo.table(table.name))
        for table in (TableId("main", name) for name in TABLES)
    )
    return Outcome(demo, tables, transactions, max(0, meter.changes), time.monotonic() - started)


def show_outcome(outcome: Outcome) -> None:
    """The comparison for people, and what to type next."""
    show_text("")
    show_table(
        ("table", "source rows", "lake rows", "row by row"),
        [
            (table.table, table.source_rows, table.lake_rows, "equal" if table.equal else "DIFFERENT")
            for table in outcome.tables
        ],
    )
    for table in outcome.tables:
        for difference in table.differences:
            show_text(f"{table.table}: {difference}")
    show_text(
        f"\n{outcome.transactions:,} transactions while it ran, {outcome.changes:,} changes applied on top of "
        f"the copy, {seconds_text(outcome.seconds)} in all."
    )
    show_text("Every lake table equals its source table." if outcome.equal else "The lake differs from the source.")
    orders = outcome.demo.table("orders")
    show_text(f"\nThe tables are in {orders.parent}. A query to try:\n")
    query = "SELECT status, count(*) AS orders FROM orders GROUP BY status ORDER BY 2 DESC"
    show_text(
        f'  {_short(Path(sys.executable))} -c "from deltalake import DeltaTable, QueryBuilder; print(QueryBuilder()'
        f".register('orders', DeltaTable('{orders}')).execute('{query}').read_all())\"\n"
    )
    lakefeed = _short(Path(sys.executable).with_name("lakefeed"))
    show_text(f"How the pipeline stands: {lakefeed} status {outcome.demo.configuration}")


def _short(path: Path) -> str:
    """Relative to here where it is below."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)
