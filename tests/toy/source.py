"""A log source in 200 lines: the toy database of ``tests.toy.database``. docs/adding-a-source.md explains each part."""

from __future__ import annotations

import json
import sqlite3
import threading
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa

from lakefeed.capture.base import Capabilities, ChangeCapture, Lag
from lakefeed.capture.dialect import Bracket, DescribedTable, Dialect, Horizon, Query, Refusal, Session
from lakefeed.capture.log import Decoded, LogReader, ResumePoint, Rows, Transaction
from lakefeed.capture.log_capture import LogCapture
from lakefeed.change.position import Position, number
from lakefeed.change.table import Column, TableId, TableSchema, type_from_text
from lakefeed.change.watermark import KeyValue
from lakefeed.errors import CheckpointError, PositionLostError


@dataclass(frozen=True, slots=True)
class ToyLine(Position):
    """The number of a line in the log."""

    kind: ClassVar[str] = "toy"
    lsn: int

    def text(self) -> str:
        return str(self.lsn)

    @classmethod
    def parse(cls, text: str) -> ToyLine:
        lsn = number(text)
        if lsn is None:
            raise CheckpointError(f"'{text}' is not a line of a toy log; it must be a number")
        return cls(lsn)

    @property
    def rank(self) -> int:
        return self.lsn


@dataclass(frozen=True, slots=True)
class ToyDialect(Dialect):
    directory: str

    default_schema = "main"
    folds_case = False

    def connect(self) -> ToySession:
        return ToySession(Path(self.directory))

    def quoted(self, name: str) -> str:
        return '"' + name.replace('"', '""') + '"'

    def bound(self, column: Column, value: KeyValue, query: Query) -> str:
        query.values.append(value)
        return "?"


class ToySession(Session):
    """Answers SELECT by loading tables.json into SQLite, in memory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._frozen: dict[str, Any] | None = None

    def state(self) -> dict[str, Any]:
        found: dict[str, Any] = self._frozen or json.loads((self._directory / "tables.json").read_text())
        return found

    def identity(self) -> str:
        return f"toy:{self._directory}"

    def tables(self) -> Mapping[TableId, Refusal | None]:
        return {TableId("main", name): None for name in self.state()["tables"]}

    def describe(self, tables: Sequence[TableId]) -> Mapping[TableId, DescribedTable]:
        there = self.state()["tables"]
        found = {}
        for table in tables:
            if table.name in there:
                kinds = there[table.name]["columns"]
                columns = tuple(Column(name, type_from_text(kind), name != "id") for name, kind in kinds.items())
                found[table] = DescribedTable(TableSchema(table, columns, ("id",)), f'"{table.name}"')
        return found

    def horizon(self) -> Horizon:
        now = time.time_ns() // 1_000
        return Horizon(now, now)

    def read(self, query: Query, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        with closing(sqlite3.connect(":memory:")) as database:
            for name, table in self.state()["tables"].items():
                columns = list(table["columns"])
                database.execute(f'CREATE TABLE "{name}" ({", ".join(columns)})')
                marks = ", ".join(f":{column}" for column in columns)
                database.executemany(f'INSERT INTO "{name}" VALUES ({marks})', table["rows"])
            rows = database.execute(query.sql, query.values).fetchall()
        values = list(zip(*rows, strict=True)) or [()] * len(schema)
        arrays = [pa.array(column, field.type) for column, field in zip(values, schema, strict=True)]
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)

    @contextmanager
    def consistent(self, origin: Mapping[str, Any] | None = None) -> Iterator[Bracket | None]:
        self._frozen = self.state()
        at = ToyLine(self._frozen["lsn"])
        try:
            yield Bracket(at, at) if origin is not None else None
        finally:
            self._frozen = None

    def cancel(self) -> None:
        """Nothing here takes long."""

    def close(self) -> None:
        """Nothing is open."""


@dataclass(frozen=True, slots=True)
class ToyPiece:
    """Lines of the log, the shapes of the captured tables, and after which line each of them is captured."""

    lines: list[dict[str, Any]]
    schemas: Mapping[str, TableSchema]
    since: Mapping[str, int]


class ToyResumePoint(ResumePoint[ToyLine, ToyPiece]):
    """A file of the pipeline's own beside the log: which tables, and how far they are confirmed."""

    def __init__(self, directory: str, pipeline: str) -> None:
        self.session = ToySession(Path(directory))
        self.log = Path(directory) / "log.jsonl"
        self._file = Path(directory) / f"{pipeline}.resume.json"

    def load(self) -> dict[str, Any] | None:
        return json.loads(self._file.read_text()) if self._file.exists() else None

    def find(self) -> ToyLine | None:
        kept = self.load()
        return None if kept is None else ToyLine(kept["confirmed"])

    def identity(self) -> str:
        return str((self.load() or {})["identity"])

    def create(self, tables: Sequence[TableId]) -> ToyLine:
        head = self.session.state()["lsn"]
        kept = self.load() or {"identity": str(uuid.uuid4()), "confirmed": head, "since": {}}
        kept["since"] = {table.name: head for table in tables} | kept["since"]
        self._file.write_text(json.dumps(kept))
        return ToyLine(head)

    def origin(self, table: TableId, delivered: ToyLine | None) -> Mapping[str, Any]:
        return {"table": str(table)}

    def require(self, position: ToyLine) -> None:
        head = self.session.state()["lsn"]
        if position.lsn > head:
            raise PositionLostError(f"the log ends at line {head}, before line {position}: was an older copy restored?")

    def start(self, after: ToyLine) -> ToyReader:
        return ToyReader(self, after)

    def confirm(self, position: ToyLine) -> None:
        kept = self.load()
        if kept is not None and position.lsn > kept["confirmed"]:
            self._file.write_text(json.dumps({**kept, "confirmed": position.lsn}))

    def lag(self, confirmed_at: float | None) -> Lag:
        kept = self.load()
        return Lag() if kept is None else Lag(rows=max(0, self.session.state()["lsn"] - kept["confirmed"]))

    def drop(self) -> tuple[str, ...]:
        removed = (self._file.name,) if self._file.exists() else ()
        self._file.unlink(missing_ok=True)
        return removed


class ToyReader(LogReader[ToyLine, ToyPiece]):
    """See ``LogReader``. A line without its end is still being written."""

    def __init__(self, resume: ToyResumePoint, after: ToyLine) -> None:
        self._resume = resume
        self._after = after.lsn
        self._closed = threading.Event()

    def read(self, wait_seconds: float) -> ToyPiece | None:
        until = time.monotonic() + wait_seconds
        while not self._closed.is_set():
            whole = self._resume.log.read_text().rpartition("\n")[0].splitlines()
            lines = [line for line in map(json.loads, whole) if line["lsn"] > self._after]
            if lines:
                self._after = lines[-1]["lsn"]
                described = self._resume.session.describe(list(self._resume.session.tables()))
                schemas = {table.name: one.schema for table, one in described.items()}
                return ToyPiece(lines, schemas, (self._resume.load() or {}).get("since", {}))
            if time.monotonic() >= until:
                return None
            self._closed.wait(0.02)
        return None

    def confirm(self, position: ToyLine) -> None:
        self._resume.confirm(position)

    def close(self) -> None:
        self._closed.set()


class ToyDecoder:
    def decode(self, piece: ToyPiece) -> Decoded[ToyLine]:
        decoded: Decoded[ToyLine] = Decoded(reached=ToyLine(piece.lines[-1]["lsn"]))
        found: dict[str, list[tuple[int, int, int, dict[str, Any]]]] = {}
        for index, line in enumerate(piece.lines):
            decoded.transactions.append(Transaction(ToyLine(line["lsn"]), line["time_us"], str(line["lsn"])))
            for table, operation, row in line["changes"]:
                if line["lsn"] > piece.since.get(table, line["lsn"]):
                    found.setdefault(table, []).append((operation, decoded.width, index, row))
                    decoded.width += 1
        for table, changes in found.items():
            schema = piece.schemas[table]
            operations, places, indices, rows = zip(*changes, strict=True)
            columns = [pa.array([row.get(one.name) for row in rows], one.type) for one in schema.columns]
            decoded.items.append(Rows(schema, columns, list(operations), list(places), list(indices)))
        return decoded


def toy(directory: str, pipeline: str, tables: Sequence[str] = ("*",)) -> ChangeCapture:
    return LogCapture(
        ToyLine,
        Capabilities(
            deletes=True,
            before_images=False,
            transactions=True,
            schema_changes=False,
            exact_snapshot=True,
            snapshot_resume=True,
        ),
        tables=tables,
        dialect=ToyDialect(directory),
        resume=ToyResumePoint(directory, pipeline),
        decoder=ToyDecoder,
    )
