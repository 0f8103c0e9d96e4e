"""Table states: where each lake table stands between "not in the lake" and "follows the journal". Durable.

A table's life, each arrow one atomic file write:

    STAGED ──prepare, plan──▶ COPYING ──all chunks loaded──▶ LIVE ──source table gone, the rest applied──▶ DROPPED
       ▲                                                      │
       └──────── a gap, a changed key, a lost lake table ─────┘   (a new generation)
                                    BLOCKED: waits for a person; its state has the reason and the remedy

STAGED is written before the source is touched (the crash-safe order: a copy is decided durably, then the resume point
is created, then rows are read). COPYING has the plan, so that a restart reads only the missing chunks.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from enum import StrEnum
from pathlib import Path
from typing import Any
from urllib.parse import quote

from lakefeed.change.change_set import TableBlocked, TableDropped
from lakefeed.change.position import Position, decode_position
from lakefeed.change.table import TableId, TableSchema
from lakefeed.durable import pack, unpack
from lakefeed.errors import JournalDamagedError, LakefeedError, StateError
from lakefeed.journal.commit import Commit
from lakefeed.lake.mode import Mode, mode_from_json
from lakefeed.lake.route import Part, Route
from lakefeed.lake.schema.policy import Evolution
from lakefeed.storage.base import Storage
from lakefeed.storage.location import removal, storage_at

log = logging.getLogger(__name__)

_GONE = "the source table was dropped or renamed"


class Phase(StrEnum):
    STAGED = "staged"
    COPYING = "copying"
    LIVE = "live"
    BLOCKED = "blocked"
    DROPPED = "dropped"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableState:
    """One lake table: ``table`` is its name in the lake, ``source`` feeds it, ``mode`` is the mode it was made in.

    ``generation`` identifies one life of the lake table. It is taken from the clock, so that even a pipeline whose
    state was deleted cannot take an old table's numbers for its own. ``base``: the copied rows include change sets up
    to it. ``low`` and ``high``: no chunk was read at a state of the source before the first or after the second.
    ``exact_at``: the single state that all chunks were meant to be read at; they were if ``high`` is equal.
    ``is_exact``: there was one chunk, read at ``high``. ``notices_upto``: notices of change sets up to it have been
    acted on. ``recorded_at_trim`` and ``complete_at_trim``: at the last trim of the journal, the table's own commits
    recorded the first, and the table was complete up to the second (nothing for it lay in between). ``leaving``: the
    source table is gone, or no longer in the configuration; ``last_change_set``: the one with its last change, once
    that is known. ``renewed``: a person wants the table made again, so it gets what new tables get, not the types that
    it had. ``evolution``: what the configuration says about schema changes of the source, for readers without the
    configuration. ``part``: in a union, which rows of which lake table it is.
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
    exact_at: Position | None = None
    is_exact: bool = False
    notices_upto: int = 0
    recorded_at_trim: int = 0
    complete_at_trim: int = 0
    leaving: bool = False
    last_change_set: int | None = None
    renewed: bool = False
    evolution: Evolution = field(default_factory=Evolution)
    part: Part | None = None

    @property
    def route(self) -> Route:
        return Route(self.table, self.source, self.mode, self.part)

    def to_json(self) -> dict[str, Any]:
        data: dict[str, Any] = {one.name: getattr(self, one.name) for one in fields(self)}
        data |= {"table": str(self.table), "source": str(self.source), "mode": self.mode.to_json()}
        data |= {"phase": self.phase.value, "chunks": [dict(chunk) for chunk in self.chunks]}
        data |= {"schema": self.schema.to_json() if self.schema else None, "evolution": asdict(self.evolution)}
        data |= {"part": self.part.to_json() if self.part else None}
        positions = {"low": self.low, "high": self.high, "exact_at": self.exact_at}
        return data | {name: one.encode() if one else None for name, one in positions.items()}

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
                "evolution": Evolution().with_choices(data.get("evolution", {})),  # older states lack it
                "schema": TableSchema.from_json(data["schema"]) if data["schema"] else None,
                "part": Part.from_json(data["part"]) if data.get("part") else None,
                **{name: decode_position(data[name]) for name in ("low", "high", "exact_at") if data.get(name)},
            }
        )


class TableStates:
    """The states of one pipeline, one file each. A state becomes visible only once it is durable.

    The only writer is the process with the pipeline's lease; anyone may read. Threads: any. Three threads of a running
    pipeline change states at the same time. So make a change that depends on a state read before with ``update_if`` or
    ``stage_if``, or hold ``lock`` over both.
    """

    def __init__(self, root: Path | str | Storage) -> None:
        self.root = storage_at(root)
        self._files = self.root.below("tables")
        self.lock = threading.RLock()
        self._closed = False
        self._states: dict[TableId, TableState] = {}
        names = [name for name in self._files.names() if name.endswith(".json") and "/" not in name]
        for name, data in zip(names, self._files.read_all(names), strict=True):
            try:
                body = json.loads(data)
                if "sha256" in body:  # files of earlier versions have no checksum
                    body = unpack(data, self._files.place(name))
                state = TableState.from_json(body)
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError, LakefeedError) as error:
                path = self._files.place(name)
                raise JournalDamagedError(
                    f"the table state {path} cannot be read: {getattr(error, 'message', error)}",
                    remedy="Restore it from a backup, or remove it, and the next start copies this one table again: "
                    f"{removal(path)}",
                ) from error
            self._states[state.table] = state

    def all(self) -> dict[TableId, TableState]:
        with self.lock:
            return dict(self._states)

    def get(self, table: TableId) -> TableState | None:
        with self.lock:
            return self._states.get(table)

    def fed(self) -> dict[TableId, Route]:
        """The route of each lake table, by which its rows came or will come."""
        return {table: state.route for table, state in self.all().items()}

    def in_phase(self, *phases: Phase) -> list[TableState]:
        return [state for state in self.all().values() if state.phase in phases]

    def close(self) -> None:
        """Write nothing from here on: the lease is released, and a thread that was left behind may come back late."""
        with self.lock:
            self._closed = True

    def save(self, state: TableState) -> TableState:
        with self.lock:
            if self._closed:
                raise StateError(f"the pipeline is closed, so the state of {state.table} is no longer written")
            self._files.replace(f"{quote(str(state.table), safe=' ')}.json", pack(state.to_json()))
            self._states[state.table] = state
        return state

    def update(self, table: TableId, **changes: Any) -> TableState:
        with self.lock:
            return self.save(replace(self._states[table], **changes))

    def update_if(self, seen: TableState, **changes: Any) -> bool:
        """Update only if the table still has the generation and phase of ``seen``: another thread may be ahead."""
        with self.lock:
            return self._is_still(seen) and self.update(seen.table, **changes) is not None

    def stage(self, route: Route, *, reason: str, notices_upto: int = 0, renewed: bool = False) -> TableState:
        """Start a new life of the table, with a new generation."""
        with self.lock:
            before = self._states.get(route.table)
            state = TableState(
                table=route.table,
                source=route.source,
                mode=route.mode,
                part=route.part,
                generation=max(time.time_ns() // 1_000_000, before.generation + 1 if before else 0),
                phase=Phase.STAGED,
                reason=reason,
                notices_upto=max(notices_upto, before.notices_upto if before else 0),
                renewed=renewed or (before is not None and before.renewed and before.phase is Phase.STAGED),
            )
            return self.save(state)

    def stage_if(self, seen: TableState, *, reason: str) -> bool:
        """As ``update_if``."""
        with self.lock:
            return self._is_still(seen) and self.stage(seen.route, reason=reason) is not None

    def leave(self, table: TableId, reason: str, *, last_change_set: int | None, **changes: Any) -> None:
        """Stop following the table. A live one first gets its changes up to ``last_change_set``, or all if None."""
        with self.lock:
            if self._states[table].phase is Phase.LIVE:
                self.update(table, leaving=True, last_change_set=last_change_set, reason=reason, **changes)
            else:
                log.warning("lake table %s stays as it is: %s", table, reason)
                self.update(table, phase=Phase.DROPPED, reason=reason, **changes)

    def act_on(self, commit: Commit) -> None:
        """Do what the notices of a change set ask for. Durable on return, so that the source may then be confirmed.

        Idempotent: a state records up to which change set its notices are done, so that a start may repeat the newest
        one, in case the process died before.
        """
        for index, notice in enumerate(commit.notices):
            same = [at for at, one in enumerate(commit.notices) if one.table == notice.table]
            done: dict[str, Any] = (
                {"notices_upto": commit.number} if index == same[-1] else {}
            )  # a table may have several
            with self.lock:
                for state in [one for one in self._states.values() if one.source == notice.table]:
                    if state.notices_upto >= commit.number:
                        continue
                    if isinstance(notice, TableDropped):
                        self.leave(state.table, _GONE, last_change_set=commit.number, **done)
                    elif isinstance(notice, TableBlocked):
                        blocked = {"phase": Phase.BLOCKED, "reason": notice.reason, "remedy": notice.remedy}
                        self.update(state.table, **blocked, **done)
                    elif state.phase is Phase.BLOCKED or (state.phase is Phase.COPYING and state.base < commit.number):
                        # A live table has the notice in its next window, where the lake's policy decides about it.
                        log.warning("table %s is copied again: %s", state.table, notice.reason)
                        self.stage(state.route, reason=notice.reason, **done)
                    elif len(same) > 1:
                        self.update(state.table, **done)

    def _is_still(self, seen: TableState) -> bool:
        now = self._states.get(seen.table)
        return now is not None and (now.generation, now.phase) == (seen.generation, seen.phase)
