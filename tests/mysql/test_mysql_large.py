"""A transaction of any size passes with bounded memory, in one piece; a distributed one (XA) too."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.mysql.conftest import FLAVOURS
from tests.mysql.play import Play

from lakefeed.testing.server.mysql import MysqlServer

ROW = """INSERT INTO t SELECT {first} + a.n * 1000 + b.n, md5(b.n), a.n * 1.5, now(6)
           FROM digits a JOIN digits b WHERE a.n < {thousands}"""


@pytest.fixture(params=FLAVOURS)
def play(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Play]:
    """A server of its own: its log is large."""
    with MysqlServer.start(request.param, {"innodb_buffer_pool_size": "512M"}) as server:
        with server.connect() as admin, admin.cursor() as cursor:
            cursor.execute("CREATE DATABASE shop")
            cursor.execute("CREATE TABLE shop.digits (n int PRIMARY KEY)")
            cursor.execute("INSERT INTO shop.digits VALUES " + ", ".join(f"({n})" for n in range(5000)))
        made = Play(server, "shop", tmp_path, "id int PRIMARY KEY, v text, n decimal(20,2), at timestamp(6)")
        made.capture.close()
        yield made
        made.close()


def taken(play: Play, rows: int) -> dict[str, Any]:
    place = str(play.source.state)
    command = [sys.executable, "-m", "tests.mysql.drain", play.server.flavour, play.source.dsn, place, str(rows)]
    root = Path(__file__).parents[2]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=root, timeout=900)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    print(f"{rows:,} rows in one transaction: {found['seconds']:.1f} s, peak {found['peak_bytes'] / 1e6:.0f} MB")
    assert (found["rows"], found["change_sets"]) == (rows, 1)
    return found


def _insert(first: int, thousands: int) -> str:
    return ROW.format(first=first, thousands=thousands) + " AND b.n < 1000"


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_ten_times_the_rows_do_not_take_ten_times_the_memory(play: Play) -> None:
    play.run(_insert(0, 500))
    small = taken(play, 500_000)
    play.run("XA START 'x'", _insert(500_000, 500), "XA END 'x'", "XA PREPARE 'x'", "XA COMMIT 'x'")
    prepared = taken(play, 500_000)
    assert prepared["peak_bytes"] - small["peak_bytes"] < 200e6
    play.run(_insert(1_000_000, 5000))
    large = taken(play, 5_000_000)
    # Their events alone are 300 MB. What is unread and the parts in memory, 64 MB each, are full only now.
    assert large["peak_bytes"] - small["peak_bytes"] < 250e6
