"""Progress for people: lines in a log, bars on a terminal, nothing for machines."""

from __future__ import annotations

import io

import pytest
from rich.console import Console
from rich.progress import Progress

from lakefeed.app.demo.shop import TABLES
from lakefeed.app.demo.show import Meter, Moment, View
from lakefeed.app.progress import Bars, CycleObjects, Lines, progress
from lakefeed.capture.base import Lag
from lakefeed.change.segment import Counts
from lakefeed.change.table import TableId
from lakefeed.errors import SourceUnavailableError
from lakefeed.flow.listener import Listener
from lakefeed.flow.result import CycleResult
from lakefeed.flow.status import PipelineStatus, TableStatus

ITEMS = TableId("main", "items")
CYCLE = CycleResult(counts=Counts(inserted=1_200, updated=3), seconds=0.5)


def tell_everything(listener: Listener) -> None:
    listener.snapshot_started(ITEMS, 1_000)
    listener.snapshot_progress(ITEMS, 400)
    listener.snapshot_progress(ITEMS, 600)
    listener.snapshot_done(ITEMS, 1_000, 2.0)
    listener.applied(CycleResult())
    listener.applied(CYCLE)
    listener.table_error(ITEMS, "the column is gone", "Do this.")
    listener.retrying(SourceUnavailableError("the database is locked"), 0.5)


def test_lines_say_each_event_once_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    tell_everything(Lines())
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.splitlines() == [
        "main.items: copying about 1,000 rows",
        "main.items: copied 1,000 rows in 2.0 s",
        "1,200 inserted, 3 updated, 0 deleted",
        "Error: main.items: the column is gone.",
        "Remedy: Do this.",
        "the database is locked (trying again in 0.5 s)",
    ]


def test_a_long_copy_says_how_far_it_is(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lakefeed.app.progress._LINE_SECONDS", 0.0)
    lines = Lines()
    lines.snapshot_progress(ITEMS, 400)
    lines.snapshot_progress(ITEMS, 600)
    assert "main.items: 1,000 rows so far" in capsys.readouterr().err


def test_cycles_in_quick_succession_are_summed_up(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = Lines()
    for _ in range(3):
        lines.applied(CYCLE)
    assert capsys.readouterr().err == "1,200 inserted, 3 updated, 0 deleted\n"
    monkeypatch.setattr("time.monotonic", lambda: float("inf"))
    lines.applied(CYCLE)
    assert capsys.readouterr().err == "3,600 inserted, 9 updated, 0 deleted\n"


def test_bars_show_the_same_on_a_terminal() -> None:
    screen = io.StringIO()
    with Progress(console=Console(file=screen, force_terminal=True, width=100)) as bars:
        listener = Bars(bars)
        tell_everything(listener)
        assert [task.description for task in bars.tasks] == ["1,200 inserted, 3 updated, 0 deleted"]
    assert "main.items: copied 1,000 rows in 2.0 s" in screen.getvalue()
    assert "Remedy: Do this." in screen.getvalue()


def test_a_table_that_was_never_announced_gets_a_bar_without_an_end() -> None:
    with Progress(console=Console(file=io.StringIO(), force_terminal=True)) as bars:
        listener = Bars(bars)
        listener.snapshot_done(ITEMS, 0, 0.0)
        listener.snapshot_progress(ITEMS, 400)
        listener.snapshot_progress(ITEMS, 600)
        assert [(task.description, task.completed, task.total) for task in bars.tasks[1:]] == [
            ("main.items", 1_000, None)
        ]
        listener.snapshot_done(ITEMS, 1_000, 2.0)
        assert len(bars.tasks) == 1


def test_a_copy_that_begins_anew_has_one_bar_and_counts_from_zero(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with Progress(console=Console(file=io.StringIO(), force_terminal=True)) as bars:
        listener = Bars(bars)
        for _ in range(2):
            listener.snapshot_started(ITEMS, 1_000)
            listener.snapshot_progress(ITEMS, 400)
        assert [(task.completed, task.total) for task in bars.tasks[1:]] == [(400, 1_000)]
        listener.snapshot_done(ITEMS, 1_000, 2.0)
        assert len(bars.tasks) == 1
    monkeypatch.setattr("lakefeed.app.progress._LINE_SECONDS", 0.0)
    lines = Lines()
    for _ in range(2):
        lines.snapshot_started(ITEMS, 1_000)
        lines.snapshot_progress(ITEMS, 400)
    assert "800 rows" not in capsys.readouterr().err


def test_machines_and_pipes_get_no_bars(capsys: pytest.CaptureFixture[str]) -> None:
    with progress(quiet=True) as listener:
        tell_everything(listener)
    assert capsys.readouterr() == ("", "")
    with progress(quiet=False) as listener:
        assert isinstance(listener, Lines)


def test_cycles_are_handed_on_for_json() -> None:
    seen: list[CycleResult] = []
    CycleObjects(seen.append).applied(CYCLE)
    assert seen == [CYCLE]


def moment(changes: int = 5, **states: TableStatus) -> Moment:
    tables = {TableId("main", name): state for name, state in states.items()}
    status = PipelineStatus(verdict="healthy", reason="", journal_head=7, lag=Lag(rows=12), tables=tables)
    return Moment(dict.fromkeys(TABLES, 2_000), status, changes, 3.4)


def test_the_demo_is_live_once_every_table_is_copied_and_changes_come_through() -> None:
    live, copying = TableStatus(state="live", applied=5, rows=1_999), TableStatus(state="copying")
    assert not moment(customers=live, orders=live).live
    assert not moment(customers=live, products=live, orders=live, order_items=copying).live
    assert not moment(0, customers=live, products=live, orders=live, order_items=live).live
    assert moment(1, customers=live, products=live, orders=live, order_items=live).live


@pytest.mark.parametrize("terminal", [True, False])
def test_the_demo_shows_rows_lag_and_rate(terminal: bool) -> None:
    screen = io.StringIO()
    view = View(Console(file=screen, force_terminal=terminal, width=160))
    with view.live():
        view.show(moment(customers=TableStatus(state="live", applied=5, rows=1_999)))
    text = screen.getvalue()
    for expected in ("customers", "2,000", "1,999", "12 changes in the source", "3 changes/s", "2 change sets"):
        assert expected in text


def test_the_demo_counts_changes_and_not_the_rows_of_the_copy() -> None:
    meter = Meter(lambda _: None)
    meter.snapshot_done(ITEMS, 1_000, 1.0)
    meter.applied(CycleResult(counts=Counts(inserted=1_000)))
    assert (meter.changes, meter.per_second) == (0, 0)
    meter.applied(CYCLE)
    assert meter.changes == 1_203
    assert meter.per_second > 0
