"""Progress for people: lines in a log, bars on a terminal, nothing for machines."""

from __future__ import annotations

import io
import json
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from rich.console import Console
from rich.progress import Progress

from lakefeed.app.build import FIRST_START, START
from lakefeed.app.demo import show
from lakefeed.app.demo.shop import TABLES
from lakefeed.app.demo.show import DemoDirectory, Meter, Moment, View
from lakefeed.app.progress import Bars, CycleObjects, Display, Events, Lines, progress
from lakefeed.capture.base import Lag
from lakefeed.change.segment import Counts
from lakefeed.change.table import TableId
from lakefeed.errors import SourceUnavailableError
from lakefeed.flow.report.listener import Listener
from lakefeed.flow.result import CycleResult
from lakefeed.flow.status import PipelineStatus, TableStatus
from lakefeed.journal.commit import Commit

ITEMS, ORDERS = TableId("main", "items"), TableId("main", "orders")
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


def moment(**states: TableStatus) -> Moment:
    tables = {TableId("main", name): state for name, state in states.items()}
    status = PipelineStatus(verdict="healthy", reason="", journal_head=7, lag=Lag(rows=12), tables=tables)
    return Moment(DemoDirectory(Path("demo")), dict.fromkeys(TABLES, 2_000), status, 3.4)


def test_the_demo_says_of_each_table_how_old_it_is_and_how_far_behind() -> None:
    behind = TableStatus(state="live", applied=5, rows=1_999, age_seconds=3.21)
    now = moment(customers=behind, orders=replace(behind, applied=7), order_items=TableStatus(state="copying"))
    assert now.row("customers") == ("customers", "2,000", "1,999", "3.2 s", "2 change sets behind")
    assert now.row("orders")[-1] == "live", "changes wait in the source"
    even = replace(now, status=replace(now.status, lag=Lag(rows=0)), source_rows=dict.fromkeys(TABLES, 1_999))
    assert even.row("orders")[-1] == "up to date"
    assert now.row("order_items")[2:] == ("-", "-", "copying")
    assert now.row("products")[2:] == ("-", "-", "waiting")
    assert moment(customers=replace(behind, error="it is gone")).row("customers")[-1] == "it is gone"


@pytest.mark.parametrize("terminal", [True, False])
def test_the_demo_shows_rows_lag_and_rate(terminal: bool) -> None:
    screen = io.StringIO()
    view = View(Console(file=screen, force_terminal=terminal, width=240))
    with view.live():
        view.show(moment(customers=TableStatus(state="live", applied=5, rows=1_990, age_seconds=3.21)))
        last = moment(customers=TableStatus(state="live", applied=7, rows=1_999, age_seconds=1.0))
        view.show(replace(last, is_last=True))
    text = screen.getvalue()
    for expected in ("customers", "2,000", "1,999", "1.0 s", "waiting in the source: 12 changes", "3 changes/s"):
        assert expected in text, "the last frame is always shown"


def test_the_last_frame_of_the_demo_agrees_with_the_result() -> None:
    """PostgreSQL's log grows without a change: after the last sync nothing waits, whatever the log has."""
    now = moment(customers=TableStatus(state="live", applied=7, rows=2_000))
    log_only = replace(now, status=replace(now.status, lag=Lag(bytes=888)))
    assert log_only.summary.startswith("waiting in the source: 888 bytes of log ·")
    assert replace(log_only, is_last=True).summary.startswith("waiting in the source: nothing ·")
    assert replace(now, is_last=True).summary.startswith("waiting in the source: 12 changes"), "that would be a fault"


def test_a_state_of_the_demo_says_how_long_it_takes_and_what_it_turns_out_to_be(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(show, "_STILL_SECONDS", 0.01)
    screen = io.StringIO()
    view = View(Console(file=screen, force_terminal=False, width=240))
    with view.busy(START):
        view.announce(START)
        view.announce(FIRST_START)
        until = time.monotonic() + 10
        while "so far" not in screen.getvalue() and time.monotonic() < until:
            time.sleep(0.01)
    lines = screen.getvalue().splitlines()
    assert lines.count(START) == 1
    assert lines.count(FIRST_START) == 1
    assert any(line.startswith("  … ") and line.endswith(" so far") for line in lines)


def test_the_start_of_spark_is_announced_by_every_display(capsys: pytest.CaptureFixture[str]) -> None:
    Display().announce(START)
    assert capsys.readouterr().err == ""
    Lines().announce(START)
    assert capsys.readouterr().err == f"{START}\n"
    Events().announce(START)
    assert json.loads(capsys.readouterr().err)["event"] == "starting"
    screen = io.StringIO()
    with Progress(console=Console(file=screen, force_terminal=True, width=100)) as bars:
        Bars(bars).announce(START)
    assert START in screen.getvalue()


def test_the_demo_counts_changes_and_not_the_copy_and_the_start_of_spark() -> None:
    def commit(number: int, rows: int) -> Commit:
        segment = SimpleNamespace(counts=Counts(inserted=rows))
        return cast("Commit", SimpleNamespace(number=number, tables={ORDERS: SimpleNamespace(segments=[segment])}))

    meter = Meter(lambda _: None)
    meter.captured(commit(1, 1_000))
    meter.begin()
    assert (meter.changes, meter.per_second, meter.first_seconds) == (0, 0, None)
    meter.captured(commit(2, 1_200))
    meter.captured(commit(3, 3))
    meter.observe(moment(orders=TableStatus(state="live", applied=1)).status)
    assert (meter.changes, meter.first_seconds) == (0, None), "captured, and not yet in the lake"
    meter.observe(moment(orders=TableStatus(state="live", applied=2)).status)
    assert meter.changes == 1_200
    assert meter.first_seconds is not None
    meter.observe(moment(orders=TableStatus(state="live", applied=3)).status)
    assert meter.changes == 1_203
    assert 0 < meter.per_second <= 1_203, "on average"
