"""The copy of one table by SELECT: the kit's chunks, and what polling knows of their place in time.

A chunk has everything up to the position that it was planned at, and it says the time of the newest row that it has
read: between the two, its rows may be newer than others'.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Self

import pyarrow as pa

from lakefeed.capture.dialect import Dialect, Session
from lakefeed.capture.poll.followed import Followed, follow
from lakefeed.capture.poll.marking import Marking
from lakefeed.capture.poll.query import Queries
from lakefeed.capture.poll.rule import TableRule
from lakefeed.capture.snapshot import TableChunk, plan_chunks
from lakefeed.change.table import TableId
from lakefeed.change.watermark import Mark, Watermark
from lakefeed.errors import CheckpointError, DecodeError


@dataclass(frozen=True, slots=True)
class PolledChunk:
    """``rows`` of a table that is polled as ``followed`` says, planned at ``position``."""

    rows: TableChunk
    followed: Followed
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
    def from_json(cls, dialect: Dialect, rule: TableRule, data: Mapping[str, Any]) -> PolledChunk:
        rows = TableChunk.from_json(dialect, data)
        try:
            position = Watermark.parse(data["position"])
        except (KeyError, CheckpointError) as error:
            raise DecodeError(f"the plan of a copy of {rows.table} has no watermark") from error
        return cls(rows, replace(follow(rows.source, rule), schema=rows.schema), position)


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
        marking, own = Marking(chunk.followed), chunk.rows.schema.arrow
        for batch in self._rows:
            if batch.num_rows:
                times = marking.times(batch, expect_order=False)
                self._newest = max(self._newest or int(times[0]), int(times.max()))
            yield pa.RecordBatch.from_arrays(batch.columns[: len(own)], schema=own)

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


def plan_polled(
    dialect: Dialect, session: Session, followed: Followed, position: Watermark, chunk_rows: int, *, keys_only: bool
) -> tuple[tuple[PolledChunk, ...], int]:
    """The chunks of a table, or of its keys alone, and about how many rows it has."""
    where = [*([followed.rule.where] if followed.rule.where else []), *Queries(dialect, followed).alive()]
    names = followed.key if keys_only else followed.read_names
    whole = TableChunk(
        dialect, followed.table, followed.schema, names=names, where=tuple(where), exact=followed.ordering
    )
    chunks, rows = plan_chunks(session, whole, chunk_rows)
    return tuple(PolledChunk(one, followed, position) for one in chunks), rows
