"""What the last ``lakefeed verify`` found of each lake table, kept beside the journal for ``status``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lakefeed.change.table import TableId
from lakefeed.storage.base import Storage
from lakefeed.storage.location import storage_at

_NAME = "verified.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """One comparison of a lake table with its source table. ``at`` is when it ended, in seconds since 1970.

    ``change_set`` and ``position`` are what the lake table had when it was compared; None where it was not compared,
    because it was not live for example. ``difference`` is the first one that was found.
    """

    at: float
    equal: bool
    source_rows: int | None = None
    lake_rows: int | None = None
    change_set: int | None = None
    position: str | None = None
    difference: str | None = None


def save_verified(root: Path | Storage, found: Mapping[TableId, Verified]) -> None:
    """Keep the results of these tables, instead of their earlier ones; those of the others stay."""
    kept = {**load_verified(root), **found}
    body = {str(table): asdict(one) for table, one in sorted(kept.items())}
    storage_at(root).replace(_NAME, json.dumps(body, indent=1, ensure_ascii=False).encode())


def load_verified(root: Path | Storage) -> dict[TableId, Verified]:
    """A file that cannot be read says nothing: the next verification writes it again."""
    try:
        body: dict[str, dict[str, Any]] = json.loads(storage_at(root).read(_NAME))
        return {TableId.parse(name): Verified(**one) for name, one in body.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}
