"""Buckets: the rows of one side of a comparison, spread by a hash of their key, so that a part at a time is compared.

Equal rows are in buckets of the same number on both sides, so that comparing bucket by bucket is comparing the tables.
Memory follows the largest bucket and not the table; meanwhile the rows lie in compressed temporary files.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

BUCKET_ROWS = 100_000
MOST_BUCKETS = 256
"""A file stays open for each while one side is read."""

_ODD = np.uint64(0x9E3779B97F4A7C15)  # 2^64 divided by the golden ratio: neighbouring numbers end far apart


def buckets_for(rows: int | None) -> int:
    """How many for a table of about so many rows; one means that everything stays in memory."""
    if rows is None:
        return MOST_BUCKETS
    return min(MOST_BUCKETS, 1 + rows // BUCKET_ROWS)


class Buckets:
    """``add`` everything, ``close``, then ask for each ``table``. ``key`` are the columns that the hash is of."""

    def __init__(self, directory: Path, count: int, key: Sequence[str], schema: pa.Schema) -> None:
        self._directory = directory
        self._count = count
        self._key = tuple(key)
        self.schema = schema
        self._writers: dict[int, Any] = {}
        self._kept: list[pa.RecordBatch] = []
        self.rows = 0
        directory.mkdir()

    def add(self, batch: pa.RecordBatch) -> None:
        self.rows += batch.num_rows
        if self._count == 1:
            self._kept.append(batch)
        elif batch.num_rows:
            for number, part in _spread(batch, self._key, self._count):
                self._writer(number).write_batch(part)

    def close(self) -> None:
        for writer in self._writers.values():
            writer.close()

    def table(self, number: int) -> pa.Table:
        if self._count == 1:
            return pa.Table.from_batches(self._kept, self.schema)
        if number not in self._writers:
            return self.schema.empty_table()
        with pa.OSFile(str(self._file(number)), "rb") as file, pa.ipc.open_stream(file) as reader:
            return reader.read_all()

    def _writer(self, number: int) -> Any:
        if number not in self._writers:
            options = pa.ipc.IpcWriteOptions(compression="lz4")
            self._writers[number] = pa.ipc.new_stream(str(self._file(number)), self.schema, options=options)
        return self._writers[number]

    def _file(self, number: int) -> Path:
        return self._directory / f"{number}.arrow"


def _spread(batch: pa.RecordBatch, key: Sequence[str], count: int) -> Iterator[tuple[int, pa.RecordBatch]]:
    numbers = bucket_numbers(batch, key, count)
    order = np.argsort(numbers, kind="stable")
    ordered = batch.take(pa.array(order, pa.int64()))
    found, starts = np.unique(numbers[order], return_index=True)
    ends = [*starts[1:], batch.num_rows]
    for number, start, end in zip(found, starts, ends, strict=True):
        yield int(number), ordered.slice(int(start), int(end - start))


def bucket_numbers(batch: pa.RecordBatch, key: Sequence[str], count: int) -> Any:
    """The bucket of each row. Depends on the values of ``key`` alone, never on the process or the batch."""
    mixed = np.zeros(batch.num_rows, dtype=np.uint64)
    for name in key:
        mixed = (mixed ^ _hashes(batch.column(name))) * _ODD
    return (mixed >> np.uint64(32)) % np.uint64(count)


def _hashes(column: Any) -> Any:
    """A number for each value; NULL is 0. Lists have no hash here: other columns must tell rows apart."""
    kind = column.type
    if pa.types.is_nested(kind):
        return np.zeros(len(column), dtype=np.uint64)
    if pa.types.is_integer(kind) or pa.types.is_temporal(kind) or pa.types.is_boolean(kind):
        numbers = _as_integers(column).fill_null(0).to_numpy(zero_copy_only=False)
        return numbers.astype(np.int64).view(np.uint64)
    values = column if pa.types.is_binary(kind) else column.cast(pa.string()).cast(pa.binary())
    sums = (zlib.crc32(value) if value is not None else 0 for value in values.to_pylist())
    return np.fromiter(sums, dtype=np.uint64, count=len(column))


def _as_integers(column: Any) -> Any:
    kind = column.type
    if pa.types.is_boolean(kind):
        return column.cast(pa.int8())
    if pa.types.is_temporal(kind):
        return column.cast(pa.int32() if kind.bit_width == 32 else pa.int64())
    return column
