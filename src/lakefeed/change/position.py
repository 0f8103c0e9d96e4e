"""Positions: how far somebody has come in one source's log.

Contract of every kind:
- immutable, hashable, picklable; ``encode`` is a short readable text and ``decode_position`` its exact inverse;
- a value that has no such text cannot be made: construction raises CheckpointError;
- ``a.compare(b)`` is -1, 0 or 1, or None if the two are not ordered. It is a partial order: what is below something
  that is below a third is below the third, and nothing is both below and above. LSNs and SQLite sequences are
  totally ordered; two binlog positions, GTID sets, watermarks or custom texts may be unordered;
- ``<``, ``<=``, ``>``, ``>=`` follow from it and are all False for an unordered pair;
- equal positions compare 0. The reverse is true too, but for SqliteSequence, whose stamp is no part of the order;
- comparing two kinds is a programming error and raises TypeError: there is no order between them.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cache
from typing import ClassVar, Self

from lakefeed.errors import CheckpointError


class Position(ABC):
    """Base of all positions."""

    __slots__ = ()
    kind: ClassVar[str]

    @abstractmethod
    def text(self) -> str:
        """The value alone, as people write it: ``1/12345678``, ``mysql-bin.000003:12345``."""

    @classmethod
    @abstractmethod
    def parse(cls, text: str) -> Self:
        """Inverse of ``text``. Raises CheckpointError, naming the text, for anything else."""

    @property
    def rank(self) -> int | None:
        """The number by which positions of a totally ordered kind are ordered; other kinds have ``_compare``."""
        return None

    def _compare(self, other: Self) -> int | None:
        """The order within one kind that has no ranks."""
        raise TypeError(f"{type(self).__name__} has neither a rank nor an order: {self} and {other} cannot be compared")

    def compare(self, other: Position) -> int | None:
        if type(self) is not type(other):
            raise TypeError(f"a {self.kind} position and a {other.kind} position have no order")
        mine, theirs = self.rank, other.rank
        if mine is None or theirs is None:
            return self._compare(other)
        return (mine > theirs) - (mine < theirs)

    def __lt__(self, other: Position) -> bool:
        return self.compare(other) == -1

    def __le__(self, other: Position) -> bool:
        return self.compare(other) in (-1, 0)

    def __gt__(self, other: Position) -> bool:
        return self.compare(other) == 1

    def __ge__(self, other: Position) -> bool:
        return self.compare(other) in (0, 1)

    def encode(self) -> str:
        """``kind=text``: what is stored in checkpoints, commit files and table metadata."""
        return f"{self.kind}={self.text()}"

    def __str__(self) -> str:
        return self.text()


def order(a: int, b: int) -> int:
    """-1, 0 or 1, as ``_compare`` wants it."""
    return (a > b) - (a < b)


def order_by_inclusion(below: bool, above: bool) -> int | None:
    """What ``a <= b`` and ``a >= b`` say together, for kinds whose values contain one another or do not."""
    if below and above:
        return 0
    if below:
        return -1
    return 1 if above else None


def number(text: str, *, bits: int = 64) -> int | None:
    """A plain decimal number that fits ``bits``; None for a sign, a space, an underscore, another script's digits."""
    if not _DIGITS.fullmatch(text):
        return None
    value = int(text)
    return value if value < 1 << bits else None


# Twenty digits are enough for every 64-bit number, and keep int() away from texts of a million digits.
_DIGITS = re.compile(r"[0-9]{1,20}")


@dataclass(frozen=True, slots=True)
class SqliteSequence(Position):
    """A row number of the change log that the triggers fill.

    ``stamp`` is that row's own time stamp (milliseconds): not part of the order, but a restored copy of the database
    that has counted on from an older state shows another stamp at the same number, and is found out by it.
    """

    kind: ClassVar[str] = "sqlite"
    sequence: int
    stamp: int = 0

    def __post_init__(self) -> None:
        if not (0 <= self.sequence < 1 << 63 and 0 <= self.stamp < 1 << 63):
            raise CheckpointError(f"{self.sequence}@{self.stamp} is not a SQLite sequence; both are 0 or more, 63 bits")

    def text(self) -> str:
        return f"{self.sequence}@{self.stamp}"

    @classmethod
    def parse(cls, text: str) -> SqliteSequence:
        first, _, last = text.partition("@")
        sequence, stamp = number(first, bits=63), number(last, bits=63)
        if sequence is None or stamp is None:
            raise CheckpointError(f"'{text}' is not a SQLite sequence; it must read number@milliseconds")
        return cls(sequence, stamp)

    @property
    def rank(self) -> int:
        return self.sequence


@dataclass(frozen=True, slots=True)
class Custom(Position):
    """Any text, for a source of one's own.

    Two texts that are plain numbers (``17``: no sign, no leading zero) are ordered as numbers. Of all others only
    equality is known, so that progress is judged by what was delivered and never by comparing them.
    """

    kind: ClassVar[str] = "custom"
    value: str

    def text(self) -> str:
        return self.value

    @classmethod
    def parse(cls, text: str) -> Custom:
        return cls(text)

    def _compare(self, other: Custom) -> int | None:
        if self.value == other.value:
            return 0
        mine, theirs = number(self.value), number(other.value)
        if mine is None or theirs is None or (str(mine), str(theirs)) != (self.value, other.value):
            return None
        return order(mine, theirs)


@cache
def position_kinds() -> dict[str, type[Position]]:
    """Every kind, by the name under which it is stored."""
    from lakefeed.change.lsn import PostgresLsn, SqlServerLsn  # the kinds import this module
    from lakefeed.change.mysql import MariadbGtid, MysqlBinlog, MysqlGtid
    from lakefeed.change.watermark import Watermark

    kinds: tuple[type[Position], ...] = (
        Custom, MariadbGtid, MysqlBinlog, MysqlGtid, PostgresLsn, SqliteSequence, SqlServerLsn, Watermark,
    )  # fmt: skip
    return {kind.kind: kind for kind in kinds}


def decode_position(text: str) -> Position:
    """Inverse of ``Position.encode`` for every kind."""
    kind, equals, value = text.partition("=")
    kinds = position_kinds()
    if not equals or kind not in kinds:
        known = ", ".join(sorted(kinds))
        raise CheckpointError(f"'{text}' is not a position; it must read kind=value with one of {known}")
    return kinds[kind].parse(value)


def highest(one: Position | None, other: Position | None) -> Position | None:
    """The later of two positions; None counts as no position at all."""
    if one is None or other is None:
        return one or other
    return max(one, other)
