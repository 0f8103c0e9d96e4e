"""The words of a ScriptedCapture's script."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from itertools import groupby
from typing import Any

from lakefeed.change.batch import ChangeBatch
from lakefeed.change.change_set import TableNotice
from lakefeed.change.position import Position
from lakefeed.change.table import TableSchema
from lakefeed.errors import SourceUnavailableError
from lakefeed.testing.builders import Row, batch


class ScriptMark(Enum):
    COMMIT = "commit"
    HEARTBEAT = "heartbeat"
    CRASH = "crash"
    """The connection breaks: SourceUnavailableError, once."""
    EOF = "eof"
    """The iterator ends here and whatever follows is never seen."""


COMMIT, HEARTBEAT, CRASH, EOF = ScriptMark.COMMIT, ScriptMark.HEARTBEAT, ScriptMark.CRASH, ScriptMark.EOF


@dataclass(frozen=True, slots=True)
class Change:
    """One row of one table."""

    schema: TableSchema
    row: Row


@dataclass(frozen=True, slots=True)
class SchemaChanged:
    """The table has this schema from here on."""

    schema: TableSchema


ScriptStep = Change | SchemaChanged | TableNotice | ScriptMark


def insert(schema: TableSchema, **values: Any) -> Change:
    return Change(schema, ("insert", values))


def update(schema: TableSchema, **values: Any) -> Change:
    return Change(schema, ("update", values))


def delete(schema: TableSchema, **key: Any) -> Change:
    return Change(schema, ("delete", key))


def truncate(schema: TableSchema) -> Change:
    return Change(schema, ("truncate", {}))


@dataclass(slots=True)
class LogEntry:
    """One entry of the log: a transaction, a heartbeat, or a mark that acts when it is reached."""

    number: float
    mark: ScriptMark
    steps: tuple[ScriptStep, ...] = ()
    crashed: bool = False

    @property
    def rows(self) -> int:
        return sum(isinstance(step, Change) for step in self.steps)

    def crash(self) -> None:
        if self.mark is CRASH and not self.crashed:
            self.crashed = True
            raise SourceUnavailableError("the script says that the connection breaks here")

    def batches(self, end: Position) -> Iterator[ChangeBatch]:
        changes = [step for step in self.steps if isinstance(step, Change)]
        start = 0
        for schema, run in groupby(changes, key=lambda change: change.schema):
            rows = [change.row for change in run]
            yield batch(schema, rows, start_seq=start, position=end)
            start += len(rows)
