"""The dashboard of a real pipeline: one process runs it and serves, another one serves the same beside it."""

from __future__ import annotations

import json
import re
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from prometheus_client.parser import text_string_to_metric_families

from lakefeed.app import cli
from lakefeed.app.config import load_config
from lakefeed.app.dashboard import read_token
from lakefeed.errors import ConfigError

LAKEFEED = [sys.executable, "-c", "from lakefeed.app.cli import main; main()"]
ROWS = 500


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    with closing(sqlite3.connect(tmp_path / "shop.db")) as connection, connection:
        connection.execute("CREATE TABLE items (id INTEGER PRIMARY KEY, name TEXT)")
        connection.executemany(
            "INSERT INTO items VALUES (?, ?)", [(number, f"item {number}") for number in range(ROWS)]
        )
    (tmp_path / "shop.yaml").write_text(
        "pipeline: shop\nsource: {kind: sqlite, path: shop.db, tables: ['*']}\nlake: {path: ./lake}\n"
        "sync: {warm_up: false}\nmonitor: {http: '127.0.0.1:0'}\n"
    )
    return tmp_path


@contextmanager
def serving(shop: Path, *words: str) -> Iterator[str]:
    """A process and the address that it prints; it is stopped by Ctrl-C and must end well."""
    with subprocess.Popen(
        [*LAKEFEED, *words], cwd=shop, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stderr is not None
            said = ""
            for line in process.stderr:
                said += line
                if found := re.search(r"http://127\.0\.0\.1:\d+/", line):
                    yield found[0]
                    break
            else:
                pytest.fail(said)
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=60)
            assert process.returncode == 0, said + out + err
        finally:
            process.kill()


def document(url: str) -> dict[str, Any]:
    with urlopen(f"{url}status.json", timeout=10) as answer:  # an address of this machine
        found: dict[str, Any] = json.load(answer)
    return found


def wait_for_live(url: str) -> dict[str, Any]:
    until = time.monotonic() + 60
    while (found := document(url))["tables"].get("main.items", {}).get("state") != "live":
        assert time.monotonic() < until, found
        time.sleep(0.2)
    return found


def test_a_running_pipeline_and_a_second_process_serve_the_same(shop: Path) -> None:
    with serving(shop, "run", "shop.yaml") as own:
        found = wait_for_live(own)
        assert found["about"] == {"source": f"sqlite {shop / 'shop.db'}", "lake": f"delta {shop / 'lake'}"}
        assert found["tables"]["main.items"]["rows"] == ROWS
        until = time.monotonic() + 30
        while document(own)["applied"].get("main.items", {}).get("copied") != ROWS:
            assert time.monotonic() < until
            time.sleep(0.2)
        with urlopen(f"{own}readyz", timeout=10) as ready:
            assert ready.read() == b"ready\n"
        with serving(shop, "dashboard", "shop.yaml", "--http", "127.0.0.1:0") as other:
            beside = document(other)
            assert beside["applied"] == document(own)["applied"]
            assert sum(beside["history"]["copied"]) == ROWS, "the last hour is there at once"
            with urlopen(f"{other}metrics", timeout=10) as answer:
                families = {one.name: one for one in text_string_to_metric_families(answer.read().decode())}
            rows = {sample.labels["table"]: sample.value for sample in families["lakefeed_table_rows"].samples}
            assert rows == {"main.items": ROWS}
    with serving(shop, "dashboard", "shop.yaml") as alone:
        found = document(alone)
        assert (found["verdict"], found["rates"]["applied"]) == ("stopped", 0.0)
        with pytest.raises(HTTPError, match="503"):
            urlopen(Request(f"{alone}readyz"), timeout=10)


def test_everything_on_stderr_is_json_if_it_is_asked_for(shop: Path) -> None:
    (shop / "lake" / "_lakefeed").mkdir(parents=True)
    done = subprocess.run(
        [*LAKEFEED, "--log-format", "json", "run", "shop.yaml", "--for", "2"],
        cwd=shop, capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert all({"time", "level", "logger", "message"} <= set(line) for line in lines)
    events = {line["event"]: line for line in lines if "event" in line}
    assert events["snapshot_done"]["rows"] == ROWS
    assert events["snapshot_done"]["table"] == "main.items"
    failed = subprocess.run(
        [*LAKEFEED, "sync", "missing.yaml", "--log-format=json"],
        cwd=shop, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    (line,) = map(json.loads, failed.stderr.splitlines())
    assert (failed.returncode, line["level"], line["event"]) == (2, "error", "failed")
    assert "lakefeed init" in line["remedy"]


def test_a_log_format_that_there_is_not_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.execute(["status", "shop.yaml", "--log-format", "xml"]) == 2
    assert "Choose text or json." in capsys.readouterr().err


def test_other_addresses_are_refused_by_the_commands(shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("run", "dashboard"):
        assert cli.execute([command, str(shop / "shop.yaml"), "--http", "0.0.0.0:0"]) == 2
        assert "open to everybody" in capsys.readouterr().err


def test_the_token_comes_from_the_environment_or_a_file_and_never_from_the_configuration(
    shop: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = shop / "shop.yaml"
    file.write_text(file.read_text().replace("http: '127.0.0.1:0'", "token_file: token"))
    config = load_config(file).monitor
    with pytest.raises(ConfigError, match=r"cannot read monitor\.token_file"):
        read_token(config)
    (shop / "token").write_text("\n")
    with pytest.raises(ConfigError, match="is empty"):
        read_token(config)
    (shop / "token").write_text("of-the-file-1234\n")
    assert read_token(config) == "of-the-file-1234"
    monkeypatch.setenv("LAKEFEED_HTTP_TOKEN", "of-the-environment")
    assert read_token(config) == "of-the-environment"
    file.write_text(file.read_text().replace("token_file: token", "token: literal"))
    with pytest.raises(ConfigError, match="there is no key 'token' in monitor"):
        load_config(file)
