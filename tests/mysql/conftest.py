"""One server of each flavour for a test session; one database for each test."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from tests.mysql.play import Play

from lakefeed.testing.server.mysql import Flavour, MysqlServer

FLAVOURS: tuple[Flavour, ...] = ("mysql", "mariadb")
WITHOUT_GTIDS = {"gtid_mode": "OFF", "enforce_gtid_consistency": "OFF", "performance_schema": "ON"}
_NUMBERS = itertools.count()


@pytest.fixture(scope="session")
def servers() -> Iterator[Callable[[Flavour], MysqlServer]]:
    """Flavour → a running server, started when it is first asked for. One that cannot be had is a failure."""
    running: dict[Flavour, MysqlServer] = {}
    with ExitStack() as stack:

        def get(flavour: Flavour) -> MysqlServer:
            if flavour not in running:
                running[flavour] = stack.enter_context(MysqlServer.start(flavour))
            return running[flavour]

        yield get


@pytest.fixture(scope="session")
def without_gtids() -> Iterator[MysqlServer]:
    """MySQL as it is without a word in its file: followed by file and offset."""
    with MysqlServer.start("mysql", WITHOUT_GTIDS) as found:
        yield found


@pytest.fixture(params=FLAVOURS)
def server(request: pytest.FixtureRequest, servers: Callable[[Flavour], MysqlServer]) -> MysqlServer:
    return servers(request.param)


@pytest.fixture(params=[*FLAVOURS, "without GTIDs"])
def every_server(request: pytest.FixtureRequest) -> MysqlServer:
    """Of each flavour, and MySQL that is followed by file and offset."""
    if request.param == "without GTIDs":
        found: MysqlServer = request.getfixturevalue("without_gtids")
    else:
        found = request.getfixturevalue("servers")(request.param)
    return found


@pytest.fixture
def database(server: MysqlServer) -> Iterator[str]:
    with new_database(server) as name:
        yield name


@pytest.fixture
def play(server: MysqlServer, database: str, tmp_path: Path) -> Iterator[Play]:
    made = Play(server, database, tmp_path)
    yield made
    made.close()


def version_of(server: MysqlServer) -> tuple[int, ...]:
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SELECT version()")
        return tuple(int(part) for part in str(cursor.fetchall()[0][0]).split("-")[0].split("."))


@contextmanager
def new_database(server: MysqlServer) -> Iterator[str]:
    name = f"test_{next(_NUMBERS)}"
    with server.connect() as admin, admin.cursor() as cursor:
        cursor.execute(f"CREATE DATABASE {name} CHARACTER SET utf8mb4")
    yield name
    with server.connect() as admin, admin.cursor() as cursor:  # a new one: the test may have crashed the server
        cursor.execute(f"DROP DATABASE IF EXISTS {name}")
