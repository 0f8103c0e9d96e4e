"""Commits of files to a Delta table, by the store alone: no Spark, no JVM."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError as Refused

from lakefeed.change.table import TableSchema
from lakefeed.errors import CommitFailedError, LakeError
from lakefeed.lake.base import Applied, TableCopy, TableVersion
from lakefeed.lake.delta.store import DeltaOptions, DeltaStore
from lakefeed.lake.loader import DataFile, file_statistics
from lakefeed.lake.mode import CurrentRows, Mirror
from lakefeed.lake.route import Route
from lakefeed.lake.spark.error import ConcurrentModification
from lakefeed.lake.store import AppendRows, RewriteRows, Stamp
from lakefeed.testing.builders import at, table
from lakefeed.testing.scripted_log import ListChunk

SCHEMA: TableSchema = table("main.t", {"id": pa.int64(), "v": pa.string()}, key=("id",)).at_version(1)
UNUSED: Any = None  # a session, a frame: what would be Spark's


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DeltaStore:
    """A table of three rows. What Spark would write is a file with the row 7."""

    def write(store: DeltaStore, _: Any) -> list[DataFile]:
        root = Path(store.location)
        path = root / f"part-{len(list(root.glob('*.parquet')))}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table({"id": [7], "v": ["new"]}), path)
        footer: Any = pq.read_metadata(path)
        statistics = file_statistics(footer, footer.schema.to_arrow_schema())
        return [DataFile(path.name, 1, path.stat().st_size, statistics, 0)]

    monkeypatch.setattr(DeltaStore, "_write", write)
    made = other(tmp_path)
    chunk = ListChunk.of(SCHEMA, [{"id": n, "v": "0"} for n in range(3)], read_at=1, marks=tmp_path)
    copy = TableCopy(schema=SCHEMA, generation=1, base=0, position=at(1), chunks=[chunk])
    made.load(copy, Mirror(), lambda: UNUSED, lambda _: None)
    assert made.applied(1) == Applied(number=0, schema_version=1, rows=3)
    return made


def other(place: Path) -> DeltaStore:
    """The table as another process sees it."""
    return DeltaStore(str(place / "lake" / "main" / "t"), "shop", Route.same(SCHEMA.table), DeltaOptions())


def stamp(number: int, after: int | None = None) -> Stamp:
    sets = {"after": number - 1 if after is None else after, "upto": number}
    metadata = {"pipeline": "shop", "generation": 1, "change_sets": sets, "position": None, "schema_version": 1}
    return Stamp(generation=1, number=number, found=sets["after"], metadata=metadata)


def append(store: DeltaStore, number: int, after: int | None = None) -> Applied:
    return store.commit(UNUSED, AppendRows(UNUSED), stamp(number, after))


def keys(store: DeltaStore) -> list[int]:
    return sorted(row["id"] for row in DeltaTable(store.location).to_pyarrow_table().to_pylist())


def test_a_commit_of_files_reads_the_log_once_and_returns_what_it_then_records(
    store: DeltaStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    readings: list[str] = []
    for name in ("__init__", "update_incremental"):
        real = getattr(DeltaTable, name)

        def counted(*arguments: Any, _real: Any = real, _name: str = name, **named: Any) -> Any:
            readings.append(_name)
            return _real(*arguments, **named)

        monkeypatch.setattr(DeltaTable, name, counted)
    for number in (1, 2, 3):
        assert store.applied(1, fresh=False) == Applied(number=number - 1, schema_version=1, rows=2 + number)
        assert store.extent("id", None) is not None
        assert append(store, number) == Applied(number=number, schema_version=1, rows=3 + number)
    assert readings == ["update_incremental"] * 3
    assert keys(store) == [0, 1, 2, 7, 7, 7]


def test_b03_a_commit_on_what_is_no_longer_the_newest_version_is_a_conflict_and_then_planned_again(
    store: DeltaStore, tmp_path: Path
) -> None:
    second = other(tmp_path)
    assert second.applied(1) == store.applied(1)
    append(store, 1)
    with pytest.raises(ConcurrentModification):
        append(second, 1)
    assert second.applied(1) == Applied(number=1, schema_version=1, rows=4)
    assert append(second, 1) == Applied(number=1, schema_version=1, rows=4), "it is there already"
    with pytest.raises(CommitFailedError, match=r"another process has brought .* to change set 1"):
        append(second, 2, after=0)
    assert keys(store) == [0, 1, 2, 7]


def test_files_are_exchanged_only_on_the_version_that_named_them(store: DeltaStore) -> None:
    extent = store.extent("id", None)
    assert extent is not None
    assert extent.replaceable is not None
    append(store, 1)
    with pytest.raises(ConcurrentModification, match="version"):
        store.commit(UNUSED, RewriteRows(UNUSED, extent.replaceable), stamp(2))
    fresh = store.extent("id", None)
    assert fresh is not None
    assert fresh.replaceable is not None
    store.commit(UNUSED, RewriteRows(UNUSED, fresh.replaceable), stamp(2))
    assert keys(store) == [7]


def test_the_first_commit_of_a_copy_is_done_again_where_somebody_commits_beside_it(
    store: DeltaStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tried again by deltalake it left old rows beside new ones: 11 of 60 copies beside a compaction."""
    real, tries = DeltaTable.create_write_transaction, []

    def refused_once(self: DeltaTable, *arguments: Any, **named: Any) -> None:
        tries.append(named["commit_properties"].max_commit_retries)
        if len(tries) == 1:
            raise Refused("a compaction came first")
        real(self, *arguments, **named)

    monkeypatch.setattr(DeltaTable, "create_write_transaction", refused_once)
    chunk = ListChunk.of(SCHEMA, [{"id": 9, "v": "1"}], read_at=1, marks=tmp_path)
    copy = TableCopy(schema=SCHEMA, generation=2, base=0, position=at(1), chunks=[chunk])
    store.load(copy, Mirror(), lambda: UNUSED, lambda _: None)
    assert tries == [0, 0]
    assert keys(store) == [9]


def test_a_table_that_was_removed_gets_no_log_without_a_beginning(store: DeltaStore) -> None:
    shutil.rmtree(store.location)
    with pytest.raises(CommitFailedError, match="removed"):
        append(store, 1)
    assert store.applied(1) is None
    assert not Path(store.location, "_delta_log").exists()


@pytest.mark.parametrize(
    ("feature", "property_", "said"),
    [
        ("deletionVectors", {"delta.enableDeletionVectors": "false"}, "deletion vectors"),
        ("deletionVectors", {"delta.enableDeletionVectors": "TRUE"}, "deletion vectors"),
        ("columnMapping", {"delta.columnMapping.mode": "name"}, "column mapping"),
    ],
    ids=["deletion vectors that are off again", "deletion vectors in capitals", "column mapping"],
)
def test_files_that_do_not_have_the_tables_rows_copy_no_other_table(
    store: DeltaStore, feature: str, property_: dict[str, str], said: str
) -> None:
    """Deleted rows would come back, and renamed columns would be NULL."""
    entry = Path(store.location, "_delta_log", f"{0:020d}.json")
    lines = [json.loads(line) for line in entry.read_text().splitlines()]
    for line in lines:
        if "protocol" in line:
            line["protocol"] = {
                "minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": [feature], "writerFeatures": [feature],
            }  # fmt: skip
        if "metaData" in line:
            line["metaData"]["configuration"] |= property_
            columns = json.loads(line["metaData"]["schemaString"])
            for number, field in enumerate(columns["fields"], 1):
                mapped = {"delta.columnMapping.id": number, "delta.columnMapping.physicalName": f"c{number}"}
                field["metadata"] = mapped if feature == "columnMapping" else {}
            line["metaData"]["schemaString"] = json.dumps(columns)
    entry.write_text("\n".join(map(json.dumps, lines)))
    state = TableVersion(number=0, schema_version=1, position=None, version=0)
    with pytest.raises(LakeError, match=said):
        store.chunks(state, SCHEMA, CurrentRows())


def test_files_without_the_columns_of_their_partitions_copy_no_other_table(store: DeltaStore) -> None:
    """Those columns would be NULL in it."""
    column = SCHEMA.names[-1]
    entry = Path(store.location, "_delta_log", f"{0:020d}.json")
    lines = [json.loads(line) for line in entry.read_text().splitlines()]
    for line in lines:
        if "metaData" in line:
            line["metaData"]["partitionColumns"] = [column]
        if "add" in line:
            line["add"]["partitionValues"] = {column: "1"}
    entry.write_text("\n".join(map(json.dumps, lines)))
    state = TableVersion(number=0, schema_version=1, position=None, version=0)
    with pytest.raises(LakeError, match="partitions"):
        store.chunks(state, SCHEMA, CurrentRows())
