"""The copy of one table by SELECT: the kit's chunks, and between which watermarks each of them was read.

A chunk has everything up to the position that it was planned at, and it says the time of the newest row that it has
read: between the two, its rows may be newer than others'.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import pyarrow as pa

from lakefeed.capture.base import SnapshotPlan
from lakefeed.capture.dialect import Dialect, Session
from lakefeed.capture.poll.query import Queries
from lakefeed.capture.poll.rule import TableRule
from lakefeed.capture.poll.table import PolledTable, polled_table
from lakefeed.capture.snapshot import TableChunk, TableChunkReader, plan_chunks
from lakefeed.change.watermark import Mark, Watermark
from lakefeed.errors import CheckpointError, DecodeError


@dataclass(frozen=True, kw_only=True)
class PolledChunk(TableChunk):
    """Rows of ``polled``, planned at ``position``."""

    polled: PolledTable
    position: Watermark

    def open(self) -> PolledChunkReader:
        return PolledChunkReader(self)

    def to_json(self) -> dict[str, Any]:
        """Everything but the dialect and the rule, which the configuration has."""
        return {**super().to_json(), "position": self.position.text()}


def read_chunk(rows: TableChunk, rule: TableRule, data: Mapping[str, Any]) -> PolledChunk:
    """Inverse of ``PolledChunk.to_json``; ``rows`` as they were read from the same ``data``."""
    try:
        position = Watermark.parse(data["position"])
    except (KeyError, CheckpointError) as error:
        raise DecodeError(f"the plan of a copy of {rows.table} has no watermark") from error
    polled = replace(polled_table(rows.source, rule), schema=rows.schema)
    own = {field.name: getattr(rows, field.name) for field in fields(rows)}
    return PolledChunk(**own, polled=polled, position=position)


class PolledChunkReader(TableChunkReader):
    """An open chunk; see ``ChunkReader``."""

    def __init__(self, chunk: PolledChunk) -> None:
        super().__init__(chunk)
        self._polled = chunk.polled
        self._position = chunk.position
        self._is_keys = chunk.names == chunk.schema.key
        self._newest: int | None = None

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        if self._is_keys:
            yield from super().__iter__()
            return
        own = self._polled.schema.arrow
        for batch in super().__iter__():
            if batch.num_rows:
                newest = int(self._polled.times(batch, expect_order=False).max())
                self._newest = newest if self._newest is None else max(self._newest, newest)
            yield pa.RecordBatch.from_arrays(batch.columns[: len(own)], schema=own)

    @property
    def low(self) -> Watermark:
        return self._position

    @property
    def high(self) -> Watermark:
        """Once all rows are read."""
        marks, name = dict(self._position.marks), str(self._polled.id)
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
    whole = PolledChunk(
        dialect,
        polled.source,
        polled.schema,
        names=polled.key if keys_only else polled.read_names,
        where=Queries(dialect, polled).existing(),
        exact=polled.ordering,
        polled=polled,
        position=position,
    )
    chunks, rows = plan_chunks(session, whole, chunk_rows)
    return SnapshotPlan(polled.schema, chunks, rows)
