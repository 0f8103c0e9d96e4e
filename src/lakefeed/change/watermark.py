"""How far polling has read: for each table the time and the key of the last row."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any, ClassVar

from lakefeed.change.position import Position, order, order_by_inclusion
from lakefeed.errors import CheckpointError

KeyValue = int | str | bytes | Decimal

# What json, Decimal, bytes.fromhex and the shape of foreign JSON raise, and what a watermark refuses itself.
_UNREADABLE = (ValueError, TypeError, AttributeError, RecursionError, InvalidOperation, CheckpointError)


@dataclass(frozen=True, slots=True)
class Mark:
    """The last row read of one table: ``updated_at`` in microseconds since 1970 (UTC) and its key, in key order.

    Marks are ordered by time, then by key, column after column. Numbers and bytes have one order everywhere. Texts do
    not (it depends on the collation), so two marks of the same time that first differ in a text are not ordered; nor
    are marks whose keys do not have the same shape.
    """

    instant_us: int
    key: tuple[KeyValue, ...]

    def compare(self, other: Mark) -> int | None:
        by_time = order(self.instant_us, other.instant_us)
        if by_time:
            return by_time
        if len(self.key) != len(other.key):
            return None
        pairs = zip(self.key, other.key, strict=True)
        return next((_compare_values(mine, theirs) for mine, theirs in pairs if mine != theirs), 0)


def _compare_values(mine: KeyValue, theirs: KeyValue) -> int | None:
    """The order of two different values of one key column."""
    if isinstance(mine, int | Decimal) and isinstance(theirs, int | Decimal):
        return -1 if mine < theirs else 1
    if isinstance(mine, bytes) and isinstance(theirs, bytes):
        return -1 if mine < theirs else 1
    return None


@dataclass(frozen=True, slots=True)
class Watermark(Position):
    """Marks by table (``schema.table``), sorted by it.

    ``a <= b`` if every table of ``a`` is in ``b`` with the same or a later mark; a table without a mark has not been
    read at all. If one table is ahead and another behind, the two are not ordered. A table that leaves the pipeline
    therefore keeps its mark.
    """

    kind: ClassVar[str] = "watermark"
    marks: tuple[tuple[str, Mark], ...] = ()

    def __post_init__(self) -> None:
        tables = [table for table, _ in self.marks]
        if tables != sorted(set(tables)):
            raise CheckpointError(f"a watermark has each table once, sorted; these are {', '.join(tables)}")
        for table, mark in self.marks:
            _check(table, mark)

    @classmethod
    def of(cls, marks: Mapping[str, Mark]) -> Watermark:
        return cls(tuple(sorted(marks.items(), key=lambda item: item[0])))

    def text(self) -> str:
        """JSON: ``{"public.users":{"key":[["int",5]],"us":1700000000000000}}``."""
        data = {table: {"us": mark.instant_us, "key": [_tag(v) for v in mark.key]} for table, mark in self.marks}
        return json.dumps(data, sort_keys=True, separators=(",", ":"))

    @classmethod
    def parse(cls, text: str) -> Watermark:
        try:
            data = json.loads(text, object_pairs_hook=_without_repeats)
            return cls.of({table: _mark(entry) for table, entry in data.items()})
        except _UNREADABLE as error:
            raise CheckpointError(f"'{text}' is not a watermark: {error}") from error

    def _compare(self, other: Watermark) -> int | None:
        return order_by_inclusion(self._within(other), other._within(self))

    def _within(self, other: Watermark) -> bool:
        theirs = dict(other.marks)
        return all(table in theirs and mark.compare(theirs[table]) in (-1, 0) for table, mark in self.marks)


def _check(table: str, mark: Mark) -> None:
    """Refuse what could not be read back as the same value."""
    if type(mark.instant_us) is not int:
        raise CheckpointError(f"the watermark of {table} has the time {mark.instant_us!r}; it must be microseconds")
    for value in mark.key:
        finite = not isinstance(value, Decimal) or value.is_finite()
        if type(value) not in (int, str, bytes, Decimal) or not finite:
            raise CheckpointError(f"the watermark of {table} has the key {value!r}; it must be a number, text or bytes")


def _tag(value: KeyValue) -> list[Any]:
    """The type goes with the value: key 9 and key '9' are ordered differently by the source."""
    match value:
        case bytes():
            return ["bytes", value.hex()]
        case Decimal():
            return ["decimal", str(value)]
        case _:
            return [type(value).__name__, value]


def _untag(tagged: Any) -> KeyValue:
    match tagged:
        case ["int", bool()]:
            pass
        case ["int", int(value)] | ["str", str(value)]:
            return value
        case ["bytes", str(value)]:
            return bytes.fromhex(value)
        case ["decimal", str(value)]:
            return Decimal(value)
    raise ValueError(f"{tagged!r} is not a key value")


def _mark(entry: Any) -> Mark:
    if set(entry) != {"us", "key"} or not isinstance(entry["key"], list):
        raise ValueError(f"{entry!r} is not the mark of a table")
    return Mark(entry["us"], tuple(_untag(value) for value in entry["key"]))


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    data = dict(pairs)
    if len(data) != len(pairs):
        raise ValueError("a name appears twice")
    return data
