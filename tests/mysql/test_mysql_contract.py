"""The capture contract, by the binlog of MySQL and of MariaDB."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.mysql.actor import MysqlActor
from tests.mysql.conftest import FLAVOURS, new_database

from lakefeed.capture.mysql.source import Mysql
from lakefeed.change.mysql import MysqlBinlog
from lakefeed.testing.before_contract import BeforeImageContract
from lakefeed.testing.capture_contract import CaptureContract
from lakefeed.testing.capture_subject import Subject, opened
from lakefeed.testing.server.mysql import Flavour, MysqlServer


class TestMysqlLog(CaptureContract):
    before_images = False

    @pytest.fixture(autouse=True, params=FLAVOURS)
    def _place(self, request: pytest.FixtureRequest, servers: Callable[[Flavour], MysqlServer]) -> Iterator[None]:
        self._server = servers(request.param)
        with new_database(self._server) as self._database:
            self._actor = MysqlActor(self._server, self._database)
            yield
            self._actor.close()

    def make_subject(self, place: Path) -> Subject:
        server = self._server
        source = Mysql(server.dsn, kind=server.flavour, tables=[f"{self._database}.*"], state=place,
                       before_images=self.before_images)  # fmt: skip
        return Subject(capture=lambda: source.bind("contract"), actor=self._actor)


class TestMysqlWithoutGtids(CaptureContract):
    @pytest.fixture(autouse=True)
    def _place(self, without_gtids: MysqlServer) -> Iterator[None]:
        with new_database(without_gtids) as database:
            self._actor = MysqlActor(without_gtids, database)
            self._source = Mysql(without_gtids.dsn, tables=[f"{database}.*"])
            yield
            self._actor.close()

    def make_subject(self, place: Path) -> Subject:
        source = replace(self._source, state=place)
        return Subject(capture=lambda: source.bind("contract"), actor=self._actor)

    def test_e09_a_capture_names_its_kind_as_its_positions_do(self, subject: Subject) -> None:
        """Its kind is that of the usual position, since the server was not asked yet."""
        with opened(subject) as capture:
            assert isinstance(capture.prepare([subject.actor.table]), MysqlBinlog)


class TestMysqlLogWithBeforeImages(TestMysqlLog, BeforeImageContract):
    before_images = True

    def rekey(self, subject: Subject, key: int, other: int) -> None:
        self._actor.rekey(subject.actor.table, key, other)
