"""Buckets: the rows of one side of a comparison, distributed by a hash of their key, so that parts can be compared.

Equal rows are in the same bucket on both sides, so comparing all buckets compares the tables. Memory is bounded by the
largest bucket, not by the table; the other rows are in compressed temporary files.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

BUCKET_ROWS = 100_000
MOST_BUCKETS = 256
"""While one side is read, each bucket keeps a file open."""

_ODD = np.uint64(0x9E3779B97F4A7C15)  # 2^64 divided by the golden ratio: scatters neighbouring numbers


def buckets_for(rows: int | None) -> int:
    """The number of buckets for about this many rows; one means that everything stays in memory."""
    if rows is None:
        return MOST_BUCKETS
    return min(MOST_BUCKETS, 1 + rows // BUCKET_ROWS)


class Buckets:
    """``add`` everything, ``close``, then read each ``table``. The hash is over the columns ``key``."""

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
            return
        if batch.num_rows == 0:
            return
        numbers = bucket_numbers(batch, self._key, self._count)
        order = np.argsort(numbers, kind="stable")
        ordered = batch.take(pa.array(order, pa.int64()))
        found, starts = np.unique(numbers[order], return_index=True)
        for number, start, end in zip(map(int, found), starts, [*starts[1:], batch.num_rows], strict=True):
            if number not in self._writers:
                options = pa.ipc.IpcWriteOptions(compression="lz4")
                self._writers[number] = pa.ipc.new_stream(str(self._file(number)), self.schema, options=options)
            self._writers[number].write_batch(ordered.slice(int(start), int(end - start)))

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

    def _file(self, number: int) -> Path:
        return self._directory / f"{number}.arrow"


def bucket_numbers(batch: pa.RecordBatch, key: Sequence[str], count: int) -> Any:
    """The bucket of each row. Depends only on the values of ``key``, never on the process or the batch.

    NULL hashes to 0. Lists are not hashed: other columns must distinguish rows.
    """
    mixed = np.zeros(batch.num_rows, dtype=np.uint64)
    for name in key:
        column: Any = batch.column(name)
        kind = column.type
        if pa.types.is_nested(kind):
            hashes: Any = np.zeros(len(column), dtype=np.uint64)
        elif pa.types.is_integer(kind) or pa.types.is_temporal(kind) or pa.types.is_boolean(kind):
            if not pa.types.is_integer(kind):
                column = column.cast({1: pa.int8(), 32: pa.int32()}.get(kind.bit_width, pa.int64()))
            hashes = column.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64).view(np.uint64)
        else:
            values = column if pa.types.is_binary(kind) else column.cast(pa.string()).cast(pa.binary())
            sums = (zlib.crc32(value) if value is not None else 0 for value in values.to_pylist())
            hashes = np.fromiter(sums, dtype=np.uint64, count=len(column))
        mixed = (mixed ^ hashes) * _ODD
    return (mixed >> np.uint64(32)) % np.uint64(count)
