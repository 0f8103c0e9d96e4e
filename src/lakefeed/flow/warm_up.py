"""Warm-up: does before the first changes what a fresh JVM does slowly the first time.

A first merge loads thousands of classes, and generates and compiles code: it takes ten times what a later one takes. So
tables of the lake's own format, in a temporary directory, get changes by the very code that merges, while capture and
copies work: first a table of each mode that the pipeline's tables have, again and again, because the JVM compiles what
it has run often; then one with the columns of each of the first few tables that are in the lake, because Spark
generates code for columns. Nothing of the pipeline's is touched. A merge that comes meanwhile does not wait, and ends
the warm-up: there is nothing left to win. Pipelines of one process share the JVM, so that one warms it up for all.
"""

from __future__ import annotations

import logging
import tempfile
import threading
from collections.abc import Callable, Collection
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa

from lakefeed.change.batch import OP, SEQ, TIME, ChangeBatch, Operation, change_schema
from lakefeed.change.change_set import ChangeSet
from lakefeed.change.position import SqliteSequence
from lakefeed.change.table import Column, TableId, TableSchema
from lakefeed.journal.journal import Journal
from lakefeed.journal.options import JournalOptions
from lakefeed.lake.base import LakeTable, TableCopy, TableFormat
from lakefeed.lake.mode import Mode
from lakefeed.lake.route import Route

log = logging.getLogger(__name__)

_ROWS = 200
_ROUNDS, _ROUNDS_OF_COLUMNS = 24, 3
_MOST_TABLES = 8
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

_begun: set[tuple[type[TableFormat], Mode, tuple[Column, ...]]] = set()
_begun_lock = threading.Lock()


def warm_up(
    tables: TableFormat,
    modes: Collection[Mode],
    over: Callable[[], bool],
    like: Collection[tuple[Mode, TableSchema]] = (),
) -> None:
    """Merge into tables in a temporary directory, until ``over``: one of each mode, then some ``like`` the pipeline's.

    An error of it is only logged. What another pipeline of this process has begun is left to it, and what did not come
    to its end is begun again by the next one.
    """
    some = [(mode, replace(one, table=_TABLE, version=0)) for mode, one in like if one.key][:_MOST_TABLES]
    wanted = [(mode, _SCHEMA, _ROUNDS) for mode in modes] + [(*one, _ROUNDS_OF_COLUMNS) for one in some]
    try:
        with tempfile.TemporaryDirectory(prefix="lakefeed-warm-up-", ignore_cleanup_errors=True) as place:
            for number, (mode, schema, rounds) in enumerate(wanted):
                known = (type(tables), mode, schema.columns)
                with _begun_lock:
                    if known in _begun:
                        continue
                    _begun.add(known)
                try:
                    scratch, journal = tables.scratch(f"{place}/lake{number}"), Path(place) / f"journal{number}"
                    ended = _merges(scratch.table(Route.same(_TABLE, mode)), journal, schema, rounds, over)
                except Exception as error:  # noqa: BLE001  # then a first merge is slow, nothing else
                    log.info("the warm-up of %s ended early: %s", ", ".join(schema.names), error)
                    continue
                if not ended:
                    with _begun_lock:
                        _begun.discard(known)
                    return
    except OSError as error:
        log.info("there is no warm-up, for want of a temporary directory: %s", error)


def _merges(table: LakeTable, place: Path, columns: TableSchema, rounds: int, over: Callable[[], bool]) -> bool:
    """Whether it came to its end."""
    with Journal.open(place, options=JournalOptions(fsync=False)) as journal:
        for number in range(rounds):
            if over():
                return False
            end = SqliteSequence(number + 1)
            commit = journal.append(ChangeSet(journal.end, end, (_changes(columns, number),), _ROWS))
            if number == 0:
                schema = journal.schema(_TABLE, commit.tables[_TABLE].schema_version)
                table.load(TableCopy(schema=schema, generation=1, base=0, position=None, chunks=()), lambda _: None)
            table.apply(journal.window(_TABLE, number, number + 1), 1)
    return True


def _changes(schema: TableSchema, number: int) -> ChangeBatch:
    """Inserts at first, then updates, deletes and inserts all over the table."""
    ids = pa.array([number * 37 % _ROWS + index for index in range(_ROWS)], pa.int32())
    kinds = [Operation.INSERT] if number == 0 else [Operation.UPDATE, Operation.DELETE, Operation.INSERT]
    values: dict[str, pa.Array[Any]] = {column.name: _values(ids, column.type) for column in schema.columns}
    values |= {
        OP: pa.array([int(kinds[index % len(kinds)]) for index in range(_ROWS)], pa.int8()),
        SEQ: pa.array(range(_ROWS), pa.int64()),
        TIME: pa.array([datetime.now(UTC)] * _ROWS, pa.timestamp("us", tz="UTC")),
    }
    layout = change_schema(schema)
    arrays = [values[field.name] if field.name in values else pa.nulls(_ROWS, field.type) for field in layout]
    return ChangeBatch(schema, pa.RecordBatch.from_arrays(arrays, schema=layout))


def _values(ids: pa.Array[Any], kind: pa.DataType) -> pa.Array[Any]:
    """The numbers as values of a type; of one that numbers cannot be, one value for all."""
    if pa.types.is_binary(kind):
        return ids.cast(pa.string()).cast(kind)
    if pa.types.is_list(kind):
        return pa.array([[]] * len(ids), kind)
    if pa.types.is_time(kind) or pa.types.is_timestamp(kind):
        return ids.cast(pa.int64()).cast(kind)
    if pa.types.is_decimal(kind):  # as many digits as fit
        digits = max(0, kind.precision - kind.scale)
        return pa.array([Decimal(one.as_py() % 10**digits) for one in ids], kind)
    return ids.cast(kind, safe=False)
