"""Commit: the one file that makes a change set exist. Whatever no commit names does not exist.

Origin: the file that says where the retained journal begins, and which source it belongs to.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any, NamedTuple

from lakefeed.change.change_set import RecopyNeeded, TableBlocked, TableDropped, TableNotice
from lakefeed.change.position import Position, decode_position
from lakefeed.change.segment import Counts, Segment
from lakefeed.change.table import TableId
from lakefeed.durable import pack, unpack
from lakefeed.errors import CheckpointError, ConfigError, JournalDamagedError
from lakefeed.storage.base import Storage

_FORMAT = 1
_BLOCK_BYTES = 4096


@dataclass(frozen=True, slots=True)
class TableCommit:
    """One table in one change set. ``schema_version`` is the table's at the end of it, with or without rows."""

    schema_version: int
    segments: tuple[Segment, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """One durable change set: whole source transactions in (start, end].

    ``last_seq`` and ``committed_rows`` are cumulative over the journal, after this change set. ``generation`` is that
    of the writer's lease. ``tables`` has every table with rows or an announced schema; the commit of a heartbeat has
    none. ``file_bytes`` is the size of the commit file itself.
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
    file_bytes: int = 0

    @property
    def segments(self) -> tuple[Segment, ...]:
        return tuple(segment for table in self.tables.values() for segment in table.segments)

    @property
    def rows(self) -> int:
        return sum(segment.rows for segment in self.segments)

    @property
    def bytes(self) -> int:
        return sum(segment.bytes for segment in self.segments)

    @property
    def disk_bytes(self) -> int:
        """The disk space of its files: file systems allocate blocks, nearly everywhere of 4 KiB."""
        sizes = (self.file_bytes, *(segment.bytes for segment in self.segments))
        return sum(-(-size // _BLOCK_BYTES) * _BLOCK_BYTES for size in sizes)

    @property
    def counts(self) -> Counts:
        return sum((segment.counts for segment in self.segments), Counts())


def dump_commit(commit: Commit, root: Storage) -> bytes:
    """The content of the commit file. Segment paths are relative to ``root``, so that a journal can be moved."""
    tables: dict[str, Any] = {}
    for table, entry in commit.tables.items():
        segments = [
            {
                "path": root.name_of(segment.path),
                "crc32": f"{segment.crc32 or 0:08x}",
                "rows": segment.rows,
                "bytes": segment.bytes,
                "schema_version": segment.schema_version,
                "first_seq": segment.first_seq,
                "last_seq": segment.last_seq,
                "counts": asdict(segment.counts),
                "truncated_at": segment.truncated_at,
                "absent": segment.absent,
                **({"replaced": segment.replaced} if segment.replaced else {}),
            }
            for segment in entry.segments
        ]
        tables[str(table)] = {"schema_version": entry.schema_version, "segments": segments}
    notices: list[dict[str, Any]] = []
    for notice in commit.notices:
        record: dict[str, Any] = {"kind": _NOTICES[type(notice)], "table": str(notice.table)}
        if isinstance(notice, RecopyNeeded):
            record |= {"reason": notice.reason, "columns": notice.columns}
        elif isinstance(notice, TableBlocked):
            record |= {"reason": notice.reason, "remedy": notice.remedy}
        notices.append(record)
    return pack(
        {
            "format": _FORMAT,
            "number": commit.number,
            "start": commit.start.encode() if commit.start is not None else None,
            "end": commit.end.encode(),
            "identity": commit.identity,
            "rows": sum(segment["rows"] for entry in tables.values() for segment in entry["segments"]),
            "bytes": commit.bytes,
            "last_seq": commit.last_seq,
            "committed_rows": commit.committed_rows,
            "written_at": commit.written_at.isoformat(),
            "generation": commit.generation,
            "tables": tables,
            "notices": notices,
        }
    )


_NOTICES: dict[type[TableNotice], str] = {
    RecopyNeeded: "recopy_needed",
    TableBlocked: "table_blocked",
    TableDropped: "table_dropped",
}


def parse_commit(data: bytes, name: str, root: Storage) -> Commit:
    """Parse a commit file. JournalDamagedError, naming it, unless it is exactly what ``dump_commit`` wrote."""
    path = root.place(name)
    body = unpack(data, path)
    try:
        return _parse(body, data, name, root)
    except (KeyError, TypeError, ValueError, AttributeError, ConfigError) as error:
        raise JournalDamagedError(f"{path} is damaged: it is not a commit file ({error!r})") from error


def _parse(body: Mapping[str, Any], data: bytes, name: str, root: Storage) -> Commit:
    path = root.place(name)
    if body.get("format") != _FORMAT:
        raise JournalDamagedError(f"{path} has the format {body.get('format')}; this version reads {_FORMAT}")
    if not name.endswith(f"{body['number']:020d}.json"):
        raise JournalDamagedError(f"{path} is damaged: it belongs to change set {body['number']}")
    tables: dict[TableId, TableCommit] = {}
    for name, entry in body["tables"].items():
        table = TableId.parse(name)
        segments = [
            Segment(
                **{
                    **record,
                    "table": table,
                    "path": root.path(record["path"]),
                    "counts": Counts(**record["counts"]),
                    "absent": tuple(record["absent"]),
                    "replaced": tuple((name, count) for name, count in record.get("replaced", ())),
                    "crc32": int(record["crc32"], 16),
                }
            )
            for record in entry["segments"]
        ]
        tables[table] = TableCommit(entry["schema_version"], tuple(segments))
    notices: list[TableNotice] = []
    for record in body["notices"]:
        table = TableId.parse(record["table"])
        if record["kind"] == _NOTICES[RecopyNeeded]:
            columns = record.get("columns")  # older commits lack it
            notices.append(RecopyNeeded(table, record["reason"], tuple(columns) if columns is not None else None))
        elif record["kind"] == _NOTICES[TableBlocked]:
            notices.append(TableBlocked(table, record["reason"], record["remedy"]))
        else:
            notices.append(TableDropped(table))
    try:
        start, end = (decode_position(body[name]) if body[name] is not None else None for name in ("start", "end"))
    except CheckpointError as error:
        raise JournalDamagedError(f"{path} has a position that this version cannot read: {error.message}") from error
    if end is None:
        raise JournalDamagedError(f"{path} is damaged: it has no end position")
    return Commit(
        number=body["number"],
        start=start,
        end=end,
        identity=body["identity"],
        last_seq=body["last_seq"],
        committed_rows=body["committed_rows"],
        written_at=datetime.fromisoformat(body["written_at"]),
        generation=body["generation"],
        tables=tables,
        notices=tuple(notices),
        file_bytes=len(data),
    )


class Predecessor(NamedTuple):
    """The server that was the source before a fail-over: its identity, the last change set and position captured from
    it, and when (ISO 8601) the next server took over."""

    identity: str
    change_set: int
    position: str
    until: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """The start of the retained journal. Written before anything is trimmed.

    ``trimmed`` is the number up to which change sets may be gone, ``versions`` the schema version that each table had
    there, ``identity`` that of the source. A missing change set above ``trimmed`` is a loss, not a trim.
    ``predecessors`` are the servers that were the source before fail-overs, oldest first.
    """

    trimmed: int = 0
    identity: str | None = None
    versions: Mapping[TableId, int] = field(default_factory=dict)
    predecessors: tuple[Predecessor, ...] = ()

    def save(self, root: Storage, name: str) -> None:
        body: dict[str, Any] = {
            "trimmed": self.trimmed,
            "identity": self.identity,
            "versions": {str(table): version for table, version in sorted(self.versions.items())},
        }
        if self.predecessors:
            body["predecessors"] = [list(one) for one in self.predecessors]
        root.replace(name, pack(body))

    @classmethod
    def load(cls, root: Storage, name: str) -> Origin:
        """FileNotFoundError if it was never saved."""
        path = root.place(name)
        body = unpack(root.read(name), path)
        try:
            versions = {TableId.parse(name): int(version) for name, version in body["versions"].items()}
            before = tuple(Predecessor(str(a), int(b), str(c), str(d)) for a, b, c, d in body.get("predecessors", ()))
            return cls(trimmed=int(body["trimmed"]), identity=body["identity"], versions=versions, predecessors=before)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise JournalDamagedError(f"{path} is damaged: it is not a journal's origin ({error!r})") from error
