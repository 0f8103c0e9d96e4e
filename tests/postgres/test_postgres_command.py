"""A pipeline's whole life from PostgreSQL through the commands. tests/app does the same with a process for each."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.compare import compare_postgres_table

from lakefeed.app.cli import execute
from lakefeed.change.table import TableId

ITEMS = TableId("public", "items")


class Shop:
    """A directory with a configuration that the commands are called in."""

    def __init__(self, directory: Path, dsn: str, capsys: pytest.CaptureFixture[str]) -> None:
        self.directory, self.dsn, self._capsys = directory, dsn, capsys
        self.run("init", "shop.yaml", "--source", "postgres")
        self.config = directory / "shop.yaml"
        self.write("dsn: host=localhost dbname=shop user=lakefeed", f"dsn: {dsn} password=${{SHOP_PASSWORD}}")

    def write(self, old: str, new: str) -> None:
        assert old in self.config.read_text()
        self.config.write_text(self.config.read_text().replace(old, new))

    def run(self, *arguments: str, expected: int = 0) -> str:
        self._capsys.readouterr()
        code = execute(list(arguments))
        done = self._capsys.readouterr()
        assert code == expected, done.out + done.err
        assert "Traceback" not in done.out + done.err
        assert "hunter2" not in done.out + done.err
        return done.out

    def answer(self, *arguments: str, expected: int = 0) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.run(*arguments, "shop.yaml", "--json", expected=expected))
        return found

    def difference(self) -> tuple[str, ...]:
        return compare_postgres_table(self.dsn, ITEMS, self.directory / "lake" / "public" / "items").differences


@pytest.fixture
def writer(dsn: str) -> Any:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("CREATE TABLE items (id int PRIMARY KEY, name text, price numeric(10,2), rate float8)")
        connection.execute("INSERT INTO items VALUES (1, 'a', 1.10, 'NaN'), (2, NULL, NULL, '-Infinity')")
        yield connection


@pytest.fixture
def shop(
    tmp_path: Path, dsn: str, writer: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Shop:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SHOP_PASSWORD", "hunter2")
    return Shop(tmp_path, dsn, capsys)


def test_check_and_status_change_nothing_in_the_source(shop: Shop, writer: Any) -> None:
    found = shop.answer("check")
    assert found["ready"]
    assert [finding["level"] for finding in found["findings"]] == ["warning"]  # max_slot_wal_keep_size is unlimited
    status = shop.answer("status")
    assert (status["verdict"], status["source"], status["lag"]["bytes"]) == ("stopped", {}, None)
    assert writer.execute("SELECT count(*) FROM pg_publication").fetchone() == (0,)
    assert not (shop.directory / "lake").exists()


def test_without_provision_check_prints_the_statements_and_sync_refuses_to_start(shop: Shop, writer: Any) -> None:
    shop.write("# provision: true ", "provision: false ")
    assert "CREATE PUBLICATION" in shop.answer("sync", expected=2)["remedy"]
    errors = [one for one in shop.answer("check", expected=1)["findings"] if one["level"] == "error"]
    assert len(errors) == 2
    for error in errors:
        writer.execute(error["remedy"])
    assert shop.answer("check")["ready"]


def test_a_server_that_is_not_there_is_named_without_the_password(shop: Shop) -> None:
    shop.write("port=", "port=1 options=-cport=")
    errors = [one for one in shop.answer("check", expected=1)["findings"] if one["level"] == "error"]
    assert [one["problem"].startswith("127.0.0.1:1/") for one in errors] == [True]
    assert errors[0]["problem"].count("127.0.0.1") == 1, "libpq names the address once more"
    status = shop.answer("status")
    assert status["lag"] == {"rows": None, "bytes": None, "seconds": None}
    assert status["source_error"] == errors[0]["problem"]
    assert "hunter2" not in json.dumps([errors, status])


@pytest.mark.spark
@pytest.mark.usefixtures("spark")
def test_a_life_from_the_first_sync_to_uninstall(shop: Shop, writer: Any) -> None:
    first = shop.answer("sync")
    assert first["tables"]["public.items"]["rows"] == 2
    assert shop.difference() == ()
    reason = shop.answer("status")["reason"]
    assert re.match("no process runs it; every table ha(d|s) every change ", reason), "its log alone has grown"
    renamed = shop.config.read_text().replace("pipeline: shop", "pipeline: store")
    (shop.directory / "store.yaml").write_text(renamed)
    (finding,) = json.loads(shop.run("check", "store.yaml", "--json", expected=1))["findings"]
    assert "belongs to the pipeline 'shop', not to 'store'" in finding["problem"]
    assert finding["remedy"].startswith("To continue that pipeline, set pipeline: shop.")
    writer.execute("UPDATE items SET price = 2.20 WHERE id = 2; INSERT INTO items VALUES (3, 'c', 3, 0.1)")
    writer.execute("DELETE FROM items WHERE id = 1; ALTER TABLE items ADD note text DEFAULT 'n'")
    assert len(shop.difference()) > 0
    waiting = shop.answer("status")
    assert waiting["lag"]["bytes"] > 0
    assert waiting["source"]["slot"] == "lakefeed_shop"
    assert waiting["source"]["wal_status"] == "reserved"
    assert "bytes of its log" in shop.run("status", "shop.yaml")
    assert shop.answer("verify", expected=1)["tables"]["public.items"]["differences"]
    assert shop.answer("sync")["rows"] == {"inserted": 1, "updated": 1, "deleted": 1}
    assert shop.difference() == ()
    assert shop.answer("verify")["tables"]["public.items"] == {
        "mode": "mirror", "compared": True, "equal": True, "source_rows": 2, "lake_rows": 2, "differences": [],
        "chosen": [], "partial": None, "position": None,
    }  # fmt: skip
    removed = shop.answer("uninstall")["removed"]
    assert removed == ["replication slot lakefeed_shop", "publication lakefeed_shop"]
    left = "SELECT (SELECT count(*) FROM pg_publication) + count(*) FROM pg_replication_slots"
    assert writer.execute(f"{left} WHERE database = current_database()").fetchone() == (0,)
