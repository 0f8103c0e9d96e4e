"""The storm finds what it is there to find: waits for Lakefeed, failures because of it, and values that differ."""

from __future__ import annotations

import random
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from tests.storm.database import StatementError
from tests.storm.lake import differences
from tests.storm.model import SqlModel
from tests.storm.mysql.database import MysqlStorm
from tests.storm.mysql.model import MariadbModel, MysqlModel
from tests.storm.postgres.database import PostgresStorm
from tests.storm.postgres.model import PostgresModel
from tests.storm.profile import PROFILES, Profile
from tests.storm.sqlite.database import SqliteStorm
from tests.storm.sqlite.model import SqliteModel
from tests.storm.watch import LockWatcher

import lakefeed
from lakefeed.testing.server.mysql import Flavour

_LOCKER = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN IMMEDIATE")
print("locked", flush=True)
sys.stdin.read()
"""


_WAITING = "SELECT 1 FROM information_schema.PROCESSLIST WHERE STATE = 'Waiting for table metadata lock'"


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresStorm]:
    database = PostgresStorm()
    database.create(1)
    yield database
    database.close(tmp_path_factory.mktemp("storm") / "server.log")


def test_a_wait_for_a_session_of_lakefeed_is_found_and_one_for_the_application_is_not(database: PostgresStorm) -> None:
    found: list[str] = []
    watcher = LockWatcher(database, lambda kind, text: found.append(text))
    watcher.start()
    waiter = database.session("storm waiter")
    for blocker in (database.session("storm blocker"), database.session("lakefeed_storm")):
        blocker.execute("BEGIN; LOCK TABLE heartbeat")
        waiting = threading.Thread(target=waiter.execute, args=("DELETE FROM heartbeat",))
        waiting.start()
        time.sleep(3)
        blocker.execute("COMMIT")
        waiting.join()
        blocker.close()
    watcher.end()
    waiter.close()
    assert len(found) == 1
    assert "DELETE FROM heartbeat" in found[0]
    assert "lakefeed_storm" in found[0]
    assert watcher.longest > 2


def test_a_failure_because_of_a_publication_is_ours_and_any_other_is_the_applications(database: PostgresStorm) -> None:
    session = database.session("storm fails")
    session.execute("CREATE TABLE keyless (id int); CREATE PUBLICATION lakefeed_storm FOR TABLE keyless")
    with pytest.raises(StatementError) as published:
        session.execute("DELETE FROM keyless")
    with pytest.raises(StatementError) as own:
        session.execute("SELECT 1 / 0")
    session.execute("DROP TABLE keyless")
    session.close()
    assert published.value.ours
    assert not own.value.ours


def test_values_are_compared_by_what_they_are() -> None:
    columns = {
        "f": pa.array([float("nan"), -0.0], pa.float64()),
        "d": pa.array([Decimal("1.50"), None], pa.decimal128(10, 2)),
        "b": pa.array([b"\x00\xff", b""], pa.binary()),
        "t": pa.array(["1.50", "{1,NULL}"], pa.string()),
        "at": pa.array([1_000_001, 0], pa.timestamp("us", "UTC")),
        "l": pa.array([None, ["a", 'b,"', None, "NULL"]], pa.list_(pa.string())),
    }
    rows = [(b"-0", None, b"\\x", b"{1,NULL}", b"1970-01-01 00:00:00+00", b'{a,"b,\\"",NULL,"NULL"}'),
            (b"NaN", b"1.50", b"\\x00ff", b"1.50", b"1970-01-01 00:00:01.000001+00", None)]  # fmt: skip
    assert differences(rows, list(columns), pa.table(columns)) is None
    for index, wrong in enumerate((b"0", b"0", b"\\x01", b"{1,null}", b"1970-01-01 00:00:00.1+00", b"{a}")):
        row = (*rows[0][:index], wrong, *rows[0][index + 1 :])
        assert differences([row, rows[1]], list(columns), pa.table(columns)) is not None
    assert differences(rows[1:], list(columns), pa.table(columns)) is not None
    assert differences([row[1:] for row in rows], list(columns)[1:], pa.table(columns)) is not None


def test_a_process_that_keeps_the_write_lock_of_sqlite_is_found_and_a_session_of_the_application_is_not(
    tmp_path: Path,
) -> None:
    database = SqliteStorm()
    database.create(1)
    session = database.session("storm waiter")
    session.execute("BEGIN IMMEDIATE")
    assert database.holder() is None
    session.execute("COMMIT")
    command = [sys.executable, "-c", _LOCKER, database.source()["path"]]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as locker:
        assert locker.stdin is not None
        assert locker.stdout is not None
        locker.stdout.readline()
        waiting = threading.Thread(target=session.execute, args=("DELETE FROM heartbeat",))
        waiting.start()
        until = time.monotonic() + 20
        while not (waits := database.waits()):
            assert time.monotonic() < until
        locker.stdin.close()
        waiting.join()
    session.close()
    database.close(tmp_path / "server.log")
    assert [(wait.statement, wait.blocker) for wait in waits] == [("DELETE FROM heartbeat", f"process {locker.pid}")]


@pytest.mark.parametrize("flavour", ["mysql", "mariadb"])
def test_a_wait_for_a_metadata_lock_of_lakefeed_is_found_and_one_for_the_application_is_not(
    flavour: Flavour, tmp_path: Path
) -> None:
    database = MysqlStorm(flavour)
    database.create(1)
    waiter = database.session("storm waiter")
    for number, user in enumerate(("root", "lakefeed")):
        blocker = database.connect("storm blocker", user=user)
        with blocker.cursor() as cursor, database.connect("storm test") as test, test.cursor() as processes:
            cursor.execute("BEGIN")
            cursor.execute("SELECT * FROM heartbeat")
            alter = f"ALTER TABLE heartbeat ADD c{number} int"
            waiting = threading.Thread(target=waiter.execute, args=(alter,))
            waiting.start()
            until = time.monotonic() + 20
            while not processes.execute(f"{_WAITING} AND INFO LIKE '{alter}%'"):
                assert time.monotonic() < until
            waits = database.waits()
            cursor.execute("COMMIT")
            waiting.join()
        blocker.close()
        assert [(wait.statement, wait.blocker.partition(":")[0]) for wait in waits] == [(alter, user)][:number]
    waiter.close()
    database.close(tmp_path / "server.log")


_MODELS: dict[str, Callable[[Profile], SqlModel]] = {
    "postgres": lambda profile: PostgresModel(0, profile, 18),
    "sqlite": lambda profile: SqliteModel(0, profile),
    "mysql": lambda profile: MysqlModel(0, profile),
    "mariadb": lambda profile: MariadbModel(0, profile),
}


@pytest.mark.parametrize("name", ["mild", "wild"])
@pytest.mark.parametrize("source", list(_MODELS))
def test_every_kind_of_a_profile_exists_and_the_same_seed_gives_the_same_statements(source: str, name: str) -> None:
    profile = PROFILES[source][name]
    told = []
    for model in (_MODELS[source](profile), _MODELS[source](profile)):
        assert not [kind for kind in (*profile.weights, *profile.prelude) if not model.has(kind)]
        statements: list[str] = []
        for number in range(500):
            chance = random.Random(f"1/0/{number}")
            action = model.action(chance.choice(list(profile.weights)), chance)
            action.done()
            statements += action.statements
        told.append(statements)
    assert told[0] == told[1]


def test_a_remedy_that_rebuilds_a_table_is_a_whole_command() -> None:
    """The storm runs it as printed: with the configuration file, or nothing is rebuilt."""
    sources = Path(lakefeed.__file__).parent.rglob("*.py")
    assert not [str(file) for file in sources if re.search(r"lakefeed rebuild \{", file.read_text())]
