"""Journals to read from: small, real, written by the journal itself."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from lakefeed.change.table import TableSchema
from lakefeed.journal.journal import Journal
from lakefeed.journal.options import JournalOptions
from lakefeed.testing.builders import Row, batch, change_set, table

PEOPLE = table("main.people", {"id": pa.int64(), "name": pa.string()}, key=("id",))
PETS = table("main.pets", {"id": pa.int64()}, key=("id",))


def opened(root: Path, *, keep: int = 256) -> Journal:
    return Journal.open(root, options=JournalOptions(fsync=False, keep_seconds=0, keep_change_sets=keep))


def add(journal: Journal, *rows: Row, schema: TableSchema = PEOPLE, **more: Any) -> int:
    """One change set with rows of one table. Returns its number."""
    following = journal.head + 1
    part = [batch(schema, rows, position=following, **more)] if rows else []
    return journal.append(change_set(following - 1 or None, following, *part)).number


def add_people(journal: Journal, ids: Sequence[int]) -> None:
    """One change set for each."""
    for one in ids:
        add(journal, ("insert", {"id": one, "name": f"n{one}"}))


def rows_of(journal: Journal, schema: TableSchema = PEOPLE) -> list[dict[str, Any]]:
    """What a read must give, by the journal itself and row by row."""
    names = {1: "insert", 2: "update", 3: "delete", 4: "truncate", 5: "read"}
    return [
        {**row, "_lakefeed_op": names[row["_lakefeed_op"]], "_lakefeed_change_set": commit.number}
        for commit in journal.commits()
        if schema.table in commit.tables
        for segment in commit.tables[schema.table].segments
        for row in pq.ParquetFile(segment.path).read().to_pylist()
    ]
