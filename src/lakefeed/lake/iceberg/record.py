"""What one snapshot of an Iceberg table records: see ``store``. Values only."""

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
"""Property of a table: the columns whose comments are the source's (JSON). Comments of others are the owner's."""
OTHERS = "lakefeed.others"
"""In a table that is a union: what the snapshot records of the other parts, by their owner (JSON)."""


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

    def summary(self, commit: Mapping[str, Any]) -> dict[str, str]:
        """As properties of a snapshot, with what people read."""
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


def summary_of(summary: Mapping[str, str], owner: str) -> Mapping[str, str] | None:
    """What a snapshot's summary says of one owner's table, or part of a table; None if nothing."""
    if summary.get(OWNER) == owner:
        return summary
    others: dict[str, dict[str, str]] = json.loads(summary.get(OTHERS, "{}"))
    return others.get(owner)


def others_of(summary: Mapping[str, str], owner: str) -> dict[str, Mapping[str, str]]:
    """What a snapshot's summary says of all parts of a union but one, by their owner."""
    found: dict[str, Mapping[str, str]] = dict(json.loads(summary.get(OTHERS, "{}")))
    own = (OWNER, GENERATION, APPLIED, SCHEMA_VERSION, COPY, COMMIT)
    if OWNER in summary:
        found[summary[OWNER]] = {name: summary[name] for name in own if name in summary}
    return {name: one for name, one in found.items() if name != owner}


@dataclass(frozen=True, slots=True)
class Staged:
    """A write that is in the table's metadata but not yet its content: see the module.

    ``before`` is what the snapshot that it was made on records; ``published`` if it is the table's content already;
    ``rows`` how many the table has with it, if its summary says so.
    """

    snapshot: int
    before: Record | None
    published: bool
    rows: int | None
