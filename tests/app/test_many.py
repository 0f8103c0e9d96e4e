"""Several pipelines in one process: each has its own trouble and its own end."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from tests.lake.on_delta import read_delta

from lakefeed.app.many import Pipelines, files_of
from lakefeed.errors import ConfigError
from lakefeed.flow.report.listener import Listener
from lakefeed.journal.lease import lease_holder
from lakefeed.storage.location import storage_at

CONFIG = "pipeline: {name}\nsource: {{kind: sqlite, path: {name}.db}}\nlake: {{path: ./lake}}\n"


def shop(directory: Path, name: str) -> None:
    sql(directory, name, f"CREATE TABLE t_{name} (id INTEGER PRIMARY KEY)", f"INSERT INTO t_{name} VALUES (1)")
    (directory / f"{name}.yaml").write_text(CONFIG.format(name=name))


def sql(directory: Path, name: str, *statements: str) -> None:
    with closing(sqlite3.connect(directory / f"{name}.db", isolation_level=None)) as connection:
        for statement in statements:
            connection.execute(statement)


def rows(directory: Path, name: str) -> int:
    location = directory / "lake" / "main" / f"t_{name}"
    return len(read_delta(str(location))) if (location / "_delta_log").exists() else 0


def until(condition: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.5)  # each look opens a table


@pytest.mark.spark
@pytest.mark.usefixtures("spark")
def test_one_fails_one_is_taken_away_and_the_others_go_on(tmp_path: Path) -> None:
    for name in ("a", "b"):
        shop(tmp_path, name)
    (tmp_path / "bad.yaml").write_text(CONFIG.format(name="bad"))  # its database is not there
    said: list[str] = []
    pipelines = Pipelines([tmp_path], said.append, lambda _: Listener(), standby=False)
    thread = threading.Thread(target=pipelines.run, daemon=True)
    thread.start()
    try:
        until(lambda: rows(tmp_path, "a") == 1 and rows(tmp_path, "b") == 1, "both are copied")
        until(lambda: tmp_path / "bad.yaml" in pipelines.failed, "the third has failed")
        (tmp_path / "b.yaml").unlink()
        until(lambda: lease_holder(storage_at(tmp_path / "lake" / "_lakefeed" / "b")) is None, "the second has ended")
        sql(tmp_path, "a", "INSERT INTO t_a VALUES (2)")
        sql(tmp_path, "b", "INSERT INTO t_b VALUES (2)")
        until(lambda: rows(tmp_path, "a") == 2, "the first goes on")
        assert rows(tmp_path, "b") == 1
    finally:
        pipelines.stop()
        thread.join(30)
    assert not thread.is_alive()
    assert lease_holder(storage_at(tmp_path / "lake" / "_lakefeed" / "a")) is None
    assert list(pipelines.failed) == [tmp_path / "bad.yaml"]
    assert any("bad.yaml: stopped, the others go on" in line for line in said), said


def test_a_directory_stands_for_its_files_and_sections_of_spark_must_agree(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no configuration file"):
        Pipelines([tmp_path], print, lambda _: Listener(), standby=False)
    with pytest.raises(ConfigError, match=r"no file .*gone\.yaml"):
        Pipelines([tmp_path, tmp_path / "gone.yaml"], print, lambda _: Listener(), standby=False)
    for name in ("b", "a"):
        shop(tmp_path, name)
    (tmp_path / "notes.txt").write_text("")
    assert [path.name for path in files_of([tmp_path, tmp_path / "a.yaml"])] == ["a.yaml", "b.yaml"]
    (tmp_path / "b.yaml").write_text(CONFIG.format(name="b") + "spark: {app_name: other}\n")
    with pytest.raises(ConfigError, match=r"b\.yaml has another section spark than a\.yaml"):
        Pipelines([tmp_path], print, lambda _: Listener(), standby=False)
    (tmp_path / "a.yaml").unlink()
    (tmp_path / "b.yaml").write_text(CONFIG.format(name="b") + "spark: {remote: 'sc://host', master: 'local[1]'}\n")
    with pytest.raises(ConfigError, match=r"spark\.master cannot be set beside spark\.remote"):
        Pipelines([tmp_path], print, lambda _: Listener(), standby=False)


@pytest.mark.slow
def test_twenty_idle_pipelines_of_ten_tables_cost_little(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Prints the figures that docs/scale.md has: seconds of CPU in a minute, and memory, of Python and of the JVM."""
    for name in (f"p{number:02}" for number in range(20)):
        tables = [f"CREATE TABLE t_{name}_{table} (id INTEGER PRIMARY KEY)" for table in range(10)]
        sql(tmp_path, name, *tables, *(f"INSERT INTO t_{name}_{table} VALUES (1)" for table in range(10)))
        (tmp_path / f"{name}.yaml").write_text(CONFIG.format(name=name))
    with (tmp_path / "said").open("w") as said:
        process = subprocess.Popen([sys.executable, "-m", "lakefeed", "run", str(tmp_path)], stderr=said, stdout=said)
    try:
        logs = (tmp_path / "lake" / "main").glob
        end = time.monotonic() + 240
        while len(list(logs("*/_delta_log"))) < 200:
            assert time.monotonic() < end, (tmp_path / "said").read_text()[-3000:]
            time.sleep(1)
        time.sleep(60)  # the JVM has been warmed up, and has compiled what it compiles
        before, began = used(process.pid), time.monotonic()
        time.sleep(60)
        after, minutes = used(process.pid), (time.monotonic() - began) / 60
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)
    slowness = max(1.0, additions() / USUAL_SECONDS)
    seconds = {pid: (after[pid][0] - before.get(pid, (0.0, 0))[0]) / minutes for pid in after}
    with capsys.disabled():
        for pid, (_, memory) in after.items():
            what = "python" if pid == process.pid else "jvm"
            print(f"\n{what}: {seconds[pid]:.1f} s of CPU a minute, {memory >> 20} MiB")
        print(f"five million additions in Python: {slowness * USUAL_SECONDS:.2f} s")
    assert sum(seconds.values()) < 10 * slowness


USUAL_SECONDS = 0.35


def additions() -> float:
    """Seconds of CPU that five million additions take: how slow this machine is now."""
    began, total = time.process_time(), 0
    for number in range(5_000_000):
        total += number
    return time.process_time() - began


def used(pid: int) -> dict[int, tuple[float, int]]:
    """Seconds of CPU and bytes of memory of a process and its children."""
    children = subprocess.run(["ps", "--ppid", str(pid), "-o", "pid="], capture_output=True, text=True, check=False)
    found: dict[int, tuple[float, int]] = {}
    for one in [pid, *map(int, children.stdout.split())]:
        try:
            fields = Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()
        except FileNotFoundError:  # ps itself
            continue
        ticks, pages = int(fields[11]) + int(fields[12]), int(fields[21])
        found[one] = (ticks / os.sysconf("SC_CLK_TCK"), pages * os.sysconf("SC_PAGE_SIZE"))
    return found
