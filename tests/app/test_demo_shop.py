"""The demo's parts that need no Spark: the shop, its writer, its directory."""

from __future__ import annotations

import fcntl
import os
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from lakefeed.app.config import load_config
from lakefeed.app.demo.shop import TABLES, Writer, build_shop, count_rows
from lakefeed.app.demo.show import MARKER, embedded_server, fresh_directory
from lakefeed.capture.sqlite.config import SqliteConfig
from lakefeed.change.table import TableId
from lakefeed.errors import ConfigError, LakefeedError

KINDS = ("INSERT", "UPDATE", "DELETE")


def test_the_shop_has_four_tables_in_wal_mode_and_one_composite_key(tmp_path: Path) -> None:
    database = tmp_path / "shop.db"
    build_shop(database, customers=20, products=10, orders=30)
    rows = count_rows(database)
    assert (rows["customers"], rows["products"], rows["orders"]) == (20, 10, 30)
    assert set(rows) == set(TABLES)
    with closing(sqlite3.connect(database)) as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        key = connection.execute("SELECT name FROM pragma_table_info('order_items') WHERE pk ORDER BY pk").fetchall()
    assert key == [("order_id",), ("line",)]


def test_the_writer_inserts_updates_and_deletes_until_it_is_stopped(tmp_path: Path) -> None:
    database = tmp_path / "shop.db"
    build_shop(database, customers=50, products=10, orders=100)
    with closing(sqlite3.connect(database)) as connection:
        for kind in KINDS:
            connection.execute(f"CREATE TABLE seen_{kind} (x)")
            for table in TABLES:
                noted = f"BEGIN INSERT INTO seen_{kind} VALUES (1); END"
                connection.execute(f"CREATE TRIGGER {table}_{kind} AFTER {kind} ON {table} {noted}")
        connection.commit()
    writer = Writer(database, seconds=240, rate=500)
    try:
        deadline = time.monotonic() + 120
        while not _seen_everything(database) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert writer.alive
        written = writer.stop()
    finally:
        writer.kill()
    assert written > 0
    assert _seen_everything(database)


def _seen_everything(database: Path) -> bool:
    with closing(sqlite3.connect(database, timeout=30)) as connection:
        counts = [connection.execute(f"SELECT count(*) FROM seen_{kind}").fetchone()[0] for kind in KINDS]
    return all(counts)


def test_the_writer_stops_by_itself(tmp_path: Path) -> None:
    database = tmp_path / "shop.db"
    build_shop(database, customers=5, products=5, orders=5)
    command = [sys.executable, "-m", "lakefeed.app.demo.shop", str(database), "2", "100", str(os.getpid())]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    ready, written = answer.stdout.split()
    assert ready == "ready"
    assert 0 < int(written) <= 201


def test_the_writer_can_be_stopped_as_soon_as_it_is_there(tmp_path: Path) -> None:
    database = tmp_path / "shop.db"
    build_shop(database, customers=5, products=5, orders=5)
    writer = Writer(database, seconds=60, rate=100)
    try:
        assert writer.stop() >= 0
        assert not writer.alive
    finally:
        writer.kill()


def test_a_writer_that_cannot_start_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(LakefeedError, match="did not start"):
        Writer(tmp_path / "shop.db", seconds=1, rate=1)


def test_a_writer_whose_parent_is_gone_before_it_begins_writes_nothing(tmp_path: Path) -> None:
    database = tmp_path / "shop.db"
    build_shop(database, customers=5, products=5, orders=5)
    command = [sys.executable, "-m", "lakefeed.app.demo.shop", str(database), "60", "100", "1"]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert answer.stdout == "ready\n0\n"


def test_the_writer_does_not_outlive_a_killed_demo(tmp_path: Path) -> None:
    database = tmp_path / "shop.db"
    build_shop(database, customers=5, products=5, orders=5)
    code = (
        "import sys, time; from pathlib import Path; from lakefeed.app.demo.shop import Writer\n"
        "writer = Writer(Path(sys.argv[1]), seconds=60, rate=100)\n"
        "print(writer.pid, flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(database)], stdout=subprocess.PIPE, text=True) as demo:
        assert demo.stdout is not None
        writer = int(demo.stdout.readline())
        demo.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 30
    while Path(f"/proc/{writer}").exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    with pytest.raises(ProcessLookupError):
        os.kill(writer, 0)


def test_the_directory_is_made_anew_for_each_demo(tmp_path: Path) -> None:
    directory = tmp_path / "new" / "demo"
    with fresh_directory(directory) as place:
        (directory / "lake" / "main").mkdir(parents=True)
        (directory / "shop.db").write_text("old")
        source = load_config(place.configuration).source
        assert isinstance(source, SqliteConfig)
        assert source.path == str(place.database)
    with fresh_directory(directory) as place:
        assert not (directory / "shop.db").exists()
        assert sorted(path.name for path in directory.iterdir()) == [MARKER, "shop.yaml"]


def test_a_directory_that_no_demo_made_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "precious.txt").write_text("mine")
    with pytest.raises(ConfigError, match="no demo created"), fresh_directory(tmp_path):
        pass
    with pytest.raises(ConfigError, match="is a file"), fresh_directory(tmp_path / "precious.txt"):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["precious.txt"]


def test_two_demos_do_not_share_a_directory(tmp_path: Path) -> None:
    directory = tmp_path / "demo"
    with fresh_directory(directory):
        with pytest.raises(ConfigError, match="another demo is running"), fresh_directory(directory):
            pass
        with (directory / MARKER).open("a") as marker, pytest.raises(BlockingIOError):
            fcntl.flock(marker, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_the_same_shop_runs_on_postgresql_and_the_demo_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with embedded_server() as dsn, fresh_directory(tmp_path / "demo", dsn) as place:
        build_shop(place.database, customers=20, products=10, orders=30)
        source = load_config(place.configuration).source
        assert (source.kind, place.tables["orders"]) == ("postgres", TableId("public", "orders"))
        before = count_rows(place.database)
        writer = Writer(place.database, seconds=60, rate=500)
        try:
            deadline = time.monotonic() + 60
            while count_rows(place.database) == before and time.monotonic() < deadline:
                time.sleep(0.05)
            assert writer.stop() > 0
        finally:
            writer.kill()
        assert (before["customers"], before["products"], before["orders"]) == (20, 10, 30)
    monkeypatch.setattr("lakefeed.testing.server.postgres.find_binaries", dict)
    with pytest.raises(ConfigError, match="needs a server to start") as refused, embedded_server():
        pass
    assert refused.value.remedy == "pip install 'lakefeed[demo]'"
