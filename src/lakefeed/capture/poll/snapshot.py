"""The copy of one table by SELECT: the kit's chunks, and between which watermarks each of them was read.

A chunk has everything up to the position that it was planned at, and it says the time of the newest row that it has
read: between the two, its rows may be newer than others'.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Self

import pyarrow as pa

from lakefeed.capture.base import SnapshotPlan
from lakefeed.capture.dialect import Dialect, Session
from lakefeed.capture.poll.query import Queries
from lakefeed.capture.poll.rule import TableRule
from lakefeed.capture.poll.table import PolledTable, polled_table
from lakefeed.capture.snapshot import TableChunk, plan_chunks
from lakefeed.change.table import TableId
from lakefeed.change.watermark import Mark, Watermark
from lakefeed.errors import CheckpointError, DecodeError


@dataclass(frozen=True, slots=True)
class PolledChunk:
    """``rows`` of ``polled``, planned at ``position``."""

    rows: TableChunk
    polled: PolledTable
    position: Watermark

    @property
    def table(self) -> TableId:
        return self.rows.table

    def open(self) -> PolledChunkReader:
        return PolledChunkReader(self)

    def to_json(self) -> Mapping[str, Any]:
        """Everything but the dialect and the rule, which the configuration has."""
        return {**self.rows.to_json(), "position": self.position.text()}

    @classmethod
    def from_json(cls, rows: TableChunk, rule: TableRule, data: Mapping[str, Any]) -> PolledChunk:
        """``rows`` as they were read from the same ``data``."""
        try:
            position = Watermark.parse(data["position"])
        except (KeyError, CheckpointError) as error:
            raise DecodeError(f"the plan of a copy of {rows.table} has no watermark") from error
        return cls(rows, replace(polled_table(rows.source, rule), schema=rows.schema), position)


class PolledChunkReader:
    """An open chunk; see ``ChunkReader``."""

    def __init__(self, chunk: PolledChunk) -> None:
        self._chunk = chunk
        self._rows = chunk.rows.open()
        self._newest: int | None = None

    def __enter__(self) -> Self:
        self._rows.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._rows.__exit__(kind, error, trace)

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        chunk = self._chunk
        if chunk.rows.names == chunk.rows.schema.key:
            yield from self._rows
            return
        own = chunk.rows.schema.arrow
        for batch in self._rows:
            if batch.num_rows:
                newest = int(chunk.polled.times(batch, expect_order=False).max())
                self._newest = newest if self._newest is None else max(self._newest, newest)
            yield pa.RecordBatch.from_arrays(batch.columns[: len(own)], schema=own)

    @property
    def low(self) -> Watermark:
        return self._chunk.position

    @property
    def high(self) -> Watermark:
        """Once all rows are read."""
        marks, name = dict(self._chunk.position.marks), str(self._chunk.table)
        before = marks.get(name, Mark.start())
        if self._newest is not None and self._newest > before.instant_us:
            marks[name] = Mark(self._newest, (), before.era)
        return Watermark.of(marks)


def plan_snapshot(
    dialect: Dialect,
    session: Session,
    polled: PolledTable,
    position: Watermark,
    chunk_rows: int,
    *,
    keys_only: bool = False,
) -> SnapshotPlan:
    """The chunks of a table, or of its keys alone."""
    whole = TableChunk(
        dialect,
        polled.source,
        polled.schema,
        names=polled.key if keys_only else polled.read_names,
        where=Queries(dialect, polled).existing(),
        exact=polled.ordering,
    )
    chunks, rows = plan_chunks(session, whole, chunk_rows)
    return SnapshotPlan(polled.schema, tuple(PolledChunk(one, polled, position) for one in chunks), rows)
