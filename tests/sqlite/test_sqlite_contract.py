"""The SQLite trigger capture keeps the contract of every capture, with writers in WAL and in rollback-journal mode."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lakefeed.capture.sqlite.source import Sqlite
from lakefeed.change.table import TableId
from lakefeed.testing.before_contract import BeforeImageContract
from lakefeed.testing.capture_contract import CaptureContract
from lakefeed.testing.capture_subject import Subject


class SqliteActor:
    """An application on its own connection."""

    table = TableId("main", "people")
    other = TableId("main", "places")

    def __init__(self, path: Path, journal_mode: str) -> None:
        self._connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        self._connection.execute(f"PRAGMA journal_mode = {journal_mode}")
        for table in (self.table, self.other):
            self._connection.execute(f"CREATE TABLE {table.name} (id INTEGER PRIMARY KEY, name TEXT)")

    def put(self, table: TableId, key: int, name: str | None) -> None:
        self._connection.execute(
            f"INSERT INTO {table.name} VALUES (?, ?) ON CONFLICT DO UPDATE SET name = excluded.name", (key, name)
        )

    def delete(self, table: TableId, key: int) -> None:
        self._connection.execute(f"DELETE FROM {table.name} WHERE id = ?", (key,))

    def rekey(self, table: TableId, key: int, other: int) -> None:
        self._connection.execute(f"UPDATE {table.name} SET id = ? WHERE id = ?", (other, key))

    @contextmanager
    def together(self) -> Iterator[None]:
        self._connection.execute("BEGIN")
        yield
        self._connection.execute("COMMIT")

    def rows(self, table: TableId) -> dict[int, str | None]:
        return dict(self._connection.execute(f"SELECT id, name FROM {table.name}").fetchall())

    def close(self) -> None:
        self._connection.close()


class _SqliteContract(CaptureContract):
    journal_mode: str
    before_images = False

    @pytest.fixture(autouse=True)
    def _close(self) -> Iterator[None]:
        self.actors: list[SqliteActor] = []
        yield
        for actor in self.actors:
            actor.close()

    def make_subject(self, place: Path) -> Subject:
        path = place / "contract.db"
        actor = SqliteActor(path, self.journal_mode)
        self.actors.append(actor)
        source = Sqlite(path, busy_timeout_seconds=1.0, before_images=self.before_images)
        return Subject(capture=lambda: source.bind("shop"), actor=actor)


class TestSqliteTriggersInWalMode(_SqliteContract):
    journal_mode = "wal"


class TestSqliteTriggersWithBeforeImages(BeforeImageContract, _SqliteContract):
    journal_mode = "wal"
    before_images = True

    def rekey(self, subject: Subject, key: int, other: int) -> None:
        assert isinstance(subject.actor, SqliteActor)
        subject.actor.rekey(subject.actor.table, key, other)


class TestSqliteTriggersInRollbackJournalMode(_SqliteContract):
    journal_mode = "delete"
