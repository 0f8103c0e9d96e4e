"""What the commits of one Iceberg table record, read from its metadata. No Spark, no JVM.

In the summary of every snapshot that Lakefeed makes, so that any one of them tells everything:

    lakefeed.owner           <pipeline>/<table>
    lakefeed.generation      the life of the table that the snapshot belongs to
    lakefeed.applied         change set number; there once the copy is complete
    lakefeed.schema-version  of the rows
    lakefeed.copy            the copy so far: chunks, rows, highest position (JSON)
    lakefeed.commit          for people who look at the history (JSON)
    lakefeed.attempt         one write; how it is found again between being staged and being published

Snapshots by others (a compaction) say nothing; then the newest ancestor that does counts. Owner, generation and schema
version are table properties too: a schema belongs to the table and not to a snapshot.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

from lakefeed.change.position import Position, decode_position
from lakefeed.errors import TableStoppedError
from lakefeed.lake.base import Applied, Loaded, TableVersion
from lakefeed.lake.iceberg_metadata import Metadata, MetadataReader

OWNER, GENERATION, APPLIED = "lakefeed.owner", "lakefeed.generation", "lakefeed.applied"
SCHEMA_VERSION, COPY = "lakefeed.schema-version", "lakefeed.copy"
COMMIT, ATTEMPT = "lakefeed.commit", "lakefeed.attempt"
_SLACK = 1.25
"""How many times as many snapshots as are wanted are let be: to expire a few takes as long as to expire many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Copied:
    """The copy of a table so far."""

    chunks: int = 0
    rows: int = 0
    high: Position | None = None

    def to_json(self) -> str:
        return json.dumps({"chunks": self.chunks, "rows": self.rows, "high": self.high.encode() if self.high else None})

    @classmethod
    def from_json(cls, text: str) -> Self:
        data = json.loads(text)
        return cls(
            chunks=data["chunks"], rows=data["rows"], high=decode_position(data["high"]) if data["high"] else None
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """What one snapshot says. ``applied`` is None until the copy is complete."""

    owner: str
    generation: int
    applied: int | None = None
    schema_version: int
    copied: Copied

    def at(self, number: int | None, schema_version: int) -> Record:
        return replace(self, applied=number, schema_version=schema_version)

    def summary(self, commit: Mapping[str, Any]) -> dict[str, str]:
        """As properties of a snapshot, with what is told to people."""
        told = {
            OWNER: self.owner,
            GENERATION: str(self.generation),
            SCHEMA_VERSION: str(self.schema_version),
            COPY: self.copied.to_json(),
            COMMIT: json.dumps(commit),
        }
        return told if self.applied is None else {**told, APPLIED: str(self.applied)}

    @classmethod
    def of(cls, summary: Mapping[str, str]) -> Self | None:
        """What a snapshot's summary says; None if Lakefeed did not make it."""
        if OWNER not in summary or GENERATION not in summary:
            return None
        return cls(
            owner=summary[OWNER],
            generation=int(summary[GENERATION]),
            applied=int(summary[APPLIED]) if APPLIED in summary else None,
            schema_version=int(summary[SCHEMA_VERSION]),
            copied=Copied.from_json(summary[COPY]),
        )


@dataclass(frozen=True, slots=True)
class Staged:
    """A write that is in the table's metadata but not yet its content: see ``iceberg_store``.

    ``before`` is what the snapshot that it was made on records; ``published`` if it is the table's content already.
    """

    snapshot: int
    before: Record | None
    published: bool


class IcebergLog:
    """See the module. Any thread may ask."""

    def __init__(self, metadata: MetadataReader, owner: str, location: str) -> None:
        self._reader = metadata
        self._lock = threading.Lock()
        self.owner = owner
        self.location = location

    def applied(self, generation: int) -> Applied | None:
        """What the table's commits say of this generation; None before its copy is complete."""
        metadata = self._current()
        record = self._record(metadata, generation)
        if metadata is None or record is None or record.applied is None:
            return None
        return Applied(number=record.applied, schema_version=record.schema_version, rows=_rows(metadata))

    def record(self, generation: int) -> Record | None:
        """The newest record of this generation; None if its copy has not begun."""
        return self._record(self._current(), generation)

    def is_foreign(self) -> bool:
        """There is a table that this pipeline did not make."""
        metadata = self._current()
        if metadata is None:
            return self._reader.is_delta()
        return bool(metadata.get("properties", {}).get(OWNER) != self.owner)

    def loaded(self, generation: int) -> Loaded:
        record = self.record(generation)
        copied = record.copied if record is not None else Copied()
        return Loaded(rows=copied.rows, high=copied.high)

    def size(self) -> tuple[int, int] | None:
        """Files and bytes of the table's data, as its current snapshot sums them up."""
        metadata = self._current()
        if metadata is None:
            return None
        summary = next(_lineage(metadata, metadata.get("current-snapshot-id")), {}).get("summary", {})
        found = [summary.get(name) for name in ("total-data-files", "total-files-size")]
        return (int(found[0]), int(found[1])) if None not in found else None

    def having(self, names: Sequence[str]) -> tuple[str, ...]:
        """Those of the names that are columns of the table."""
        metadata = self._current() or {}
        current = metadata.get("current-schema-id")
        schemas = [one for one in metadata.get("schemas", ()) if one.get("schema-id") == current]
        there = {field["name"] for schema in schemas for field in schema["fields"]}
        return tuple(name for name in names if name in there)

    def staged(self, attempt: str) -> Staged | None:
        """The write of that name; None if it made no snapshot."""
        metadata = self._current()
        for snapshot in metadata.get("snapshots", ()) if metadata is not None else ():
            if metadata is not None and snapshot["summary"].get(ATTEMPT) == attempt:
                current = metadata.get("current-snapshot-id")
                number = snapshot["snapshot-id"]
                published = any(one["snapshot-id"] == number for one in _lineage(metadata, current))
                before = self._newest(metadata, snapshot.get("parent-snapshot-id"))
                return Staged(number, before, published)
        return None

    def states(self, generation: int) -> tuple[TableVersion, ...]:
        """The snapshots of this generation that are still there and past its copy, oldest first."""
        metadata = self._current()
        if metadata is None or metadata.get("properties", {}).get(OWNER) != self.owner:
            return ()
        found = [_state(one, generation) for one in _lineage(metadata, metadata.get("current-snapshot-id"))]
        return tuple(state for state in reversed(found) if state is not None)

    def metadata_file(self) -> str | None:
        self._current()
        return self._reader.place

    def newest_below_others(self) -> tuple[Record, Mapping[str, Any]] | None:
        """What the table records and tells people, if its newest snapshot does not.

        None if it does, or if nothing is recorded.
        """
        metadata = self._current()
        current = metadata.get("current-snapshot-id") if metadata is not None else None
        if metadata is None or any(Record.of(one["summary"]) for one in list(_lineage(metadata, current))[:1]):
            return None
        return self._newest_told(metadata, current)

    def expirable(self, aged: float | None, most: int, *, kept: int) -> float | None:
        """Expire snapshots from before this time: None if there are none, or no more than ``kept``.

        Those from before ``aged``, and the oldest of clearly more than ``most``.
        """
        times = sorted(one["timestamp-ms"] / 1000 for one in (self._current() or {}).get("snapshots", ()))
        surplus = times[-most] if len(times) > most * _SLACK else None
        limit = max((one for one in (aged, surplus) if one is not None), default=None)
        return limit if limit is not None and len(times) > kept and times[0] < limit else None

    def _current(self) -> Metadata | None:
        with self._lock:
            return self._reader.current()

    def _record(self, metadata: Metadata | None, generation: int) -> Record | None:
        """TableStoppedError if the table is of this generation, but no snapshot is left that says how far it is."""
        if metadata is None:
            return None
        properties = metadata.get("properties", {})
        if properties.get(OWNER) != self.owner or properties.get(GENERATION) != str(generation):
            return None
        found = self._newest(metadata, metadata.get("current-snapshot-id"))
        if found is None or found.generation != generation:
            table = self.owner.partition("/")[2]
            raise TableStoppedError(
                f"table {table}: the snapshots of {self.location} that say which changes it has are gone; they have "
                "been expired, or the table was rolled back to before its copy",
                remedy=f"Remove the lake table and start the pipeline again: {table} is then copied anew. Expire "
                "snapshots only while a newer one by Lakefeed is kept.",
                table=table,
            )
        return replace(found, schema_version=int(properties[SCHEMA_VERSION]))

    def _newest(self, metadata: Metadata, snapshot: int | None) -> Record | None:
        found = self._newest_told(metadata, snapshot)
        return found[0] if found is not None else None

    def _newest_told(self, metadata: Metadata, snapshot: int | None) -> tuple[Record, Mapping[str, Any]] | None:
        for ancestor in _lineage(metadata, snapshot):
            record = Record.of(ancestor["summary"])
            if record is not None and record.owner == self.owner:
                return record, json.loads(ancestor["summary"][COMMIT])
        return None


def _lineage(metadata: Metadata, snapshot: int | None) -> Iterator[Mapping[str, Any]]:
    """A snapshot and its ancestors, as far as they are still there."""
    by_id = {one["snapshot-id"]: one for one in metadata.get("snapshots", ())}
    while snapshot is not None and (found := by_id.get(snapshot)) is not None:
        yield found
        snapshot = found.get("parent-snapshot-id")


def _state(snapshot: Mapping[str, Any], generation: int) -> TableVersion | None:
    """None for one that is not of this generation, or whose rows are not all of one moment."""
    summary = snapshot["summary"]
    record = Record.of(summary)
    if record is None or record.generation != generation or record.applied is None:
        return None
    told = json.loads(summary[COMMIT])
    position = decode_position(told["position"]) if told.get("position") else None
    high = record.copied.high
    if high is not None and (position is None or position < high):
        return None
    return TableVersion(
        number=record.applied,
        schema_version=record.schema_version,
        position=position,
        version=snapshot["snapshot-id"],
    )


def _rows(metadata: Metadata) -> int | None:
    """By the sums in the current snapshot's summary; None where they do not tell.

    With deletion vectors each deleted row is counted once. Equality deletes, which only others write, tell nothing.
    """
    summary = next(_lineage(metadata, metadata.get("current-snapshot-id")), {}).get("summary", {})
    records, deleted = summary.get("total-records"), summary.get("total-position-deletes", "0")
    if records is None or summary.get("total-equality-deletes", "0") != "0":
        return None
    return int(records) - int(deleted)
