"""The files of a snapshot: a dictionary where values repeat, none where it would only cost."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any, Self

import pyarrow as pa
import pyarrow.parquet as pq

from lakefeed.change.lsn import PostgresLsn
from lakefeed.lake.loader import write_chunk


class Chunk:
    """Rows in memory as a chunk."""

    low = high = PostgresLsn(1)

    def __init__(self, rows: pa.RecordBatch) -> None:
        self._rows = rows

    def open(self) -> Any:
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def __iter__(self) -> Any:
        return iter([self._rows])


def test_only_columns_whose_values_repeat_get_a_dictionary(tmp_path: Path) -> None:
    source = random.Random(1)
    count = 20_000
    rows = pa.record_batch(
        {
            "id": pa.array(range(count), pa.int64()),
            "state": pa.array([source.choice(("new", "paid", None)) for _ in range(count)], pa.string()),
            "token": pa.array([str(source.getrandbits(64)) for _ in range(count)], pa.string()),
            "empty": pa.nulls(count, pa.string()),
        }
    )
    chunk: Any = Chunk(rows)
    written = write_chunk(chunk, str(tmp_path), rows.schema)
    assert written.file is not None
    footer: Any = pq.read_metadata(tmp_path / written.file.name)
    has_dictionary = {
        footer.row_group(0).column(place).path_in_schema: footer.row_group(0).column(place).has_dictionary_page
        for place in range(footer.num_columns)
    }
    assert has_dictionary == {"id": False, "state": True, "token": False, "empty": True}
    assert pq.read_table(tmp_path / written.file.name).to_batches()[0].equals(rows)
