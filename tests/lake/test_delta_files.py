"""Delta tables whose files are exchanged without a merge: only what is touched, exactly once, beside other writers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from lakefeed.change.segment import Window
from lakefeed.change.table import TableSchema
from lakefeed.errors import CommitFailedError, TableStoppedError
from lakefeed.failpoint import FailpointError, armed
from lakefeed.lake.base import LakeTable, TableCopy
from lakefeed.lake.delta import Delta
from lakefeed.lake.delta import copy as delta_copy
from lakefeed.lake.delta import store as delta_store
from lakefeed.lake.delta.feature import features_of
from lakefeed.lake.delta.store import DeltaStore
from lakefeed.lake.loader import written_chunks
from lakefeed.lake.mode import Mode, Temporal
from lakefeed.testing.builders import at, batch, table
from lakefeed.testing.format_contract import one
from lakefeed.testing.scripted_log import ListChunk, ScriptedLog

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


class World:
    """A Delta table of three files, with keys 0 to 9, 10 to 19 and 20 to 29; a second reader is Spark itself."""

    def __init__(
        self, spark: SparkSession, place: Path, mode: Mode | str = "mirror", *, deletion_vectors: bool = False
    ) -> None:
        (place / "segments").mkdir(parents=True)
        self.spark = spark
        self.log = ScriptedLog(place / "segments")
        columns: dict[str, pa.DataType] = {"id": pa.int64(), "v": pa.string(), "seen": pa.timestamp("us", tz="UTC")}
        self.schema: TableSchema = self.log.schema_of(table("main.t", columns, key=("id",)))
        self.lake = Delta(spark, place / "lake", mode=mode, deletion_vectors=deletion_vectors)
        self.table: LakeTable = self.other_process()
        chunks = [
            ListChunk.of(self.schema, [self.row(n, "0") for n in range(low, low + 10)], read_at=1, marks=place)
            for low in (0, 10, 20)
        ]
        copy = TableCopy(schema=self.schema, generation=1, base=0, position=at(1), chunks=chunks)
        self.table.load(copy, lambda _: None)

    def other_process(self) -> LakeTable:
        """The table as a process sees it that believes the pipeline to be its own."""
        return one(self.lake.bind("shop"), self.schema)

    def window(self, after: int, upto: int) -> Window:
        return self.log.window(self.schema.table, after, upto)

    def keys(self) -> list[int]:
        return sorted(row["id"] for row in self.delta.to_pyarrow_table().to_pylist())

    def row(self, key: int, value: str) -> dict[str, Any]:
        return {"id": key, "v": value, "seen": None if key % 2 else -62135596800000000 + key}

    def apply(self, *changes: tuple[str, dict[str, Any]]) -> None:
        applied = self.table.applied(1)
        assert applied is not None
        self.log.add(batch(self.schema, list(changes)))
        self.table.apply(self.log.window(self.schema.table, applied.number, self.log.head), 1)

    @property
    def files(self) -> set[str]:
        return {str(path) for path in pa.table(self.delta.get_add_actions()).column("path").to_pylist()}

    @property
    def delta(self) -> DeltaTable:
        return DeltaTable(self.table.location)

    def content(self) -> dict[int, str]:
        """By deltalake and by Spark, which must agree."""
        rows = self.delta.to_pyarrow_table().sort_by("id").to_pylist()
        theirs = self.spark.read.format("delta").load(self.table.location).orderBy("id").select("id", "v").collect()
        assert [(row["id"], row["v"]) for row in rows] == [(row.id, row.v) for row in theirs]
        return {row["id"]: row["v"] for row in rows}

    def operations(self) -> list[str]:
        return [commit["operation"] for commit in self.delta.history()]


@pytest.fixture
def world(spark: SparkSession, tmp_path: Path) -> World:
    return World(spark, tmp_path)


def test_only_the_files_that_may_have_the_keys_are_exchanged(world: World) -> None:
    before = world.files
    world.apply(("update", world.row(12, "1")), ("delete", {"id": 15}), ("insert", world.row(13, "1")))
    stayed = before & world.files
    assert len(stayed) == 2
    assert world.operations()[0] == "WRITE"
    expected = dict.fromkeys(range(30), "0") | {12: "1", 13: "1"}
    del expected[15]
    assert world.content() == expected


def test_new_keys_are_added_and_no_file_is_touched(world: World) -> None:
    before = world.files
    world.apply(*(("insert", world.row(n, "1")) for n in range(30, 35)))
    assert before < world.files
    assert world.content() == dict.fromkeys(range(30), "0") | dict.fromkeys(range(30, 35), "1")


def test_b03_a_window_that_is_applied_again_commits_nothing(world: World) -> None:
    world.apply(("update", world.row(1, "1")))
    version = world.delta.version()
    world.table.apply(world.log.window(world.schema.table, 0, world.log.head), 1)
    other = one(Delta(world.spark, Path(world.table.location).parent.parent).bind("shop"), world.schema)
    other.apply(world.log.window(world.schema.table, 0, world.log.head), 1)
    assert world.delta.version() == version


def test_b06_a_commit_that_came_between_reading_and_writing_makes_it_read_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody packs the table's files while ours are being written: theirs stand, ours are written again."""
    tries: list[int] = []

    write = DeltaStore._write

    def beside(store: DeltaStore, rows: Any) -> Any:
        written = write(store, rows)
        tries.append(1)
        if len(tries) == 1:
            world.delta.optimize.compact()
        return written

    monkeypatch.setattr(DeltaStore, "_write", beside)
    world.apply(("update", world.row(12, "1")), ("delete", {"id": 15}))
    assert len(tries) == 2
    expected = dict.fromkeys(range(30), "0") | {12: "1"}
    del expected[15]
    assert world.content() == expected


def between(monkeypatch: pytest.MonkeyPatch, module: Any, name: str, work: Callable[[], object]) -> list[int]:
    """Do ``work`` once, after the first call of a function. Returns the calls."""
    calls: list[int] = []
    function = getattr(module, name)

    def then(*arguments: Any) -> Any:
        found = function(*arguments)
        calls.append(1)
        if len(calls) == 1:
            work()
        return found

    monkeypatch.setattr(module, name, then)
    return calls


@pytest.mark.parametrize("mode", ["mirror", "append", "temporal"])
def test_b03_two_processes_with_one_pipeline_commit_a_change_set_once(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    """The other one commits the same rows while our files are being written."""
    world = World(spark, tmp_path, mode)
    world.log.add(batch(world.schema, [("insert", world.row(n, "1")) for n in (40, 41)]))
    other = world.other_process()
    calls = between(monkeypatch, DeltaStore, "_write", lambda: other.apply(world.window(0, 1), 1))
    world.table.apply(world.window(0, 1), 1)
    assert len(calls) == 2, "the two have not met"
    assert world.keys() == [*range(30), 40, 41]


@pytest.mark.parametrize(
    "deletion_vectors", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["files", "marks"]
)
def test_b03_a_table_that_another_process_has_brought_further_takes_no_window_from_before(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, deletion_vectors: bool
) -> None:
    world = World(spark, tmp_path, "append", deletion_vectors=deletion_vectors)
    for key in (40, 41):
        world.log.add(batch(world.schema, [("insert", world.row(key, "1"))]))
    other = world.other_process()
    between(monkeypatch, DeltaStore, "_write", lambda: other.apply(world.window(0, 1), 1))
    with pytest.raises(CommitFailedError, match=r"another process has brought .* to change set 1"):
        world.table.apply(world.window(0, 2), 1)
    world.table.apply(world.window(1, 2), 1)
    found = spark.read.format("delta").load(world.table.location).select("id").collect()
    assert sorted(row.id for row in found) == [*range(30), 40, 41]


def test_b03_a_table_of_another_life_takes_nothing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process has begun to copy the table again."""
    world.log.add(batch(world.schema, [("insert", world.row(40, "1"))]))
    other = world.other_process()
    copy = TableCopy(schema=world.schema, generation=2, base=0, position=at(1), chunks=[])
    between(monkeypatch, DeltaStore, "_write", lambda: other.load(copy, lambda _: None))
    with pytest.raises(CommitFailedError, match="is not of generation 1 any more"):
        world.table.apply(world.window(0, 1), 1)
    assert world.keys() == []


def test_b06_an_append_beside_a_strangers_commit_is_done_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between our reading of the log and our commit somebody packs the files."""
    calls = between(monkeypatch, DeltaStore, "_write", lambda: world.delta.optimize.compact())
    world.apply(("insert", world.row(40, "1")))
    assert len(calls) == 2
    assert world.keys() == [*range(30), 40]


def test_b03_chunks_that_another_process_has_copied_are_not_added_again(
    world: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    chunks = [ListChunk.of(world.schema, [world.row(n, "0")], read_at=1, marks=tmp_path) for n in range(3)]
    copy = TableCopy(schema=world.schema, generation=2, base=0, position=at(1), chunks=chunks)
    monkeypatch.setattr(delta_copy, "GROUP_CHUNKS", 1)
    with armed("lake.during_load", "raise"), pytest.raises(FailpointError):
        world.table.load(copy, lambda _: None)
    other = world.other_process()
    between(monkeypatch, delta_copy, "written_chunks", lambda: other.load(copy, lambda _: None))
    with pytest.raises(CommitFailedError, match="another process copies"):
        world.table.load(copy, lambda _: None)
    assert world.keys() == [0, 1, 2]
    assert world.table.load(copy, lambda _: None).rows == 3


def test_files_that_workers_wrote_to_another_machines_directory_are_not_committed(
    world: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    chunk = ListChunk.of(world.schema, [world.row(1, "0")], read_at=1, marks=tmp_path)
    copy = TableCopy(schema=world.schema, generation=2, base=0, position=at(1), chunks=[chunk])

    def elsewhere(*given: Any) -> list[Any]:
        written = written_chunks(*given)
        for chunk_file in written:
            (Path(world.table.location) / str(chunk_file.file and chunk_file.file.name)).unlink()
        return written

    monkeypatch.setattr(delta_copy, "written_chunks", elsewhere)
    before = world.delta.version()
    with pytest.raises(TableStoppedError, match="they have another directory under this path"):
        world.table.load(copy, lambda _: None)
    assert world.delta.version() == before


def test_a_lake_path_that_looks_like_a_pattern_means_itself(spark: SparkSession, tmp_path: Path) -> None:
    world = World(spark, tmp_path / "lake[1]{eu}*")
    before = world.files
    world.apply(("update", world.row(12, "1")), ("delete", {"id": 15}))
    assert len(before & world.files) == 2
    expected = dict.fromkeys(range(30), "0") | {12: "1"}
    del expected[15]
    rows = world.delta.to_pyarrow_table().to_pylist()
    assert {row["id"]: row["v"] for row in rows} == expected
    assert len(rows) == len(expected)


def test_what_is_recorded_survives_checkpoints_and_the_cleaning_of_the_log(world: World) -> None:
    for number in range(12):
        world.apply(("update", world.row(number, str(number))))
    table = world.delta
    table.create_checkpoint()
    for commit in sorted(Path(table.table_uri.removeprefix("file://"), "_delta_log").glob("*.json"))[:-1]:
        commit.unlink()
    again = one(Delta(world.spark, Path(world.table.location).parent.parent).bind("shop"), world.schema)
    applied = again.applied(1)
    assert applied is not None
    assert applied.number == 12
    assert world.content() == dict.fromkeys(range(30), "0") | {n: str(n) for n in range(12)}


def test_a_sync_reads_few_entries_of_the_log_because_commits_by_files_leave_checkpoints(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """deltalake reads all entries since the last checkpoint for it, each in a thread of its own."""
    assert delta_store._CHECKPOINT_VERSIONS <= 20
    monkeypatch.setattr(delta_store, "_CHECKPOINT_VERSIONS", 4)
    restores = list[int]()
    monkeypatch.setattr(delta_store, "newest_restore", lambda _path, version: restores.append(version))
    for number in range(9):
        world.apply(("update", world.row(number, str(number + 1))))
    log = Path(world.table.location, "_delta_log")
    newest = max(int(path.name[:20]) for path in log.glob("*.json"))
    checkpoints = [int(path.name[:20]) for path in log.glob("*.checkpoint.parquet")]
    assert newest - max(checkpoints) < 4
    assert newest not in restores  # a commit of our own restores nothing, with a checkpoint behind it or without
    assert not set(checkpoints) & set(restores)
    assert world.content() == dict.fromkeys(range(30), "0") | {n: str(n + 1) for n in range(9)}


def test_a_large_checkpoint_is_made_more_rarely_and_one_that_fails_leaves_the_commit(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A checkpoint has every file that was removed within a week: a table that changes all the time has many."""
    monkeypatch.setattr(delta_store, "_CHECKPOINT_VERSIONS", 1)
    log = Path(world.table.location, "_delta_log")

    def checkpoints() -> int:
        return len(list(log.glob("*.checkpoint.parquet")))

    for number in range(2):
        world.apply(("update", world.row(number, "1")))
    assert checkpoints() == 2
    monkeypatch.setattr(delta_store, "_LARGE_CHECKPOINT", 1)
    world.apply(("update", world.row(2, "1")))
    assert checkpoints() == 2

    def refuse(_: DeltaTable) -> None:  # in place of a full disk
        raise OSError("no space left on device")

    monkeypatch.setattr(delta_store, "_LARGE_CHECKPOINT", 5_000)
    monkeypatch.setattr(DeltaTable, "create_checkpoint", refuse)
    world.apply(("update", world.row(3, "1")))
    assert "takes longer to read: no space left on device" in caplog.text
    assert world.content() == dict.fromkeys(range(30), "0") | dict.fromkeys(range(4), "1")


def test_versions_of_rows_are_exchanged_file_by_file_too(spark: SparkSession, tmp_path: Path) -> None:
    world = World(spark, tmp_path, Temporal())
    before = world.files
    world.apply(("update", world.row(12, "1")), ("update", world.row(13, "0")))
    world.apply(("delete", {"id": 12}), ("insert", world.row(14, "2")))
    assert len(before & world.files) == 2
    assert "MERGE" not in world.operations()
    rows = world.delta.to_pyarrow_table().to_pylist()
    current = {row["id"]: row["v"] for row in rows if row["is_current"]}
    expected = dict.fromkeys(range(30), "0") | {14: "2"}
    del expected[12]
    assert current == expected
    closed = sorted((row["id"], row["v"]) for row in rows if not row["is_current"])
    assert closed == [(12, "0"), (12, "1"), (14, "0")]


@pytest.mark.parametrize(
    "settings",
    [{"delta.enableChangeDataFeed": "true"}, {"delta.enableDeletionVectors": "true"}, {"delta.appendOnly": "true"}],
)
def test_a_table_with_more_than_files_is_left_to_spark(settings: dict[str, str], tmp_path: Path) -> None:
    rows = pa.table({"id": [1], "part": [1]})
    write_deltalake(tmp_path / "plain", rows)
    write_deltalake(tmp_path / "more", rows, configuration=settings)
    write_deltalake(tmp_path / "parts", rows, partition_by=["part"])
    assert features_of(DeltaTable(tmp_path / "plain")).takes_files
    assert not features_of(DeltaTable(tmp_path / "more")).takes_files
    assert not features_of(DeltaTable(tmp_path / "parts")).takes_files


def test_on_a_disk_commits_leave_files_and_neither_directories_nor_checksums(world: World) -> None:
    world.apply(("update", world.row(1, "new")), ("insert", world.row(40, "new")))
    left = {path.name for path in Path(world.table.location).iterdir()} - {"_delta_log"}
    assert world.files <= left
    assert all(name.endswith(".parquet") for name in left)
