# ruff: noqa: S608 (names in SQL are quoted by database.quoted; values are bound)
"""Reading the change log: from rows of the log table to Arrow batches, column by column."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakefeed.capture.sqlite.captured import Captured
from lakefeed.capture.sqlite.database import Database
from lakefeed.capture.sqlite.fetch import Portion, portions
from lakefeed.capture.sqlite.file import OpenedFile
from lakefeed.capture.sqlite.names import Names
from lakefeed.capture.sqlite.values import MismatchError, misfit, to_arrow
from lakefeed.change.batch import ABSENT, METADATA, TIME, TXN, ChangeBatch, Operation, change_schema
from lakefeed.change.position import SqliteSequence
from lakefeed.errors import DecodeError

WINDOW_ROWS = 50_000
"""Rows of the log that are read at once at most, in a short read transaction: writers without WAL wait no longer."""
_FEW_TABLES = 2
_DELIVERED = (Operation.INSERT, Operation.UPDATE, Operation.DELETE, Operation.BEFORE)
_ROWS = f"op IN ({', '.join(str(int(operation)) for operation in _DELIVERED)})"
_READ_TYPES = (pa.int64(), pa.int8(), pa.int64())  # seq, op, ts
_META = {field.name: field.type for field in METADATA}


@dataclass(frozen=True, slots=True)
class Inspection:
    """What is in a range of the log for one table, found before anything is delivered."""

    captured: Captured
    rows: int
    mixed: frozenset[str]
    null_key: bool


@dataclass(frozen=True, slots=True)
class LogRange:
    """The changes in (start, end] as batches: one for each table and window, or more where values are large.

    ``file`` is the one that the range was found in. Rows of the log up to a head that was once read never change, so
    the range can be read lazily and again, each time on a connection of its own and from any thread, until ``end`` is
    confirmed.
    """

    database: Database
    file: OpenedFile
    names: Names
    start: int
    end: SqliteSequence
    tables: tuple[Captured, ...]

    def __iter__(self) -> Iterator[ChangeBatch]:
        connection = self.database.connect("ro")
        try:
            self.file.require()
            for low in range(self.start, self.end.sequence, WINDOW_ROWS):
                high = min(low + WINDOW_ROWS, self.end.sequence)
                for captured in self._tables(connection, low, high):
                    yield from self._table(connection, captured, low, high)
        finally:
            connection.close()

    def _tables(self, connection: sqlite3.Connection, low: int, high: int) -> tuple[Captured, ...]:
        if len(self.tables) <= _FEW_TABLES:
            return self.tables
        with self.database.errors():  # worth a look first, instead of a scan for each
            present = _present(connection, self.names, low, high)
        return tuple(one for one in self.tables if one.number in present)

    def _table(self, connection: sqlite3.Connection, captured: Captured, low: int, high: int) -> Iterator[ChangeBatch]:
        """Each batch is a query of its own: none is open while the caller works, so writers without WAL go on."""
        while low < high:
            with self.database.errors():
                portion = self._read(connection, captured, low, high)
            if portion is None:
                return
            yield self._batch(captured, portion.columns)
            low = high if portion.is_last else portion.columns[0][-1]

    def _read(self, connection: sqlite3.Connection, captured: Captured, low: int, high: int) -> Portion | None:
        """The first of the table's rows in (low, high]."""
        slots = ", ".join(f"c{slot}" for slot in captured.slots)
        query = (
            f"SELECT seq, op, ts, {slots} FROM {self.names.log}"
            f" WHERE seq > ? AND seq <= ? AND tab = {captured.number} AND {_ROWS} ORDER BY seq"
        )
        kinds = [*_READ_TYPES, *(column.type for column in captured.schema.columns)]
        with closing(portions(connection, query, (low, high), kinds)) as found:
            return next(found, None)

    def _batch(self, captured: Captured, columns: list[list[Any]]) -> ChangeBatch:
        sequence, operation, stamp, *values = columns
        count = len(sequence)
        own = []
        for column, data in zip(captured.schema.columns, values, strict=True):
            try:
                own.append(to_arrow(data, column.type))
            except MismatchError as error:
                raise DecodeError(f"{captured.table}.{column.name} holds a value that is not {column.type}") from error
        milliseconds = pa.array(stamp, pa.int64())
        meta = [
            pa.array(operation, pa.int8()),
            pc.subtract(pa.array(sequence, pa.int64()), self.start + 1),
            pa.DictionaryArray.from_arrays(np.zeros(count, dtype=np.int32), pa.array([self.end.encode()])),
            pc.multiply(milliseconds, 1000).cast(_META[TIME]),
            pa.nulls(count, _META[TXN]),
            pa.nulls(count, _META[ABSENT]),
        ]
        schema = change_schema(captured.schema)
        return ChangeBatch(captured.schema, pa.RecordBatch.from_arrays([*own, *meta], schema=schema))


def inspect(
    connection: sqlite3.Connection, names: Names, tables: tuple[Captured, ...], after: int, upto: int
) -> list[Inspection]:
    """Look through (after, upto] of the log: which tables, how many rows, which values do not fit their columns."""
    present = _present(connection, names, after, upto)
    return [_inspect(connection, names, one, after, upto) for one in tables if one.number in present]


def _present(connection: sqlite3.Connection, names: Names, low: int, high: int) -> set[int]:
    query = f"SELECT DISTINCT tab FROM {names.log} WHERE seq > ? AND seq <= ? AND {_ROWS}"
    return {number for (number,) in connection.execute(query, (low, high))}


def _inspect(connection: sqlite3.Connection, names: Names, captured: Captured, after: int, upto: int) -> Inspection:
    tests = {
        column.name: test
        for column, slot in zip(captured.schema.columns, captured.slots, strict=True)
        if (test := misfit(column.type, f"c{slot}")) is not None
    }
    null_key = " OR ".join(f"c{slot} IS NULL" for slot in captured.key_slots)
    listed = ", ".join(["count(*)", f"max({null_key})", *(f"max({test})" for test in tests.values())])
    rows, null, *found = connection.execute(
        f"SELECT {listed} FROM {names.log} WHERE seq > ? AND seq <= ? AND tab = {captured.number} AND {_ROWS}",
        (after, upto),
    ).fetchone()
    mixed = frozenset(name for name, wrong in zip(tests, found, strict=True) if wrong)
    return Inspection(captured, rows, mixed, bool(null))
