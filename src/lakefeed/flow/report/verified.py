"""What the last ``lakefeed verify`` found for each lake table, kept next to the journal for ``status``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from lakefeed.change.table import TableId
from lakefeed.storage.base import Storage
from lakefeed.storage.location import storage_at

_NAME = "verified.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedThrough:
    """Up to where a table was found equal: the source's position, its time, and how many rows were compared."""

    position: str | None
    at: float
    rows: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """One comparison of a lake table with its source table. ``at`` is when it ended, in seconds since 1970.

    ``change_set`` and ``position`` are what the lake table had when it was compared; None if it was not compared, for
    example because it was not live. ``difference`` is the first one that was found. ``through`` is the newest
    comparison that found the table equal, this one or an earlier one.
    """

    at: float
    equal: bool
    source_rows: int | None = None
    lake_rows: int | None = None
    change_set: int | None = None
    position: str | None = None
    difference: str | None = None
    through: VerifiedThrough | None = None


def save_verified(root: Path | Storage, found: Mapping[TableId, Verified]) -> None:
    """Save the results of these tables in place of earlier ones; those of other tables stay."""
    before = load_verified(root)
    kept = {**before, **{table: _through(one, before.get(table)) for table, one in found.items()}}
    body = {str(table): asdict(one) for table, one in sorted(kept.items())}
    storage_at(root).replace(_NAME, json.dumps(body, indent=1, ensure_ascii=False).encode())


def load_verified(root: Path | Storage) -> dict[TableId, Verified]:
    """An unreadable file counts as empty: the next verification writes it again."""
    try:
        body: dict[str, dict[str, Any]] = json.loads(storage_at(root).read(_NAME))
        return {
            TableId.parse(name): Verified(
                **{**one, "through": VerifiedThrough(**one["through"]) if one.get("through") else None}
            )
            for name, one in body.items()
        }
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def _through(one: Verified, before: Verified | None) -> Verified:
    if not one.equal:
        return replace(one, through=before.through if before is not None else None)
    return replace(one, through=VerifiedThrough(position=one.position, at=one.at, rows=one.source_rows))
