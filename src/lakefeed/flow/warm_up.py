"""Warm-up: does before the first changes what a fresh JVM does slowly the first time.

A first merge loads thousands of classes, and generates and compiles code: it takes ten times what a later one takes. So
a table of the lake's own format, in a temporary directory, gets a few changes in each mode that the pipeline's tables
have, by the very code that merges, while capture and copies work. Nothing of the pipeline's is touched. A merge that
comes meanwhile does not wait, and ends the warm-up: there is nothing left to win. Pipelines of one process share the
JVM, so that one of them warms it up for all.
"""

from __future__ import annotations

import logging
import tempfile
import threading
from collections.abc import Callable, Collection
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa

from lakefeed.change.batch import OP, SEQ, TIME, ChangeBatch, Operation, change_schema
from lakefeed.change.change_set import ChangeSet
from lakefeed.change.position import SqliteSequence
from lakefeed.change.table import Column, TableId, TableSchema
from lakefeed.journal.journal import Journal
from lakefeed.journal.options import JournalOptions
from lakefeed.lake.base import TableCopy, TableFormat
from lakefeed.lake.mode import Mode
from lakefeed.lake.route import Route

log = logging.getLogger(__name__)

_ROWS, _ROUNDS = 200, 6
_TABLE = TableId("lakefeed", "warm_up")
_SCHEMA = TableSchema(
    _TABLE,
    (
        Column("id", pa.int64(), nullable=False),
        Column("name", pa.string()),
        Column("amount", pa.decimal128(18, 4)),
        Column("score", pa.float64()),
        Column("at", pa.timestamp("us", tz="UTC")),
        Column("day", pa.date32()),
        Column("active", pa.bool_()),
    ),
    ("id",),
)

_begun: set[tuple[type[TableFormat], Mode]] = set()
_begun_lock = threading.Lock()


def warm_up(tables: TableFormat, modes: Collection[Mode], over: Callable[[], bool]) -> None:
    """Merge into a table of each mode in a temporary directory, until ``over``. An error of it is only logged.

    What another pipeline of this process has begun is left to it.
    """
    with _begun_lock:
        mine = [mode for mode in modes if (type(tables), mode) not in _begun]
        _begun.update((type(tables), mode) for mode in mine)
    try:
        with tempfile.TemporaryDirectory(prefix="lakefeed-warm-up-", ignore_cleanup_errors=True) as place:
            for number, mode in enumerate(mine):
                _merges(tables.scratch(f"{place}/lake{number}"), Path(place) / f"journal{number}", mode, over)
    except Exception as error:  # noqa: BLE001  # then the first merge is slow, nothing else
        log.info("the warm-up ended early: %s", error)


def _merges(tables: TableFormat, place: Path, mode: Mode, over: Callable[[], bool]) -> None:
    table = tables.table(Route.same(_TABLE, mode))
    with Journal.open(place, options=JournalOptions(fsync=False)) as journal:
        for number in range(_ROUNDS):
            if over():
                return
            end = SqliteSequence(number + 1)
            commit = journal.append(ChangeSet(journal.end, end, (_changes(number),), _ROWS))
            if number == 0:
                schema = journal.schema(_TABLE, commit.tables[_TABLE].schema_version)
                table.load(TableCopy(schema=schema, generation=1, base=0, position=None, chunks=()), lambda _: None)
            table.apply(journal.window(_TABLE, number, number + 1), 1)


def _changes(number: int) -> ChangeBatch:
    """Inserts at first, then updates, deletes and inserts all over the table."""
    ids = pa.array([number * 37 % _ROWS + index for index in range(_ROWS)], pa.int64())
    kinds = [Operation.INSERT] if number == 0 else [Operation.UPDATE, Operation.DELETE, Operation.INSERT]
    values: dict[str, pa.Array[Any]] = {
        "id": ids,
        "name": pa.array([f"name {index}" for index in range(_ROWS)]),
        OP: pa.array([int(kinds[index % len(kinds)]) for index in range(_ROWS)], pa.int8()),
        SEQ: pa.array(range(_ROWS), pa.int64()),
        TIME: pa.array([datetime.now(UTC)] * _ROWS, pa.timestamp("us", tz="UTC")),
    }
    layout = change_schema(_SCHEMA)
    arrays = [values.get(field.name, pa.nulls(_ROWS, field.type)) for field in layout]
    return ChangeBatch(_SCHEMA, pa.RecordBatch.from_arrays(arrays, schema=layout))
