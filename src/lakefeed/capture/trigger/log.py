# ruff: noqa: S608 (names in SQL are quoted by database.quoted; values are bound)
"""Reading the change log: from rows of the log table to Arrow batches, column by column."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakefeed.capture.trigger.captured import Captured
from lakefeed.capture.trigger.database import Database, Row
from lakefeed.capture.trigger.names import Names
from lakefeed.capture.trigger.values import MismatchError, lenient_text, misfit, to_arrow
from lakefeed.change.batch import ABSENT, METADATA, TIME, TXN, ChangeBatch, Operation, change_schema
from lakefeed.change.position import SqliteSequence
from lakefeed.errors import DecodeError

WINDOW_ROWS = 50_000
"""Rows of the log that are read at once, in one short read transaction: writers without WAL wait for no longer."""
_FEW_TABLES = 2
_WINDOW_BYTES = 64 * 1024 * 1024
_DELIVERED = (Operation.INSERT, Operation.UPDATE, Operation.DELETE, Operation.BEFORE)
_ROWS = f"op IN ({', '.join(str(int(operation)) for operation in _DELIVERED)})"
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
    """The changes in (start, end] as batches: one for each table and window.

    Rows of the log up to a head that was once read never change, so the range can be read lazily and again, each time
    on a connection of its own and from any thread, until ``end`` is confirmed.
    """

    database: Database
    names: Names
    start: int
    end: SqliteSequence
    tables: tuple[Captured, ...]

    def __iter__(self) -> Iterator[ChangeBatch]:
        connection = self.database.connect("ro")
        try:
            rows, low = WINDOW_ROWS, self.start
            while low < self.end.sequence:
                high = min(low + rows, self.end.sequence)
                with self.database.errors():
                    batches = self._window(connection, low, high)
                yield from batches
                size = sum(batch.bytes for batch in batches)
                rows = max(100, min(WINDOW_ROWS, (high - low) * _WINDOW_BYTES // max(size, 1)))
                low = high
        finally:
            connection.close()

    def _window(self, connection: sqlite3.Connection, low: int, high: int) -> list[ChangeBatch]:
        tables = self.tables
        if len(tables) > _FEW_TABLES:  # worth a look first, instead of a scan for each
            present = _present(connection, self.names, low, high)
            tables = tuple(one for one in tables if one.number in present)
        read = [(captured, self._read(connection, captured, low, high)) for captured in tables]
        return [self._batch(captured, rows) for captured, rows in read if rows]

    def _read(self, connection: sqlite3.Connection, captured: Captured, low: int, high: int) -> list[Row]:
        slots = ", ".join(f"c{slot}" for slot in captured.slots)
        query = (
            f"SELECT seq, op, ts, {slots} FROM {self.names.log}"
            f" WHERE seq > ? AND seq <= ? AND tab = {captured.number} AND {_ROWS} ORDER BY seq"
        )
        try:
            return connection.execute(query, (low, high)).fetchall()
        except sqlite3.OperationalError as error:
            if not is_undecodable(error):
                raise
            connection.text_factory = lenient_text
            return connection.execute(query, (low, high)).fetchall()

    def _batch(self, captured: Captured, rows: list[Row]) -> ChangeBatch:
        sequence, operation, stamp, *values = zip(*rows, strict=True)
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
            pa.DictionaryArray.from_arrays(np.zeros(len(rows), dtype=np.int32), pa.array([self.end.encode()])),
            pc.multiply(milliseconds, 1000).cast(_META[TIME]),
            pa.nulls(len(rows), _META[TXN]),
            pa.nulls(len(rows), _META[ABSENT]),
        ]
        schema = change_schema(captured.schema)
        return ChangeBatch(captured.schema, pa.RecordBatch.from_arrays([*own, *meta], schema=schema))


def inspect(
    connection: sqlite3.Connection, names: Names, tables: tuple[Captured, ...], after: int, upto: int
) -> list[Inspection]:
    """Look through (after, upto] of the log: which tables, how many rows, which values do not fit their columns."""
    present = _present(connection, names, after, upto)
    return [_inspect(connection, names, one, after, upto) for one in tables if one.number in present]


def is_undecodable(error: sqlite3.OperationalError) -> bool:
    """Python's module says so when text is not valid UTF-8."""
    return str(error).startswith("Could not decode to UTF-8")


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
