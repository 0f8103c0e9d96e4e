"""What a snapshot of an Iceberg table records: see ``store``. Values only."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from lakefeed.change.position import Position, decode_position

OWNER, GENERATION, APPLIED = "lakefeed.owner", "lakefeed.generation", "lakefeed.applied"
SCHEMA_VERSION, COPY = "lakefeed.schema-version", "lakefeed.copy"
COMMIT, ATTEMPT = "lakefeed.commit", "lakefeed.attempt"
DESCRIBED = "lakefeed.described"
"""A table property: the columns whose comments are the source's (JSON). Other comments are the table owner's."""
VERSIONS = "write.metadata.previous-versions-max"
VERSIONS_AFTER = "lakefeed.previous-versions-max"
"""During a copy: what ``VERSIONS`` is to be after it."""
OTHERS = "lakefeed.others"
"""In a union: what the snapshot records of the other parts, by their owner (JSON)."""


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
    """What one snapshot records. ``applied`` is None until the copy is complete."""

    owner: str
    generation: int
    applied: int | None = None
    schema_version: int
    copied: Copied

    def summary(self, commit: Mapping[str, Any]) -> dict[str, str]:
        """The record as properties of a snapshot, with ``commit`` for people."""
        found = {
            OWNER: self.owner,
            GENERATION: str(self.generation),
            SCHEMA_VERSION: str(self.schema_version),
            COPY: self.copied.to_json(),
            COMMIT: json.dumps(commit),
        }
        return found if self.applied is None else {**found, APPLIED: str(self.applied)}

    @classmethod
    def of(cls, summary: Mapping[str, str]) -> Self | None:
        """The record in a snapshot's summary; None if Lakefeed did not make the snapshot."""
        if OWNER not in summary or GENERATION not in summary:
            return None
        return cls(
            owner=summary[OWNER],
            generation=int(summary[GENERATION]),
            applied=int(summary[APPLIED]) if APPLIED in summary else None,
            schema_version=int(summary[SCHEMA_VERSION]),
            copied=Copied.from_json(summary[COPY]),
        )


def summary_of(summary: Mapping[str, str], owner: str) -> Mapping[str, str] | None:
    """What a snapshot's summary records for one owner's table, or part of a table; None if nothing."""
    if summary.get(OWNER) == owner:
        return summary
    others: dict[str, dict[str, str]] = json.loads(summary.get(OTHERS, "{}"))
    return others.get(owner)


def others_of(summary: Mapping[str, str], owner: str) -> dict[str, Mapping[str, str]]:
    """What a snapshot's summary records for all parts of a union but ``owner``'s, by their owner."""
    found: dict[str, Mapping[str, str]] = dict(json.loads(summary.get(OTHERS, "{}")))
    own = (OWNER, GENERATION, APPLIED, SCHEMA_VERSION, COPY, COMMIT)
    if OWNER in summary:
        found[summary[OWNER]] = {name: summary[name] for name in own if name in summary}
    return {name: one for name, one in found.items() if name != owner}


@dataclass(frozen=True, slots=True)
class Staged:
    """A staged snapshot: see ``store``.

    ``before`` is its parent's record. ``published``: it is, or was, the current one. ``rows`` is the table's number of
    rows with it, if its summary says so.
    """

    snapshot: int
    before: Record | None
    published: bool
    rows: int | None
