"""The example job runs as its text says, and survives being killed."""

from __future__ import annotations

import os
import runpy
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.reading.journals import PEOPLE, add_people, opened
from tests.reading.shop import Shop

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

EXAMPLE = Path(__file__).parents[2] / "examples" / "stream_changes.py"
ONE_MOMENT = EXAMPLE.with_name("one_moment.py")


def run_example(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> None:
    monkeypatch.setattr(sys, "argv", [str(EXAMPLE), *arguments])
    runpy.run_path(str(EXAMPLE), run_name="__main__")


def test_the_example_streams_what_a_pipeline_captured(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = Shop(spark, tmp_path)
    shop.sync()
    shop.execute("INSERT INTO goods VALUES (1, 'lamp'), (2, 'chair')", "UPDATE goods SET name = 'sofa' WHERE id = 2")
    shop.sync()
    where = ["--lake", str(shop.lake), "--pipeline", "shop", "--table", "main.goods"]
    run_example(monkeypatch, *where, "--once", "--output", str(tmp_path / "out"))
    shop.execute("DELETE FROM goods WHERE id = 1")
    shop.sync()
    run_example(monkeypatch, *where, "--once", "--output", str(tmp_path / "out"))
    found = spark.read.parquet(str(tmp_path / "out")).orderBy("_lakefeed_seq").collect()
    assert [(row["_lakefeed_op"], row["id"], row["name"]) for row in found] == [
        ("insert", 1, "lamp"),
        ("insert", 2, "chair"),
        ("update", 2, "sofa"),
        ("delete", 1, None),
    ]


@pytest.mark.slow  # test_spark_stream kills one, too
def test_a_job_that_was_killed_goes_on_and_writes_nothing_twice(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake, out = tmp_path / "lake", tmp_path / "out"
    where = ["--lake", str(lake), "--pipeline", "shop", "--table", str(PEOPLE.table), "--output", str(out)]
    with opened(lake / "_lakefeed" / "shop") as journal:
        add_people(journal, range(1, 101))  # one after the other: many more than are waited for
    # Its own session of processes: the signal takes its JVM, too, as a machine that fails does.
    command = [sys.executable, str(EXAMPLE), *where, "--max-change-sets", "1"]
    with (tmp_path / "log").open("wb") as log:
        child = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
    try:
        commits = out.with_name("out.checkpoint") / "commits"
        deadline = time.monotonic() + 120
        while len(list(commits.glob("[0-9]*")) if commits.is_dir() else ()) < 2:
            assert child.poll() is None, (tmp_path / "log").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.01)
    finally:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait(60)
    before = len(list((out / "_spark_metadata").glob("[0-9]*")))
    assert before < 100, "it was killed in the middle"
    run_example(monkeypatch, *where, "--once", "--max-change-sets", "1000")
    run_example(monkeypatch, *where, "--once", "--max-change-sets", "1000")
    assert sorted(row["id"] for row in spark.read.parquet(str(out)).collect()) == list(range(1, 101))


def test_the_example_of_one_moment_counts_what_the_source_had_then(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shop = Shop(spark, tmp_path)
    shop.execute("INSERT INTO goods VALUES (1, 'lamp')")
    first = shop.sync()
    shop.execute("INSERT INTO goods VALUES (2, 'chair')", "INSERT INTO other VALUES (1, 'x')")
    shop.sync()
    for moment, counts in (
        ([], "main.goods: 2 rows\nmain.other: 1 rows\n"),
        (["--at", str(first)], "main.goods: 1 rows\nmain.other: 0 rows\n"),
    ):
        monkeypatch.setattr(sys, "argv", [str(ONE_MOMENT), "--lake", str(shop.lake), *moment])
        runpy.run_path(str(ONE_MOMENT), run_name="__main__")
        assert capsys.readouterr().out == counts
