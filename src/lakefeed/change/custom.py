"""A position of a source that Lakefeed does not know."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from lakefeed.change.position import Position


@dataclass(frozen=True, slots=True)
class Custom(Position):
    """Any text. Only equality is known of it: two different ones are not ordered."""

    kind: ClassVar[str] = "custom"
    value: str

    def text(self) -> str:
        return self.value

    @classmethod
    def parse(cls, text: str) -> Custom:
        return cls(text)

    def _compare(self, other: Custom) -> int | None:
        return 0 if self.value == other.value else None
