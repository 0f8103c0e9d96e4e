"""Progress: all that one checkpoint says. A stream position and, while tables are copied, the chunk cursor.

The two are one record on purpose: a cursor that were saved apart from the position could say "chunk 7 is done" while
the changes that chunk 7 did not see are already behind the position, or the other way round.

While a snapshot runs, its checkpoint carries the stream position of before the first read in the fields that are usual
for each database; a source that has no such fields carries the whole position in one. ``snapshot_fields`` writes them
and ``stream_offset`` reads them back. A field that is missing or out of range is an error of its own: streaming from a
guessed position would lose changes silently. For the same reason a payload that does not name a position has none:
StateError, not "from the default".
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from lakefeed.capture.base import SnapshotPlan
from lakefeed.change.lsn import PostgresLsn, SqlServerLsn
from lakefeed.change.mysql import MysqlBinlog
from lakefeed.change.position import Position, SqliteSequence, decode_position
from lakefeed.change.table import TableId, TableSchema
from lakefeed.embed.checkpoint import SNAPSHOT_SUFFIX, Checkpoint
from lakefeed.errors import CheckpointError, LakefeedError, SourceChangedError, StateError

SNAPSHOT = "snapshot"
"""The metadata entry that holds the cursor and, in a snapshot checkpoint, the fields of ``snapshot_fields``."""

_U32 = 1 << 32
_U64 = 1 << 64
_LSN_BYTES = 10


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
    """C10: by the source type and nothing else. The whole text counts: a source may itself be called x_snapshot."""
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
    if payload is None:
        return Progress(checkpoint.decoded)
    try:
        return Progress(checkpoint.decoded, SnapshotCursor.from_json(json.loads(payload)))
    except json.JSONDecodeError as error:
        raise CheckpointError(f"the snapshot cursor of the checkpoint is not JSON: {error}") from error


@dataclass(frozen=True, slots=True)
class StreamOffset:
    """A derived position to stream from. ``slot`` is PostgreSQL's, ``gtid`` (may be empty) MySQL's and MariaDB's."""

    source_type: str
    position: Position
    slot: str | None = None
    gtid: str = ""


def stream_offset(kind: str, payload: str, *, slot: str | None = None) -> StreamOffset:
    """The position to stream from, out of a snapshot checkpoint's JSON payload.

    CheckpointError if the payload cannot be read, StateError if it names no position and ``kind`` has no fields of its
    own that do.
    """
    try:
        parsed = json.loads(payload)
    except ValueError as error:
        raise CheckpointError(f"{kind} snapshot checkpoint is not JSON: {error}") from error
    fields: Mapping[str, Any] = parsed if isinstance(parsed, dict) else {}
    if isinstance(fields.get("position"), str):
        return StreamOffset(kind, decode_position(fields["position"]))
    if kind not in _READERS:
        known = ", ".join(sorted(_READERS))
        raise StateError(
            f"a snapshot of a '{kind}' source cannot be resumed: its stream position cannot be derived; "
            f"it can for {known}, and from a field 'position'",
            remedy="Delete the checkpoint to start the snapshot from the beginning.",
        )
    return _READERS[kind](kind, fields, slot)


def snapshot_fields(kind: str, position: Position) -> dict[str, Any]:
    """The fields that ``stream_offset`` reads."""
    match position:
        case PostgresLsn() if kind == "postgres":
            return {"snapshot_watermark": position.value}
        case MysqlBinlog() if kind in ("mysql", "mariadb"):
            return {"binlog_file": position.file, "binlog_pos": position.offset, "gtid": ""}
        case SqlServerLsn() if kind == "sqlserver":
            return {"lsn_start": list(position.value)}
        case SqliteSequence() if kind == "sqlite":
            return {"sequence": position.sequence, "stamp": position.stamp}
        case _:
            return {"position": position.encode()}


def postgres_offset(kind: str, fields: Mapping[str, Any], slot: str | None) -> StreamOffset:
    """C21: the watermark of the snapshot, with the configured slot."""
    if kind != "postgres":
        raise StateError("postgres stream resume conversion called for non-postgres runtime source")
    watermark = _unsigned(fields.get("snapshot_watermark"))
    if watermark is None:
        raise CheckpointError("postgres snapshot checkpoint is missing 'snapshot_watermark'")
    return StreamOffset(kind, PostgresLsn(watermark), slot=slot)


def mysql_offset(kind: str, fields: Mapping[str, Any], _slot: str | None) -> StreamOffset:
    """C22, C23: file and offset, typed by the source's own name; the GTID is optional."""
    file, offset, gtid = fields.get("binlog_file"), _unsigned(fields.get("binlog_pos")), fields.get("gtid")
    if not isinstance(file, str):
        raise CheckpointError(f"{kind} snapshot checkpoint is missing 'binlog_file'")
    if offset is None:
        raise CheckpointError(f"{kind} snapshot checkpoint is missing 'binlog_pos'")
    if offset >= _U32:
        raise CheckpointError(f"{kind} snapshot checkpoint binlog_pos exceeds u32")
    return StreamOffset(kind, MysqlBinlog(file, offset), gtid=gtid if isinstance(gtid, str) else "")


def sqlserver_offset(kind: str, fields: Mapping[str, Any], _slot: str | None) -> StreamOffset:
    """C24: ten bytes; the position's text is ``0x`` and 20 upper-case digits."""
    start = fields.get("lsn_start")
    if not isinstance(start, list):
        raise CheckpointError("sqlserver snapshot checkpoint is missing 'lsn_start'")
    if len(start) != _LSN_BYTES:
        raise CheckpointError("sqlserver snapshot checkpoint lsn_start must contain exactly 10 bytes")
    if any(_unsigned(byte) is None for byte in start):
        raise CheckpointError("sqlserver snapshot checkpoint lsn_start contains non-byte value")
    if any(byte > 255 for byte in start):
        raise CheckpointError("sqlserver snapshot checkpoint lsn_start contains out-of-range byte")
    return StreamOffset(kind, SqlServerLsn(bytes(start)))


def sqlite_offset(kind: str, fields: Mapping[str, Any], _slot: str | None) -> StreamOffset:
    sequence, stamp = _unsigned(fields.get("sequence")), _unsigned(fields.get("stamp", 0))
    if sequence is None:
        raise CheckpointError("sqlite snapshot checkpoint is missing 'sequence'")
    if stamp is None:
        raise CheckpointError("sqlite snapshot checkpoint 'stamp' is not a number of milliseconds")
    return StreamOffset(kind, SqliteSequence(sequence, stamp))


_READERS: dict[str, Callable[[str, Mapping[str, Any], str | None], StreamOffset]] = {
    "mariadb": mysql_offset,
    "mysql": mysql_offset,
    "postgres": postgres_offset,
    "sqlite": sqlite_offset,
    "sqlserver": sqlserver_offset,
}


def _unsigned(value: object) -> int | None:
    """A whole number of at most 64 bits, or None. A bool is no number, though Python says so."""
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _U64:
        return value
    return None
