"""A password is nowhere: a pipeline works, then fails in every way, and all that it printed or wrote is searched.

The role is the one that docs/postgres.md asks for and no more: LOGIN, REPLICATION and SELECT; the publication is its
owner's.
"""

from __future__ import annotations

import json
import re
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote
from urllib.request import urlopen

import psycopg
import pytest

from lakefeed.app import cli
from lakefeed.app.build import build_pipeline
from lakefeed.app.config import load_config
from lakefeed.app.dashboard import served
from lakefeed.capture.postgres import walsender
from lakefeed.testing.server.postgres import PostgresServer

SECRET, WRONG = "sEcr3t/of:the@server", "wr0ng/secret:of@nobody"
CONFIG = """
pipeline: shop
source: {{kind: postgres, dsn: "{dsn} password='${{SHOP_PASSWORD}}'", tables: [public.*]}}
lake: {{path: ./lake}}
"""


@pytest.fixture
def guarded(server: PostgresServer, dsn: str) -> Iterator[str]:
    """The connection string of a role with a password and the least rights, and a table that it may read."""
    rules = server.directory / "data" / "pg_hba.conf"
    before = rules.read_text()
    with psycopg.connect(dsn, autocommit=True) as owner:
        owner.execute("CREATE TABLE items (id int PRIMARY KEY, name text)")
        owner.execute("INSERT INTO items VALUES (1, 'a'), (2, 'b')")
        owner.execute(f"CREATE ROLE least LOGIN REPLICATION PASSWORD '{SECRET}'".encode())
        owner.execute("GRANT SELECT ON items TO least")
        owner.execute("CREATE PUBLICATION lakefeed_shop FOR TABLE items WITH (publish_via_partition_root = true)")
        rules.write_text(
            f"host all least 127.0.0.1/32 scram-sha-256\nhost replication least 127.0.0.1/32 scram-sha-256\n{before}"
        )
        owner.execute("SELECT pg_reload_conf()")
        try:
            yield dsn.replace("user=postgres", "user=least")
        finally:
            rules.write_text(before)
            owner.execute("SELECT pg_reload_conf()")
            owner.execute("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE NOT active")
            owner.execute("DROP OWNED BY least")
            owner.execute("DROP ROLE least")


class Runs:
    """Commands in one directory. ``said`` is everything that they printed, with all of the log."""

    def __init__(self, directory: Path, dsn: str, capsys: pytest.CaptureFixture[str]) -> None:
        self.file, self._capsys, self.said = directory / "shop.yaml", capsys, ""
        self.write(dsn)

    def write(self, dsn: str) -> None:
        self.file.write_text(CONFIG.format(dsn=dsn))

    def __call__(self, *words: str, expected: tuple[int, ...] = (0,)) -> str:
        code = cli.execute([words[0], str(self.file), *words[1:], "--debug"])
        done = self._capsys.readouterr()
        self.said += done.out + done.err
        assert code in expected, done.out + done.err
        return done.out


def found_in(directory: Path, secret: str) -> list[Path]:
    needles = {secret.encode(), quote(secret, safe="").encode(), json.dumps(secret)[1:-1].encode()}
    files = [path for path in directory.rglob("*") if path.is_file()]
    return [path for path in files if any(needle in path.read_bytes() for needle in needles)]


@pytest.mark.spark
def test_a_password_is_in_no_output_no_file_and_no_setting_after_a_run_that_fails_in_every_way(
    tmp_path: Path,
    guarded: str,
    dsn: str,
    spark: Any,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    monkeypatch.setenv("SHOP_PASSWORD", SECRET)
    monkeypatch.delenv("PGPASSWORD", raising=False)
    runs = Runs(tmp_path, guarded, capsys)
    _wait(lambda: cli.execute(["check", str(runs.file)]) == 0)  # the server has read its new rules

    runs("sync")
    with psycopg.connect(dsn, autocommit=True) as owner:
        owner.execute("UPDATE items SET name = 'c' WHERE id = 1")
    runs("sync")  # with Spark
    for command in ("check", "status", "journal", "verify"):
        runs(command)
        runs(command, "--json")
    config = load_config(runs.file)
    with build_pipeline(config, spark=spark) as pipeline, served(config, pipeline, "127.0.0.1:0") as url:
        for page in ("status.json", "metrics", "readyz", ""):
            try:
                with urlopen(f"{url}{page}", timeout=10) as answer:
                    runs.said += answer.read().decode()
            except OSError as error:
                runs.said += str(error)

    monkeypatch.setenv("SHOP_PASSWORD", WRONG)
    runs("sync", expected=(2, 3))
    runs("status", "--json")
    monkeypatch.setenv("SHOP_PASSWORD", SECRET)
    for broken in (
        re.sub(r"port=\d+", "port=1 connect_timeout=2", guarded),
        guarded.replace("dbname=", "dbname=missing_"),
        guarded.replace("host=", "hots="),
        f"{guarded} sslmode=require",
        f"{guarded} nonsense",
    ):
        runs.write(broken)
        for command in ("check", "sync", "status"):
            runs(command, expected=(0, 1, 2, 3))
    runs.write(guarded)
    with monkeypatch.context() as patch:

        def fail(*_: Any, **__: Any) -> Any:
            raise ZeroDivisionError("a bug")

        patch.setattr(walsender.Walsender, "read", fail)
        runs("sync", expected=(0, 3))
    newest = max((tmp_path / "lake" / "_lakefeed" / "shop" / "commits").glob("*.json"))
    newest.write_bytes(newest.read_bytes()[:-20])
    runs("sync", expected=(3,))
    runs("status", expected=(0, 3))

    for secret in (SECRET, WRONG):
        assert secret not in runs.said
        assert quote(secret, safe="") not in runs.said
        assert found_in(tmp_path, secret) == []
    settings = spark.sparkContext.getConf().getAll() + spark.sql("SET -v").collect()
    assert not [one for one in settings if SECRET in str(one)]


def _wait(is_so: Callable[[], bool]) -> None:
    until = time.monotonic() + 30
    while not is_so():
        assert time.monotonic() < until
        time.sleep(0.2)
