"""The demo from beginning to end.

1. build the shop  2. start the writer  3. replicate live  4. stop the writer, then the pipeline  5. drain  6. compare
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from lakefeed.app.build import build_pipeline
from lakefeed.app.config import load_config
from lakefeed.app.demo.place import Place, fresh_place
from lakefeed.app.demo.shop import TABLES, build_shop, count_rows
from lakefeed.app.demo.view import Meter, Moment, View
from lakefeed.app.demo.writer import Writer
from lakefeed.app.output import seconds_text, show_object, show_table, show_text
from lakefeed.app.supervise import Supervised
from lakefeed.app.verify import Comparison
from lakefeed.app.verify_sqlite import compare_sqlite_table
from lakefeed.change.table import TableId
from lakefeed.errors import LakefeedError
from lakefeed.flow.pipeline import Pipeline

_RATE = 100.0
"""Transactions a second: lively, and easy for a small machine that runs the writer, Spark and this at once."""

_LONGEST_START_SECONDS = 300.0
"""Until the first changes must have come through: the first start downloads Spark's jars."""

_LOOK_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the demo found."""

    place: Place
    tables: tuple[Comparison, ...]
    transactions: int
    changes: int
    seconds: float

    @property
    def equal(self) -> bool:
        return all(table.equal for table in self.tables)


def run_demo(directory: Path, seconds: float, *, as_json: bool) -> int:
    """Run it, say what came out, and return the exit code: 0 equal, 1 different."""
    view = View(Console(stderr=as_json, soft_wrap=True))
    with fresh_place(directory) as place:
        outcome = _replicate(place, seconds, view)
    if as_json:
        show_object(_outcome_object(outcome))
    else:
        _show_outcome(outcome)
    return 0 if outcome.equal else 1


def _replicate(place: Place, seconds: float, view: View) -> Outcome:
    started = time.monotonic()
    build_shop(place.database)
    view.note(f"Built a shop in {place.database}; a writer changes it all the time.")
    meter = Meter(view.note)
    with build_pipeline(load_config(place.configuration), listener=meter) as pipeline:
        with _writer(place, seconds) as writer:
            view.note("Starting Spark (some seconds; the first time it fetches its jars, up to a minute) …")
            running = Supervised(pipeline)
            with running.signals(), view.live():
                running.start()
                _watch(running, place, seconds, (pipeline, meter, view))
                transactions = writer.stop()
                running.stop()
                running.finish()
        view.note(f"The writer has stopped after {transactions:,} transactions. Draining and comparing …")
        _drain(pipeline)
    tables = tuple(compare_sqlite_table(place.database, TableId("main", name), place.table(name)) for name in TABLES)
    return Outcome(place, tables, transactions, max(0, meter.changes), time.monotonic() - started)


@contextmanager
def _writer(place: Place, seconds: float) -> Iterator[Writer]:
    writer = Writer(place.database, seconds=seconds + _LONGEST_START_SECONDS, rate=_RATE)
    try:
        yield writer
    finally:
        writer.kill()


def _watch(running: Supervised, place: Place, seconds: float, parts: tuple[Pipeline, Meter, View]) -> None:
    """Show how it goes until the tables have been live for ``seconds``, or something ends it."""
    pipeline, meter, view = parts
    live, deadline = False, time.monotonic() + _LONGEST_START_SECONDS
    while running.alive and not running.stopping:
        moment = Moment(count_rows(place.database), pipeline.status(), meter.changes, meter.per_second)
        view.show(moment)
        if moment.live and not live:
            live, deadline = True, time.monotonic() + seconds
        if time.monotonic() >= deadline:
            return  # if it never got live, draining says why
        running.wait(_LOOK_SECONDS)
    if running.stopping:
        raise KeyboardInterrupt
    running.finish()  # it ended by itself: raise why


def _drain(pipeline: Pipeline) -> None:
    """Everything that the writer has left behind, into the lake."""
    result = pipeline.sync_once()
    for table, failed in result.errors.items():
        raise LakefeedError(f"{table}: {failed.error}", remedy=failed.remedy)


def _outcome_object(outcome: Outcome) -> dict[str, object]:
    return {
        "equal": outcome.equal,
        "tables": {
            str(table.table): {
                "source_rows": table.source_rows,
                "lake_rows": table.lake_rows,
                "equal": table.equal,
                "differences": list(table.differences),
            }
            for table in outcome.tables
        },
        "transactions": outcome.transactions,
        "changes": outcome.changes,
        "directory": str(outcome.place.directory),
        "seconds": round(outcome.seconds, 3),
    }


def _show_outcome(outcome: Outcome) -> None:
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
        f"\n{outcome.transactions:,} transactions while it ran, {outcome.changes:,} changes applied on top of the "
        f"copy, {seconds_text(outcome.seconds)} in all."
    )
    show_text("Every lake table equals its source table." if outcome.equal else "The lake differs from the source.")
    _show_next(outcome.place)


def _show_next(place: Place) -> None:
    orders, lakefeed = place.table("orders"), Path(sys.executable).with_name("lakefeed")
    show_text(f"\nThe tables are in {place.table('orders').parent}. A query to try:\n")
    query = "SELECT status, count(*) AS orders FROM orders GROUP BY status ORDER BY 2 DESC"
    show_text(
        f'  {_short(Path(sys.executable))} -c "from deltalake import DeltaTable, QueryBuilder; '
        f"print(QueryBuilder().register('orders', DeltaTable('{orders}')).execute('{query}').read_all())\"\n"
    )
    show_text(f"How the pipeline stands: {_short(lakefeed)} status {place.configuration}")


def _short(path: Path) -> str:
    """Relative to here where it is below."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)
