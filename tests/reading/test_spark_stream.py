"""``spark.readStream.format("lakefeed")``: each change set exactly once, over stops, crashes and schema changes."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from tests.reading.journals import PEOPLE, add, add_people, opened

from lakefeed.change.table import Column

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

pytestmark = pytest.mark.spark


class Job:
    """A query from a journal into Parquet files, started as often as need be."""

    def __init__(self, spark: SparkSession, place: Path) -> None:
        self._spark = spark
        self._place = place
        self.journal = place / "journal"

    def start(self, *, available_now: bool = False, **options: str) -> StreamingQuery:
        stream = self._spark.readStream.format("lakefeed").option("journal", str(self.journal))
        writer = stream.option("table", "main.people").options(**options).load().writeStream.format("parquet")
        places = {"path": str(self._place / "out"), "checkpointLocation": str(self._place / "checkpoint")}
        trigger = {"availableNow": True} if available_now else {"processingTime": "0 seconds"}
        return writer.options(**places).trigger(**trigger).start()

    def run(self, **options: str) -> None:
        assert self.start(available_now=True, **options).awaitTermination(120), "the query ends by itself"

    def catch_up(self, **options: str) -> None:
        """Twice: where a micro-batch was begun and not finished, Spark's available-now run of a Python source is that
        micro-batch alone."""
        self.run(**options)
        self.run(**options)

    def ids(self) -> list[int]:
        return sorted(row.id for row in self._spark.read.parquet(str(self._place / "out")).collect())

    def forget_last_commit(self) -> None:
        """As a crash after the sink's commit and before the query's own: the micro-batch is run again."""
        last = max((self._place / "checkpoint" / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
        last.unlink()
        last.with_name(f".{last.name}.crc").unlink()


@pytest.fixture
def job(reading: SparkSession, tmp_path: Path) -> Job:
    return Job(reading, tmp_path)


def wait_until(true: Callable[[], bool], query: StreamingQuery) -> None:
    deadline = time.monotonic() + 120
    while not true():
        assert query.exception() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_query_that_is_killed_and_restarted_delivers_every_change_set_exactly_once(job: Job) -> None:
    with opened(job.journal) as journal:
        add_people(journal, range(1, 9))
        query = job.start(max_change_sets="2")
        wait_until(lambda: query.lastProgress is not None, query)
        query.stop()  # in the middle of the second micro-batch, or after it
        add_people(journal, range(9, 12))
        query = job.start(max_change_sets="3")
        wait_until(lambda: query.lastProgress is not None, query)
        progress = query.lastProgress
        query.stop()
        assert progress is not None
        assert 0 < progress.numInputRows <= 3, "the limit held"
        job.catch_up()
        assert job.ids() == list(range(1, 12))
        job.forget_last_commit()
        add_people(journal, [12])
        job.catch_up()
    assert job.ids() == list(range(1, 13))


def test_latest_begins_after_the_head_and_misses_nothing_from_there_on(job: Job) -> None:
    with opened(job.journal) as journal:
        add_people(journal, [1, 2])
        job.run(start="latest")
        job.forget_last_commit()
        add_people(journal, [3])
        job.catch_up(start="latest")
    assert job.ids() == [3]


def test_a_schema_change_stops_the_stream_only_when_it_must_and_a_restart_goes_on(
    job: Job, reading: SparkSession, tmp_path: Path
) -> None:
    aged = replace(PEOPLE, columns=(*PEOPLE.columns, Column("age", pa.int64())))
    nameless = replace(PEOPLE, columns=(PEOPLE.columns[0], aged.columns[2]))
    with opened(job.journal) as journal:
        add_people(journal, [1])
        query = job.start()
        wait_until(lambda: query.lastProgress is not None, query)
        add(journal, ("insert", {"id": 2, "name": "b", "age": 30}), schema=aged)
        wait_until(lambda: job.ids() == [1, 2], query)
        add(journal, ("insert", {"id": 3, "age": 40}), schema=nameless)
        with pytest.raises(PySparkException, match=r"column 'name' is gone since schema version 3\. Restart the query"):
            query.awaitTermination(120)
        job.run()
    found = reading.read.option("mergeSchema", "true").parquet(str(tmp_path / "out")).orderBy("id").collect()
    assert [(row.id, row.name, row.age) for row in found] == [(1, "n1", None), (2, "b", None), (3, None, 40)]


def test_a_checkpoint_that_fell_behind_the_trim_is_an_error_and_not_a_gap(job: Job) -> None:
    with opened(job.journal, keep=0) as journal:
        add_people(journal, [1])
        job.run()
        add_people(journal, [2, 3, 4])
        journal.trim(3)
        with pytest.raises(
            PySparkException, match=r"change sets 2 to 3 .* are needed.* have been trimmed.*new checkpoint"
        ):
            job.run()
    assert job.ids() == [1]


def test_an_end_is_refused_in_a_stream(job: Job) -> None:
    with opened(job.journal) as journal:
        add_people(journal, [1])
        with pytest.raises(PySparkException, match=r"'end' is for spark.read; a stream has no end"):
            job.run(end="1")
