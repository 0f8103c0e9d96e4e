"""Where the stream goes on after a snapshot: from the fields of a snapshot checkpoint to a stream position.

While a snapshot runs, its checkpoint carries the stream position of before the first read in the fields that are
usual for each database. ``snapshot_fields`` writes them and ``stream_offset`` reads them back. A field that is
missing or out of range is an error of its own: streaming from a guessed position would lose changes silently. For the
same reason a source whose fields are not known has no derived position: StateError, not "from the default".
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from lakefeed.change.binlog import MysqlBinlog
from lakefeed.change.lsn import PostgresLsn, SqlServerLsn
from lakefeed.change.position import Position, SqliteSequence
from lakefeed.errors import CheckpointError, StateError

_U32 = 1 << 32
_U64 = 1 << 64
_LSN_BYTES = 10


@dataclass(frozen=True, slots=True)
class StreamOffset:
    """A derived place to stream from. ``slot`` is PostgreSQL's, ``gtid`` (may be empty) MySQL's and MariaDB's."""

    source_type: str
    position: Position
    slot: str | None = None
    gtid: str = ""


def stream_offset(kind: str, payload: str, *, slot: str | None = None) -> StreamOffset:
    """The place to stream from, out of a snapshot checkpoint's JSON payload.

    CheckpointError if the payload does not say, StateError if ``kind`` has no such rule.
    """
    if kind not in _READERS:
        known = ", ".join(sorted(_READERS))
        raise StateError(
            f"a snapshot of a '{kind}' source cannot be resumed: its stream position cannot be derived; "
            f"it can for {known}",
            remedy="Delete the checkpoint to start the snapshot anew.",
        )
    return _READERS[kind](kind, _parse(kind, payload), slot)


def snapshot_fields(kind: str, position: Position | None) -> dict[str, Any]:
    """The fields that ``stream_offset`` reads. Empty for a source that has no rule."""
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
            return {}


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


def _parse(kind: str, payload: str) -> Mapping[str, Any]:
    try:
        fields = json.loads(payload)
    except ValueError as error:
        raise CheckpointError(f"{kind} snapshot checkpoint is not JSON: {error}") from error
    return fields if isinstance(fields, dict) else {}


def _unsigned(value: object) -> int | None:
    """A whole number of at most 64 bits, or None. A bool is no number, though Python says so."""
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _U64:
        return value
    return None
