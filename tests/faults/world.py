"""World: one database under change, one pipeline that follows it in this process, and one lake; for SQLite, PostgreSQL,
MySQL and MariaDB, into Delta and Iceberg. ``account`` is a mirror; ``log`` is only inserted into and is kept as an
``append`` table, where a change that came twice would be two rows. The lake is read by deltalake and pyiceberg, the
source by SQL.
"""

from __future__ import annotations

import contextlib
import random
import shutil
import sqlite3
import subprocess
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pyarrow.compute as pc
import pymysql
import yaml
from deltalake import DeltaTable
from pyiceberg.table import StaticTable
from tests.faults.link import Link
from tests.storm.lake import read

from lakefeed import Append, Delta, Iceberg, JournalOptions, Mysql, Pipeline, PipelineOptions, Postgres, Rule, Sqlite
from lakefeed.app.build import build_pipeline, build_verification
from lakefeed.app.config import load_config
from lakefeed.change.table import TableId
from lakefeed.flow.report.listener import Listener
from lakefeed.flow.result import CycleResult
from lakefeed.flow.table_state import TableStates
from lakefeed.journal.commit import Commit
from lakefeed.testing.server.base import is_root
from lakefeed.testing.server.mysql import Flavour, MysqlServer
from lakefeed.testing.server.postgres import PostgresServer, find_binaries
from lakefeed.testing.server.spark_cluster import SparkCluster
from lakefeed.verify.repair import repair_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NAME = "faults"
OPTIONS = PipelineOptions(
    interval_seconds=0.05,
    enrol_seconds=1.0,
    maintenance_seconds=40,
    journal=JournalOptions(keep_seconds=0, keep_change_sets=20),
)
EQUAL_SECONDS = 120.0
_TABLES = (
    "CREATE TABLE account (id int PRIMARY KEY, owner varchar(40), balance int)",
    "CREATE TABLE log (id bigint PRIMARY KEY, what varchar(40))",
)
_JOURNAL_BYTES = 96 << 20
_WRITE_SECONDS = 0.03
"""Between two transactions of ``writing``."""


class _Listener(Listener):
    def __init__(self, world: World) -> None:
        self._world = world

    def retrying(self, error: Exception, seconds: float) -> None:
        self._world.retried[type(error).__name__] += 1

    def captured(self, commit: Commit) -> None:
        self._world.progress += 1

    def applied(self, result: CycleResult) -> None:
        self._world.progress += 1

    def table_error(self, table: TableId, message: str, remedy: str) -> None:
        self._world.told[str(table)] = (message, remedy)


class World(ABC):
    """``journal`` is on a file system of its own where this user may mount one: ``is_mounted``."""

    source: str
    link: Link | None = None
    server: PostgresServer | MysqlServer | None = None
    cluster: SparkCluster | None = None

    def __init__(self, directory: Path, lake_format: str, spark: SparkSession | None) -> None:
        self.directory, self.format, self._spark = directory, lake_format, spark
        self.lake, self.journal = directory / "lake", directory / "journal"
        self.journal.mkdir(parents=True)
        size = f"size={_JOURNAL_BYTES}"
        mounted = ["mount", "-t", "tmpfs", "-o", size, "lakefeed-faults", str(self.journal)]
        self.is_mounted = is_root() and subprocess.run(mounted, capture_output=True, check=False).returncode == 0
        self.number = 0
        self.errors: list[BaseException] = []
        """What has ended the pipeline since its last start."""
        self.ended: list[BaseException] = []
        """What had ended it before that."""
        self.retried = Counter[str]()
        """How often the pipeline has failed and begun again, by kind of error."""
        self.progress = 0
        """How often the pipeline has captured or applied something."""
        self.turn = threading.RLock()
        """Who has it may stop and start the pipeline."""
        self.children: list[tuple[subprocess.Popen[bytes], Path]] = []
        """Processes that wait to take over, each with the file that says that it is ready: see ``alone.child``."""
        self.told: dict[str, tuple[str, str]] = {}
        """Lake tables that wait, with message and remedy, since the last start."""
        self._writer: Any = None
        self._pipeline: Pipeline | None = None
        self._thread: threading.Thread | None = None
        self.begin()
        for table in _TABLES:
            self.execute(table)
        self.write(random.Random(0), 60)

    @property
    def state(self) -> Path:
        return self.journal / "_lakefeed" / NAME

    @property
    @abstractmethod
    def schema(self) -> str:
        """The folder of the lake that has the tables."""

    @abstractmethod
    def begin(self) -> None:
        """Start the database."""

    @abstractmethod
    def connect(self) -> Any:
        """A connection of the application's, past the link."""

    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """The section ``source`` of the configuration."""

    @abstractmethod
    def capture(self) -> Any:
        """The same from Python."""

    def execute(self, statement: str) -> None:
        self.commit([statement])

    def commit(self, statements: list[str]) -> None:
        """One transaction. One that the server's end has interrupted is tried again, which these statements allow."""
        until = time.monotonic() + 60
        while True:
            try:
                self._writer = self._writer or self.connect()
                cursor = self._writer.cursor()
                for statement in statements:
                    cursor.execute(statement)
                self._writer.commit()
                return
            except (psycopg.IntegrityError, pymysql.err.IntegrityError, sqlite3.IntegrityError):
                self._writer.rollback()
                return  # it is there already: the answer to the first attempt was lost
            except (psycopg.OperationalError, pymysql.err.OperationalError, pymysql.err.InterfaceError) as error:
                broken, self._writer = self._writer, None
                with contextlib.suppress(Exception):
                    broken.close()
                if time.monotonic() > until:
                    raise AssertionError(f"the application cannot write: {error}") from error
                time.sleep(0.05)

    def write(self, chance: random.Random, statements: int) -> None:
        """Changes in small transactions; some rows come, change, move to another key and go."""
        while statements > 0:
            together = min(statements, chance.randrange(1, 8))
            statements -= together
            made = list[str]()
            for _ in range(together):
                key, other = chance.randrange(80), chance.randrange(80)
                self.number += 1
                made.append(self.upsert(key, f"o{self.number}", other))
                made.append(
                    chance.choice(
                        [
                            f"UPDATE account SET balance = balance + {other} WHERE id BETWEEN {key} AND {key + 9}",
                            f"DELETE FROM account WHERE id = {other}",
                            f"DELETE FROM account WHERE id = {1000 + key}",
                            f"UPDATE account SET id = {2000 + self.number} WHERE id = {key}",
                            f"DELETE FROM account WHERE id > 2000 AND id < {2000 + self.number - 40}",
                        ]
                    )
                )
                made.append(self.insert(self.number, f"w{key}"))
            self.commit(made)

    @contextlib.contextmanager
    def writing(self, chance: random.Random) -> Iterator[None]:
        """Changes all the time, from a thread of their own. What fails there is raised at the end of the block."""
        over, failures = threading.Event(), list[BaseException]()

        def work() -> None:
            try:
                while not over.wait(_WRITE_SECONDS):
                    self.write(chance, 2)
            except BaseException as error:  # noqa: BLE001  # raised below
                failures.append(error)

        thread = threading.Thread(target=work, name="writer", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
        if failures:
            raise failures[0]

    @abstractmethod
    def upsert(self, key: int, owner: str, balance: int) -> str: ...

    @abstractmethod
    def insert(self, number: int, what: str) -> str:
        """Into ``log``, once: a second time it does nothing."""

    def start(self) -> None:
        """Follow the database, in a thread of this process."""
        assert self._spark is not None
        kind = {"delta": Delta, "iceberg": Iceberg}[self.format]
        lake = kind(self._spark, self.lake, rules=[Rule("*.log", mode=Append())])
        pipeline = Pipeline(
            self.capture(), lake, name=NAME, options=OPTIONS, journal=self.journal, listener=_Listener(self)
        )
        self.ended += self.errors
        self.errors.clear()
        self.told.clear()

        def follow() -> None:
            try:
                with pipeline:
                    pipeline.run()
            except BaseException as error:  # noqa: BLE001  # the harness looks at it
                self.errors.append(error)

        self._pipeline, self._thread = pipeline, threading.Thread(target=follow, name="pipeline", daemon=True)
        self._thread.start()

    def wait_for_progress(self, seconds: float) -> None:
        before, until = self.progress, time.monotonic() + seconds
        while self.progress == before and time.monotonic() < until:
            time.sleep(0.005)

    @property
    def is_running(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def stop(self) -> None:
        if self._pipeline is not None and self._thread is not None:
            self._pipeline.stop()
            self._thread.join(60)
            assert not self._thread.is_alive(), "the pipeline did not stop within a minute"
        self._pipeline = self._thread = None

    def config(self, **more: Any) -> Path:
        """The same pipeline for a process of its own, with further sections of the configuration."""
        file = self.directory / "faults.yaml"
        lake = {"path": str(self.lake), "format": self.format, "tables": [{"match": "*.log", "mode": "append"}]}
        written = {
            "pipeline": NAME, "source": self.settings(), "lake": lake,
            "sync": {"interval_seconds": 0.1, "warm_up": False},
            "journal": {"path": str(self.journal), "keep_change_sets": 20, "keep_seconds": 0}, **more,
        }  # fmt: skip
        file.write_text(yaml.safe_dump(written))
        return file

    def lake_files(self, table: str) -> list[Path]:
        """The files of rows that the newest version of a lake table has, and the newest of those that name them."""
        place = self.lake / self.schema / table
        if self.format == "delta":
            newest = max((place / "_delta_log").glob("*.json"))
            return [*(Path(uri.removeprefix("file://")) for uri in DeltaTable(str(place)).file_uris()), newest]
        newest = max((place / "metadata").glob("v*.metadata.json"), key=lambda file: int(file.name[1:].split(".")[0]))
        found = StaticTable.from_metadata(str(newest))
        named = {task.file.file_path for task in found.scan().plan_files()}
        snapshot = found.current_snapshot()
        assert snapshot is not None
        return [*(Path(one.removeprefix("file:")) for one in sorted({*named, snapshot.manifest_list})), newest]

    def verify(self) -> str:
        """What `lakefeed verify` says, of every table that it does not call equal."""
        work = build_verification(load_config(self.config()), "lakefeed sync", spark=self._spark)
        found = work.run(lambda _table: lambda _side, _rows: None, live=True, tables=())
        return "\n".join(
            f"{one.table}: {' '.join(one.differences)}" for _, one in found.tables if not (one.equal and one.compared)
        )

    def repair(self, table: str) -> None:
        """`lakefeed repair FILE TABLE`, beside the running pipeline."""
        config = load_config(self.config())
        work = build_verification(config, "lakefeed sync", spark=self._spark)
        record = TableStates(config.state()).all()[TableId.parse(table)]
        done = repair_table(work.live_table(record), lambda _side, _rows: None, lambda _line: None)
        assert done.is_equal, done

    def forget(self) -> None:
        """What this process's JVM remembers of lake tables, as if it were a new one."""
        assert self._spark is not None
        jvm: Any = self._spark._jvm
        jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()

    def rebuild(self, table: str) -> None:
        """`lakefeed rebuild FILE TABLE --from-source`."""
        with build_pipeline(load_config(self.config()), spark=self._spark) as pipeline:
            pipeline.rebuild(table, from_source=True)

    def difference(self) -> str | None:
        """What is not equal now; None if everything is, and nothing is there twice."""
        at = self.lake / self.schema
        lake_accounts, lake_log = read(self.format, at / "account"), read(self.format, at / "log", ["id"])
        if lake_accounts is None or lake_log is None:
            return "a table is not in the lake"
        with contextlib.closing(self.connect()) as connection:
            cursor = connection.cursor()
            cursor.execute("SELECT count(*), min(id), max(id) FROM log")
            count, first, last = cursor.fetchone()
            ids: list[Any] = sorted(lake_log["id"].to_pylist(), key=lambda one: -1 if one is None else one)
            if count != last - first + 1 or ids != list(range(first, last + 1)):
                cursor.execute("SELECT id FROM log")
                numbers, logged = Counter(row[0] for row in cursor.fetchall()), Counter(ids)
                if logged != numbers:
                    twice = [number for number, times in logged.items() if times > 1]
                    return f"log: {(numbers - logged).total()} rows are missing, twice are {twice[:5]}"
            cursor.execute("SELECT id, owner, balance FROM account")
            accounts = Counter(map(tuple, cursor.fetchall()))
        found = Counter(zip(*(lake_accounts[name].to_pylist() for name in ("id", "owner", "balance")), strict=True))
        if found != accounts:
            return f"account: {(accounts - found).total()} rows are missing, {(found - accounts).total()} are too many"
        return None

    def has_logged(self, number: int) -> bool:
        """Whether the lake has the row ``number`` of ``log``."""
        with contextlib.suppress(OSError):
            found = read(self.format, self.lake / self.schema / "log", ["id"])
            return found is not None and pc.index(found["id"], number).as_py() >= 0
        return False

    def wait_equal(self, seconds: float = EQUAL_SECONDS) -> str | None:
        """None once lake and source are equal; what differs if they are not in time."""
        until, found = time.monotonic() + seconds, "nothing was compared"
        while time.monotonic() < until and self.is_running:
            try:
                if (now := self.difference()) is None:
                    return None
                found = now
            except Exception as error:  # noqa: BLE001  # a file of before, a server that starts: asked again
                found = f"{type(error).__name__}: {error}"
            time.sleep(0.1)  # comparing takes the pipeline's processor
        return found if self.is_running else f"the pipeline has ended: {self.errors}; {found}"

    def close(self) -> None:
        for child, _ in self.children:
            child.kill()
            child.wait()
        with contextlib.suppress(AssertionError):
            self.stop()
        if self._writer is not None:
            with contextlib.suppress(Exception):
                self._writer.close()
        if self.link is not None:
            self.link.close()
        if self.server is not None:
            self.server.close()
        if self.is_mounted:
            subprocess.run(["umount", "-l", str(self.journal)], check=False, capture_output=True)
        shutil.rmtree(self.directory, ignore_errors=True)


class SqliteWorld(World):
    source, schema = "sqlite", "main"

    def begin(self) -> None:
        with contextlib.closing(self.connect()) as connection:
            connection.execute("PRAGMA journal_mode=WAL")

    def connect(self) -> sqlite3.Connection:
        return sqlite3.connect(self.directory / "shop.db", timeout=60, check_same_thread=False)

    def settings(self) -> dict[str, Any]:
        return {"kind": "sqlite", "path": str(self.directory / "shop.db"), "tables": ["*"]}

    def capture(self) -> Sqlite:
        return Sqlite(self.directory / "shop.db")

    def upsert(self, key: int, owner: str, balance: int) -> str:
        return f"INSERT OR REPLACE INTO account VALUES ({key}, '{owner}', {balance})"

    def insert(self, number: int, what: str) -> str:
        return f"INSERT OR IGNORE INTO log VALUES ({number}, '{what}')"


class PostgresWorld(World):
    source, schema = "postgres", "public"
    server: PostgresServer
    link: Link

    def begin(self) -> None:
        found = find_binaries()
        # What was committed survives a crash of the server: otherwise the lake would have more than it.
        self.server = PostgresServer.start(found[max(found)], {"fsync": "on", "wal_keep_size": "128MB"})
        self.link = Link(self.server.port)

    def connect(self) -> psycopg.Connection[Any]:
        return psycopg.connect(self.server.dsn, connect_timeout=5)

    @property
    def dsn(self) -> str:
        return f"host=127.0.0.1 port={self.link.port} user=postgres dbname=postgres connect_timeout=3"

    def settings(self) -> dict[str, Any]:
        return {"kind": "postgres", "dsn": self.dsn}

    def capture(self) -> Postgres:
        return Postgres(self.dsn)

    def upsert(self, key: int, owner: str, balance: int) -> str:
        change = "ON CONFLICT (id) DO UPDATE SET owner = excluded.owner, balance = excluded.balance"
        return f"INSERT INTO account VALUES ({key}, '{owner}', {balance}) {change}"

    def insert(self, number: int, what: str) -> str:
        return f"INSERT INTO log VALUES ({number}, '{what}') ON CONFLICT DO NOTHING"

    def fail_over(self) -> None:
        """The primary dies, and a standby with the slot is what the link leads to."""
        standby = self.server.standby()
        kept = "SELECT FROM pg_replication_slots WHERE slot_name LIKE 'lakefeed%' AND synced AND NOT temporary"
        until = time.monotonic() + 60
        with psycopg.connect(standby.dsn, autocommit=True) as connection:
            while connection.execute(kept).fetchone() is None:
                assert time.monotonic() < until, "the standby did not get the slot"
                self.write(random.Random(self.number), 2)  # a slot that moves on is what a standby can keep
                time.sleep(0.1)
        old, self.server = self.server, standby
        old.halt(immediate=True)
        standby.promote()
        self.link.target = standby.port
        self.link.cut()
        old.close()


class MysqlWorld(World):
    source: Flavour = "mysql"
    schema = "shop"
    server: MysqlServer
    link: Link

    def begin(self) -> None:
        self.server = self._another("1")
        self.link = Link(self.server.port)
        with self.server.connect() as connection, connection.cursor() as cursor:
            cursor.execute("CREATE DATABASE shop")

    def connect(self) -> pymysql.Connection[Any]:
        return self.server.connect(database="shop", autocommit=False)

    @property
    def dsn(self) -> str:
        return f"{self.source}://root@127.0.0.1:{self.link.port}/?ssl-mode=DISABLED"

    def settings(self) -> dict[str, Any]:
        return {"kind": self.source, "dsn": self.dsn, "tables": ["shop.*"]}

    def capture(self) -> Mysql:
        return Mysql(self.dsn, kind=self.source, tables=["shop.*"])

    def upsert(self, key: int, owner: str, balance: int) -> str:
        return f"REPLACE INTO account VALUES ({key}, '{owner}', {balance})"

    def insert(self, number: int, what: str) -> str:
        return f"INSERT IGNORE INTO log VALUES ({number}, '{what}')"

    def _another(self, number: str) -> MysqlServer:
        durable = {"innodb_flush_log_at_trx_commit": "1", "sync_binlog": "1"}
        return MysqlServer.start(self.source, {**durable, "server_id": number, "log_slave_updates": "ON"})

    def fail_over(self) -> None:
        """The primary dies, and a replica that has everything is what the link leads to."""
        replica = self._another(str(int(self.server.settings["server_id"]) + 1))
        replica.follow(self.server)
        until, found = time.monotonic() + 60, 0
        while found != self.number:
            assert time.monotonic() < until, f"the replica is at {found} of {self.number}"
            time.sleep(0.05)
            with (
                contextlib.suppress(pymysql.err.ProgrammingError, pymysql.err.OperationalError),
                replica.connect() as at,
            ):
                cursor = at.cursor()
                cursor.execute("SELECT max(id) FROM shop.log")
                found = cursor.fetchone()[0]
        old, self.server = self.server, replica
        old.halt(immediate=True)
        replica.promote()
        self.link.target = replica.port
        self.link.cut()
        old.close()


class MariadbWorld(MysqlWorld):
    source = "mariadb"


WORLDS: dict[str, type[World]] = {one.source: one for one in (SqliteWorld, PostgresWorld, MysqlWorld, MariadbWorld)}
