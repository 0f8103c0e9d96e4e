"""ScriptedCapture: a database that does what a script says, and keeps what a real one keeps.

    people = table("main.people", {"id": pa.int64(), "name": pa.string()}, key=("id",))
    capture = ScriptedCapture([
        insert(people, id=1, name="Ada"), insert(people, id=2, name="Bob"), COMMIT,
        CRASH,                                     # the connection breaks once, here
        delete(people, id=1), COMMIT,
        HEARTBEAT,                                 # nothing for us, but the log has moved on
    ], snapshot={people: [{"id": 1, "name": "Ada"}]})

The script is the log: every COMMIT and HEARTBEAT moves it one number further, whether or not anybody reads it. Rows
after the last COMMIT belong to an open transaction and are not seen. Resume point and confirmations survive ``close``,
as in a real server: what was confirmed is gone, what was not is delivered again. At the end of the script the source is
idle. Snapshots read the state at the end of the script. Threads: as in ``ChangeCapture``.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import groupby
from types import TracebackType
from typing import Any, Self

import pyarrow as pa

from lakefeed.capture.base import Capabilities, ChangeCapture, Chunk, Continuity, Finding, Lag, SnapshotPlan
from lakefeed.change.batch import ChangeBatch
from lakefeed.change.change_set import ChangeSet, TableNotice
from lakefeed.change.position import Position, SqliteSequence
from lakefeed.change.table import TableId, TableSchema
from lakefeed.errors import PositionLostError, SourceSetupError, SourceUnavailableError, StateError
from lakefeed.testing.builders import Row, batch

__all__ = [
    "COMMIT",
    "CRASH",
    "EOF",
    "EVERYTHING",
    "HEARTBEAT",
    "Change",
    "SchemaChanged",
    "ScriptMark",
    "ScriptStep",
    "ScriptedCapture",
    "delete",
    "insert",
    "truncate",
    "update",
]


class ScriptMark(Enum):
    COMMIT = "commit"
    HEARTBEAT = "heartbeat"
    CRASH = "crash"
    """The connection breaks: SourceUnavailableError, once."""
    EOF = "eof"
    """The iterator ends here, and nothing that follows is ever seen."""


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


@dataclass(slots=True)
class ScriptedContent:
    """The rows and schemas that snapshots read. ``pinned`` replaces ``head``, for a reader that sees an old state."""

    rows: dict[TableId, list[Mapping[str, Any]]]
    schemas: dict[TableId, TableSchema]
    head: Position
    pinned: Position | None = None


@dataclass(frozen=True, slots=True)
class ScriptedChunk:
    """Rows ``start`` to ``stop`` (None: to the end) as they are when it is opened."""

    content: ScriptedContent = field(compare=False, repr=False)
    table: TableId
    start: int
    stop: int | None

    def open(self) -> ScriptedReader:
        rows = self.content.rows.get(self.table, [])[self.start : self.stop]
        return ScriptedReader(self.content.schemas[self.table], rows, self.content.pinned or self.content.head)

    def to_json(self) -> Mapping[str, Any]:
        return {"table": str(self.table), "start": self.start, "stop": self.stop}


class ScriptedReader:
    """An exact chunk: ``low`` and ``high`` are equal."""

    def __init__(self, schema: TableSchema, rows: Sequence[Mapping[str, Any]], at: Position) -> None:
        self._schema = schema
        self._rows = rows
        self.low = at
        self.high = at

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_pylist([dict(row) for row in self._rows], schema=self._schema.arrow)


EVERYTHING = Capabilities(
    deletes=True, before_images=True, transactions=True, schema_changes=True, exact_snapshot=True, snapshot_resume=True
)


class ScriptedCapture(ChangeCapture):
    """A ChangeCapture; see the module. ``append`` extends the script while the capture runs.

    ``position`` makes the n-th position, for kinds other than SqliteSequence. ``prepare_at`` is where the log is when
    the resume point is created. ``waits``: an idle ``live`` waits for ``append`` as long as it may; tests that count
    polls leave it off.
    """

    def __init__(
        self,
        script: Sequence[ScriptStep] = (),
        *,
        snapshot: Mapping[TableSchema, Sequence[Mapping[str, Any]]] | None = None,
        kind: str = "sqlite",
        position: Callable[[int], Position] = SqliteSequence,
        waits: bool = False,
    ) -> None:
        self.kind = kind
        self.capabilities = EVERYTHING
        self.name = "scripted"
        self.prepare_at = 0
        self.recalled: dict[TableId, TableSchema] = {}
        self.copies_open: set[TableId] = set()
        """Tables whose copy is planned and not finished."""
        given = snapshot or {}
        self.content = ScriptedContent(
            {schema.table: list(rows) for schema, rows in given.items()},
            {schema.table: schema for schema in given},
            position(0),
        )
        self._position = position
        self._waits = waits
        self._more = threading.Condition()
        self._numbers = {position(0): 0}
        self._log: list[LogEntry] = []
        self._open_transaction: list[ScriptStep] = []
        self._resume: int | None = None
        self._connection = 0
        self._connected = False
        self.append(*script)

    def append(self, *script: ScriptStep) -> None:
        """Extend the script. Any thread may call this."""
        with self._more:
            for step in script:
                self._take(step)
            self._more.notify_all()

    @property
    def head(self) -> Position:
        """Where the log ends now."""
        return self.content.head

    @property
    def confirmed(self) -> Position | None:
        """The resume point; None before ``prepare``."""
        return None if self._resume is None else self._position(self._resume)

    @property
    def is_open(self) -> bool:
        return self._connected

    def open(self) -> None:
        self._connected = True

    def close(self) -> None:
        with self._more:
            self._connected = False
            self._connection += 1
            self._more.notify_all()

    def identity(self) -> str | None:
        return None if self._resume is None else self.name

    def continuity(self, position: Position | None, tables: Sequence[TableId]) -> Continuity:  # noqa: ARG002
        self._require_open()
        if self._resume is None:
            return Continuity.FRESH
        self._number(position)
        return Continuity.RESUMED

    def recall(self, schemas: Sequence[TableSchema]) -> None:
        self._require_open()
        self.recalled |= {schema.table: schema for schema in schemas}

    def discover(self) -> tuple[TableSchema, ...]:
        self._require_open()
        with self._more:
            return tuple(self.content.schemas.values())

    def wants(self, table: TableId) -> bool:  # noqa: ARG002  # it has no patterns
        return True

    def prepare(self, tables: Sequence[TableId]) -> Position:
        self._require_open()
        for table in tables:
            self._schema(table)
        with self._more:
            if self._resume is None:
                self._resume = self.prepare_at
            return self._position(self._resume)

    def snapshot(self, table: TableId, *, chunk_rows: int = 250_000) -> SnapshotPlan:
        self._require_open()
        rows = len(self.content.rows.get(table, ()))
        starts = range(0, max(1, rows), chunk_rows)
        # The last chunk is open-ended: it covers rows that do not exist yet.
        stops = [start + chunk_rows if start != starts[-1] else None for start in starts]
        chunks = tuple(
            ScriptedChunk(self.content, table, start, stop) for start, stop in zip(starts, stops, strict=True)
        )
        self.copies_open.add(table)
        return SnapshotPlan(self._schema(table), chunks, rows)

    def copied(self, table: TableId) -> None:
        self._require_open()
        self.copies_open.discard(table)

    def chunk(self, data: Mapping[str, Any]) -> Chunk:
        return ScriptedChunk(self.content, TableId.parse(data["table"]), data["start"], data["stop"])

    def live(self, after: Position | None, *, wait_seconds: float = 1.0) -> Iterator[ChangeSet]:
        self._require_open()
        return self._changes(self._number(after), self._connection, wait_seconds)

    def end(self) -> Position:
        return self.head

    def confirm(self, position: Position) -> None:
        self._require_open()
        with self._more:
            self._resume = max(self._resume or 0, self._numbers[position])

    def lag(self) -> Lag:
        behind = [entry for entry in self._log if entry.number > (self._resume or 0)]
        return Lag(rows=sum(entry.rows for entry in behind))

    def check(self) -> tuple[Finding, ...]:
        return ()

    def uninstall(self) -> tuple[str, ...]:
        removed = () if self._resume is None else ("resume point",)
        self._resume = None
        return removed

    def _changes(self, after: int, connection: int, wait_seconds: float) -> Iterator[ChangeSet]:
        index, end = 0, after
        while True:
            if connection != self._connection or not self._connected:
                raise SourceUnavailableError("the scripted connection is closed")
            with self._more:
                if index >= len(self._log) and self._waits:
                    self._more.wait(wait_seconds)
                    if not self._connected:
                        continue
            if index >= len(self._log):
                yield ChangeSet(self._position(end), self._position(end))
                continue
            entry = self._log[index]
            if entry.mark is EOF:
                return
            index += 1
            if entry.number <= after:
                continue
            entry.crash()
            if entry.mark is not CRASH:
                end = int(entry.number)
                yield self._change_set(entry)

    def _take(self, step: ScriptStep) -> None:
        if isinstance(step, Change | SchemaChanged):
            self.content.schemas.setdefault(step.schema.table, step.schema)
        if isinstance(step, SchemaChanged):
            self.content.schemas[step.schema.table] = step.schema
        if step in (COMMIT, HEARTBEAT):
            number = len(self._numbers)
            self.content.head = self._position(number)
            self._numbers[self.content.head] = number
            steps = self._open_transaction if step is COMMIT else []
            self._log.append(LogEntry(number, step, tuple(steps)))
            if step is COMMIT:
                self._open_transaction = []
        elif isinstance(step, ScriptMark):
            # Half a number: after everything so far, before the next commit.
            self._log.append(LogEntry(len(self._numbers) - 0.5, step))
        else:
            self._open_transaction.append(step)

    def _change_set(self, entry: LogEntry) -> ChangeSet:
        number = int(entry.number)
        end = self._position(number)
        return ChangeSet(
            self._position(number - 1),
            end,
            tuple(entry.batches(end)),
            entry.rows,
            tuple(step.schema for step in entry.steps if isinstance(step, SchemaChanged)),
            tuple(step for step in entry.steps if isinstance(step, TableNotice)),
        )

    def _number(self, position: Position | None) -> int:
        resume = self._resume
        if resume is None:
            raise SourceSetupError("the scripted source has no resume point; call prepare first")
        number = resume if position is None else self._numbers.get(position)
        if number is None:
            raise PositionLostError(f"the scripted source does not know {position}; it ends at {self.head}")
        if number < resume:
            raise PositionLostError(f"{position} was confirmed and forgotten; the resume point is {self.confirmed}")
        return number

    def _schema(self, table: TableId) -> TableSchema:
        if table not in self.content.schemas:
            known = ", ".join(sorted(map(str, self.content.schemas)))
            raise SourceSetupError(f"there is no table {table}; there are {known}")
        return self.content.schemas[table]

    def _require_open(self) -> None:
        if not self._connected:
            raise StateError("the scripted capture is not open")
