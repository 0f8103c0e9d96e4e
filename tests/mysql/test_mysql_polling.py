"""Polling of MySQL and MariaDB keeps the contract of every capture."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.mysql.actor import MysqlActor
from tests.mysql.conftest import FLAVOURS, new_database

from lakefeed.capture.mysql.dialect import MysqlDialect
from lakefeed.capture.poll.capture import Polling
from lakefeed.capture.poll.source import Pace, TableRule
from lakefeed.capture.poll.store import FileWatermarkStore
from lakefeed.testing.capture_contract import CaptureContract
from lakefeed.testing.capture_subject import Subject
from lakefeed.testing.server.mysql import Flavour, MysqlServer


class TestMysqlPolling(CaptureContract):
    @pytest.fixture(autouse=True, params=FLAVOURS)
    def _place(self, request: pytest.FixtureRequest, servers: Callable[[Flavour], MysqlServer]) -> Iterator[None]:
        self._server = servers(request.param)
        with new_database(self._server) as self._database:
            self._actor = MysqlActor(self._server, self._database, timed=True)
            yield
            self._actor.close()

    def make_subject(self, place: Path) -> Subject:
        rules = {"*.*": TableRule(columns=["name"], safety_lag_seconds=0)}
        dialect = MysqlDialect(self._server.dsn, self._server.flavour)

        def capture() -> Polling:
            store = FileWatermarkStore(place / "marks.json")
            tables = [f"{self._database}.*"]
            return Polling(dialect, tables=tables, rules=rules, store=store, pace=Pace(poll_seconds=0.05))

        return Subject(capture=capture, actor=self._actor, sees_deletes=False)
