"""Progress: everything in one checkpoint. A stream position, the schemas that tables were delivered with up to there,
and, while tables are copied, the chunk cursor.

They are one record on purpose: if the cursor were saved apart from the position, it could say "chunk 7 is done" while
the position has already passed changes that chunk 7 did not see, or the other way round. For the same reason a schema
change that is read again after a crash is never counted twice.

While a snapshot runs, its checkpoint has the stream position from before the first read, in the fields that are usual
for each database; a source without such fields has the whole position in one field. ``snapshot_fields`` writes them and
``stream_offset`` reads them. A field that is missing or out of range is an error: streaming from a guessed position
would silently lose changes. For the same reason a payload without a position is a StateError, not "from the default".
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from lakefeed.capture.base import SnapshotPlan
from lakefeed.change.change_set import ChangeSet
from lakefeed.change.lsn import PostgresLsn, SqlServerLsn
from lakefeed.change.mysql import MariadbGtid, MysqlBinlog, MysqlGtid
from lakefeed.change.position import Position, SqliteSequence, decode_position
from lakefeed.change.table import TableId, TableSchema
from lakefeed.embed.checkpoint import SNAPSHOT_SUFFIX, Checkpoint
from lakefeed.errors import CheckpointError, LakefeedError, SourceChangedError, StateError

SNAPSHOT = "snapshot"
"""The metadata entry with the cursor and, in a snapshot checkpoint, the fields of ``snapshot_fields``."""
SCHEMAS = "schemas"
"""The metadata entry with the schemas of tables."""
SLOT = "slot"
"""The metadata entry with ``ChangeCapture.slot``."""

_U32 = 1 << 32
_U64 = 1 << 64
_LSN_BYTES = 10


@dataclass(frozen=True, slots=True)
class SnapshotCursor:
    """The chunk to read next. Tables are planned one at a time: ``schema`` is None until the current one is planned."""

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
        """The cursor after the current chunk."""
        if self.chunk + 1 < len(self.chunks):
            return replace(self, chunk=self.chunk + 1)
        return replace(self, table=self.table + 1, schema=None, chunks=(), chunk=0)

    def covering(self, tables: Sequence[TableId]) -> SnapshotCursor:
        """The same cursor with new tables appended."""
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


@dataclass(frozen=True)
class SchemaVersions:
    """The schemas that each table was delivered with, oldest first, numbered 1, 2, 3 … Immutable."""

    tables: Mapping[TableId, tuple[TableSchema, ...]] = field(default_factory=dict)

    @property
    def newest(self) -> tuple[TableSchema, ...]:
        return tuple(versions[-1] for versions in self.tables.values())

    def seen(self, change_set: ChangeSet, retention: int | None, *, is_chunk: bool = False) -> SchemaVersions:
        """With the schemas of a change set added, and at most ``retention`` versions of each table.

        Lazy rows are not read for this, and rows of a chunk have the schema of the plan, which the stream may already
        have left behind: in these cases only announced schemas count.
        """
        rows = change_set.batches if isinstance(change_set.batches, Sequence) and not is_chunk else ()
        shown = [(one.schema, False) for one in rows] + [(schema, True) for schema in change_set.schemas]
        tables = dict(self.tables)
        for schema, is_announced in shown:
            known = tables.get(schema.table, ())
            same = [one for one in known[-1:] if (one.columns, one.key) == (schema.columns, schema.key)]
            if not same or (is_announced and same[0].fingerprint != schema.fingerprint):
                number = known[-1].version + 1 if known else 1
                tables[schema.table] = (*known, schema.at_version(number))
        return SchemaVersions(tables).bounded(retention) if tables != self.tables else self

    def bounded(self, retention: int | None) -> SchemaVersions:
        """With only the newest ``retention`` versions of each table."""
        if retention is None or all(len(versions) <= retention for versions in self.tables.values()):
            return self
        return SchemaVersions({table: versions[-retention:] for table, versions in self.tables.items()})

    @cached_property
    def text(self) -> str:
        """Part of every checkpoint, so it is computed once."""
        return json.dumps([schema.to_json() for versions in self.tables.values() for schema in versions])

    @classmethod
    def parse(cls, text: str) -> SchemaVersions:
        tables = dict[TableId, tuple[TableSchema, ...]]()
        try:
            for schema in map(TableSchema.from_json, json.loads(text)):
                tables[schema.table] = (*tables.get(schema.table, ()), schema)
        except (KeyError, TypeError, ValueError, AttributeError, LakefeedError) as error:
            raise CheckpointError(f"the schemas of the checkpoint cannot be read: {error!r}") from error
        return cls(tables)


@dataclass(frozen=True, slots=True)
class Progress:
    """``position`` None: the source's own resume point. ``in_snapshot``: the stream waits until the cursor is done."""

    position: Position | None = None
    cursor: SnapshotCursor | None = None
    in_snapshot: bool = False
    schemas: SchemaVersions = SchemaVersions()

    def to_checkpoint(
        self, kind: str, *, identity: str | None, committed: int, slot: str | None = None
    ) -> Checkpoint | None:
        """None while there is no position to save."""
        if self.position is None:
            return None
        source = kind + SNAPSHOT_SUFFIX if self.in_snapshot else kind
        made = Checkpoint.from_position(self.position, source_type=source, identity=identity, committed=committed)
        if self.schemas.tables:
            made = made.with_metadata(SCHEMAS, self.schemas.text)
        if slot is not None:
            made = made.with_metadata(SLOT, slot)
        if self.cursor is None:
            return made
        payload = self.cursor.to_json()
        if self.in_snapshot:
            payload |= snapshot_fields(kind, self.position)
        return made.with_metadata(SNAPSHOT, json.dumps(payload))


def is_snapshot_checkpoint(checkpoint: Checkpoint, kind: str) -> bool:
    """Decided by the source type alone, compared as a whole: a source may itself be called x_snapshot."""
    return checkpoint.source_type == kind + SNAPSHOT_SUFFIX


def from_checkpoint(checkpoint: Checkpoint, kind: str, *, slot: str | None = None) -> Progress:
    """The inverse of ``to_checkpoint``. SourceChangedError for a checkpoint of another kind of source, or with another
    ``slot``: it is not known what that slot still has."""
    payload, saved_slot = checkpoint.metadata.get(SNAPSHOT), checkpoint.metadata.get(SLOT)
    in_snapshot = is_snapshot_checkpoint(checkpoint, kind)
    if in_snapshot:
        if payload is None:
            raise CheckpointError(f"{kind} snapshot checkpoint has no '{SNAPSHOT}' metadata")
        offset = stream_offset(kind, payload, slot=saved_slot)
    elif checkpoint.source_type != kind:
        raise SourceChangedError(f"the checkpoint belongs to a {checkpoint.source_type} source, not to {kind}")
    else:
        offset = StreamOffset(kind, checkpoint.decoded, slot=saved_slot)
    if slot is not None and offset.slot not in (None, slot):
        raise SourceChangedError(
            f"the checkpoint belongs to the replication slot {offset.slot}, but this capture reads from {slot}",
            remedy="Bind the capture to the name that it had, or delete the checkpoint and copy the tables again.",
        )
    schemas = SchemaVersions.parse(checkpoint.metadata.get(SCHEMAS, "[]"))
    if payload is None:
        return Progress(offset.position, schemas=schemas)
    try:
        cursor = SnapshotCursor.from_json(json.loads(payload))
    except json.JSONDecodeError as error:
        raise CheckpointError(f"the snapshot cursor of the checkpoint is not JSON: {error}") from error
    return Progress(offset.position, cursor, in_snapshot, schemas)


@dataclass(frozen=True, slots=True)
class StreamOffset:
    """A derived position to stream from. ``slot`` is PostgreSQL's. ``gtid`` is MySQL's and MariaDB's; if it is not
    empty, it is the position: file and offset are valid on one server only, a GTID set on every server with its
    history."""

    source_type: str
    position: Position
    slot: str | None = None
    gtid: str = ""


def stream_offset(kind: str, payload: str, *, slot: str | None = None) -> StreamOffset:
    """The position to stream from, derived from the JSON payload of a snapshot checkpoint.

    CheckpointError if the payload cannot be read, StateError if it has no position and ``kind`` has no fields of its
    own for one.
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
    """The watermark of the snapshot, with the configured slot."""
    if kind != "postgres":
        raise StateError("postgres stream resume conversion called for non-postgres runtime source")
    watermark = _unsigned(fields.get("snapshot_watermark"))
    if watermark is None:
        raise CheckpointError("postgres snapshot checkpoint is missing 'snapshot_watermark'")
    return StreamOffset(kind, PostgresLsn(watermark), slot=slot)


def mysql_offset(kind: str, fields: Mapping[str, Any], _slot: str | None) -> StreamOffset:
    """File and offset, with the source's own type name; the GTID set is optional."""
    file, offset, given = fields.get("binlog_file"), _unsigned(fields.get("binlog_pos")), fields.get("gtid")
    if not isinstance(file, str):
        raise CheckpointError(f"{kind} snapshot checkpoint is missing 'binlog_file'")
    if offset is None:
        raise CheckpointError(f"{kind} snapshot checkpoint is missing 'binlog_pos'")
    if offset >= _U32:
        raise CheckpointError(f"{kind} snapshot checkpoint binlog_pos exceeds u32")
    gtid, in_file = given if isinstance(given, str) else "", MysqlBinlog(file, offset)
    executed = MysqlGtid(gtid) if kind == "mysql" else MariadbGtid(gtid)
    return StreamOffset(kind, executed if gtid else in_file, gtid=gtid)


def sqlserver_offset(kind: str, fields: Mapping[str, Any], _slot: str | None) -> StreamOffset:
    """Ten bytes; the text of the position is ``0x`` and 20 upper-case digits."""
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
    """A whole number of at most 64 bits, or None. A bool does not count, although it is an int in Python."""
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _U64:
        return value
    return None
