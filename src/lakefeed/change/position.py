"""Positions: how far a reader has come in one source's log.

Contract of every kind:
- immutable, hashable, picklable; ``encode`` gives a short readable text, and ``decode_position`` is its exact inverse;
- a value without such a text cannot be constructed: the constructor raises CheckpointError;
- ``a.compare(b)`` is -1, 0 or 1, or None if the two are not ordered. It is a partial order: transitive, and never both
  below and above. LSNs and SQLite sequences are totally ordered; two binlog positions, GTID sets, watermarks or custom
  texts may be unordered;
- ``<``, ``<=``, ``>``, ``>=`` follow from ``compare``, and are all False for an unordered pair;
- equal positions compare 0. Positions that compare 0 are equal, except for SqliteSequence, whose stamp takes no part
  in the order;
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
        """The inverse of ``text``. Raises CheckpointError, naming the text, if it is not a position of this kind."""

    @property
    def rank(self) -> int | None:
        """The number that orders positions of a totally ordered kind; other kinds implement ``_compare``."""
        return None

    def _compare(self, other: Self) -> int | None:
        """The order within a kind that has no rank."""
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
        """``kind=text``, as stored in checkpoints, commit files and table metadata."""
        return f"{self.kind}={self.text()}"

    def __str__(self) -> str:
        return self.text()


def order(a: int, b: int) -> int:
    """-1, 0 or 1, as ``compare`` returns it."""
    return (a > b) - (a < b)


def order_by_inclusion(below: bool, above: bool) -> int | None:
    """What ``compare`` returns for kinds that are ordered by inclusion: ``below`` is a <= b, ``above`` is a >= b."""
    if below and above:
        return 0
    if below:
        return -1
    return 1 if above else None


def number(text: str, *, bits: int = 64) -> int | None:
    """The value of a plain decimal number that fits into ``bits``; None otherwise. Signs, spaces, underscores and
    digits of other scripts are not accepted."""
    if not _DIGITS.fullmatch(text):
        return None
    value = int(text)
    return value if value < 1 << bits else None


# Twenty digits suffice for every 64-bit number, and keep texts of a million digits away from int().
_DIGITS = re.compile(r"[0-9]{1,20}")


@dataclass(frozen=True, slots=True)
class SqliteSequence(Position):
    """A row number in the change log that the triggers fill.

    ``stamp`` is the time stamp of that row, in milliseconds. It is not part of the order. It exposes a restored copy
    of the database that went on counting from an older state: the same number has another stamp there.
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
    """Any text, for a source of your own.

    Two plain numbers (``17``: no sign, no leading zero) are ordered as numbers. Other texts are only equal or not, so
    Lakefeed tracks progress by what was delivered and never compares them.
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
    """Every kind, by the name it is stored under."""
    from lakefeed.change.lsn import PostgresLsn, SqlServerLsn  # the kinds import this module
    from lakefeed.change.mysql import MariadbGtid, MysqlBinlog, MysqlGtid
    from lakefeed.change.watermark import Watermark

    kinds: tuple[type[Position], ...] = (
        Custom, MariadbGtid, MysqlBinlog, MysqlGtid, PostgresLsn, SqliteSequence, SqlServerLsn, Watermark,
    )  # fmt: skip
    return {kind.kind: kind for kind in kinds}


def decode_position(text: str) -> Position:
    """The inverse of ``Position.encode``, for every kind."""
    kind, equals, value = text.partition("=")
    kinds = position_kinds()
    if not equals or kind not in kinds:
        known = ", ".join(sorted(kinds))
        raise CheckpointError(f"'{text}' is not a position; it must read kind=value with one of {known}")
    return kinds[kind].parse(value)


def highest(one: Position | None, other: Position | None) -> Position | None:
    """The later of two positions, or the only one that is not None; the first if the two are not ordered."""
    if one is None or other is None:
        return one or other
    return max(one, other)
