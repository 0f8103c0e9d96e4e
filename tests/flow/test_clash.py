"""Two source tables and one lake table: the first goes on, the second is blocked, and the printed remedies end it."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.flow.test_run import A, B, add_table_b, ids, pipeline_of, running, scripted, until

from lakefeed.capture.base import Level
from lakefeed.change.change_set import TableDropped
from lakefeed.change.table import TableId
from lakefeed.flow.table_state import Phase, TableStates
from lakefeed.lake.mode import Append, Mirror
from lakefeed.lake.route import Routes, Rule
from lakefeed.testing.memory_lake import MemoryLake
from lakefeed.testing.scripted import COMMIT, ScriptedCapture, insert

ALL = TableId("main", "all")


@pytest.fixture
def lake(tmp_path: Path) -> MemoryLake:
    return MemoryLake(str(tmp_path / "lake"), rules=[Rule("*", Mirror(), "all")])


def with_rules(lake: MemoryLake, *rules: Rule) -> MemoryLake:
    """The same storage under another configuration."""
    lake._routes = Routes(Mirror(), rules)
    return lake


def drop_a(capture: ScriptedCapture) -> None:
    del capture.content.rows[A.table], capture.content.schemas[A.table]
    capture.append(TableDropped(A.table), COMMIT)


def test_the_second_table_is_blocked_in_the_status_and_the_first_goes_on(lake: MemoryLake) -> None:
    capture = scripted(a=2)
    pipeline = pipeline_of(capture, lake)
    with running(pipeline):
        until(lambda: ids(lake, "main.all") == {0, 1})
        assert pipeline.status().blocked == ()
        add_table_b(capture, 5)
        until(lambda: pipeline.status().blocked)
        capture.append(insert(A, id=7, v="x"), insert(B, id=8, v="x"), COMMIT)
        until(lambda: 7 in ids(lake, "main.all") and 8 in ids(lake, "main.b"))
        status = pipeline.status()
    assert ids(lake, "main.all") == {0, 1, 7}, "nothing of the second table"
    (blocked,) = status.blocked
    assert (blocked.table, blocked.source) == (ALL, B.table)
    assert status.verdict == "stalled"
    assert status.reason == f"main.b does not reach the lake: {blocked.error}"
    findings = pipeline.check()
    assert [(one.level, one.problem, one.remedy) for one in findings] == [
        (Level.ERROR, blocked.error, blocked.remedy)
    ], "check says the same"
    (shown,) = status.to_dict()["blocked"]
    assert (shown["table"], shown["source"], shown["state"]) == ("main.all", "main.b", "blocked")
    assert pipeline.status().blocked == (blocked,), "also when no process runs"


def test_the_remedy_gives_the_second_table_a_lake_table_of_its_own(lake: MemoryLake) -> None:
    capture = scripted(a=2, b=3)
    with pipeline_of(capture, lake) as pipeline:
        pipeline.sync_once()
        (blocked,) = pipeline.status().blocked
    assert blocked.remedy == (
        "In the rule that makes main.all of main.b as mirror, write a name of its own: name: '{table}_mirror'."
    )
    rules = [Rule("a", Mirror(), "all"), Rule("b", Mirror(), "{table}_mirror")]
    with pipeline_of(capture, with_rules(lake, *rules)) as pipeline:
        pipeline.sync_once()
        assert pipeline.status().blocked == ()
    assert (ids(lake, "main.all"), ids(lake, "main.b_mirror")) == ({0, 1}, {0, 1, 2})


def test_a_table_that_is_left_is_taken_over_only_by_the_printed_command(lake: MemoryLake) -> None:
    """The first is dropped or renamed, with a process running: that must neither end it nor replace what is there."""
    capture = scripted(a=2, b=3)
    pipeline = pipeline_of(capture, lake)
    with running(pipeline):
        until(lambda: ids(lake, "main.all") == {0, 1} and pipeline.status().blocked)
        drop_a(capture)
        until(lambda: pipeline.status().tables[ALL].state == "dropped")
        until(lambda: "which has the rows of main.a" in pipeline.status().blocked[0].error)
        capture.append(insert(B, id=8, v="x"), COMMIT)
        until(lambda: 8 in ids(lake, "main.b"))
    assert ids(lake, "main.all") == {0, 1}, "a dropped table stays as it was"
    (blocked,) = pipeline.status().blocked
    assert blocked.remedy.startswith(
        'To replace its rows: pipeline.rebuild("main.all", from_source=True). Or to keep them'
    )
    capture.content.rows[B.table].append({"id": 8, "v": "x"})
    pipeline.rebuild("main.all", from_source=True)
    with pipeline_of(capture, lake) as again:
        again.sync_once()
        assert again.status().blocked == ()
    assert ids(lake, "main.all") == ids(lake, "main.b") == {0, 1, 2, 8}


def test_a_real_table_of_the_name_that_a_rule_has_made(tmp_path: Path) -> None:
    """It comes second. The rule is changed as the remedy says, and the rest as the next one says."""
    made = [Rule("a", Mirror(), "b")]
    lake = MemoryLake(str(tmp_path / "lake"), rules=made)
    capture = scripted(a=2)
    with pipeline_of(capture, lake) as pipeline:
        pipeline.sync_once()
        add_table_b(capture, 3)
        pipeline.sync_once()
        (blocked,) = pipeline.status().blocked
        assert "In the rule that makes main.b of main.a" in blocked.remedy
    assert ids(lake, "main.b") == {0, 1}
    pipeline = pipeline_of(capture, with_rules(lake, Rule("a", Mirror(), "a_mirror")))
    with pipeline:
        pipeline.sync_once()
        assert ids(lake, "main.a_mirror") == {0, 1}
        assert ids(lake, "main.b") == {0, 1}
        (blocked,) = pipeline.status().blocked
        assert blocked.remedy == 'To replace its rows: pipeline.rebuild("main.b", from_source=True).'
    pipeline.rebuild("main.b", from_source=True)
    with pipeline:
        pipeline.sync_once()
        assert pipeline.status().blocked == ()
    assert ids(lake, "main.b") == {0, 1, 2}


def test_a_rebuild_gives_a_table_to_no_other_source(lake: MemoryLake) -> None:
    """Not even to one that would be the first of two new ones."""
    capture = scripted(b=3)
    with pipeline_of(capture, lake) as pipeline:
        pipeline.sync_once()
        capture.content.rows[A.table], capture.content.schemas[A.table] = [{"id": 9, "v": "x"}], A
        pipeline.sync_once()
        assert [one.source for one in pipeline.status().blocked] == [A.table]
    pipeline.rebuild("main.all", from_source=True)
    state = TableStates(pipeline.root).all()[ALL]
    assert (state.source, state.phase) == (B.table, Phase.STAGED)
    with pipeline_of(capture, lake) as again:
        again.sync_once()
    assert ids(lake, "main.all") == {0, 1, 2}


def test_a_table_of_the_very_name_that_a_rule_gives_to_all_does_not_end_the_pipeline(tmp_path: Path) -> None:
    """It matches the rule itself: its own lake table and that of the rule are one."""
    lake = MemoryLake(str(tmp_path / "lake"), rules=[Rule("b", Append(), "b")])
    capture = scripted(a=1)
    add_table_b(capture, 2)
    pipeline = pipeline_of(capture, lake)
    with running(pipeline):
        until(lambda: ids(lake, "main.b") == {0, 1} and pipeline.status().blocked)
        capture.append(insert(A, id=7, v="x"), COMMIT)
        until(lambda: 7 in ids(lake, "main.a"))
    assert pipeline.status().blocked[0].error == (
        "two rules make the lake table main.b of main.b, as mirror and append; it is mirror"
    )
