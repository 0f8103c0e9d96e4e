"""Random histories of many keys, and what each mode must make of them: plain Python, change after change.

One table holds hundreds of small histories, kept apart by the first key column, so that one Spark job tests them all.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa

from lakefeed.change.batch import POSITION, TIME, TXN, ChangeBatch
from lakefeed.change.table import TableSchema
from lakefeed.testing.builders import at, batch, table

Values = dict[str, Any]
Key = tuple[Any, ...]

COLUMNS: dict[str, pa.DataType] = {
    "case": pa.int64(), "id": pa.string(), "a": pa.int64(), "f": pa.float64(), "big": pa.string(), "note": pa.string(),
}  # fmt: skip
KEY = ("case", "id")
START = datetime(2023, 11, 14, 22, tzinfo=UTC)
"""A little before the time of the copies in ``mode_contract``: the clocks of two machines differ."""


@dataclass(frozen=True, slots=True)
class Event:
    """One change or before image. ``seq`` is its index in the log, from 1, which also determines its position.

    ``moved_from`` is the old key of a row whose key was changed: the preceding event is the delete of that key.
    """

    seq: int
    operation: str
    values: Mapping[str, Any]
    time: datetime | None
    absent: tuple[str, ...] = ()
    moved_from: Key | None = None

    @property
    def key(self) -> Key:
        return tuple(self.values.get(name) for name in KEY)

    @property
    def position(self) -> str:
        return at(self.seq).encode()


def histories(name: str = "main.histories") -> TableSchema:
    """The schema of a table of histories. Updates may omit ``big``; ``note`` is the column that is not tracked."""
    return table(name, COLUMNS, key=KEY)


def as_batch(schema: TableSchema, events: Sequence[Event]) -> ChangeBatch:
    """A change set of these events, each a transaction of its own."""
    rows = [(event.operation, event.values) for event in events]
    unsent = {row: event.absent for row, event in enumerate(events) if event.absent}
    data = batch(schema, rows, absent=unsent).data
    told: dict[str, list[Any]] = {
        TIME: [event.time for event in events],
        POSITION: [event.position for event in events],
        TXN: [f"txn {event.seq}" for event in events],
    }
    for column, values in told.items():
        place = data.schema.get_field_index(column)
        kind: pa.Field[Any] = data.schema.field(place)
        data = data.set_column(place, kind, pa.array(values, kind.type))
    return ChangeBatch(schema, data)


class Dice:
    """A random history: ``copied`` rows first, then ``events``. The same seed gives the same history.

    The events include before images with random values, which exposes code that takes one for a change.
    """

    def __init__(self, seed: int, *, cases: int = 120, length: int = 900, truncates: bool = True) -> None:
        self._random = random.Random(seed)  # noqa: S311  # reproducible is what it is to be
        self._cases = cases
        self._there: set[Key] = set()
        self._clock = START
        self._no_time = self._random.choice([0.0, 0.05])
        self.copied = [self._copy(case) for case in range(0, cases, 2)]
        wanted = {self._random.randrange(length) for _ in range(self._random.randrange(3))} if truncates else set()
        self.events: list[Event] = []
        while len(self.events) < length:
            self.events += self._happening(len(self.events) + 1, wanted)

    def pieces(self, count: int) -> Iterator[list[Event]]:
        """The events cut into ``count`` runs, anywhere except inside a change of a key."""
        whole = [index for index in range(1, len(self.events)) if self.events[index].moved_from is None]
        cuts = sorted(self._random.sample(whole, count - 1))
        for start, end in zip([0, *cuts], [*cuts, len(self.events)], strict=True):
            yield self.events[start:end]

    def _copy(self, case: int) -> Values:
        self._there.add((case, "x"))
        return {"case": case, "id": "x", **self._values()}

    def _happening(self, seq: int, truncates: set[int]) -> list[Event]:
        """What happens next: a change, with or without a before image, or a changed key."""
        if self._there and self._random.random() < 0.15 and not {seq, seq + 1} & truncates:
            return self._move(seq)
        event = self._event(seq, truncate=bool({seq, seq + 1} & truncates))
        if event.operation not in ("update", "delete") or self._random.random() < 0.7:
            return [event]
        values = dict(zip(KEY, event.key, strict=True)) | self._values()
        return [Event(seq, "before", values, event.time), replace(event, seq=seq + 1)]

    def _move(self, seq: int) -> list[Event]:
        """Give a row another key in its case: chains, swaps and reused keys arise by themselves."""
        old = self._random.choice(sorted(self._there))
        free = [key for text in ("x", "", "ü", "y") if (key := (old[0], text)) not in self._there]
        if not free:
            return []
        new = self._random.choice(free)
        self._there = self._there - {old} | {new}
        time = self._time()
        absent = ("big",) if self._random.random() < 0.7 else ()
        values = dict(zip(KEY, new, strict=True)) | self._values() | dict.fromkeys(absent)
        gone = Event(seq, "delete", dict(zip(KEY, old, strict=True)), time)
        return [gone, Event(seq + 1, "insert", values, time, absent, old)]

    def _event(self, seq: int, *, truncate: bool) -> Event:
        time = self._time()
        if truncate:
            self._there.clear()
            return Event(seq, "truncate", {}, time)
        key = (self._random.randrange(self._cases), self._random.choice(["x", "x", "", "ü"]))
        named: Values = dict(zip(KEY, key, strict=True))
        if key not in self._there:
            self._there.add(key)
            return Event(seq, "insert", named | self._values(), time)
        if self._random.random() < 0.25:
            self._there.remove(key)
            return Event(seq, "delete", named, time)
        values = self._values()
        absent = ("big",) if self._random.random() < 0.4 else ()
        return Event(seq, "update", named | values | dict.fromkeys(absent), time, absent)

    def _values(self) -> Values:
        pick = self._random.choice
        return {
            "a": pick([None, 1, 1, 1]),
            "f": pick([None, 0.5, float("nan"), float("nan")]),
            "big": pick([None, "b", "b"]),
            "note": pick([None, "n", "m"]),
        }

    def _time(self) -> datetime | None:
        """A clock that mostly advances, sometimes stands still, and sometimes jumps far back."""
        self._clock += timedelta(seconds=self._random.choice([0, 0, 1, 60, 60, 60, -500]))
        return None if self._random.random() < self._no_time else self._clock


@dataclass
class Version:
    values: Values
    seq: int
    valid_from: datetime
    valid_to: datetime | None = None


@dataclass
class TemporalModel:
    """Versions of rows. ``copied_at`` is the start of copied rows."""

    tracked: Sequence[str]
    copied_at: datetime
    versions: list[Version] = field(default_factory=list)
    current: dict[Key, Version] = field(default_factory=dict)
    ended: dict[Key, datetime] = field(default_factory=dict)
    gone: dict[Key, Values] = field(default_factory=dict)

    def copy(self, rows: Sequence[Values]) -> None:
        for row in rows:
            self._open(tuple(row[name] for name in KEY), Version(dict(row), 0, self.copied_at))

    def apply(self, event: Event) -> None:
        time = event.time or datetime(1970, 1, 1, tzinfo=UTC)
        if event.operation == "before":
            return
        if event.operation == "truncate":
            for key in list(self.current):
                self._close(key, time)
        elif event.operation == "delete":
            self._close(event.key, time)
        else:
            self._write(event, time)

    def _write(self, event: Event, time: datetime) -> None:
        before = self.current.get(event.key)
        values = {name: event.values.get(name) for name in COLUMNS}
        if event.moved_from is not None:
            values |= {name: self.gone[event.moved_from][name] for name in event.absent}
        if before is not None:
            values |= {name: before.values[name] for name in event.absent}
            if plain(values, self.tracked) == plain(before.values, self.tracked):
                before.values = values
                return
            self._close(event.key, time)
        floor = self.ended.get(event.key)
        self._open(event.key, Version(values, event.seq, max(time, floor) if floor else time))

    def _open(self, key: Key, version: Version) -> None:
        self.versions.append(version)
        self.current[key] = version

    def _close(self, key: Key, time: datetime) -> None:
        version = self.current.pop(key, None)
        if version is not None:
            self.gone[key] = version.values
            version.valid_to = self.ended[key] = max(time, version.valid_from)


@dataclass
class MirrorModel:
    """Current rows, and deleted ones with the time of their deletion. ``last`` is the last change of each row."""

    rows: dict[Key, Values] = field(default_factory=dict)
    deleted: dict[Key, datetime | None] = field(default_factory=dict)
    last: dict[Key, Event] = field(default_factory=dict)

    def copy(self, rows: Sequence[Values]) -> None:
        self.rows |= {tuple(row[name] for name in KEY): dict(row) for row in rows}

    def apply(self, event: Event) -> None:
        if event.operation == "before":
            return
        if event.operation in ("truncate", "delete"):
            gone = [event.key] if event.operation == "delete" else [key for key in self.rows if key not in self.deleted]
            for key in gone:
                self.deleted[key] = event.time or datetime(1970, 1, 1, tzinfo=UTC)
                self.last[key] = Event(event.seq, "delete", event.values, event.time)
            return
        values = {name: event.values.get(name) for name in COLUMNS}
        before = self.rows.get(event.moved_from or event.key, {})
        self.rows[event.key] = values | {name: before[name] for name in event.absent}
        self.deleted.pop(event.key, None)
        self.last[event.key] = event


def plain(values: Mapping[str, Any], names: Sequence[str] = tuple(COLUMNS)) -> tuple[Any, ...]:
    """Values that can be compared and sorted in sets: NaN equals itself."""
    return tuple("NaN" if values[name] != values[name] else values[name] for name in names)
