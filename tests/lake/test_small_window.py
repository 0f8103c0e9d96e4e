"""A small window over a small table is one job of one task, and leaves what a merge would leave."""

from __future__ import annotations

import random
import sqlite3
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable
from tests.lake.iceberg_reader import read_iceberg
from tests.lake.on_delta import read_delta

from lakefeed import Delta, Iceberg, Pipeline, Sqlite
from lakefeed.lake import vector
from lakefeed.lake.mode import small

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def job_and_stage(spark: SparkSession) -> tuple[int, int]:
    """Run one job of one stage and return their numbers: Spark counts all jobs and stages of a context."""
    context = spark.sparkContext
    context.setJobGroup("small-window", "counts jobs")
    try:
        context.parallelize([1], 1).count()
        tracker = context.statusTracker()
        job = max(tracker.getJobIdsForGroup("small-window"))
        return int(job), max(tracker.getJobInfo(job).stageIds)  # type: ignore[union-attr]  # it is known
    finally:
        context.setLocalProperty("spark.jobGroup.id", None)  # type: ignore[arg-type]  # None unsets it


@pytest.mark.parametrize("kind", ["files", "marks", "iceberg"])
def test_random_changes_by_one_job_each_are_what_the_source_has(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Keys of two columns that change and come back, in one window and over several; then the same by the usual way."""
    database = sqlite3.connect(tmp_path / "s.db", isolation_level=None)
    database.execute("CREATE TABLE t (a INTEGER, b TEXT, v REAL, `odd-name` BLOB, PRIMARY KEY (a, b)) WITHOUT ROWID")
    chance, place = random.Random(3), tmp_path / "lake" / "main" / "t"

    def change(count: int) -> None:
        database.execute("BEGIN")
        for _ in range(count):
            a, b, v = chance.randrange(12), chance.choice("xyz"), chance.choice([None, 0.5, -1.0])
            statement = chance.choice(
                ["INSERT OR REPLACE INTO t VALUES (?1, ?2, ?3, x'00ff')", "UPDATE t SET v = ?3 WHERE a = ?1",
                 "UPDATE OR REPLACE t SET b = ?2 WHERE a = ?1 AND v IS ?3",
                 "DELETE FROM t WHERE a = ?1 AND b = ?2 AND ?3 IS ?3"]
            )  # fmt: skip
            database.execute(statement, (a, b, v))
        database.execute("COMMIT")

    def in_source() -> list[tuple[object, ...]]:
        return sorted(database.execute("SELECT * FROM t").fetchall(), key=repr)

    def in_lake() -> list[tuple[object, ...]]:
        found = read_iceberg(str(place)) if kind == "iceberg" else read_delta(str(place))
        return sorted((tuple(row.values()) for row in found), key=repr)

    change(60)
    delta = Delta(spark, tmp_path / "lake", deletion_vectors=kind == "marks")
    lake = Iceberg(spark, tmp_path / "lake") if kind == "iceberg" else delta
    with Pipeline(Sqlite(tmp_path / "s.db", before_images=True), lake, name="p") as pipeline:
        pipeline.sync_once()
        for _ in range(4):
            change(25)
            job, stage = job_and_stage(spark)
            assert not any(result.error for result in pipeline.sync_once().tables.values())
            assert job_and_stage(spark) == (job + 2, stage + 2), "one job of one stage, beside those that ask"
            assert in_lake() == in_source()
            assert kind != "files" or len(DeltaTable(place).file_uris()) == 1
        if kind != "files":  # a report that does not come
            monkeypatch.setattr(vector, "_REPORT_SECONDS", 0.0)
            change(25)
            pipeline.sync_once()
            assert in_lake() == in_source()
        monkeypatch.setattr(small, "_MOST_CHANGES", 0)
        change(25)
        pipeline.sync_once()
        assert in_lake() == in_source()
    database.close()


@pytest.mark.parametrize(("kind", "most"), [("files", 60), ("iceberg", 200)])
def test_a_small_window_makes_few_calls_into_the_jvm(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, most: int
) -> None:
    """Each is a round trip between two processes, of which a window had hundreds."""
    from py4j.clientserver import ClientServerConnection

    calls: list[str] = []
    send = ClientServerConnection.send_command

    def counted(connection: ClientServerConnection, command: str) -> str:
        if not command.startswith("m"):  # what tells the JVM that an object is not needed any more comes at any time
            calls.append(command)
        return str(send(connection, command))

    database = sqlite3.connect(tmp_path / "s.db", isolation_level=None)
    database.execute("CREATE TABLE t (a INTEGER PRIMARY KEY, b TEXT, v REAL)")
    database.executemany("INSERT INTO t VALUES (?, 'x', 0.5)", [(number,) for number in range(50)])
    lake = Iceberg(spark, tmp_path / "lake") if kind == "iceberg" else Delta(spark, tmp_path / "lake")
    with Pipeline(Sqlite(tmp_path / "s.db"), lake, name="p") as pipeline:
        pipeline.sync_once()
        database.execute("UPDATE t SET v = 1.5 WHERE a < 10")
        pipeline.sync_once()  # makes the table's session
        database.execute("UPDATE t SET v = 2.5 WHERE a < 10")
        monkeypatch.setattr(ClientServerConnection, "send_command", counted)
        pipeline.sync_once()
    database.close()
    assert len(calls) <= most
