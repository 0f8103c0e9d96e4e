"""What is remembered of each captured table, in the pipeline's meta table inside the source."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from lakefeed.change.table import TableId, TableSchema


class State(Enum):
    LIVE = "live"
    BLOCKED = "blocked"
    """No rows are delivered until the table is prepared anew."""
    DROPPED = "dropped"
    """The table is gone; what was logged before is still delivered."""


@dataclass(frozen=True, slots=True)
class Captured:
    """One captured table. ``number`` marks its rows in the log and is never used twice.

    ``slots`` are the log columns (c0, c1 …) of ``schema.columns``, in the same order. A slot belongs to one column
    for good, through renames, which is why it is also the column's stable id. ``sql`` is the CREATE statement as it
    was when the triggers were last checked. ``before_images``: the triggers log rows as they were, too.
    """

    number: int
    schema: TableSchema
    slots: tuple[int, ...]
    next_slot: int
    rowid_key: bool
    sql: str
    state: State = State.LIVE
    before_images: bool = False

    @property
    def table(self) -> TableId:
        return self.schema.table

    @property
    def name(self) -> str:
        return self.schema.table.name

    @property
    def slot_of(self) -> dict[str, int]:
        return dict(zip(self.schema.names, self.slots, strict=True))

    @property
    def key_slots(self) -> tuple[int, ...]:
        return tuple(self.slot_of[name] for name in self.schema.key)

    def with_state(self, state: State) -> Captured:
        return replace(self, state=state)

    def to_json(self) -> dict[str, Any]:
        return {
            "number": self.number,
            "schema": self.schema.to_json(),
            "slots": list(self.slots),
            "next_slot": self.next_slot,
            "rowid_key": self.rowid_key,
            "sql": self.sql,
            "state": self.state.value,
            "before_images": self.before_images,
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Captured:
        return cls(
            **{
                **data,
                "schema": TableSchema.from_json(data["schema"]),
                "slots": tuple(data["slots"]),
                "state": State(data["state"]),
            }
        )
