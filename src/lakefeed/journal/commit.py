"""Commit: the one file that makes a change set exist. What no commit names does not exist."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from lakefeed.change.change_set import RecopyNeeded, TableBlocked, TableDropped, TableNotice
from lakefeed.change.position import Position, decode_position
from lakefeed.change.segment import Counts, Segment
from lakefeed.change.table import TableId
from lakefeed.errors import JournalDamagedError
from lakefeed.journal import checked_json

_FORMAT = 1


@dataclass(frozen=True, slots=True)
class StoredSegment:
    """A segment and the checksum of its file. CRC-32 measured at more than twice the speed of SHA-256."""

    segment: Segment
    crc32: int


@dataclass(frozen=True, slots=True)
class TableCommit:
    """One table in one change set. ``schema_version`` is the table's at the end of it, rows or no rows."""

    schema_version: int
    stored: tuple[StoredSegment, ...] = ()

    @property
    def segments(self) -> tuple[Segment, ...]:
        return tuple(stored.segment for stored in self.stored)


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """One durable change set: whole source transactions in (start, end].

    ``last_seq`` and ``committed_rows`` are the journal's, cumulative, after this change set. ``generation`` is the
    writer's lease. ``tables`` has every table with rows or an announced schema; a heartbeat's commit has none.
    """

    number: int
    start: Position | None
    end: Position
    identity: str | None
    last_seq: int
    committed_rows: int
    written_at: datetime
    generation: int
    tables: Mapping[TableId, TableCommit] = field(default_factory=dict)
    notices: tuple[TableNotice, ...] = ()

    @property
    def stored(self) -> tuple[StoredSegment, ...]:
        return tuple(stored for table in self.tables.values() for stored in table.stored)

    @property
    def rows(self) -> int:
        return sum(stored.segment.rows for stored in self.stored)

    @property
    def bytes(self) -> int:
        return sum(stored.segment.bytes for stored in self.stored)

    @property
    def counts(self) -> Counts:
        return sum((stored.segment.counts for stored in self.stored), Counts())


def dump_commit(commit: Commit, root: Path) -> bytes:
    """The content of the commit file. Segment paths are stored relative to ``root``, so a journal can be moved."""
    return checked_json.pack(
        {
            "format": _FORMAT,
            "number": commit.number,
            "start": commit.start.encode() if commit.start is not None else None,
            "end": commit.end.encode(),
            "identity": commit.identity,
            "rows": commit.rows,
            "bytes": commit.bytes,
            "last_seq": commit.last_seq,
            "committed_rows": commit.committed_rows,
            "written_at": commit.written_at.isoformat(),
            "generation": commit.generation,
            "tables": {str(table): _table_json(entry, root) for table, entry in commit.tables.items()},
            "notices": [_notice_json(notice) for notice in commit.notices],
        }
    )


def load_commit(path: Path, root: Path) -> Commit:
    """Read one commit file. JournalDamagedError, naming it, unless it is exactly what ``dump_commit`` wrote."""
    body = checked_json.unpack(path.read_bytes(), path)
    if body.get("format") != _FORMAT:
        raise JournalDamagedError(f"{path} has the format {body.get('format')}; this version reads {_FORMAT}")
    if f"{body['number']:020d}" != path.stem:
        raise JournalDamagedError(f"{path} is damaged: it holds change set {body['number']}")
    return Commit(
        number=body["number"],
        start=decode_position(body["start"]) if body["start"] is not None else None,
        end=decode_position(body["end"]),
        identity=body["identity"],
        last_seq=body["last_seq"],
        committed_rows=body["committed_rows"],
        written_at=datetime.fromisoformat(body["written_at"]),
        generation=body["generation"],
        tables={TableId.parse(name): _table(TableId.parse(name), data, root) for name, data in body["tables"].items()},
        notices=tuple(_notice(data) for data in body["notices"]),
    )


def _table_json(entry: TableCommit, root: Path) -> dict[str, Any]:
    return {
        "schema_version": entry.schema_version,
        "segments": [_segment_json(stored, root) for stored in entry.stored],
    }


def _segment_json(stored: StoredSegment, root: Path) -> dict[str, Any]:
    segment = stored.segment
    return {
        "path": Path(segment.path).relative_to(root).as_posix(),
        "crc32": f"{stored.crc32:08x}",
        "rows": segment.rows,
        "bytes": segment.bytes,
        "schema_version": segment.schema_version,
        "first_seq": segment.first_seq,
        "last_seq": segment.last_seq,
        "counts": asdict(segment.counts),
        "truncated_at": segment.truncated_at,
        "absent": segment.absent,
    }


def _table(table: TableId, data: dict[str, Any], root: Path) -> TableCommit:
    stored = tuple(_segment(table, item, root) for item in data["segments"])
    return TableCommit(data["schema_version"], stored)


def _segment(table: TableId, data: dict[str, Any], root: Path) -> StoredSegment:
    segment = Segment(
        table=table,
        path=str(root / data["path"]),
        rows=data["rows"],
        bytes=data["bytes"],
        schema_version=data["schema_version"],
        first_seq=data["first_seq"],
        last_seq=data["last_seq"],
        counts=Counts(**data["counts"]),
        truncated_at=data["truncated_at"],
        absent=tuple(data["absent"]),
    )
    return StoredSegment(segment, int(data["crc32"], 16))


def _notice_json(notice: TableNotice) -> dict[str, Any]:
    table = str(notice.table)
    if isinstance(notice, RecopyNeeded):
        return {"kind": "recopy_needed", "table": table, "reason": notice.reason, "columns": notice.columns}
    if isinstance(notice, TableBlocked):
        return {"kind": "table_blocked", "table": table, "reason": notice.reason, "remedy": notice.remedy}
    return {"kind": "table_dropped", "table": table}


def _notice(data: dict[str, Any]) -> TableNotice:
    table = TableId.parse(data["table"])
    if data["kind"] == "recopy_needed":
        columns = data.get("columns")  # older commits have none
        return RecopyNeeded(table, data["reason"], tuple(columns) if columns is not None else None)
    if data["kind"] == "table_blocked":
        return TableBlocked(table, data["reason"], data["remedy"])
    return TableDropped(table)
