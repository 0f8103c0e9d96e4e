"""The toy database: a directory with two files, and the application that writes to it.

    tables.json   all tables as of line ``lsn`` of the log; every commit replaces the file by a rename
    log.jsonl     one line for each transaction: {"lsn": 7, "time_us": …, "changes": [["people", 1, {"id": 1, …}], …]}

A commit appends to the log first. So whoever reads tables.json has exactly the transactions up to its ``lsn``.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lakefeed.change.batch import Operation
from lakefeed.change.table import TableId


class ToyActor:
    """See ``lakefeed.testing.capture_subject.Actor``. ``columns`` are those of both tables, with their Arrow types."""

    table = TableId("main", "people")
    other = TableId("main", "places")

    def __init__(self, directory: Path, columns: Mapping[str, str]) -> None:
        directory.mkdir()
        self._directory = directory
        self._lsn = 0
        self._columns = dict(columns)
        self._rows: dict[str, dict[int, dict[str, Any]]] = {"people": {}, "places": {}}
        self._changes: list[tuple[str, int, dict[str, Any]]] = []
        self._is_together = False
        (directory / "log.jsonl").touch()
        self._commit()

    def put(self, table: TableId, key: int, name: str | None) -> None:
        rows = self._rows[table.name]
        now = time.time_ns() // 1_000
        row = {"id": key, "name": name, "created_at": rows.get(key, {}).get("created_at", now), "updated_at": now}
        operation = Operation.UPDATE if key in rows else Operation.INSERT
        rows[key] = {column: row[column] for column in self._columns}
        self._change(table.name, operation, rows[key])

    def delete(self, table: TableId, key: int) -> None:
        del self._rows[table.name][key]
        self._change(table.name, Operation.DELETE, {"id": key})

    @contextmanager
    def together(self) -> Iterator[None]:
        self._is_together = True
        yield
        self._is_together = False
        self._commit()

    def rows(self, table: TableId) -> dict[int, str | None]:
        return {key: row["name"] for key, row in self._rows[table.name].items()}

    def _change(self, table: str, operation: Operation, row: dict[str, Any]) -> None:
        self._changes.append((table, int(operation), row))
        if not self._is_together:
            self._commit()

    def _commit(self) -> None:
        if self._changes:
            self._lsn += 1
            line = {"lsn": self._lsn, "time_us": time.time_ns() // 1_000, "changes": self._changes}
            with (self._directory / "log.jsonl").open("a") as log:
                log.write(json.dumps(line) + "\n")
            self._changes = []
        tables = {name: {"columns": self._columns, "rows": list(rows.values())} for name, rows in self._rows.items()}
        written = self._directory / "tables.json.new"
        written.write_text(json.dumps({"lsn": self._lsn, "tables": tables}))
        written.replace(self._directory / "tables.json")
