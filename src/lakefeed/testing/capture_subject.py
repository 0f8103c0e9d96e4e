"""What CaptureContract works with: a source, an application that writes to it, and ways to read change sets."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from lakefeed.capture.base import ChangeCapture
from lakefeed.change.batch import OP, SEQ, Operation
from lakefeed.change.change_set import ChangeSet
from lakefeed.change.position import Position
from lakefeed.change.table import TableId
from lakefeed.testing.replica import Replica


class Actor(Protocol):
    """The application. Its two tables have an integer key ``id`` and a text column ``name``, and are empty at first.

    ``put`` inserts or updates a row, ``delete`` removes it; each is a transaction of its own, except inside
    ``together``. ``rows`` is what the database itself has: id → name.
    """

    table: TableId
    other: TableId

    def put(self, table: TableId, key: int, name: str | None) -> None: ...

    def delete(self, table: TableId, key: int) -> None: ...

    def together(self) -> AbstractContextManager[None]: ...

    def rows(self, table: TableId) -> dict[int, str | None]: ...


@dataclass(frozen=True, slots=True)
class Subject:
    """A source: how to reach it, and who writes to it. ``sees_deletes``: the value that its capabilities must have."""

    capture: Callable[[], ChangeCapture]
    actor: Actor
    sees_deletes: bool = True


@contextmanager
def opened(subject: Subject) -> Iterator[ChangeCapture]:
    capture = subject.capture()
    capture.open()
    try:
        yield capture
    finally:
        capture.close()


def drain(capture: ChangeCapture, after: Position | None) -> list[ChangeSet]:
    """The change sets that are available now."""
    found: list[ChangeSet] = []
    for change_set in capture.live(after, wait_seconds=0):
        if change_set.start == change_set.end and change_set.is_heartbeat:
            return found
        found.append(change_set)
    return found


def names(replica: Replica, table: TableId) -> dict[int, str | None]:
    return {row["id"]: row["name"] for row in replica.rows(table)}


def changes(change_sets: list[ChangeSet]) -> list[tuple[Operation, int]]:
    """Operation and id of every change, in source order, without before images."""
    rows = [row for one in change_sets for row in ordered_rows(one)]
    return [(Operation(row[OP]), row["id"]) for row in rows if row[OP] != Operation.BEFORE]


def ordered_rows(change_set: ChangeSet) -> list[dict[str, Any]]:
    return sorted(row_dicts(change_set), key=lambda row: int(row[SEQ]))


def row_dicts(change_set: ChangeSet) -> list[dict[str, Any]]:
    return [row for batch in change_set.batches for row in batch.data.to_pylist()]
