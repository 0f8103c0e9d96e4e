"""The copy of one table by SELECT: key ranges that any process can read on its own; and its keys alone, for FullDiff.

A chunk is read in one consistent read. It has everything up to the position that it was planned at, and it says the
time of the newest row that it has read: between the two, its rows may be newer than others'.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from decimal import Decimal
from itertools import pairwise
from types import TracebackType
from typing import Any, Self

import pyarrow as pa

from lakefeed.capture.dialect import DescribedTable, Dialect, MisfitError, Session
from lakefeed.capture.poll.followed import Followed, follow, unordered
from lakefeed.capture.poll.marking import Marking, key_rows
from lakefeed.capture.poll.query import Key, Queries
from lakefeed.capture.poll.reading import combined
from lakefeed.capture.poll.rule import TableRule
from lakefeed.change.position import decode_position
from lakefeed.change.table import TableId, TableSchema
from lakefeed.change.watermark import KeyValue, Mark, Watermark
from lakefeed.errors import CheckpointError, StateError, TableStoppedError


@dataclass(frozen=True, slots=True)
class RowChunk:
    """The rows with low < key <= high; None is open-ended. ``keys_only``: their keys, and nothing else."""

    connector: Dialect
    followed: Followed
    position: Watermark
    low: Key | None = None
    high: Key | None = None
    keys_only: bool = False

    @property
    def table(self) -> TableId:
        return self.followed.id

    @property
    def names(self) -> tuple[str, ...]:
        return self.followed.key if self.keys_only else self.followed.schema.names

    def open(self) -> RowChunkReader:
        return RowChunkReader(self)

    def to_json(self) -> Mapping[str, Any]:
        """Everything but the connector and the rule, which the configuration has."""
        table = self.followed.table
        return {
            "table": table.schema.to_json(),
            "origin": table.origin,
            "sql_names": dict(table.sql_names),
            "unordered": dict(table.unordered),
            "misfits": dict(table.misfits),
            "schema": self.followed.schema.to_json(),
            "position": self.position.encode(),
            "low": _listed(self.low),
            "high": _listed(self.high),
            "keys_only": self.keys_only,
        }

    @classmethod
    def from_json(cls, connector: Dialect, rule: TableRule, data: Mapping[str, Any]) -> RowChunk:
        schema, misfits = TableSchema.from_json(data["table"]), data.get("misfits", {})  # plans of before have none
        table = DescribedTable(schema, data["origin"], data["sql_names"], data["unordered"], misfits)
        followed = replace(follow(table, rule), schema=TableSchema.from_json(data["schema"]))
        position = decode_position(data["position"])
        if not isinstance(position, Watermark):
            raise CheckpointError(f"'{data['position']}' is not the position of a polled table")
        return cls(connector, followed, position, _key(data["low"]), _key(data["high"]), data["keys_only"])


class RowChunkReader:
    """An open chunk; see ``ChunkReader``."""

    def __init__(self, chunk: RowChunk) -> None:
        self._chunk = chunk
        self._stack = ExitStack()
        self._session: Session | None = None
        self._newest: int | None = None

    def __enter__(self) -> Self:
        self._session = self._chunk.connector.connect()
        self._stack.callback(self._session.close)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._session = None
        self._stack.close()

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        if self._session is None:
            raise StateError("a chunk is read inside its with block", remedy="Enter the reader first.")
        chunk, followed = self._chunk, self._chunk.followed
        names = chunk.names if chunk.keys_only else followed.read_names
        read = pa.schema([pa.field(name, followed.column(name).type) for name in names])
        wanted = pa.schema([followed.schema.arrow.field(name) for name in chunk.names])
        try:
            with self._session.consistent():
                for batch in self._session.read(
                    Queries(chunk.connector, followed).chunk(names, chunk.low, chunk.high), read
                ):
                    yield self._delivered(batch, wanted)
        except MisfitError as error:
            if error.column in followed.ordering:
                raise unordered(chunk.table, error.column) from error
            raise self._stopped(f"a value that does not fit its column appeared in {error.column}") from error

    @property
    def low(self) -> Watermark:
        return self._chunk.position

    @property
    def high(self) -> Watermark:
        """Once all rows are read."""
        marks = dict(self._chunk.position.marks)
        name = str(self._chunk.table)
        before = marks.get(name, Mark.start())
        if self._newest is not None and self._newest > before.instant_us:
            marks[name] = Mark(self._newest, (), before.era)
        return Watermark.of(marks)

    def _delivered(self, batch: pa.RecordBatch, wanted: pa.Schema) -> pa.RecordBatch:
        if not self._chunk.keys_only and batch.num_rows:
            times = Marking(self._chunk.followed).times(batch, expect_order=False)
            self._newest = max(self._newest or int(times[0]), int(times.max()))
        for name in self._chunk.followed.key:
            if batch.column(name).null_count:
                raise self._stopped(f"there is a NULL in the key column {name}")
        return pa.RecordBatch.from_arrays([batch.column(name) for name in wanted.names], schema=wanted)

    def _stopped(self, what: str) -> TableStoppedError:
        table = self._chunk.table
        remedy = "Run `lakefeed sync` again: it plans the copy of this table anew."
        return TableStoppedError(f"{table}: {what} while it was copied", table=str(table), remedy=remedy)


def plan_chunks(session: Session, whole: RowChunk, chunk_rows: int) -> tuple[tuple[RowChunk, ...], int]:
    """Cut the table into ranges of about ``chunk_rows`` keys. Returns them with the number of rows."""
    queries = Queries(whole.connector, whole.followed)
    number = pa.schema([pa.field("n", pa.int64())])
    with session.consistent():
        rows = int(combined(session.read(queries.count(), number), number).column("n")[0].as_py())
        if rows <= chunk_rows:
            return (whole,), rows
        key = pa.schema([pa.field(name, whole.followed.column(name).type) for name in whole.followed.key])
        edges: list[Key | None] = [None]
        for _ in range((rows - 1) // chunk_rows):
            found = combined(session.read(queries.cut(edges[-1], chunk_rows), key), key)
            edges += key_rows(found, whole.followed.key)
    return tuple(replace(whole, low=low, high=high) for low, high in pairwise([*edges, None])), rows


def _listed(key: Key | None) -> list[Any] | None:
    if key is None:
        return None
    return list(map(_tagged, key))


def _tagged(value: KeyValue) -> Any:
    if isinstance(value, bytes):
        return {"hex": value.hex()}
    return {"decimal": str(value)} if isinstance(value, Decimal) else value


def _key(listed: list[Any] | None) -> Key | None:
    return None if listed is None else tuple(map(_untagged, listed))


def _untagged(value: Any) -> Any:
    if isinstance(value, dict):
        return bytes.fromhex(value["hex"]) if "hex" in value else Decimal(value["decimal"])
    return value
