"""Polling keeps the contract of every capture: SQLite with soft deletes, PostgreSQL with deletes that it cannot see."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.poll.actors import PostgresPlainActor, SqliteSoftActor

from lakefeed.capture.poll.capture import Polling
from lakefeed.capture.poll.rule import Pace, SoftDelete, TableRule
from lakefeed.capture.poll.store import FileWatermarkStore
from lakefeed.capture.postgres.dialect import PostgresDialect
from lakefeed.capture.sqlite.dialect import SqliteDialect
from lakefeed.testing.capture_contract import CaptureContract
from lakefeed.testing.capture_subject import Subject

QUICK = Pace(poll_seconds=0.05)


class TestSqlitePolling(CaptureContract):
    @pytest.fixture(autouse=True)
    def _close(self) -> Iterator[None]:
        self.actors: list[SqliteSoftActor] = []
        yield
        for actor in self.actors:
            actor.close()

    def make_subject(self, place: Path) -> Subject:
        self.actors.append(SqliteSoftActor(place / "contract.db"))
        rule = TableRule(columns=["name"], safety_lag_seconds=0, deletes=SoftDelete("deleted_at"))

        def capture() -> Polling:
            connector = SqliteDialect(str(place / "contract.db"), 1.0)
            return Polling(connector, rules={"*": rule}, store=FileWatermarkStore(place / "marks.json"), pace=QUICK)

        return Subject(capture=capture, actor=self.actors[-1])


class TestPostgresPolling(CaptureContract):
    @pytest.fixture(autouse=True)
    def _place(self, dsn: str) -> Iterator[None]:
        self._dsn = dsn
        self._actor = PostgresPlainActor(dsn)
        yield
        self._actor.close()

    def make_subject(self, place: Path) -> Subject:
        rules = {"*.*": TableRule(columns=["name"], safety_lag_seconds=0)}

        def capture() -> Polling:
            store = FileWatermarkStore(place / "marks.json")
            connector = PostgresDialect(self._dsn)
            return Polling(connector, tables=["public.*"], rules=rules, store=store, pace=QUICK)

        return Subject(capture=capture, actor=self._actor, sees_deletes=False)
