"""Seeds: where each table of a pipeline stands between "not in the lake" and "follows the journal". Durable.

A table's life, each arrow one atomic file write:

    STAGED ──prepare, plan──▶ COPYING ──all chunks loaded──▶ LIVE ──source table gone, the rest applied──▶ DROPPED
       ▲                                                      │
       └──────── a gap, a changed key, a lost lake table ─────┘   (a new generation)
                                    BLOCKED: waits for a person; the reason and remedy are in the record

STAGED is written before the source is touched (the crash-safe order: a rebuild is decided durably, then the resume
point is made, then rows are read). COPYING holds the plan, so that a restart reads only the chunks that are missing.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from pathlib import Path
from typing import Any
from urllib.parse import quote

from lakefeed.change.position import Position, decode_position
from lakefeed.change.table import TableId, TableSchema
from lakefeed.durable import make_directory, replace_file
from lakefeed.errors import JournalDamagedError
from lakefeed.lake.mode import Mode, mode_from_json, mode_to_json
from lakefeed.lake.route import Route


class Phase(StrEnum):
    STAGED = "staged"
    COPYING = "copying"
    LIVE = "live"
    BLOCKED = "blocked"
    DROPPED = "dropped"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableState:
    """One lake table's copy: ``table`` is its name in the lake, ``source`` feeds it, ``mode`` is what it was made as.

    ``generation`` names one life of the lake table; it is taken from the clock, so that even a pipeline whose state
    was deleted cannot take an old table's numbers for its own. ``base``: change sets up to it are inside the copied
    rows. ``low`` and ``high``: no chunk was read at an earlier state of the source than the first, or at a later one
    than the second. ``noticed``: notices of change sets up to it have been acted on. ``settled_recorded`` and
    ``settled_effective``: when the journal was last trimmed the table's own commits said the first, and the table was
    complete up to the second (nothing for it lay between). ``leaving``: the source table is not there any more, or not
    in the configuration; ``ends_at``: the change set with the last of its changes, once that is known.
    """

    table: TableId
    source: TableId
    mode: Mode
    generation: int
    phase: Phase
    reason: str = ""
    remedy: str = ""
    schema: TableSchema | None = None
    base: int = 0
    chunks: tuple[Mapping[str, Any], ...] = ()
    rows_estimate: int = 0
    rows: int = 0
    low: Position | None = None
    high: Position | None = None
    noticed: int = 0
    settled_recorded: int = 0
    settled_effective: int = 0
    leaving: bool = False
    ends_at: int | None = None

    @property
    def route(self) -> Route:
        return Route(self.table, self.source, self.mode)

    def to_json(self) -> dict[str, Any]:
        data: dict[str, Any] = {field.name: getattr(self, field.name) for field in fields(self)}
        data |= {"table": str(self.table), "source": str(self.source), "mode": mode_to_json(self.mode)}
        data |= {"phase": self.phase.value, "chunks": [dict(chunk) for chunk in self.chunks]}
        data["schema"] = self.schema.to_json() if self.schema else None
        data["low"] = self.low.encode() if self.low else None
        data["high"] = self.high.encode() if self.high else None
        return data

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> TableState:
        return cls(
            **{
                **data,
                "table": TableId.parse(data["table"]),
                "source": TableId.parse(data["source"]),
                "mode": mode_from_json(data["mode"]),
                "phase": Phase(data["phase"]),
                "chunks": tuple(data["chunks"]),
                "schema": TableSchema.from_json(data["schema"]) if data["schema"] else None,
                "low": decode_position(data["low"]) if data["low"] else None,
                "high": decode_position(data["high"]) if data["high"] else None,
            }
        )


class TableStates:
    """The states of one pipeline, a file each. Thread-safe; a record is visible only once it is durable.

    The one writer is the holder of the pipeline's lease. Anyone may read.
    """

    def __init__(self, root: Path) -> None:
        self._directory = root / "tables"
        self._lock = threading.RLock()
        self._records: dict[TableId, TableState] = {}
        for path in sorted(self._directory.glob("*.json")):
            record = _read(path)
            self._records[record.table] = record

    def all(self) -> dict[TableId, TableState]:
        with self._lock:
            return dict(self._records)

    def get(self, table: TableId) -> TableState | None:
        with self._lock:
            return self._records.get(table)

    def in_phase(self, *phases: Phase) -> list[TableState]:
        return [record for record in self.all().values() if record.phase in phases]

    def save(self, record: TableState) -> TableState:
        with self._lock:
            make_directory(self._directory)
            replace_file(self._directory / _file_name(record.table), _to_bytes(record))
            self._records[record.table] = record
        return record

    def update(self, table: TableId, **changes: Any) -> TableState:
        with self._lock:
            return self.save(replace(self._records[table], **changes))

    def update_if(self, seen: TableState, **changes: Any) -> bool:
        """Only if the record still is of the life and the phase that were seen: the other side may have been here."""
        with self._lock:
            return self._is_still(seen) and self.update(seen.table, **changes) is not None

    def stage(self, route: Route, *, reason: str, noticed: int = 0) -> TableState:
        """Begin a new life of the table, under a new generation."""
        with self._lock:
            before = self._records.get(route.table)
            generation = max(time.time_ns() // 1_000_000, before.generation + 1 if before else 0)
            record = TableState(
                table=route.table,
                source=route.source,
                mode=route.mode,
                generation=generation,
                phase=Phase.STAGED,
                reason=reason,
                noticed=max(noticed, before.noticed if before else 0),
            )
            return self.save(record)

    def stage_if(self, seen: TableState, *, reason: str) -> bool:
        """As ``update_if``."""
        with self._lock:
            return self._is_still(seen) and self.stage(seen.route, reason=reason) is not None

    def _is_still(self, seen: TableState) -> bool:
        now = self._records.get(seen.table)
        return now is not None and (now.generation, now.phase) == (seen.generation, seen.phase)


def _file_name(table: TableId) -> str:
    return quote(str(table), safe=" ") + ".json"


def _to_bytes(record: TableState) -> bytes:
    return json.dumps(record.to_json(), indent=1, ensure_ascii=False).encode()


def _read(path: Path) -> TableState:
    try:
        return TableState.from_json(json.loads(path.read_bytes()))
    except (ValueError, KeyError, TypeError) as error:
        raise JournalDamagedError(f"the copy file {path} cannot be read: {error}") from error
