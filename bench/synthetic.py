"""A made-up table of any size and changes to it, straight into a lake: no database, so only the lake is measured."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bench.pipeline import lake_of
from lakefeed.change.batch import ABSENT, OP, POSITION, SEQ, TIME, TXN, ChangeBatch, Operation, change_schema
from lakefeed.change.position import Position
from lakefeed.change.table import Column, TableId, TableSchema
from lakefeed.lake.base import LakeTable, TableCopy
from lakefeed.lake.mode import Mode
from lakefeed.testing.builders import at
from lakefeed.testing.scripted_log import ScriptedLog

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ID = TableId("main", "account")
SCHEMA = TableSchema(
    ID,
    (
        Column("id", pa.int64(), nullable=False),
        Column("name", pa.string()),
        Column("balance", pa.float64()),
        Column("score", pa.int64()),
        Column("note", pa.string()),
        Column("seen", pa.timestamp("us", tz="UTC")),
    ),
    key=("id",),
)
Keys = Literal["random", "recent"]
_CHUNK_ROWS = 250_000
_MICROSECONDS = 1_700_000_000_000_000


def rows_of(ids: np.ndarray[Any, np.dtype[np.int64]], salt: int) -> list[pa.Array[Any]]:
    """The columns of rows with these keys; ``salt`` makes their other values different."""
    mixed = (ids * 2654435761 + salt * 97) % 1_000_003
    return [
        pa.array(ids),
        _numbered("customer ", mixed),
        pa.array(mixed / 7.0),
        pa.array(mixed),
        _numbered("note of some length, number ", mixed % 5_000),
        pa.array(_MICROSECONDS + mixed).cast(pa.timestamp("us", tz="UTC")),
    ]


def _numbered(text: str, numbers: np.ndarray[Any, np.dtype[np.int64]]) -> pa.Array[Any]:
    joined: pa.Array[Any] = pc.binary_join_element_wise(text, pa.array(numbers).cast(pa.string()), "")
    return joined


@dataclass(frozen=True, slots=True)
class RangeChunk:
    """Rows with keys in [start, stop). Its own reader."""

    start: int
    stop: int

    @property
    def table(self) -> TableId:
        return ID

    @property
    def high(self) -> Position:
        return at(1)

    @contextmanager
    def open(self) -> Iterator[Self]:
        yield self

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        for start in range(self.start, self.stop, 50_000):
            ids = np.arange(start, min(start + 50_000, self.stop), dtype=np.int64)
            yield pa.RecordBatch.from_arrays(rows_of(ids, 0), schema=SCHEMA.arrow)


class Changing:
    """One lake table of ``rows`` rows, and batches of changes that follow each other."""

    def __init__(self, spark: SparkSession, place: Path, fmt: str, mode: Mode, rows: int) -> None:
        (place / "segments").mkdir(parents=True)
        self.log = ScriptedLog(place / "segments")
        self.schema = self.log.schema_of(SCHEMA)
        tables = lake_of(spark, fmt, place / "lake", mode).bind("bench")
        self.table: LakeTable = tables.table(tables.routes(ID)[0])
        self.rows = rows
        self._next, self._random, self._batches = rows, np.random.default_rng(7), 0
        chunks = [RangeChunk(start, min(start + _CHUNK_ROWS, rows)) for start in range(0, rows, _CHUNK_ROWS)]
        seed = TableCopy(schema=self.schema, generation=1, base=0, position=at(1), chunks=chunks)
        self.table.load(seed, lambda _: None)

    def batch(self, changes: int, keys: Keys, *, inserts_only: bool = False) -> ChangeBatch:
        """60 % updates, 30 % inserts of new keys, 10 % deletes; each key once. Recent keys are the newest ones."""
        inserts = changes if inserts_only else changes * 3 // 10
        low = max(0, self._next - 3 * changes) if keys == "recent" else 0
        old = low + self._random.choice(self._next - low, changes - inserts, replace=False).astype(np.int64)
        new = np.arange(self._next, self._next + inserts, dtype=np.int64)
        self._next += inserts
        self._batches += 1
        deletes = 0 if inserts_only else changes // 10
        updates = len(old) - deletes
        kinds = np.repeat(
            np.array([Operation.UPDATE, Operation.DELETE, Operation.INSERT], np.int8), [updates, deletes, inserts]
        )
        order = self._random.permutation(changes)
        columns = [column.take(order) for column in rows_of(np.concatenate([old, new]), self._batches)]
        return ChangeBatch(self.schema, _batch(self.schema, columns, kinds[order]))

    def add(self, changes: int, keys: Keys = "random", *, inserts_only: bool = False) -> int:
        return self.log.add(self.batch(changes, keys, inserts_only=inserts_only))

    def apply(self) -> float:
        """Bring the table to the end of the log. Returns the seconds."""
        applied = self.table.applied(1)
        assert applied is not None
        window = self.log.window(ID, applied.number, self.log.head)
        started = time.perf_counter()
        self.table.apply(window, 1)
        return time.perf_counter() - started


def _batch(schema: TableSchema, columns: list[pa.Array[Any]], kinds: Any) -> pa.RecordBatch:
    count = len(kinds)
    text = pa.dictionary(pa.int32(), pa.string())
    metadata: dict[str, Any] = {
        OP: pa.array(kinds),
        SEQ: pa.array(np.arange(count, dtype=np.int64)),
        POSITION: pa.nulls(count, text),
        TIME: pa.array(np.full(count, time.time_ns() // 1_000)).cast(pa.timestamp("us", tz="UTC")),
        TXN: pa.nulls(count, text),
        ABSENT: pa.nulls(count, pa.list_(pa.string())),
    }
    return pa.RecordBatch.from_arrays([*columns, *metadata.values()], schema=change_schema(schema))
