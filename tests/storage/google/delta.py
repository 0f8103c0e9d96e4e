"""Delta tables in an emulator of Google Cloud Storage, by Spark's connector, deltalake, obstore and pyarrow at once.

See ``front`` for what is imitated. Run by make google.
"""

from __future__ import annotations

import json
import sqlite3
import uuid
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.crash.process import PipelineDirectory
from tests.storage.google.emulator import BUCKET, Emulator
from tests.storage.on_store import OnStore, read_store, require_every_step, require_none_replaced

from lakefeed.lake.location import spark_options, spark_path
from lakefeed.storage.location import give_options, storage_at
from lakefeed.testing.format_contract import TableFormatContract

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def session_for(spark: SparkSession, place: str, emulator: Emulator) -> SparkSession:
    give_options(place, emulator.options)
    session = spark.newSession()
    for name, value in spark_options(place).items():
        session.conf.set(name, value)
    return session


def test_spark_writes_and_reads_parquet(spark: SparkSession, emulator: Emulator, place: str) -> None:
    session = session_for(spark, place, emulator)
    session.range(1000).write.parquet(spark_path(f"{place}/p"))
    assert session.read.parquet(spark_path(f"{place}/p")).count() == 1000


def test_of_entries_that_spark_writes_at_once_one_comes_through(
    spark: SparkSession, emulator: Emulator, place: str
) -> None:
    """Delta's log store itself, without Delta's locks above it."""
    session = session_for(spark, place, emulator)
    session.range(1).write.format("delta").save(spark_path(place))
    java: Any = session._jsparkSession
    jvm: Any = spark.sparkContext._jvm
    delta = "org.apache.spark.sql.delta.storage.LogStore$"
    store = getattr(getattr(jvm, delta), "MODULE$").apply(java)
    conf = java.sessionState().newHadoopConf()
    texts = jvm.scala.jdk.javaapi.CollectionConverters

    def write(version: int, number: int) -> bool:
        lines = jvm.java.util.ArrayList()
        lines.add(f'{{"commitInfo":{{"writer":{number}}}}}')
        entry = jvm.org.apache.hadoop.fs.Path(f"{spark_path(place)}/_delta_log/{version:020d}.json")
        try:
            store.write(entry, texts.asScala(lines.iterator()), False, conf)
        except Exception as error:
            if "FileAlreadyExists" not in str(error):  # Java's
                raise
            return False
        return True

    with ThreadPoolExecutor(4) as pool:
        for version in range(1, 11):
            won = [number for number, one in enumerate(pool.map(write, [version] * 4, range(4))) if one]
            assert len(won) == 1
            written = storage_at(place, emulator.options).read(f"_delta_log/{version:020d}.json")
            assert json.loads(written)["commitInfo"]["writer"] == won[0]


def test_of_sparks_commits_that_meet_none_is_replaced(spark: SparkSession, emulator: Emulator, place: str) -> None:
    require_none_replaced(spark, f"{place}/meeting", emulator.options)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("marks", [False, True], ids=["files", "marks"])
def test_every_step_of_a_pipeline_is_a_commit_that_is_put_if_absent(
    spark: SparkSession, emulator: Emulator, place: str, tmp_path: Path, marks: bool
) -> None:
    require_every_step(spark, place, emulator.options, tmp_path, marks)


class TestDeltaInGoogle(OnStore, TableFormatContract):
    @pytest.fixture(autouse=True)
    def _store(self, spark: SparkSession, emulator: Emulator) -> None:
        self.spark, self.options, self.address = spark, emulator.options, f"{BUCKET}/{uuid.uuid4().hex}"


@pytest.mark.timeout(900)
def test_whole_commands_copy_merge_and_add_a_column(emulator: Emulator, place: str, tmp_path: Path) -> None:
    database = tmp_path / "shop.db"
    spark = "".join(f"    {name}: {value}\n" for name, value in emulator.spark.items())
    config = (
        f"pipeline: shop\nsource: {{kind: sqlite, path: {database}, tables: ['*']}}\nlake:\n  path: {place}\n"
        f"storage:\n  allow_http: true\n  options: {{google_base_url: '{emulator.endpoint}'}}\nspark:\n  conf:\n{spark}"
    )
    with closing(sqlite3.connect(database, isolation_level=None)) as writer:
        writer.execute("CREATE TABLE item (id INTEGER PRIMARY KEY, name TEXT)")
        writer.executemany("INSERT INTO item VALUES (?, 'x')", [(number,) for number in range(500)])
        shop = PipelineDirectory(tmp_path, config)
        shop.lakefeed("sync")
        writer.execute("UPDATE item SET name = 'y' WHERE id % 10 = 0")
        writer.execute("DELETE FROM item WHERE id % 7 = 0")
        shop.run_until_killed("lake.during_commit=kill")
        writer.execute("ALTER TABLE item ADD COLUMN note TEXT")
        writer.execute("INSERT INTO item VALUES (1000, 'z', 'n')")
        shop.lakefeed("sync")
        assert "main.item" in json.dumps(shop.lakefeed("status"))
        assert "equal" in json.dumps(shop.lakefeed("verify"))
        source = Counter(writer.execute("SELECT id, name, note FROM item"))
    rows = read_store(f"{place}/main/item", emulator.options)
    assert Counter((row["id"], row["name"], row["note"]) for row in rows) == source
