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
from lakefeed.app.demo.place import MARKER, fresh_place
from lakefeed.app.demo.shop import TABLES, build_shop, count_rows
from lakefeed.app.demo.writer import Writer
from lakefeed.errors import ConfigError


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
        for kind in ("INSERT", "UPDATE", "DELETE"):
            connection.execute(f"CREATE TABLE seen_{kind} (x)")
            for table in TABLES:
                noted = f"BEGIN INSERT INTO seen_{kind} VALUES (1); END"
                connection.execute(f"CREATE TRIGGER {table}_{kind} AFTER {kind} ON {table} {noted}")
        connection.commit()
    writer = Writer(database, seconds=60, rate=500)
    try:
        time.sleep(1.5)
        assert writer.alive
        written = writer.stop()
    finally:
        writer.kill()
    assert 50 < written <= 1_000
    with closing(sqlite3.connect(database)) as connection:
        for kind in ("INSERT", "UPDATE", "DELETE"):
            assert connection.execute(f"SELECT count(*) FROM seen_{kind}").fetchone()[0] > 0


def test_the_writer_stops_by_itself(tmp_path: Path) -> None:
    database = tmp_path / "shop.db"
    build_shop(database, customers=5, products=5, orders=5)
    command = [sys.executable, "-m", "lakefeed.app.demo.writer", str(database), "0.3", "100"]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    assert 0 < int(answer.stdout) <= 31


def test_the_writer_does_not_outlive_a_killed_demo(tmp_path: Path) -> None:
    database = tmp_path / "shop.db"
    build_shop(database, customers=5, products=5, orders=5)
    code = (
        "import sys, time; from pathlib import Path; from lakefeed.app.demo.writer import Writer\n"
        "writer = Writer(Path(sys.argv[1]), seconds=60, rate=100)\n"
        "print(writer._process.pid, flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(database)], stdout=subprocess.PIPE, text=True) as demo:
        assert demo.stdout is not None
        writer = int(demo.stdout.readline())
        time.sleep(1)
        demo.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 10
    while Path(f"/proc/{writer}").exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    with pytest.raises(ProcessLookupError):
        os.kill(writer, 0)


def test_the_directory_is_made_anew_for_each_demo(tmp_path: Path) -> None:
    directory = tmp_path / "new" / "demo"
    with fresh_place(directory) as place:
        (directory / "lake" / "main").mkdir(parents=True)
        place.database.write_text("old")
        assert load_config(place.configuration).source.path == str(place.database)
    with fresh_place(directory) as place:
        assert not place.database.exists()
        assert sorted(path.name for path in directory.iterdir()) == [MARKER, "shop.yaml"]


def test_a_directory_that_no_demo_made_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "precious.txt").write_text("mine")
    with pytest.raises(ConfigError, match="no demo made"), fresh_place(tmp_path):
        pass
    with pytest.raises(ConfigError, match="is a file"), fresh_place(tmp_path / "precious.txt"):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["precious.txt"]


def test_two_demos_do_not_share_a_directory(tmp_path: Path) -> None:
    directory = tmp_path / "demo"
    with fresh_place(directory):
        with pytest.raises(ConfigError, match="another demo is running"), fresh_place(directory):
            pass
        with (directory / MARKER).open("a") as marker, pytest.raises(BlockingIOError):
            fcntl.flock(marker, fcntl.LOCK_EX | fcntl.LOCK_NB)
