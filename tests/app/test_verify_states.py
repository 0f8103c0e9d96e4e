"""``lakefeed verify`` where tables cannot be compared: nothing that was not looked at counts as equal. No Spark."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lakefeed.app import cli
from lakefeed.change.table import TableId
from lakefeed.flow.status import Liveness
from lakefeed.flow.table_state import Phase, TableStates
from lakefeed.lake.mode import Append
from lakefeed.lake.route import Route
from lakefeed.verify.compare import Comparison

CONFIG = "pipeline: shop\nsource: {kind: sqlite, path: shop.db, tables: [TABLES]}\nlake: {path: lake}\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    found = tmp_path / "shop.yaml"
    found.write_text(CONFIG.replace("TABLES", "'*'"))
    with closing(sqlite3.connect(tmp_path / "shop.db")) as connection:
        connection.execute("CREATE TABLE t (id INTEGER PRIMARY KEY AUTOINCREMENT)")
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
    put(states, "t", Phase.STAGED)
    found = answer(file, capsys, 1)
    assert found["equal"] is False
    assert {name: table["differences"] for name, table in found["tables"].items()} == {
        "main.blocked": ["not compared: the table is blocked, it has lost its primary key. Remedy: Give it one."],
        "main.copying": [f"not compared: the table is copying. Remedy: lakefeed sync {file}"],
        "main.staged": [f"not compared: the table is staged, rebuilt by hand. Remedy: lakefeed sync {file}"],
        "main.t": [f"not compared: the table is staged. Remedy: lakefeed sync {file}"],
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
        "Not equal: 1 of 1 table.",
    ]


def test_a_pipeline_that_has_never_run_is_an_error(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = answer(file, capsys, 2)
    assert found["error"].startswith("there is nothing to compare: pipeline shop has no tables below ")
    assert found["remedy"] == f"Run lakefeed sync {file} first; if it has run, correct pipeline or lake.path."


def test_a_pipeline_whose_tables_are_all_dropped_is_an_error(
    file: Path, states: TableStates, capsys: pytest.CaptureFixture[str]
) -> None:
    put(states, "gone", Phase.DROPPED, "the source table is gone")
    file.write_text(CONFIG.replace("TABLES", "gone"))
    found = answer(file, capsys, 2)
    assert found["error"] == "there is nothing to compare: all tables of pipeline shop are dropped"
    assert f"run lakefeed sync {file}" in found["remedy"]


def test_a_table_whose_source_table_is_gone_is_not_compared_before_it_has_its_last_changes(
    file: Path, states: TableStates, capsys: pytest.CaptureFixture[str]
) -> None:
    put(states, "gone", Phase.LIVE)
    states.update(TableId("main", "gone"), leaving=True, reason="the source table was dropped or renamed")
    (difference,) = answer(file, capsys, 1)["tables"]["main.gone"]["differences"]
    assert difference == (
        f"not compared: the table is leaving, the source table was dropped or renamed. Remedy: lakefeed sync {file}"
    )


def test_a_table_that_the_pipeline_has_not_reached_is_a_difference(
    file: Path, states: TableStates, capsys: pytest.CaptureFixture[str]
) -> None:
    with closing(sqlite3.connect(file.with_name("shop.db"))) as connection:
        connection.execute("CREATE TABLE later (id INTEGER PRIMARY KEY)")
        connection.execute("CREATE TABLE again (id INTEGER PRIMARY KEY)")
    put(states, "again", Phase.DROPPED, "the source table was dropped or renamed")
    put(states, "t", Phase.STAGED)
    found = answer(file, capsys, 1)
    reason = f"not compared: the pipeline has not reached the table yet. Remedy: lakefeed sync {file}"
    assert not found["equal"]
    assert found["tables"]["main.later"]["differences"] == [reason]
    assert found["tables"]["main.again"]["differences"] == [reason], "it was dropped, and the source has it again"


def test_a_table_that_a_pattern_matches_and_the_source_cannot_offer_is_named_with_the_reason(
    file: Path, states: TableStates, capsys: pytest.CaptureFixture[str]
) -> None:
    with closing(sqlite3.connect(file.with_name("shop.db"))) as connection:
        connection.execute("CREATE VIEW v AS SELECT * FROM t")
    put(states, "t", Phase.STAGED)
    assert answer(file, capsys, 1)["not_followed"] == {"main.v": "it is a view; capture the tables under it"}
    assert cli.execute(["verify", str(file)]) == 1
    assert "main.v is not captured: it is a view; capture the tables under it\n" in capsys.readouterr().out


def test_a_pattern_that_matches_nothing_any_more_is_a_problem_and_not_the_end_of_the_comparison(
    file: Path, states: TableStates, capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_text(CONFIG.replace("TABLES", "t, gone"))
    put(states, "t", Phase.STAGED)
    found = answer(file, capsys, 1)
    assert found["problems"][0].startswith("the table pattern 'gone' matches no table; there are main.t. Remedy: ")
    assert set(found["tables"]) == {"main.t"}


def test_a_run_that_ended_with_an_error_is_never_equal(
    file: Path, states: TableStates, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    put(states, "t", Phase.LIVE)
    equal = Comparison(table=TableId("main", "t"), source_rows=0, lake_rows=0)
    monkeypatch.setattr("lakefeed.verify.pipeline.PipelineVerification._compared", lambda *_: equal)
    assert answer(file, capsys, 0)["equal"]
    Liveness(at=1.0, error="the disk is full.", remedy="Free space.").write(file.parent / "lake" / "_lakefeed" / "shop")
    found = answer(file, capsys, 1)
    assert not found["equal"]
    assert found["problems"] == [
        f"the last run ended with an error: the disk is full. Remedy: Free space. Then lakefeed sync {file}"
    ]
    assert cli.execute(["verify", str(file)]) == 1
    assert capsys.readouterr().out.endswith("but see the error above.\n")


def test_a_source_table_that_is_gone_is_a_difference_of_that_table_alone(
    file: Path, states: TableStates, capsys: pytest.CaptureFixture[str]
) -> None:
    put(states, "gone", Phase.LIVE)
    put(states, "t", Phase.STAGED)
    found = answer(file, capsys, 1)["tables"]
    assert found["main.gone"]["differences"][0].startswith("there is no table at ")
    assert set(found) == {"main.gone", "main.t"}


def test_a_source_table_that_feeds_no_lake_table_because_of_another_is_never_equal(
    file: Path, states: TableStates, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(sqlite3.connect(file.parent / "shop.db")) as connection:
        connection.execute("CREATE TABLE u (id INTEGER PRIMARY KEY AUTOINCREMENT)")
    rule = "tables: [{match: '*', mode: append, name: log}]"
    file.write_text(file.read_text().replace("{path: lake}", f"{{path: lake, {rule}}}"))
    for name in ("t", "u", "log"):
        put(states, name, Phase.LIVE)
    states.save(replace(states.all()[TableId("main", "log")], source=TableId("main", "t"), mode=Append()))
    equal = Comparison(table=TableId("main", "t"), source_rows=0, lake_rows=0)
    monkeypatch.setattr("lakefeed.verify.pipeline.PipelineVerification._compared", lambda *_: equal)
    (problem,) = answer(file, capsys, 1)["problems"]
    assert problem.startswith("source tables main.u and main.t would both feed the lake table main.log, which main.t")
