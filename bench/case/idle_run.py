"""What `run` costs while nothing happens, with each kind of source: this process, and the server beside an idle one."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg

from bench.bench import Bench
from bench.mysql import VERSIONS
from bench.pipeline import PIPELINE
from bench.postgres import binaries
from bench.report import Measure, Report
from bench.usage import cpu_of
from lakefeed.capture.base import Source
from lakefeed.capture.mysql.source import Mysql
from lakefeed.capture.postgres.source import Postgres
from lakefeed.capture.sqlite.source import Sqlite
from lakefeed.flow.pipeline import Pipeline
from lakefeed.lake.delta import Delta
from lakefeed.testing.server.mysql import MysqlServer
from lakefeed.testing.server.postgres import PostgresServer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TABLES = 10
_TABLE = "CREATE TABLE t{number} (id int PRIMARY KEY, a varchar(20) NOT NULL)"
_ROW = "INSERT INTO t{number} VALUES (1, 'a'), (2, 'b')"

Running = tuple[Source, int | None]
"""A source, and the process of its server."""


def run(bench: Bench) -> Report:
    seconds, settle = bench.size(full=20, quick=2), bench.size(full=5, quick=1)
    measures = list[Measure]()
    for name, sourced in _SOURCES.items():
        place = bench.scratch / name
        place.mkdir()
        with (
            sourced(place) as (source, server),
            Pipeline(source, Delta(_refuse, place / "lake"), name=PIPELINE) as made,
        ):
            before = _idle(server, seconds, settle)[1]
            assert not made.sync_once().errors
            running = threading.Thread(target=made.run)
            running.start()
            own, beside = _idle(server, seconds, settle)
            made.stop()
            running.join()
            made.uninstall()
        measures.append(Measure(name, "s", (round(own, 2),), ours=True))
        if server is not None:
            measures.append(Measure(f"{name}: its server", "s", (round(beside, 2),), ours=True))
            measures.append(Measure(f"{name}: its server, without a pipeline", "s", (round(before, 2),), ours=False))
        bench.say(f"{name}: {own:.2f} s of CPU in a minute, its server {beside:.2f} s, without a pipeline {before:.2f}")
    return Report(
        what=f"A pipeline of {TABLES} tables in `run`, into Delta, while nobody writes to the database: seconds of CPU "
        "in a minute, by this process and by the database's server, which was measured without a pipeline before. No "
        "session of Spark was ever asked for.",
        measures=tuple(measures),
    )


def _refuse() -> SparkSession:
    raise AssertionError("tables this small need no Spark")


def _idle(server: int | None, seconds: int, settle: int) -> tuple[float, float]:
    """The processor time of this process and of the server's, for a minute, in a while that begins after ``settle``."""
    time.sleep(settle)
    own, other = time.process_time(), cpu_of(server) if server is not None else 0.0
    time.sleep(seconds)
    beside = cpu_of(server) - other if server is not None else 0.0
    return (time.process_time() - own) * 60 / seconds, beside * 60 / seconds


@contextmanager
def _sqlite(place: Path) -> Iterator[Running]:
    with closing(sqlite3.connect(place / "shop.db")) as writer:
        writer.execute("PRAGMA journal_mode = wal")
        _make(lambda statement: writer.execute(statement))
        writer.commit()
    yield Sqlite(str(place / "shop.db")), None


@contextmanager
def _postgres(place: Path) -> Iterator[Running]:  # noqa: ARG001  # it has a directory of its own
    with PostgresServer.start(binaries()) as server:
        with psycopg.connect(server.dsn, autocommit=True) as writer:
            _make(lambda statement: writer.execute(statement.encode()))
        yield Postgres(server.dsn, tables=["public.*"]), server.pid


@contextmanager
def _mysql(place: Path) -> Iterator[Running]:  # noqa: ARG001  # as above
    with MysqlServer.start("mysql", version=VERSIONS["mysql"]) as server:
        with server.connect() as connection, connection.cursor() as writer:
            writer.execute("CREATE DATABASE shop")
            writer.execute("USE shop")
            _make(lambda statement: writer.execute(statement))
        yield Mysql(server.dsn, tables=["shop.*"]), server.pid


def _make(execute: Callable[[str], object]) -> None:
    for number in range(TABLES):
        execute(_TABLE.format(number=number))
        execute(_ROW.format(number=number))


_SOURCES: dict[str, Callable[[Path], AbstractContextManager[Running]]] = {
    "SQLite": _sqlite,
    "PostgreSQL": _postgres,
    "MySQL": _mysql,
}
