"""Windows that mark rows as deleted and write no file again: exactly, once, beside other writers, in both formats."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from tests.lake.iceberg_reader import read_iceberg, static_table
from tests.lake.on_delta import read_delta

from lakefeed.change.segment import Window
from lakefeed.change.table import TableSchema
from lakefeed.errors import CommitFailedError
from lakefeed.failpoint import FailpointError, armed
from lakefeed.lake.base import LakeTable, TableCopy
from lakefeed.lake.delta import Delta
from lakefeed.lake.delta import store as delta_store
from lakefeed.lake.delta.maintenance import remove_old_entries
from lakefeed.lake.delta.mark import LiveFiles, read_vector
from lakefeed.lake.iceberg import Iceberg
from lakefeed.lake.iceberg import store as iceberg_store
from lakefeed.lake.maintenance import MaintenanceOptions
from lakefeed.lake.mode import Mirror, Mode, Temporal
from lakefeed.lake.store import MarkRows
from lakefeed.lake.vector import encoded
from lakefeed.testing.builders import at, batch, table
from lakefeed.testing.format_contract import one
from lakefeed.testing.scripted_log import ListChunk, ScriptedLog

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

Change = tuple[str, dict[str, Any]]


class World:
    """A table of three files, with keys 0 to 9, 10 to 19 and 20 to 29, whose rows are marked."""

    def __init__(self, spark: SparkSession, place: Path, fmt: str, mode: Mode = Mirror()) -> None:  # noqa: B008
        (place / "segments").mkdir(parents=True)
        self.spark, self.fmt, self.place, self.mode = spark, fmt, place, mode
        self.log = ScriptedLog(place / "segments")
        columns: dict[str, pa.DataType] = {"id": pa.int64(), "v": pa.string(), "big": pa.string()}
        self.schema: TableSchema = self.log.schema_of(table("main.t", columns, key=("id",)))
        self.table = self.other_process()
        chunks = [
            ListChunk.of(self.schema, [self.row(n, "0") for n in range(low, low + 10)], read_at=1, marks=place)
            for low in (0, 10, 20)
        ]
        copy = TableCopy(schema=self.schema, generation=1, base=0, position=at(1), chunks=chunks)
        self.table.load(copy, lambda _: None)

    def other_process(self) -> LakeTable:
        """The table as a process sees it that believes the pipeline to be its own."""
        lake = (
            Delta(self.spark, self.place / "lake", mode=self.mode, deletion_vectors=True)
            if self.fmt == "delta"
            else Iceberg(self.spark, self.place / "lake", mode=self.mode)
        )
        return one(lake.bind("shop"), self.schema)

    def row(self, key: int, value: str) -> dict[str, Any]:
        return {"id": key, "v": value, "big": f"big {key}"}

    def add(self, *changes: Change, absent: dict[int, tuple[str, ...]] | None = None) -> Window:
        self.log.add(batch(self.schema, list(changes), absent=absent or {}))
        return self.window(self.log.head - 1, self.log.head)

    def window(self, after: int, upto: int) -> Window:
        return self.log.window(self.schema.table, after, upto)

    def apply(self, *changes: Change, absent: dict[int, tuple[str, ...]] | None = None) -> None:
        self.table.apply(self.add(*changes, absent=absent), 1)

    def rows(self) -> list[dict[str, Any]]:
        """By deltalake or pyiceberg, and by Spark, which must agree."""
        theirs = (read_delta if self.fmt == "delta" else read_iceberg)(self.table.location)
        store: Any = self.table._store  # type: ignore[attr-defined]
        ours = [row.asDict() for row in store.read(self.table._sessions.child()).collect()]  # type: ignore[attr-defined]
        order = lambda row: (row["id"], str(row))  # noqa: E731
        assert [row["id"] for row in sorted(theirs, key=order)] == [row["id"] for row in sorted(ours, key=order)]
        assert len(theirs) == len(ours)
        return theirs

    def content(self) -> dict[int, str]:
        rows = self.rows()
        found = {row["id"]: row["v"] for row in rows}
        assert len(found) == len(rows), "a key has two rows"
        assert all(row["big"] == f"big {row['id']}" for row in rows)
        return found

    @property
    def files(self) -> set[str]:
        if self.fmt == "delta":
            return {Path(one).name for one in DeltaTable(self.table.location).file_uris()}
        return {Path(task.file.file_path).name for task in static_table(self.table.location).scan().plan_files()}

    @property
    def commits(self) -> int:
        if self.fmt == "delta":
            return DeltaTable(self.table.location).version()
        return len(static_table(self.table.location).history())

    @property
    def vectors(self) -> int:
        """Files that have one."""
        if self.fmt == "delta":
            return len(pa.table(DeltaTable(self.table.location).deletion_vectors().read_all()))
        return int(static_table(self.table.location).current_snapshot().summary["total-delete-files"])


@pytest.fixture(params=["delta", "iceberg"])
def fmt(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def world(spark: SparkSession, tmp_path: Path, fmt: str) -> World:
    return World(spark, tmp_path, fmt)


START = dict.fromkeys(range(30), "0")


def without(rows: dict[int, str], *keys: int) -> dict[int, str]:
    return {key: value for key, value in rows.items() if key not in keys}


def test_a_window_marks_rows_adds_others_and_writes_no_file_again_in_one_commit(world: World) -> None:
    before, commits = world.files, world.commits
    world.apply(
        ("update", world.row(12, "1")), ("delete", {"id": 15}), ("insert", world.row(40, "1")), ("delete", {"id": 99})
    )
    assert before < world.files
    assert len(world.files - before) == 1
    assert (world.commits, world.vectors) == (commits + 1, 1)
    assert world.content() == without(START, 15) | {12: "1", 40: "1"}
    applied = world.table.applied(1)
    assert applied is not None
    assert (applied.number, applied.rows) == (1, 30)


def test_marks_of_earlier_windows_stay_and_an_updated_row_is_found_in_its_new_file(world: World) -> None:
    for value in "1234":
        world.apply(("update", world.row(12, value)), ("update", world.row(3, value)))
    world.apply(("delete", {"id": 3}), ("update", world.row(14, "5")))
    assert world.content() == without(START, 3) | {12: "4", 14: "5"}
    applied = world.other_process().applied(1)
    assert applied is not None
    assert applied.rows == 29


def test_a_file_without_a_row_left_is_no_longer_part_of_a_delta_table(spark: SparkSession, tmp_path: Path) -> None:
    world = World(spark, tmp_path, "delta")
    before = world.files
    world.apply(*(("delete", {"id": n}) for n in range(10, 15)))
    world.apply(*(("delete", {"id": n}) for n in range(13, 20)))
    assert len(world.files) == len(before) - 1
    assert world.vectors == 0
    assert world.content() == {key: "0" for key in range(30) if not 10 <= key < 20}


def test_columns_that_were_not_sent_keep_the_values_of_the_row_that_is_alive(world: World) -> None:
    """The table has two rows of key 12, of which the older one is marked: its value is not the one that stays."""
    world.apply(("update", {"id": 12, "v": "1", "big": "newer"}))
    world.apply(
        ("update", {"id": 12, "v": "2", "big": None}),
        ("update", {"id": 13, "v": "2", "big": None}),
        ("delete", {"id": 14}),
        ("insert", world.row(41, "2")),
        absent={0: ("big",), 1: ("big",)},
    )
    rows = {row["id"]: (row["v"], row["big"]) for row in world.rows()}
    assert len(rows) == len(world.rows()) == 30
    assert (rows[12], rows[13], rows[41]) == (("2", "newer"), ("2", "big 13"), ("2", "big 41"))
    assert 14 not in rows


def test_deleted_rows_that_are_kept_are_marked_and_written_with_their_time(
    spark: SparkSession, tmp_path: Path, fmt: str
) -> None:
    world = World(spark, tmp_path, fmt, Mirror(soft_delete="gone_at"))
    before = world.files
    world.apply(("delete", {"id": 3}), ("update", world.row(4, "1")))
    world.apply(("insert", world.row(3, "2")), ("delete", {"id": 5}))
    assert before < world.files
    found = {row["id"]: (row["v"], row["gone_at"] is None) for row in world.rows()}
    assert (found[3], found[4], found[5]) == (("2", True), ("1", True), ("0", False))
    assert len(found) == len(world.rows()) == 30


def test_versions_are_closed_by_marks(spark: SparkSession, tmp_path: Path, fmt: str) -> None:
    world = World(spark, tmp_path, fmt, Temporal())
    before = world.files
    for value in "12":
        world.apply(("update", world.row(12, value)), ("insert", world.row(40 + int(value), "0")))
    world.apply(("delete", {"id": 12}), ("update", world.row(13, "0")))
    assert before < world.files
    rows = world.rows()
    assert sorted(row["v"] for row in rows if row["id"] == 12) == ["0", "1", "2"]
    assert not [row for row in rows if row["id"] == 12 and row["is_current"]]
    assert sorted(row["id"] for row in rows if row["is_current"]) == [*range(12), *range(13, 30), 41, 42]


def test_b03_what_was_written_before_a_crash_belongs_to_nothing_and_the_window_is_applied_once(world: World) -> None:
    window = world.add(("update", world.row(12, "1")), ("insert", world.row(40, "1")))
    before, commits = world.files, world.commits
    with armed("lake.after_marks", "raise"), pytest.raises(FailpointError):
        world.table.apply(window, 1)
    assert (world.files, world.commits) == (before, commits)
    assert world.content() == START
    other = world.other_process()
    for _ in range(2):
        other.apply(window, 1)
    assert world.commits == commits + 1
    assert world.content() == START | {12: "1", 40: "1"}


def met(monkeypatch: pytest.MonkeyPatch, fmt: str, work: Callable[[], object]) -> list[int]:
    """Do ``work`` once, while a window has found its rows and has not committed. Returns the tries."""
    module: Any = delta_store if fmt == "delta" else iceberg_store
    tries: list[int] = []
    real = module.located_and_written

    def then(*arguments: Any) -> Any:
        found = real(*arguments)
        tries.append(1)
        if len(tries) == 1:
            work()
        return found

    monkeypatch.setattr(module, "located_and_written", then)
    return tries


def test_b03_two_processes_with_one_pipeline_mark_a_row_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    window, other = world.add(("update", world.row(12, "1")), ("insert", world.row(40, "1"))), world.other_process()
    commits = world.commits
    tries = met(monkeypatch, world.fmt, lambda: other.apply(window, 1))
    world.table.apply(window, 1)
    assert tries, "the two have not met"
    assert world.commits == commits + 1
    assert world.content() == START | {12: "1", 40: "1"}
    if world.fmt == "iceberg":  # what the slower one has written is gone
        named = {Path(task.file.file_path).name for task in static_table(world.table.location).scan().plan_files()}
        assert {path.name for path in Path(world.table.location, "data").glob("*.parquet")} == named


def test_b03_a_commit_between_the_last_look_at_the_table_and_our_own_refuses_ours(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Iceberg would do its own commit again on the other snapshot: where no row is marked, nothing refuses that."""
    world = World(spark, tmp_path, "iceberg")
    world.apply(("delete", {"id": 12}))
    window, other = world.add(("insert", world.row(12, "1"))), world.other_process()
    module: Any = iceberg_store
    commits, tries, real = world.commits, list[str](), module.hit

    def then(name: str) -> None:
        real(name)
        tries.append(name)
        if tries == ["lake.after_marks"]:
            other.apply(window, 1)

    monkeypatch.setattr(module, "hit", then)
    assert world.table.apply(window, 1).number == window.upto
    assert len(tries) == 2  # ours, and the other's
    assert world.commits == commits + 1
    assert world.content() == START | {12: "1"}


def test_b03_a_table_that_another_process_has_brought_further_takes_no_window_from_before(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, other = world.add(("update", world.row(12, "1"))), world.other_process()
    world.add(("update", world.row(13, "2")))
    met(monkeypatch, world.fmt, lambda: other.apply(first, 1))
    with pytest.raises(CommitFailedError, match=r"another process has brought .* to change set 1"):
        world.table.apply(world.window(0, 2), 1)
    world.table.apply(world.window(1, 2), 1)
    assert world.content() == START | {12: "1", 13: "2"}


def test_b06_maintenance_that_packs_the_files_meanwhile_has_the_window_planned_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Positions in files that are gone would mark nothing, or other rows."""
    world.apply(("update", world.row(3, "1")), ("delete", {"id": 4}))
    packing = MaintenanceOptions(most_files=0, keep_hours=None)
    tries = met(monkeypatch, world.fmt, lambda: world.table.maintain(packing, ("id",)))
    world.apply(("update", world.row(12, "2")), ("update", world.row(3, "2")))
    assert len(tries) >= 2
    assert world.content() == without(START, 4) | {12: "2", 3: "2"}


def test_a_table_whose_owner_wants_partitions_is_merged_by_spark(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(spark, tmp_path, "iceberg")
    session = world.table._sessions.child()  # type: ignore[attr-defined]
    session.sql("ALTER TABLE lakefeed.main.t ADD PARTITION FIELD bucket(2, id)")
    steps: list[Any] = []
    store: Any = world.table._store  # type: ignore[attr-defined]
    real = store.commit

    def seen(session: Any, step: Any, stamp: Any) -> Any:
        steps.append(step)
        return real(session, step, stamp)

    monkeypatch.setattr(store, "commit", seen)
    world.apply(("update", world.row(12, "1")))
    assert not isinstance(steps[0], MarkRows)
    assert world.content() == START | {12: "1"}


def test_what_is_marked_survives_checkpoints_and_the_cleaning_of_the_log(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that begins at a checkpoint knows statistics, marks and rows as the one that wrote them."""
    monkeypatch.setattr(delta_store, "_CHECKPOINT_VERSIONS", 4)
    world = World(spark, tmp_path, "delta")
    expected = dict(START)
    for number in range(9):
        world.apply(("update", world.row(number, "1")), ("delete", {"id": 20 + number}))
        expected[number] = "1"
        del expected[20 + number]
    assert list(Path(world.table.location, "_delta_log").glob("*.checkpoint.parquet"))
    newest = DeltaTable(world.table.location)
    known = LiveFiles(world.table.location)
    known.at(newest.version() - 1)
    remove_old_entries(world.table.location, newest.version(), keep=1)
    again = LiveFiles(world.table.location)
    assert again.at(newest.version()) == known.at(newest.version())
    assert again.rows == known.rows == len(expected)
    paths = list(again.at(newest.version()))
    assert again.marks(paths) == known.marks(paths)
    world.table = world.other_process()
    world.apply(("update", world.row(12, "2")))
    assert world.content() == expected | {12: "2"}


def test_rows_are_marked_in_a_table_whose_checkpoint_is_sparks(spark: SparkSession, tmp_path: Path) -> None:
    """Spark's has statistics as timestamps, dates and decimals, too, which no entry of the log can have."""
    log = ScriptedLog(tmp_path)
    columns: dict[str, pa.DataType] = {
        "id": pa.int64(), "at": pa.timestamp("us", tz="UTC"), "on": pa.date32(), "price": pa.decimal128(10, 2),
    }  # fmt: skip
    schema = log.schema_of(table("main.t", columns, key=("id",)))

    def row(key: int, price: str) -> dict[str, Any]:
        return {"id": key, "at": datetime(9999, 1, key, tzinfo=UTC), "on": date(1, 2, key), "price": Decimal(price)}

    def other_process() -> LakeTable:
        return one(Delta(spark, tmp_path / "lake", deletion_vectors=True).bind("shop"), schema)

    chunk = ListChunk.of(schema, [row(key, "0.00") for key in range(1, 10)], read_at=1, marks=tmp_path)
    other_process().load(TableCopy(schema=schema, generation=1, base=0, position=at(1), chunks=[chunk]), lambda _: None)
    place = other_process().location
    for number in range(1, 3):
        log.add(batch(schema, [("update", row(number, "1.50"))]))
        other_process().apply(log.window(schema.table, number - 1, number), 1)
        if number == 2:  # no text of statistics in checkpoints
            spark.sql(f"ALTER TABLE delta.`{place}` SET TBLPROPERTIES ('delta.checkpoint.writeStatsAsJson' = 'false')")
        java: Any = spark._jvm
        java.org.apache.spark.sql.delta.DeltaLog.forTable(spark._jsparkSession, place).checkpoint()
        checkpoint = max(Path(place, "_delta_log").glob("*.checkpoint.parquet"))
        assert "stats_parsed" in str(pq.read_schema(checkpoint)), "the checkpoint is not what this test is about"
    log.add(batch(schema, [("delete", {"id": 9}), ("update", row(1, "2.50"))]))
    other_process().apply(log.window(schema.table, 2, 3), 1)
    expected = [row(key, {1: "2.50", 2: "1.50"}.get(key, "0.00")) for key in range(1, 9)]
    assert sorted(read_delta(place), key=itemgetter("id")) == expected
    newest = max(Path(place, "_delta_log").glob("*.json")).read_text()
    assert '"deletionVector"' in newest
    assert "stats_parsed" not in newest


@pytest.mark.parametrize("kind", ["u", "i"], ids=["in a file", "in the log"])
def test_vectors_that_others_wrote_are_read(spark: SparkSession, tmp_path: Path, kind: str) -> None:
    """Spark's own DELETE writes files; small vectors may also be in the log itself."""
    world = World(spark, tmp_path, "delta")
    spark.sql(f"DELETE FROM delta.`{world.table.location}` WHERE id IN (3, 5, 17)")
    files = LiveFiles(world.table.location)
    entries = files.at(DeltaTable(world.table.location).version())
    vectors = [entry["deletionVector"] for entry in entries.values() if "deletionVector" in entry]
    if kind == "i":
        vectors = [{**one, "storageType": "i", "pathOrInlineDv": inlined(world.table.location, one)} for one in vectors]
    assert sorted(len(read_vector(world.table.location, one)) for one in vectors) == [1, 2]
    world.apply(("update", world.row(4, "1")))
    assert world.content() == without(START, 3, 5, 17) | {4: "1"}


def inlined(location: str, vector: dict[str, Any]) -> str:
    """The text that Delta would have for it in the log, by its own encoder."""
    from pyspark import SparkContext

    body = encoded(read_vector(location, vector))[4:-4]
    context: Any = SparkContext._active_spark_context
    codec = getattr(context._jvm, "org.apache.spark.sql.delta.util.Codec$Base85Codec$")
    return str(getattr(codec, "MODULE$").encodeBytes(body))


def test_packing_folds_the_vectors_of_files_with_many_marked_rows(world: World) -> None:
    world.apply(*(("delete", {"id": n}) for n in (0, 1, 2, 3, 12, 24)))
    assert world.vectors == 3
    options = MaintenanceOptions(keep_hours=None, most_files=1000, fold_bytes=1)
    world.table.maintain(replace(options, marked_share=0.5), ("id",))
    assert world.vectors == 3, "no file has so many"
    world.table.maintain(replace(options, insists=True), ("id",))
    # On Iceberg only the file with the most; Delta's files are so small that they are all packed with it.
    assert world.vectors == (2 if world.fmt == "iceberg" else 0)
    assert world.content() == without(START, 0, 1, 2, 3, 12, 24)
    world.apply(("update", world.row(5, "1")), ("update", world.row(13, "1")))
    assert world.content() == without(START, 0, 1, 2, 3, 12, 24) | {5: "1", 13: "1"}
