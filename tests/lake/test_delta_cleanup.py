"""What maintenance removes from a Delta table and its directory, and above all what it does not."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from tests.lake.on_delta import read_delta

from lakefeed.change.table import TableSchema
from lakefeed.lake.base import LakeTable, TableCopy
from lakefeed.lake.delta import Delta
from lakefeed.lake.delta.maintenance import remove_stray_checksums, vacuum
from lakefeed.lake.maintenance import MaintenanceOptions
from lakefeed.testing.builders import at, batch, table
from lakefeed.testing.format_contract import one
from lakefeed.testing.scripted_log import ListChunk, ScriptedLog

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KEPT = 168.0
LONG_AGO_HOURS = 400


def age(path: Path, hours: float = LONG_AGO_HOURS) -> None:
    then = time.time() - hours * 3600
    os.utime(path, (then, then))


def put(root: Path, name: str, hours: float = LONG_AGO_HOURS) -> Path:
    """A file that no commit knows."""
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x")
    age(path, hours)
    return path


def data_files(root: Path) -> list[Path]:
    return sorted(root.glob("*.parquet"))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A table of three old files."""
    place = tmp_path / "lake" / "main" / "t"
    for number in range(3):
        write_deltalake(place, pa.table({"id": [number]}), mode="append")
    for path in data_files(place):
        age(path)
    return place


def test_an_old_file_that_no_commit_names_goes_and_a_young_one_stays(root: Path) -> None:
    orphan, young = put(root, "orphan.parquet"), put(root, "young.parquet", hours=1)
    lost = put(root, "lakefeed-0/_temporary/0/part.parquet")
    assert vacuum(DeltaTable(root), KEPT) == 2
    assert not orphan.exists()
    assert not lost.exists()
    assert young.exists(), "a write may be in flight"
    assert vacuum(DeltaTable(root), KEPT) == 0
    assert DeltaTable(root).to_pyarrow_table().num_rows == 3


def test_a_write_in_flight_stays_however_short_old_versions_are_kept(root: Path) -> None:
    flying, orphan = put(root, "flying.parquet", hours=20), put(root, "orphan.parquet", hours=30)
    vacuum(DeltaTable(root), 1)
    assert flying.exists()
    assert not orphan.exists()


def test_a_file_whose_removal_a_checkpoint_has_forgotten_goes(root: Path) -> None:
    forgotten = data_files(root)
    there = DeltaTable(root)
    there.alter.set_table_properties({"delta.deletedFileRetentionDuration": "interval 0 seconds"})
    there.optimize.compact()
    time.sleep(0.05)  # the checkpoint drops what was removed before its own millisecond
    there.create_checkpoint()
    assert DeltaTable(root).vacuum(retention_hours=0, enforce_retention_duration=False) == [], "the log knows them"
    assert vacuum(DeltaTable(root), KEPT) == 3
    assert not any(path.exists() for path in forgotten)
    assert DeltaTable(root).to_pyarrow_table().num_rows == 3


def test_a_file_that_was_removed_just_now_stays_however_old_it_is(root: Path) -> None:
    files = data_files(root)
    DeltaTable(root).optimize.compact()
    assert vacuum(DeltaTable(root), KEPT) == 0
    assert all(path.exists() for path in files)
    assert DeltaTable(root, version=2).to_pyarrow_table().num_rows == 3


def test_what_the_log_forgets_earlier_than_versions_are_kept_stays(root: Path) -> None:
    """Whether such a file was removed a year or eight days ago, nobody knows any more."""
    orphan = put(root, "orphan.parquet")
    assert vacuum(DeltaTable(root), KEPT + 1) == 0
    DeltaTable(root).alter.set_table_properties({"delta.deletedFileRetentionDuration": "interval 30 days"})
    assert vacuum(DeltaTable(root), KEPT + 1) == 1
    assert not orphan.exists()


def test_nothing_of_the_log_or_in_directories_of_others_goes(root: Path) -> None:
    others = [
        put(root, name) for name in ("_lakefeed/shop/state.json", "_mine/a.parquet", ".theirs/a.parquet", "_hidden")
    ]
    state = put(root.parent.parent, "_lakefeed/shop/decisions/main/t.json")
    entries = sorted(root.glob("_delta_log/*"))
    for path in entries:
        age(path)
    assert vacuum(DeltaTable(root), KEPT) == 0
    remove_stray_checksums(str(root))
    assert all(path.exists() for path in (*others, state, *entries))


def test_checksums_go_with_their_files_and_not_before(root: Path) -> None:
    own = data_files(root)[0]
    entry = sorted(root.glob("_delta_log/*.json"))[0]
    kept = [put(path.parent, f".{path.name}.crc") for path in (own, entry)]
    kept += [put(root, ".young.parquet.crc", hours=0.5), put(root, "_mine/.a.parquet.crc"), put(root, "a.crc")]
    names = (".a.parquet.crc", "_delta_log/.00000000000000000000.crc.crc", "part=1/.b.parquet.crc")
    stray = [put(root, name) for name in names]
    assert remove_stray_checksums(str(root)) == len(stray)
    assert all(path.exists() for path in kept)
    assert not any(path.exists() for path in stray)
    assert remove_stray_checksums("s3://bucket/table") == 0


def test_a_directory_of_a_write_that_was_not_finished_goes_when_it_is_empty(root: Path) -> None:
    put(root, "lakefeed-0/_temporary/0/.part.parquet.crc")
    put(root, "lakefeed-1/part.parquet")
    put(root, "lakefeed-2/_temporary/0/.part.parquet.crc")
    for name in ("lakefeed-0", "lakefeed-1"):
        age(root / name)
    remove_stray_checksums(str(root))
    assert [path.name for path in sorted(root.glob("lakefeed-*"))] == ["lakefeed-1", "lakefeed-2"]


@pytest.fixture
def masked(spark: SparkSession, tmp_path: Path) -> tuple[LakeTable, ScriptedLog, TableSchema]:
    """A table of ten rows with deletion vectors, of which change set 1 deletes one."""
    (tmp_path / "segments").mkdir()
    log = ScriptedLog(tmp_path / "segments")
    schema = log.schema_of(table("main.t", {"id": pa.int64(), "v": pa.string()}, key=("id",)))
    found = one(Delta(spark, tmp_path / "lake", deletion_vectors=True).bind("shop"), schema)
    chunk = ListChunk.of(schema, [{"id": n, "v": "0"} for n in range(10)], read_at=1, marks=tmp_path)
    found.load(TableCopy(schema=schema, generation=1, base=0, position=at(1), chunks=[chunk]), lambda _: None)
    log.add(batch(schema, [("delete", {"id": 3})]))
    found.apply(log.window(schema.table, 0, 1), 1)
    return found, log, schema


@pytest.mark.spark
def test_deletion_vectors_in_use_stay_and_strays_go_all_the_same(
    masked: tuple[LakeTable, ScriptedLog, TableSchema],
) -> None:
    found = masked[0]
    root = Path(found.location)
    vectors = list(root.glob("deletion_vector*.bin"))
    assert vectors, "the merge has masked no row"
    for path in [*vectors, *root.glob("*.parquet")]:
        age(path)
    orphan, old = put(root, "orphan.parquet"), put(root, "deletion_vector_61d16c75-6994-46b7-a15b-8b538852e50e.bin")
    young = put(root, "young.parquet", hours=1)
    found.maintain(MaintenanceOptions(), ("id",))
    assert all(path.exists() for path in (*vectors, young))
    assert not orphan.exists()
    assert not old.exists()
    assert sorted(row["id"] for row in read_delta(found.location)) == [0, 1, 2, *range(4, 10)]


@pytest.mark.spark
def test_a_file_whose_rows_were_marked_long_ago_stays(masked: tuple[LakeTable, ScriptedLog, TableSchema]) -> None:
    """The log says of it that it was removed, with other marks, and added: it is in use."""
    found = masked[0]
    root = Path(found.location)
    marked = [path for path in root.glob("_delta_log/*.json") if '"deletionVector"' in path.read_text()]
    assert marked, "the window has marked no row"
    for path in marked:
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        for removed in (line["remove"] for line in lines if "remove" in line):
            removed["deletionTimestamp"] = int((time.time() - LONG_AGO_HOURS * 3600) * 1000)
        path.write_text("\n".join(map(json.dumps, lines)))
    for path in root.glob("*.*"):
        age(path)
    assert vacuum(DeltaTable(root), KEPT) == 0
    found.maintain(MaintenanceOptions(), ("id",))
    assert sorted(row["id"] for row in read_delta(found.location)) == [0, 1, 2, *range(4, 10)]


@pytest.mark.spark
def test_checksums_of_a_merge_go_when_maintenance_removes_its_files(
    spark: SparkSession, masked: tuple[LakeTable, ScriptedLog, TableSchema]
) -> None:
    found = masked[0]
    root = Path(found.location)
    for value in "12":
        spark.sql(f"UPDATE delta.`{root}` SET v = '{value}' WHERE id >= 4")
    sides = list(root.glob(".*.crc"))
    assert sides, "Spark wrote no checksum files"
    for path in (*sides, *root.glob("*.*")):
        age(path)
    for path in root.glob("_delta_log/*.json"):  # as if the merge had been a month ago
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        for removed in (line["remove"] for line in lines if "remove" in line):
            removed["deletionTimestamp"] = int((time.time() - LONG_AGO_HOURS * 3600) * 1000)
        path.write_text("\n".join(map(json.dumps, lines)))
    for side in root.glob("_delta_log/.*.crc"):
        side.unlink()
    found.maintain(MaintenanceOptions(marked_share=1.0), ("id",))
    left = {path.name for path in root.glob(".*.crc")}
    assert left <= {f".{path.name}.crc" for path in root.iterdir()}
    assert len(left) < len(sides)
