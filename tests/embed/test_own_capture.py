"""A capture of one's own, with Custom positions and little more than ``live``: in a runtime and in a pipeline."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pyarrow as pa
import pytest

from lakefeed import Pipeline
from lakefeed.capture.base import ChangeCapture, SnapshotPlan
from lakefeed.change.change_set import ChangeSet
from lakefeed.change.position import Custom, Position
from lakefeed.change.table import TableId, TableSchema
from lakefeed.embed.options import IncrementalSnapshot, RuntimeOptions
from lakefeed.embed.runtime import Runtime
from lakefeed.embed.store import FileCheckpointStore, MemoryCheckpointStore
from lakefeed.errors import SourceSetupError
from lakefeed.testing.builders import batch, table
from lakefeed.testing.memory_lake import MemoryLake
from lakefeed.testing.runtime_contract import ids, take_all

NOTES = table("main.notes", {"id": pa.int64(), "text": pa.string()}, key=("id",))
NOW = RuntimeOptions(wait_seconds=0)


class Ledger(ChangeCapture):
    """A file with one transaction per line: a JSON list of [operation, row]. The position is the number of lines."""

    kind = "ledger"

    def __init__(self, path: Path) -> None:
        self.path = path

    def lines(self) -> list[str]:
        return self.path.read_text().splitlines()

    def live(self, after: Position | None, *, wait_seconds: float = 1.0) -> Iterator[ChangeSet]:
        done = int(after.text()) if after is not None else 0
        while True:
            if len(self.lines()) == done:
                time.sleep(wait_seconds)
                yield ChangeSet(Custom(str(done)), Custom(str(done)))
            for line in self.lines()[done:]:
                start, done = done, done + 1
                changes = batch(NOTES, json.loads(line), position=Custom(str(done)))
                yield ChangeSet(Custom(str(start)), Custom(str(done)), (changes,), changes.rows)


class CopiedLedger(Ledger):
    """The same with tables that can be copied, which a pipeline needs."""

    capabilities = replace(ChangeCapture.capabilities, snapshot_resume=True)

    def bind(self, pipeline: str) -> CopiedLedger:
        return self

    def discover(self) -> tuple[TableSchema, ...]:
        return (NOTES,)

    def prepare(self, tables: Sequence[TableId]) -> Position:
        return Custom(str(len(self.lines())))

    def snapshot(self, table: TableId, *, chunk_rows: int = 250_000) -> SnapshotPlan:
        if table != NOTES.table:
            raise SourceSetupError(f"there is no table {table}")
        keys = sorted(self.rows())
        starts = keys[::chunk_rows] or [0]
        ends = [*starts[1:], 1 << 62]
        chunks = (LedgerChunk(self.path, low, high) for low, high in zip([-1, *starts[1:]], ends, strict=True))
        return SnapshotPlan(NOTES, tuple(chunks), len(keys))

    def chunk(self, data: Mapping[str, Any]) -> LedgerChunk:
        return LedgerChunk(Path(data["path"]), data["low"], data["high"])

    def rows(self) -> dict[int, dict[str, Any]]:
        found: dict[int, dict[str, Any]] = {}
        for operation, row in (change for line in self.lines() for change in json.loads(line)):
            found.pop(row["id"], None)
            if operation != "delete":
                found[row["id"]] = row
        return found


class ChangesAlone(Ledger):
    """It knows its tables and has no rows to copy: the whole log is there."""

    def bind(self, pipeline: str) -> ChangesAlone:
        return self

    def discover(self) -> tuple[TableSchema, ...]:
        return (NOTES,)

    def prepare(self, tables: Sequence[TableId]) -> Position:
        return Custom("0")


@dataclass(frozen=True)
class LedgerChunk:
    """The rows with low <= id < high."""

    path: Path
    low: int
    high: int
    table: TableId = NOTES.table

    def to_json(self) -> Mapping[str, Any]:
        return {"path": str(self.path), "low": self.low, "high": self.high}

    def open(self) -> LedgerRows:
        ledger = CopiedLedger(self.path)
        read_at = Custom(str(len(ledger.lines())))
        rows = [row for key, row in sorted(ledger.rows().items()) if self.low <= key < self.high]
        return LedgerRows(pa.RecordBatch.from_pylist(rows, schema=NOTES.arrow), read_at, read_at)


@dataclass(frozen=True)
class LedgerRows:
    rows: pa.RecordBatch
    low: Position
    high: Position

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        yield self.rows


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made = tmp_path / "ledger.jsonl"
    made.touch()
    return made


def write(path: Path, *changes: tuple[str, dict[str, Any]]) -> None:
    with path.open("a") as file:
        file.write(json.dumps(changes) + "\n")


def note(number: int, text: str = "x") -> tuple[str, dict[str, Any]]:
    return ("insert", {"id": number, "text": text})


def test_a_capture_with_nothing_but_live_starts_polls_commits_and_resumes(tmp_path: Path, path: Path) -> None:
    write(path, note(1), note(2))
    with FileCheckpointStore(tmp_path / "state") as store:
        runtime = Runtime(Ledger(path), store, key="k", options=NOW)
        runtime.start()
        assert take_all(runtime) == [1, 2]
        write(path, note(3))
        delivery = runtime.poll()
        assert delivery is not None
        assert ids(delivery.change_sets) == [3]
        assert ids(runtime.force_stop()) == [3]
        saved = store.load("k")
        assert saved is not None
        assert (saved.source_type, saved.decoded, saved.committed) == ("ledger", Custom("1"), 2)
    with FileCheckpointStore(tmp_path / "state") as store:
        again = Runtime(Ledger(path), store, key="k", options=NOW)
        again.start()
        assert take_all(again) == [3]
        again.stop()


def test_e03_by_default_a_snapshot_is_empty_and_the_stream_has_everything(tmp_path: Path, path: Path) -> None:
    write(path, note(1), note(2))
    options = replace(NOW, snapshot_tables=(NOTES.table,))
    runtime = Runtime(ChangesAlone(path), MemoryCheckpointStore(), key="k", options=options)
    runtime.start()
    first = runtime.poll()
    assert first is not None
    assert (first.rows, first.change_sets[0].schemas, runtime.handoff_complete) == (0, (NOTES,), False)
    runtime.commit(first.token)
    assert runtime.handoff_complete
    assert take_all(runtime) == [1, 2]
    with pytest.raises(SourceSetupError, match=r"has no table main\.nothing"):
        ChangesAlone(path).snapshot(TableId("main", "nothing"))
    lake = MemoryLake(str(tmp_path / "lake"))
    with Pipeline(ChangesAlone(path), lake, name="p") as pipeline:
        pipeline.sync_once()
        assert sorted(row["id"] for row in lake.rows("main.notes")) == [1, 2]


def test_a_lost_connection_before_the_first_change_does_no_harm(path: Path) -> None:
    class Failing(Ledger):
        failed = False

        def live(self, after: Position | None, *, wait_seconds: float = 1.0) -> Iterator[ChangeSet]:
            if not self.failed:
                self.failed = True
                raise SourceSetupError("gone for a moment")
            return super().live(after, wait_seconds=wait_seconds)

    runtime = Runtime(Failing(path), MemoryCheckpointStore(), key="k", options=NOW)
    runtime.start()
    with pytest.raises(SourceSetupError):
        runtime.poll()
    write(path, note(1))
    assert take_all(runtime) == [1]


@pytest.mark.parametrize("committed", [0, 1, 2, 3])
def test_a_snapshot_over_custom_positions_goes_on_where_it_was(path: Path, committed: int) -> None:
    write(path, *map(note, (1, 2, 3)))
    options = replace(NOW, snapshot_tables=(NOTES.table,), chunk_rows=1)
    store, first = MemoryCheckpointStore(), list[int]()
    runtime = Runtime(CopiedLedger(path), store, key="k", options=options)
    runtime.start()
    for _ in range(committed):
        delivery = runtime.poll()
        assert delivery is not None
        first += ids(delivery.change_sets)
        runtime.commit(delivery.token)
    runtime.force_stop()
    write(path, note(9))
    again = Runtime(CopiedLedger(path), store, key="k", options=options)
    again.start()
    taken = first + take_all(again)
    assert taken[:3] == [1, 2, 3]
    assert set(taken[3:]) == {9}


def test_chunks_beside_the_stream_over_custom_positions(path: Path) -> None:
    write(path, *map(note, range(5)))
    options = replace(NOW, incremental=IncrementalSnapshot(tables=(NOTES.table,)), chunk_rows=2, max_events=1)
    runtime = Runtime(CopiedLedger(path), MemoryCheckpointStore(), key="k", options=options)
    runtime.start()
    write(path, note(7))
    taken: list[int] = []
    while delivery := runtime.poll():
        taken += ids(delivery.change_sets)
        runtime.commit(delivery.token)
        if len(taken) == 2:
            write(path, note(8))
    assert set(taken) == {0, 1, 2, 3, 4, 7, 8}


def test_a_pipeline_follows_it(tmp_path: Path, path: Path) -> None:
    write(path, note(1, "one"), note(2, "two"))
    lake = MemoryLake(str(tmp_path / "lake"))
    with Pipeline(CopiedLedger(path), lake, name="p") as pipeline:
        pipeline.sync_once()
        write(path, ("update", {"id": 1, "text": "uno"}), ("delete", {"id": 2}), note(3, "three"))
        result = pipeline.sync_once()
        assert (result.counts.updated, result.counts.deleted, result.counts.inserted) == (1, 1, 1)
        assert {row["id"]: row["text"] for row in lake.rows("main.notes")} == {1: "uno", 3: "three"}
        (status,) = pipeline.status().tables.values()
        assert (status.state, status.error) == ("live", None)
    write(path, note(4, "four"))
    with Pipeline(CopiedLedger(path), lake, name="p") as pipeline:
        pipeline.sync_once()
        assert {row["id"] for row in lake.rows("main.notes")} == {1, 3, 4}
