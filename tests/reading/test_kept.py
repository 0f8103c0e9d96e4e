"""What a reader reads again and again stays in Spark's memory: the same rows, bounded, and given back."""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.reading.test_fresh import Bank, rows

from lakefeed import Delta, Iceberg, current
from lakefeed.change.table import TableId
from lakefeed.lake import kept
from lakefeed.reading import moment

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark


@pytest.fixture(autouse=True)
def runs_of_two(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(kept, "RUN", 2)
    yield
    for known in moment._known.values():
        known.runs.forget()


def in_memory(spark: SparkSession) -> int:
    """The frames that Spark keeps for all sessions."""
    java: Any = spark._jsparkSession
    return int(java.sharedState().cacheManager().numCachedEntries())


def plan_of(frame: DataFrame) -> str:
    java: Any = frame._jdf
    return str(java.queryExecution().executedPlan().toString())


def changed(bank: Bank, chance: random.Random, times: int) -> None:
    for _ in range(times):
        bank.transfer(chance)
        bank.capture()


@pytest.mark.parametrize("kind", [Delta, Iceberg])
def test_the_second_reading_keeps_runs_of_changes_and_the_third_opens_only_what_is_left_over(
    spark: SparkSession, tmp_path: Path, kind: type[Delta] | type[Iceberg]
) -> None:
    bank, chance = Bank(spark, tmp_path, kind), random.Random(5)
    bank.sync()
    changed(bank, chance, 5)
    before = in_memory(spark)
    assert rows(current(spark, bank.lake, "main.savings")) == bank.rows("savings")
    assert in_memory(spark) == before, "one reading keeps nothing: it may be the only one"
    for _ in range(2):
        found = current(spark, bank.lake, "main.savings")
        assert rows(found) == bank.rows("savings")
    assert in_memory(spark) == before + 1
    plan = plan_of(found)
    assert plan.count("InMemoryTableScan") == 1
    assert "InMemoryFileIndex(1 paths)" in plan, "the fifth change set"
    changed(bank, chance, 1)
    for _ in range(2):  # the sixth completes a run
        assert rows(current(spark, bank.lake, "main.savings")) == bank.rows("savings")
    assert in_memory(spark) == before + 2
    changed(bank, chance, 3)
    for count in (2, 1, 1):  # the seventh and eighth complete the next one, so that there is one run of eight
        found = current(spark, bank.lake, "main.savings")
        assert rows(found) == bank.rows("savings")
        assert plan_of(found).count("InMemoryTableScan") == count
    assert in_memory(spark) == before + 1
    bank.sync()  # the window begins somewhere else then
    changed(bank, chance, 3)
    for _ in range(3):
        assert rows(current(spark, bank.lake, "main.savings")) == bank.rows("savings")
        assert rows(current(spark, bank.lake, "main.savings_log"), "id")  # other columns of the same changes
    moment._known[str(bank.root)].runs.forget()
    assert in_memory(spark) == before
    assert rows(current(spark, bank.lake, "main.savings")) == bank.rows("savings")


def test_no_more_is_kept_than_is_allowed_and_large_runs_are_read_from_their_files(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bank, chance = Bank(spark, tmp_path, Delta), random.Random(6)
    bank.sync()
    changed(bank, chance, 6)
    before = in_memory(spark)
    monkeypatch.setattr(kept, "_LONGEST_RUN", 2)
    monkeypatch.setattr(kept, "_MOST_RUNS", 2)
    for _ in range(3):
        assert rows(current(spark, bank.lake, "main.savings")) == bank.rows("savings")
        assert in_memory(spark) <= before + 2
    for _ in range(3):  # runs that are in use stay: else each reading would throw out what the next one needs
        for table in ("savings", "checking"):
            found = current(spark, bank.lake, f"main.{table}")
            assert rows(found) == bank.rows(table)
            assert plan_of(found).count("InMemoryTableScan") == (2 if table == "savings" else 0)
    monkeypatch.setattr(kept, "_IDLE_SECONDS", 0.5)
    time.sleep(0.6)
    assert rows(current(spark, bank.lake, "main.checking")) == bank.rows("checking")
    monkeypatch.setattr(kept, "_IDLE_SECONDS", 60.0)
    assert "InMemoryTableScan" in plan_of(current(spark, bank.lake, "main.checking"))
    assert in_memory(spark) <= before + 2
    with monkeypatch.context() as short:
        short.setattr(kept, "_MOST_SEGMENTS", 2)  # the newest four are read from their files, then
        plan = plan_of(current(spark, bank.lake, "main.checking"))
        assert plan.count("InMemoryTableScan") == 1
        assert "InMemoryFileIndex(4 paths)" in plan
    monkeypatch.setattr(kept, "_MOST_RUN_BYTES", 1)
    assert "InMemoryTableScan" not in plan_of(current(spark, bank.lake, "main.savings"))
    assert rows(current(spark, bank.lake, "main.savings")) == bank.rows("savings")


def test_a_journal_that_was_made_again_gives_the_memory_of_the_one_before_back(
    spark: SparkSession, tmp_path: Path
) -> None:
    before = in_memory(spark)
    for number in range(2):
        bank = Bank(spark, tmp_path / f"life{number}", Delta)
        if (tmp_path / "lake").exists():
            shutil.rmtree(tmp_path / "lake")
        bank.lake, bank.root = Delta(spark, tmp_path / "lake"), tmp_path / "lake" / "_lakefeed" / "bank"
        bank.sync()
        for amount in range(2):
            bank.execute(f"UPDATE checking SET amount = {number * 10 + amount} WHERE id = 1")
            bank.capture()
        assert rows(current(spark, bank.lake, "main.checking")) == bank.rows("checking")
        assert in_memory(spark) == before, "nothing of another life"
        for _ in range(2):
            assert rows(current(spark, bank.lake, "main.checking")) == bank.rows("checking")
        assert in_memory(spark) == before + 1


def test_a_reader_that_is_under_way_when_its_journal_is_forgotten_keeps_nothing(
    spark: SparkSession, tmp_path: Path
) -> None:
    bank = Bank(spark, tmp_path, Delta)
    bank.sync()
    changed(bank, random.Random(7), 4)
    before = in_memory(spark)
    late = moment.ReadLake.of(spark, bank.lake).pipeline(None)
    assert late.runs is not None
    late.runs.forget()
    for _ in range(3):
        assert rows(late.at(TableId("main", "savings"), late.journal.head)) == bank.rows("savings")
    assert in_memory(spark) == before


def test_what_an_application_has_cleared_is_kept_again(spark: SparkSession, tmp_path: Path) -> None:
    bank = Bank(spark, tmp_path, Delta)
    bank.sync()
    changed(bank, random.Random(8), 4)
    for _ in range(3):
        found = current(spark, bank.lake, "main.savings")
    assert "InMemoryTableScan" in plan_of(found)
    spark.catalog.clearCache()
    for _ in range(4):
        found = current(spark, bank.lake, "main.savings")
        assert rows(found) == bank.rows("savings")
    assert "InMemoryTableScan" in plan_of(found)
