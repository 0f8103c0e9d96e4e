"""``current`` and ``snapshot``: tables with what only the journal has, at one moment, against what the source had."""

from __future__ import annotations

import random
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from lakefeed import (
    Append,
    Delta,
    Evolution,
    Iceberg,
    JournalOptions,
    MaintenanceOptions,
    Mirror,
    Pipeline,
    PipelineOptions,
    Rule,
    Sqlite,
    Temporal,
    current,
    pin,
    read_at,
    register_views,
    snapshot,
)
from lakefeed.change.table import TableId
from lakefeed.errors import ConfigError, LakeError
from lakefeed.journal.journal import Journal
from lakefeed.lake.history import LogCommit
from lakefeed.lake.iceberg.history import IcebergHistory

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark
ACCOUNTS = 12
RULES = [
    Rule("savings", Mirror(soft_delete="gone_at"), "{table}_kept"),
    Rule("savings", Temporal(), "{table}_history"),
    Rule("savings", Append(), "{table}_log"),
]


class Bank:
    """Money moves between two tables, and never gets more or less. ``lake`` follows; ``capture`` fills its journal."""

    def __init__(self, spark: SparkSession, place: Path, kind: type[Delta] | type[Iceberg]) -> None:
        place.mkdir(exist_ok=True)
        self.path = place / "bank.db"
        self.lake: Delta | Iceberg = kind(spark, place / "lake", rules=RULES)
        self.root = place / "lake" / "_lakefeed" / "bank"
        self._database = sqlite3.connect(self.path, isolation_level=None)
        for table in ("checking", "savings"):
            self.execute(f"CREATE TABLE {table} (id INTEGER PRIMARY KEY, amount INTEGER, note TEXT)")
            for number in range(ACCOUNTS):
                self.execute(f"INSERT INTO {table} VALUES ({number}, 100, NULL)")

    def execute(self, statements: str) -> None:
        self._database.executescript(f"BEGIN; {statements}; COMMIT;" if ";" in statements else statements)

    def transfer(self, chance: random.Random) -> None:
        first, second = chance.sample(["checking", "savings"], 2)
        one, other = (chance.choice(self.rows(table))[0] for table in (first, second))
        amount = chance.randrange(1, 9)
        statements = [
            f"UPDATE {first} SET amount = amount - {amount} WHERE id = {one}",
            f"UPDATE {second} SET amount = amount + {amount}, note = 'n{amount}' WHERE id = {other}",
        ]
        if chance.random() < 0.3:  # an account is closed and another opened with what it had
            statements.append(f"UPDATE {second} SET id = id + 100 WHERE id = {other}")
            statements.append(f"UPDATE {second} SET id = id - 100 WHERE id >= 100 AND {chance.randrange(2)}")
        self.execute("; ".join(statements))

    def rows(self, table: str) -> list[tuple[Any, ...]]:
        return sorted(self._database.execute(f"SELECT * FROM {table}").fetchall(), key=repr)

    @contextmanager
    def pipeline(self) -> Iterator[Pipeline]:
        with Pipeline(Sqlite(self.path), self.lake, name="bank") as pipeline:
            yield pipeline

    def sync(self) -> None:
        with self.pipeline() as pipeline:
            result = pipeline.sync_once()
        assert all(table.error is None for table in result.tables.values())

    def capture(self) -> int:
        """The journal has everything, the lake not. Returns the newest change set."""
        with self.pipeline() as pipeline:
            pipeline._open().capture.drain()
        return Journal.read(self.root).head


def rows(frame: DataFrame, columns: str = "id, amount, note") -> list[tuple[Any, ...]]:
    return sorted((tuple(row) for row in frame.selectExpr(*columns.split(", ")).collect()), key=repr)


def test_the_files_of_many_small_change_sets_are_opened_once(spark: SparkSession, tmp_path: Path) -> None:
    """The rows that the changes replace, and those that they leave: both come from one pass over the journal."""
    bank, chance = Bank(spark, tmp_path, Delta), random.Random(3)
    bank.sync()
    for _ in range(4):
        bank.transfer(chance)
        bank.capture()
    found = current(spark, bank.lake, "main.savings")
    assert rows(found) == bank.rows("savings")
    plan: Any = found._jdf.queryExecution().executedPlan().toString()
    assert plan.count("InMemoryFileIndex(4 paths)") == 1, plan
    assert "ReusedExchange" in plan


@pytest.mark.parametrize("kind", [Delta, pytest.param(Iceberg, marks=pytest.mark.slow)])
def test_every_moment_is_whole_whatever_the_lake_tables_have_by_then(
    spark: SparkSession, tmp_path: Path, kind: type[Delta] | type[Iceberg]
) -> None:
    bank, chance = Bank(spark, tmp_path, kind), random.Random(7)
    bank.sync()
    seen: dict[int, dict[str, list[tuple[Any, ...]]]] = {}
    for step in range(3):
        for _ in range(6):
            bank.transfer(chance)
        seen[bank.capture()] = {table: bank.rows(table) for table in ("checking", "savings")}
        if step == 0:
            bank.sync()
    newest = max(seen)
    for table in ("checking", "savings"):
        assert rows(current(spark, bank.lake, f"main.{table}")) == seen[newest][table]
    history = current(spark, bank.lake, "main.savings_history")
    assert rows(history.where("is_current")) == seen[newest]["savings"]
    assert rows(current(spark, bank.lake, "main.savings_kept").where("gone_at IS NULL")) == seen[newest]["savings"]
    planned = {
        name: rows(current(spark, bank.lake, name), "*") for name in ("main.savings_history", "main.savings_kept")
    }
    logged = rows(current(spark, bank.lake, "main.savings_log"), "id, amount, note, _lakefeed_operation, _lakefeed_seq")
    for number, tables in seen.items():
        found = snapshot(spark, bank.lake, number)
        money = 0
        for table, expected in tables.items():
            assert rows(found[f"main.{table}"]) == expected, (number, table)
            money += sum(row[1] for row in expected)
        assert money == ACCOUNTS * 200
    bank.sync()  # what was read ahead is what the merges then make
    assert (
        rows(bank.lake.history(TableId("main", "savings_history")).read(spark, _newest(bank)), "*")
        == planned["main.savings_history"]
    )
    assert rows(current(spark, bank.lake, "main.savings_kept"), "*") == planned["main.savings_kept"]
    now = current(spark, bank.lake, "main.savings_log")
    assert rows(now, "id, amount, note, _lakefeed_operation, _lakefeed_seq") == logged


def _newest(bank: Bank) -> int:
    return bank.lake.history(TableId("main", "savings_history")).commits()[-1].version


def test_columns_that_changed_since_the_merge_are_as_the_source_has_them(spark: SparkSession, tmp_path: Path) -> None:
    bank = Bank(spark, tmp_path, Delta)
    bank.sync()
    bank.execute("ALTER TABLE checking ADD COLUMN opened TEXT DEFAULT 'early'")
    bank.execute("INSERT INTO checking VALUES (50, 1, NULL, 'late')")
    bank.execute("ALTER TABLE checking RENAME COLUMN note TO remark")
    bank.execute("UPDATE checking SET remark = 'x' WHERE id = 50")
    bank.capture()
    found = current(spark, str(tmp_path / "lake"), "main.checking")
    assert rows(found, "id, amount, remark, opened") == bank.rows("checking")
    bank.sync()
    assert rows(current(spark, bank.lake, "main.checking"), "id, amount, remark, opened") == bank.rows("checking")


def test_columns_evolve_as_the_configuration_chooses_also_before_a_merge_settles_them(
    spark: SparkSession, tmp_path: Path
) -> None:
    bank = Bank(spark, tmp_path, Delta)
    bank.lake = Delta(spark, tmp_path / "lake", evolution=Evolution(add_column="ignore", drop_column="keep"))
    bank.sync()
    bank.execute("ALTER TABLE checking ADD COLUMN opened TEXT DEFAULT 'early'")
    bank.execute("ALTER TABLE checking DROP COLUMN note")
    bank.execute("INSERT INTO checking VALUES (50, 1, 'late')")
    bank.capture()
    found = current(spark, str(tmp_path / "lake"), "main.checking")  # a reader that knows the path alone
    assert found.columns == ["id", "amount", "note"]
    ahead = rows(found)
    assert (50, 1, None) in ahead
    bank.sync()
    assert rows(spark.read.format("delta").load(str(tmp_path / "lake" / "main" / "checking"))) == ahead


@pytest.mark.parametrize("kind", [Delta, Iceberg])
def test_read_at_is_exact_between_merges_as_long_as_the_journal_tells(
    spark: SparkSession, tmp_path: Path, kind: type[Delta] | type[Iceberg]
) -> None:
    bank, chance = Bank(spark, tmp_path, kind), random.Random(5)
    bank.lake = kind(spark, tmp_path / "lake")  # two tables are enough
    bank.sync()
    seen: dict[int, list[tuple[Any, ...]]] = {}
    for _ in range(3):
        bank.transfer(chance)
        seen[bank.capture()] = bank.rows("savings")
    bank.sync()  # one merge for all three
    for number, expected in seen.items():
        assert rows(read_at(spark, bank.lake, "main.savings", change_set=number)) == expected
        position = Journal.read(bank.root).position(number)
        assert rows(read_at(spark, str(tmp_path / "lake"), "main.savings", position=position)) == expected
    first, newest = min(seen), max(seen)
    with Journal.open(bank.root, options=JournalOptions(keep_seconds=0, keep_change_sets=0)) as journal:
        journal.trim(newest)
    assert rows(read_at(spark, bank.lake, "main.savings", change_set=newest)) == seen[newest], "a version alone"
    with pytest.raises(LakeError, match=rf"the journal has the change sets {newest} to {newest}, not {first}") as gone:
        read_at(spark, bank.lake, "main.savings", change_set=first)
    assert "journal.keep_seconds" in gone.value.remedy
    with pytest.raises(LakeError, match=r"the journal no longer has \d+ to \d+"):
        snapshot(spark, bank.lake, newest - 1)
    shutil.rmtree(bank.root)
    with pytest.raises(LakeError, match="no merge ended there, and its journal cannot be read from here"):
        read_at(spark, bank.lake, "main.savings", change_set=first)


@pytest.mark.parametrize("smallest", [True, False])
def test_a_snapshot_of_somebody_else_may_have_any_id(
    spark: SparkSession, tmp_path: Path, smallest: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Iceberg draws the ids of snapshots: a later one (a packing of files) may be lower than all before it."""
    bank, chance = Bank(spark, tmp_path, Iceberg), random.Random(11)
    bank.lake = Iceberg(spark, tmp_path / "lake")
    bank.sync()
    bank.execute("ALTER TABLE savings ADD COLUMN extra TEXT")
    bank.sync()
    bank.transfer(chance)
    bank.capture()
    made = IcebergHistory.commits, IcebergHistory.check, IcebergHistory.read
    packed = 1 if smallest else 2**63 - 1

    def real(history: IcebergHistory, version: int) -> int:
        return made[0](history)[-1].version if version == packed else version

    monkeypatch.setattr(IcebergHistory, "commits", lambda self: [*made[0](self), LogCommit(version=packed)])
    monkeypatch.setattr(IcebergHistory, "check", lambda self, version: made[1](self, real(self, version)))
    monkeypatch.setattr(IcebergHistory, "read", lambda self, spark, version: made[2](self, spark, real(self, version)))
    found = current(spark, bank.lake, "main.savings")
    assert rows(found, "id, amount, note, extra") == bank.rows("savings")


@pytest.mark.parametrize("kind", [Delta, Iceberg])
def test_what_was_planned_before_a_merge_can_be_read_after_it(
    spark: SparkSession, tmp_path: Path, kind: type[Delta] | type[Iceberg]
) -> None:
    """By default: a merge and its trim come between the plan of a query and its end, once for each interval."""
    bank, chance = Bank(spark, tmp_path, kind), random.Random(10)
    bank.lake = kind(spark, tmp_path / "lake")
    options = PipelineOptions(journal=JournalOptions(fsync=False, keep_change_sets=0))
    with Pipeline(Sqlite(bank.path), bank.lake, name="bank", options=options) as pipeline:
        pipeline.sync_once()
        for _ in range(3):
            bank.transfer(chance)
            pipeline._open().capture.drain()
        expected, planned = bank.rows("savings"), current(spark, bank.lake, "main.savings")
        for _ in range(2):
            pipeline.sync_once()
            pipeline._open().lake.trim()
            bank.transfer(chance)
        assert rows(planned) == expected


def test_a_pin_keeps_moments_and_versions_that_retention_would_let_go(spark: SparkSession, tmp_path: Path) -> None:
    bank, chance = Bank(spark, tmp_path, Delta), random.Random(9)
    bank.lake = Delta(spark, tmp_path / "lake")
    options = PipelineOptions(
        journal=JournalOptions(keep_seconds=0, keep_change_sets=0),
        maintenance=MaintenanceOptions(keep_hours=0, most_files=0),
    )
    with Pipeline(Sqlite(bank.path), bank.lake, name="bank", options=options) as pipeline:
        pipeline.sync_once()
        bank.transfer(chance)
        pipeline.sync_once()
        number, expected = Journal.read(bank.root).head, bank.rows("savings")
        with pin(tmp_path / "lake", seconds=60):
            for _ in range(2):
                bank.transfer(chance)
                pipeline.sync_once()
            pipeline.maintain()
            pipeline._open().lake.trim()
            assert rows(snapshot(spark, tmp_path / "lake", number)["main.savings"]) == expected
        pipeline._open().lake.trim()
    with pytest.raises(LakeError, match="the journal has the change sets"):
        snapshot(spark, tmp_path / "lake", number)


def test_a_journal_that_was_made_again_is_not_taken_for_the_one_before(spark: SparkSession, tmp_path: Path) -> None:
    """What a process has read of a journal is kept for its next reading."""
    for number in range(2):
        bank = Bank(spark, tmp_path / f"life{number}", Delta)
        if (tmp_path / "lake").exists():
            shutil.rmtree(tmp_path / "lake")
        bank.lake, bank.root = Delta(spark, tmp_path / "lake"), tmp_path / "lake" / "_lakefeed" / "bank"
        bank.sync()
        bank.execute(f"UPDATE checking SET amount = {number} WHERE id = 1")
        bank.capture()
        assert rows(current(spark, bank.lake, "main.checking")) == bank.rows("checking")


def test_a_moment_is_a_number_a_position_or_a_time_and_views_show_it(spark: SparkSession, tmp_path: Path) -> None:
    bank, chance = Bank(spark, tmp_path, Delta), random.Random(3)
    bank.sync()
    before = bank.capture()
    expected = bank.rows("checking")
    position = Journal.read(bank.root).position(before)
    between = datetime.now(UTC)
    while datetime.now(UTC) < between + timedelta(milliseconds=5):
        pass
    for _ in range(3):
        bank.transfer(chance)
    bank.capture()
    assert position is not None
    for moment in (before, position, position.encode(), between):
        assert rows(snapshot(spark, bank.lake, moment)["main.checking"]) == expected, moment
    assert "main_checking" in register_views(spark, bank.lake)
    found = spark.sql("SELECT sum(amount) FROM (SELECT * FROM main_checking UNION ALL SELECT * FROM main_savings)")
    assert found.collect()[0][0] == ACCOUNTS * 200
    assert rows(spark.table("main_checking")) == bank.rows("checking")


def test_what_cannot_be_given_is_said(spark: SparkSession, tmp_path: Path) -> None:
    bank = Bank(spark, tmp_path, Delta)
    with pytest.raises(LakeError, match="there is no pipeline's journal"):
        current(spark, bank.lake, "main.checking")
    bank.sync()
    with pytest.raises(LakeError, match=r"the lake has no table main\.nothing") as caught:
        current(spark, bank.lake, "main.nothing")
    assert "main.checking" in caught.value.remedy
    with pytest.raises(LakeError, match="not 99"):
        snapshot(spark, bank.lake, 99)
    with pytest.raises(ConfigError, match="no pipeline 'other'"):
        snapshot(spark, bank.lake, pipeline="other")
    with pytest.raises(ConfigError, match="has no zone"):
        snapshot(spark, bank.lake, datetime(2026, 1, 1))
