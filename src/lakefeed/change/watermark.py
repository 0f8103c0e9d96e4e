"""How far polling has read: for each table, the time and the key of the last row."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from typing import Any, ClassVar

from lakefeed.change.position import Position, order, order_by_inclusion
from lakefeed.errors import CheckpointError

KeyValue = int | str | bytes | Decimal

_BEFORE_ALL = -(1 << 63)
_FIELDS = {"us", "key", "era", "place", "stamp"}

# What json, Decimal, bytes.fromhex, unexpected JSON and the watermark's own checks raise.
_UNREADABLE = (ValueError, TypeError, AttributeError, RecursionError, InvalidOperation, CheckpointError)


@dataclass(frozen=True, slots=True)
class Mark:
    """The last row read from one table: ``updated_at`` in microseconds since 1970 (UTC) and its key, in key order.

    Marks are ordered by era, time, place, then key, column by column. Numbers and bytes have one order everywhere.
    Texts do not (it depends on the collation), so two marks whose first difference is a text are not ordered; nor are
    marks whose keys differ in shape. An empty key is before every row of its time.

    ``place`` counts the rows with this time that have been read, so that marks within a tie are ordered whatever the
    key is; 0 if they were not counted. ``era`` counts how often reading started again from an earlier time because the
    source's clock went back: the mark moves forward although the time does not. ``stamp`` is the value that the source
    stores for the time, if that is not a timestamp (text or a number in SQLite): the next query compares with it.
    """

    instant_us: int
    key: tuple[KeyValue, ...]
    era: int = 0
    place: int = 0
    stamp: int | str | None = field(default=None, compare=False)

    @classmethod
    def start(cls, era: int = 0) -> Mark:
        """The mark before every row: the table is captured, and none of it has been read."""
        return cls(_BEFORE_ALL, (), era)

    @property
    def is_start(self) -> bool:
        return self.instant_us == _BEFORE_ALL

    def compare(self, other: Mark) -> int | None:
        mine, theirs = (self.era, self.instant_us, self.place), (other.era, other.instant_us, other.place)
        if mine != theirs:
            return -1 if mine < theirs else 1
        if not self.key or not other.key:
            return order(len(self.key) > 0, len(other.key) > 0)
        if len(self.key) != len(other.key):
            return None
        pairs = zip(self.key, other.key, strict=True)
        return next((_compare_values(a, b) for a, b in pairs if a != b), 0)


def _compare_values(mine: KeyValue, theirs: KeyValue) -> int | None:
    """The order of two different values of one key column, or None."""
    if isinstance(mine, int | Decimal) and isinstance(theirs, int | Decimal):
        return -1 if mine < theirs else 1
    if isinstance(mine, bytes) and isinstance(theirs, bytes):
        return -1 if mine < theirs else 1
    return None


@dataclass(frozen=True, slots=True)
class Watermark(Position):
    """Marks by table (``schema.table``), sorted by it.

    ``a <= b`` if ``b`` has every table of ``a``, with the same or a later mark; a table without a mark has not been
    read at all. Watermarks with one table ahead and another behind are not ordered. A table that leaves the pipeline
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
        data = {table: _entry(mark) for table, mark in self.marks}
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
    """Refuse a mark that could not be read back as the same value."""
    if type(mark.instant_us) is not int:
        raise CheckpointError(f"the watermark of {table} has the time {mark.instant_us!r}; it must be microseconds")
    for name in ("era", "place"):
        value = getattr(mark, name)
        if type(value) is not int or value < 0:
            raise CheckpointError(f"the watermark of {table} has the {name} {value!r}; it must be a number from 0 on")
    if mark.stamp is not None and type(mark.stamp) not in (int, str):
        raise CheckpointError(f"the watermark of {table} has the stamp {mark.stamp!r}; it must be a number or text")
    for value in mark.key:
        finite = not isinstance(value, Decimal) or value.is_finite()
        if type(value) not in (int, str, bytes, Decimal) or not finite:
            raise CheckpointError(f"the watermark of {table} has the key {value!r}; it must be a number, text or bytes")


def tag_value(value: KeyValue) -> list[Any]:
    """The value with the name of its type: the source orders key 9 and key '9' differently."""
    match value:
        case bytes():
            return ["bytes", value.hex()]
        case Decimal():
            return ["decimal", str(value)]
        case _:
            return [type(value).__name__, value]


def untag_value(tagged: Any) -> KeyValue:
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


def _entry(mark: Mark) -> dict[str, Any]:
    entry: dict[str, Any] = {"us": mark.instant_us, "key": [tag_value(value) for value in mark.key]}
    known = {"era": mark.era or None, "place": mark.place or None, "stamp": mark.stamp}
    return entry | {name: value for name, value in known.items() if value is not None}


def _mark(entry: Any) -> Mark:
    if not {"us", "key"} <= set(entry) <= _FIELDS or not isinstance(entry["key"], list):
        raise ValueError(f"{entry!r} is not the mark of a table")
    key = tuple(untag_value(value) for value in entry["key"])
    return Mark(entry["us"], key, entry.get("era", 0), entry.get("place", 0), entry.get("stamp"))


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    data = dict(pairs)
    if len(data) != len(pairs):
        raise ValueError("a name appears twice")
    return data
