"""Progress: all that one checkpoint says. A stream position and, while tables are copied, the chunk cursor.

The two are one record on purpose: a cursor that were saved apart from the position could say "chunk 7 is done" while
the changes that chunk 7 did not see are already behind the position, or the other way round.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from lakefeed.capture.base import SnapshotPlan
from lakefeed.change.position import Position
from lakefeed.change.table import TableId, TableSchema
from lakefeed.errors import CheckpointError, LakefeedError, SourceChangedError
from lakefeed.flow.resume import snapshot_fields, stream_offset
from lakefeed.journal.checkpoint import SNAPSHOT_SUFFIX, Checkpoint

SNAPSHOT = "snapshot"
"""The metadata entry that holds the cursor and, in a snapshot checkpoint, the fields of ``flow.resume``."""


class Checkpoints(Protocol):
    """What a runtime needs of a CheckpointStore."""

    def save(self, key: str, checkpoint: Checkpoint) -> None: ...

    def load(self, key: str) -> Checkpoint | None: ...


@dataclass(frozen=True, slots=True)
class SnapshotCursor:
    """Which chunk is read next. Tables are planned one at a time: ``schema`` is None until the current one is."""

    tables: tuple[TableId, ...]
    table: int = 0
    schema: TableSchema | None = None
    chunks: tuple[Mapping[str, Any], ...] = ()
    chunk: int = 0
    generation: int = 1

    @property
    def done(self) -> bool:
        return self.table >= len(self.tables)

    @property
    def current(self) -> TableId:
        return self.tables[self.table]

    def planned(self, plan: SnapshotPlan) -> SnapshotCursor:
        chunks = tuple(chunk.to_json() for chunk in plan.chunks)
        return replace(self, schema=plan.schema, chunks=chunks, chunk=0)

    def advanced(self) -> SnapshotCursor:
        """After the chunk that is next now."""
        if self.chunk + 1 < len(self.chunks):
            return replace(self, chunk=self.chunk + 1)
        return replace(self, table=self.table + 1, schema=None, chunks=(), chunk=0)

    def covering(self, tables: Sequence[TableId]) -> SnapshotCursor:
        """The same place, with tables that are new appended."""
        new = tuple(table for table in tables if table not in self.tables)
        return replace(self, tables=self.tables + new) if new else self

    def to_json(self) -> dict[str, Any]:
        return {
            "tables": [str(table) for table in self.tables],
            "table": self.table,
            "schema": self.schema.to_json() if self.schema else None,
            "plan": [dict(chunk) for chunk in self.chunks],
            "next_chunk": self.chunk,
            "generation": self.generation,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> SnapshotCursor:
        try:
            return cls(
                tuple(TableId.parse(table) for table in data["tables"]),
                data["table"],
                TableSchema.from_json(data["schema"]) if data["schema"] else None,
                tuple(data["plan"]),
                data["next_chunk"],
                data["generation"],
            )
        except (KeyError, TypeError, ValueError, AttributeError, LakefeedError) as error:
            raise CheckpointError(f"the snapshot cursor of the checkpoint cannot be read: {error!r}") from error


@dataclass(frozen=True, slots=True)
class Progress:
    """``position`` None: the source's own resume point. ``in_snapshot``: the stream waits for the cursor to be done."""

    position: Position | None = None
    cursor: SnapshotCursor | None = None
    in_snapshot: bool = False

    def to_checkpoint(self, kind: str, *, identity: str | None, committed: int) -> Checkpoint | None:
        """None while there is no position to save."""
        if self.position is None:
            return None
        source = kind + SNAPSHOT_SUFFIX if self.in_snapshot else kind
        made = Checkpoint.from_position(self.position, source_type=source, identity=identity, committed=committed)
        if self.cursor is None:
            return made
        payload = self.cursor.to_json()
        if self.in_snapshot:
            payload |= snapshot_fields(kind, self.position)
        return made.with_metadata(SNAPSHOT, json.dumps(payload))


def is_snapshot_checkpoint(checkpoint: Checkpoint, kind: str) -> bool:
    """C10: by the source type and nothing else."""
    return checkpoint.source_type == kind + SNAPSHOT_SUFFIX


def from_checkpoint(checkpoint: Checkpoint, kind: str) -> Progress:
    """Inverse of ``to_checkpoint``. SourceChangedError for a checkpoint of another kind of source."""
    payload = checkpoint.metadata.get(SNAPSHOT)
    if is_snapshot_checkpoint(checkpoint, kind):
        if payload is None:
            raise CheckpointError(f"{kind} snapshot checkpoint has no '{SNAPSHOT}' metadata")
        position = stream_offset(kind, payload).position
        return Progress(position, SnapshotCursor.from_json(json.loads(payload)), in_snapshot=True)
    if checkpoint.source_type != kind:
        raise SourceChangedError(f"the checkpoint belongs to a {checkpoint.source_type} source, not to {kind}")
    return Progress(checkpoint.decoded, _cursor(payload))


def _cursor(payload: str | None) -> SnapshotCursor | None:
    if payload is None:
        return None
    try:
        return SnapshotCursor.from_json(json.loads(payload))
    except json.JSONDecodeError as error:
        raise CheckpointError(f"the snapshot cursor of the checkpoint is not JSON: {error}") from error
