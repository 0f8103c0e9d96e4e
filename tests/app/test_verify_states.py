"""``lakefeed verify`` where tables cannot be compared: nothing that was not looked at counts as equal. No Spark."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lakefeed.app import cli
from lakefeed.change.table import TableId
from lakefeed.flow.table_state import Phase, TableStates
from lakefeed.lake.route import Route

CONFIG = "pipeline: shop\nsource: {kind: sqlite, path: shop.db}\nlake: {path: lake}\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    found = tmp_path / "shop.yaml"
    found.write_text(CONFIG)
    return found


@pytest.fixture
def states(tmp_path: Path) -> TableStates:
    return TableStates(tmp_path / "lake" / "_lakefeed" / "shop")


def put(states: TableStates, name: str, phase: Phase, reason: str = "", remedy: str = "") -> None:
    table = TableId("main", name)
    states.stage(Route.same(table), reason=reason)
    states.update(table, phase=phase, remedy=remedy)


def answer(file: Path, capsys: pytest.CaptureFixture[str], code: int) -> dict[str, Any]:
    assert cli.execute(["verify", str(file), "--json"]) == code
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_tables_that_are_not_live_are_differences_with_their_reason(
    file: Path, states: TableStates, capsys: pytest.CaptureFixture[str]
) -> None:
    put(states, "blocked", Phase.BLOCKED, "it has lost its primary key", "Give it one.")
    put(states, "copying", Phase.COPYING)
    put(states, "dropped", Phase.DROPPED, "the source table is gone")
    put(states, "staged", Phase.STAGED, "rebuilt by hand")
    found = answer(file, capsys, 1)
    assert found["equal"] is False
    assert {name: table["differences"] for name, table in found["tables"].items()} == {
        "main.blocked": ["not compared: the table is blocked, it has lost its primary key. Remedy: Give it one."],
        "main.copying": ["not compared: the table is copying. Remedy: Run lakefeed sync, which copies it."],
        "main.staged": [
            "not compared: the table is staged, rebuilt by hand. Remedy: Run lakefeed sync, which copies it."
        ],
    }
    for table in found["tables"].values():
        assert (table["equal"], table["compared"], table["source_rows"]) == (False, False, None)


def test_people_are_told_the_same(file: Path, states: TableStates, capsys: pytest.CaptureFixture[str]) -> None:
    put(states, "t", Phase.BLOCKED, "it has lost its primary key.", "Give it one.")
    assert cli.execute(["verify", str(file)]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "table   source rows  lake rows  equal",
        "main.t  -            -          NO",
        "main.t: not compared: the table is blocked, it has lost its primary key. Remedy: Give it one.",
    ]


def test_a_pipeline_that_has_never_run_is_an_error(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = answer(file, capsys, 2)
    assert found["error"].startswith("there is nothing to compare: pipeline shop has no tables below ")
    assert found["remedy"] == f"Run lakefeed sync {file} first; if it has run, correct pipeline or lake.path."


def test_a_pipeline_whose_tables_are_all_dropped_is_an_error(
    file: Path, states: TableStates, capsys: pytest.CaptureFixture[str]
) -> None:
    put(states, "t", Phase.DROPPED, "the source table is gone")
    found = answer(file, capsys, 2)
    assert found["error"] == "there is nothing to compare: all tables of pipeline shop are dropped"
    assert f"lakefeed status {file}" in found["remedy"]


def test_a_table_whose_source_table_is_gone_is_not_compared_before_it_has_its_last_changes(
    file: Path, states: TableStates, capsys: pytest.CaptureFixture[str]
) -> None:
    put(states, "gone", Phase.LIVE)
    states.update(TableId("main", "gone"), leaving=True, reason="the source table was dropped or renamed")
    (difference,) = answer(file, capsys, 1)["tables"]["main.gone"]["differences"]
    assert difference == (
        "not compared: the table is leaving, the source table was dropped or renamed. "
        "Remedy: Run lakefeed sync, which applies the last of its changes."
    )
