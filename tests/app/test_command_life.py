"""A pipeline's whole life through the commands, each of them a real process, from init to uninstall."""

from __future__ import annotations

import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.compare import compare_sqlite_table

from lakefeed.app import cli
from lakefeed.app.command.prepare import template
from lakefeed.app.demo.shop import build_shop
from lakefeed.app.demo.show import fresh_directory
from lakefeed.change.table import TableId

LAKEFEED = [sys.executable, "-c", "from lakefeed.app.cli import main; main()"]
ITEMS = TableId("main", "items")

# A test starts several of them, one after the other, and a first JVM on a busy machine takes its time.
pytestmark = pytest.mark.timeout(900)


def lakefeed(shop: Path, *arguments: str, expected: int = 0) -> str:
    result = subprocess.run([*LAKEFEED, *arguments], cwd=shop, capture_output=True, text=True, timeout=280, check=False)
    assert result.returncode == expected, result.stdout + result.stderr
    assert "Traceback" not in result.stdout + result.stderr
    return result.stdout


def answer(shop: Path, *arguments: str, expected: int = 0) -> dict[str, Any]:
    found = json.loads(lakefeed(shop, *arguments, "--json", expected=expected))
    assert isinstance(found, dict)
    return found


def change(shop: Path, *statements: str) -> None:
    with closing(sqlite3.connect(shop / "shop.db", timeout=30)) as connection, connection:
        for statement in statements:
            connection.execute(statement)


def assert_equal(shop: Path) -> None:
    assert compare_sqlite_table(shop / "shop.db", ITEMS, shop / "lake" / "main" / "items").differences == ()


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    with closing(sqlite3.connect(tmp_path / "shop.db")) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
    change(
        tmp_path,
        "CREATE TABLE items (id INTEGER PRIMARY KEY, name TEXT)",
        "INSERT INTO items VALUES (1, 'a'), (2, 'b'), (3, 'c')",
    )
    (tmp_path / "shop.yaml").write_text(template("sqlite", "shop.yaml"))
    return tmp_path


class Commands:
    """Commands in this process: for those that start no Spark, a process for each proves no more."""

    def __init__(self, shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self._file, self._capsys = str(shop / "shop.yaml"), capsys

    def text(self, command: str, *options: str, expected: int = 0) -> str:
        self._capsys.readouterr()
        code = cli.execute([command, self._file, *options])
        said = self._capsys.readouterr()
        assert code == expected, said.out + said.err
        return said.out

    def answer(self, command: str, expected: int = 0) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.text(command, "--json", expected=expected))
        return found


@pytest.fixture
def commands(shop: Path, capsys: pytest.CaptureFixture[str]) -> Commands:
    return Commands(shop, capsys)


def test_check_and_status_of_a_pipeline_that_never_ran_change_nothing(shop: Path, commands: Commands) -> None:
    before = (shop / "shop.db").read_bytes()
    assert commands.answer("check") == {"ready": True, "findings": []}
    assert commands.text("check") == "shop is ready.\n"
    status = commands.answer("status")
    assert set(status) == {
        "verdict",
        "reason",
        "remedy",
        "age_seconds",
        "journal_head",
        "lag",
        "source",
        "tables",
        "blocked",
        "unanswered",
        "source_error",
        "reported_at",
    }
    assert (status["verdict"], status["journal_head"], status["tables"]) == ("stopped", 0, {})
    assert set(status["lag"]) == {"rows", "bytes", "seconds"}
    assert commands.answer("journal") == {"pipeline": "shop", "change_sets": []}
    assert (shop / "shop.db").read_bytes() == before
    assert not (shop / "lake").exists()


def test_a_warning_of_check_is_shown_and_leaves_the_exit_code_0(shop: Path, commands: Commands) -> None:
    with closing(sqlite3.connect(shop / "shop.db")) as connection:
        connection.execute("PRAGMA journal_mode = DELETE")
    text = commands.text("check")
    assert text.startswith("Warning: ")
    assert "\nRemedy: PRAGMA journal_mode=WAL;\n" in text
    assert text.endswith("shop is ready.\n")


def test_check_finds_a_lake_that_cannot_be_written_and_exits_1(shop: Path, commands: Commands) -> None:
    (shop / "lake").write_text("in the way")
    found = commands.answer("check", expected=1)
    assert not found["ready"]
    assert "is a file" in found["findings"][0]["problem"]
    assert set(found["findings"][0]) == {"level", "table", "problem", "remedy"}
    assert "shop is not ready." in commands.text("check", expected=1)


def test_a_pattern_that_matches_no_table_is_exit_code_2_and_names_pattern_and_tables(
    shop: Path, commands: Commands
) -> None:
    file = shop / "shop.yaml"
    file.write_text(file.read_text().replace('["*"]', '["itms"]'))
    found = commands.answer("sync", expected=2)
    assert "itms" in found["error"]
    assert "items" in found["error"] + found["remedy"]


def test_a_source_that_is_not_there_is_exit_code_2_and_named(shop: Path, commands: Commands) -> None:
    (shop / "shop.db").unlink()
    for command in ("check", "sync", "run", "status", "uninstall"):
        assert "shop.db" in commands.answer(command, expected=2)["error"]


def test_status_starts_no_spark(shop: Path) -> None:
    code = (
        "import sys; from lakefeed.app import cli; assert cli.execute(['status', 'shop.yaml']) == 0; "
        "assert 'pyspark' not in sys.modules and 'py4j' not in sys.modules"
    )
    result = subprocess.run([sys.executable, "-c", code], cwd=shop, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


@pytest.mark.spark
def test_sync_status_journal_and_uninstall_tell_one_story(shop: Path) -> None:
    first = answer(shop, "sync", "shop.yaml")
    assert set(first) == {"change_sets", "rows", "tables", "last_position", "last_seq", "seconds"}
    assert first["rows"] == {"inserted": 3, "updated": 0, "deleted": 0}
    assert first["tables"]["main.items"]["rows"] == 3
    assert_equal(shop)

    change(
        shop,
        "INSERT INTO items VALUES (4, 'd')",
        "UPDATE items SET name = 'B' WHERE id = 2",
        "DELETE FROM items WHERE id = 1",
    )
    second = answer(shop, "sync", "shop.yaml")
    assert second["rows"] == {"inserted": 1, "updated": 1, "deleted": 1}
    assert second["change_sets"] >= 1
    assert second["last_position"].startswith("sqlite=")
    assert second["last_seq"] is not None
    assert set(second["tables"]["main.items"]) == {"applied", "rows"}
    assert second["tables"]["main.items"]["rows"] == 3
    assert_equal(shop)

    third = answer(shop, "sync", "shop.yaml")
    assert (third["change_sets"], third["last_seq"]) == (0, None)
    assert third["rows"] == {"inserted": 0, "updated": 0, "deleted": 0}

    status = answer(shop, "status", "shop.yaml")
    assert status["verdict"] == "stopped"
    items = status["tables"]["main.items"]
    about = {
        "state",
        "applied",
        "rows",
        "age_seconds",
        "error",
        "remedy",
        "reason",
        "compared",
        "verified",
        "copy",
        "rules",
        "layout",
    }
    assert set(items) == {*about, "lag_rows", "lag_bytes", "lag_seconds", "rows_per_second"}
    assert (items["lag_rows"], items["lag_seconds"]) == (0, 0.0)
    assert (items["applied"], items["rows"], items["error"]) == (status["journal_head"], 3, None)
    assert "main.items" in lakefeed(shop, "status", "shop.yaml")

    listed = answer(shop, "journal", "shop.yaml")["change_sets"]
    assert [entry["number"] for entry in listed] == list(range(1, status["journal_head"] + 1))
    assert sum(entry["rows"] for entry in listed) == 3
    assert "main.items" in lakefeed(shop, "journal", "shop.yaml", "--last", "50")

    assert answer(shop, "uninstall", "shop.yaml")["removed"]
    with closing(sqlite3.connect(shop / "shop.db")) as connection:
        assert connection.execute("SELECT name FROM sqlite_master").fetchall() == [("items",)]
    assert answer(shop, "uninstall", "shop.yaml") == {"removed": []}
    assert_equal(shop)


@pytest.mark.spark
def test_run_follows_the_source_refuses_a_second_process_and_stops_cleanly_on_sigterm(shop: Path) -> None:
    with subprocess.Popen(
        [*LAKEFEED, "run", "shop.yaml", "--json"], cwd=shop, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            first = json.loads(process.stdout.readline())
            assert first["tables"]["main.items"]["rows"] == 3
            change(shop, "INSERT INTO items VALUES (4, 'd')")
            while json.loads(process.stdout.readline())["rows"]["inserted"] == 0:
                pass
            assert answer(shop, "status", "shop.yaml")["verdict"] in ("healthy", "idle")
            refused = answer(shop, "sync", "shop.yaml", expected=3)
            assert str(process.pid) in refused["error"]
            process.send_signal(signal.SIGTERM)
            assert process.wait(120) == 0
        finally:
            process.kill()
        assert process.stderr is not None
        assert process.stderr.read() == ""
    assert_equal(shop)
    assert answer(shop, "status", "shop.yaml")["verdict"] == "stopped"


def test_run_for_some_seconds_ends_by_itself_and_ctrl_c_ends_it_with_lines_for_people(shop: Path) -> None:
    started = time.monotonic()
    assert lakefeed(shop, "run", "shop.yaml", "--for", "3") == "Stopped cleanly.\n"
    assert time.monotonic() - started >= 3
    change(shop, "CREATE TABLE later (id INTEGER PRIMARY KEY)", "INSERT INTO later VALUES (1), (2)")
    with subprocess.Popen(
        [*LAKEFEED, "run", "shop.yaml"], cwd=shop, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        assert process.stdout is not None
        try:
            while "main.later: copied 2 rows" not in process.stderr.readline():
                assert process.poll() is None
            process.send_signal(signal.SIGINT)
            assert process.wait(120) == 0
        finally:
            process.kill()
        assert "Stopping after the step under way …\n" in process.stderr.read()
        assert process.stdout.read() == "Stopped cleanly.\n"
    assert_equal(shop)


def test_ctrl_c_ends_a_sync_at_once_with_one_sentence_and_the_next_one_continues(shop: Path) -> None:
    with subprocess.Popen(
        [*LAKEFEED, "sync", "shop.yaml"],
        cwd=shop,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "LAKEFEED_FAILPOINTS": "lake.before_load=sleep:300"},
    ) as process:
        assert process.stderr is not None
        assert process.stdout is not None
        try:
            assert process.stderr.readline().startswith("main.items: copying")
            process.send_signal(signal.SIGINT)
            assert process.wait(30) == 130
        finally:
            process.kill()
        assert process.stderr.read() == "Interrupted; the same command continues where it stopped.\n"
        assert process.stdout.read() == ""
    assert answer(shop, "sync", "shop.yaml")["rows"]["inserted"] == 3
    assert_equal(shop)


@pytest.mark.spark
def test_the_demo_proves_itself_where_an_earlier_one_was_and_its_query_works(tmp_path: Path) -> None:
    with fresh_directory(tmp_path / "demo") as place:
        build_shop(place.database, customers=1, products=1, orders=1)
        (place.directory / "lake" / "_lakefeed" / "shop" / "commits").mkdir(parents=True)
    text = lakefeed(tmp_path, "demo", "--seconds", "3")
    assert "Every lake table equals its source table." in text
    equal = [line for line in text.splitlines() if line.endswith("equal")]
    assert [line.split()[0] for line in equal] == ["main.customers", "main.products", "main.orders", "main.order_items"]
    assert all(line.split()[1] == line.split()[2] for line in equal)
    assert " 0 changes applied" not in text
    assert re.search(r"changes applied on top of the copy\.\nThe first was in the lake after \d", text)
    assert text.index("Starting Spark …") < text.index("Spark has started, in ") < text.index("The writer stopped")
    last = [line for line in text.splitlines() if "waiting in the source: " in line][-1]
    assert "waiting in the source: nothing" in last, "the last frame agrees with the result"
    for line in equal:
        name, source, lake, _ = line.split()
        assert f"{name.removeprefix('main.')} {source}→{lake} " in last
    query = next(line.strip() for line in text.splitlines() if "to_arrow" in line)
    printed = subprocess.run(query, shell=True, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "status" in printed.stdout
