"""The capture contract, on every version of PostgreSQL that is found."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.postgres.actor import PostgresActor
from tests.postgres.conftest import new_database

from lakefeed.capture.postgres.source import Postgres
from lakefeed.testing.before_contract import BeforeImageContract
from lakefeed.testing.capture_contract import CaptureContract
from lakefeed.testing.capture_subject import Subject
from lakefeed.testing.server.postgres import PostgresServer, find_binaries

NEWEST = 18
"""Asked for if none is found: a missing server is a failure, never a skip."""
*OLDER, LAST = sorted(find_binaries()) or [NEWEST]
VERSIONS = [*(pytest.param(version, marks=pytest.mark.slow) for version in OLDER), LAST]


class TestPostgresLog(CaptureContract):
    @pytest.fixture(autouse=True, params=VERSIONS)
    def _place(self, request: pytest.FixtureRequest, servers: Callable[[int], PostgresServer]) -> Iterator[None]:
        with new_database(servers(request.param)) as self._dsn:
            self._actor = PostgresActor(self._dsn)
            yield
            self._actor.close()

    def make_subject(self, place: Path) -> Subject:
        return Subject(capture=lambda: Postgres(self._dsn).bind("contract"), actor=self._actor)


class TestPostgresLogWithBeforeImages(BeforeImageContract):
    @pytest.fixture(autouse=True, params=VERSIONS)
    def _place(self, request: pytest.FixtureRequest, servers: Callable[[int], PostgresServer]) -> Iterator[None]:
        with new_database(servers(request.param)) as self._dsn:
            self._actor = PostgresActor(self._dsn)
            for table in (self._actor.table, self._actor.other):
                self._actor.run(f"ALTER TABLE {table} REPLICA IDENTITY FULL")
            yield
            self._actor.close()

    def make_subject(self, place: Path) -> Subject:
        source = Postgres(self._dsn, before_images=True)
        return Subject(capture=lambda: source.bind("contract"), actor=self._actor)

    def rekey(self, subject: Subject, key: int, other: int) -> None:
        self._actor.rekey(subject.actor.table, key, other)
