"""The registry of position kinds, by the name under which they are stored."""

from __future__ import annotations

from lakefeed.change.position import Position, SqliteSequence

POSITION_KINDS: dict[str, type[Position]] = {kind.kind: kind for kind in (SqliteSequence,)}
