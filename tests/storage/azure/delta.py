"""Delta tables in Azure Blob Storage, by Azurite: contracts, whole pipelines, kills, races. Run by make azure.

Spark's connector speaks the interface of blobs here, as it does with an account without hierarchical namespace whose
address has ``blob``. Azurite has no other.
"""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
import threading
import uuid
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, unquote

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from tests.crash.process import PipelineDirectory
from tests.storage.azure.azurite import ACCOUNT, ADDRESSES, KEY, Azurite
from tests.storage.on_store import (
    OnStore,
    read_store,
    require_every_step,
    require_none_replaced,
    require_sparks_commits,
)

from lakefeed.errors import StorageUnavailableError
from lakefeed.lake.delta.log import put_commit
from lakefeed.lake.location import filesystem, spark_options, spark_path
from lakefeed.lake.spark.error import ConcurrentModification
from lakefeed.storage.location import give_options, storage_at
from lakefeed.testing.format_contract import TableFormatContract
from lakefeed.testing.mode_contract import KeylessContract, MirrorContract

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class OnAzure(OnStore):
    @pytest.fixture(autouse=True)
    def _store(self, spark: SparkSession, azurite: Azurite) -> None:
        self.spark, self.options, self.address = spark, azurite.options, f"{ADDRESSES[0]}/{uuid.uuid4().hex}"


class TestDeltaInAzure(OnAzure, TableFormatContract):
    pass


class TestMarkedDeltaInAzure(OnAzure, TableFormatContract):
    deletion_vectors = True


class TestMirrorInAzure(OnAzure, MirrorContract):
    pass


class TestKeylessInAzure(OnAzure, KeylessContract):
    pass


@pytest.mark.parametrize("marks", [False, True], ids=["files", "marks"])
def test_every_step_of_a_pipeline_is_a_commit_that_is_put_if_absent(
    spark: SparkSession, azurite: Azurite, place: str, tmp_path: Path, marks: bool
) -> None:
    require_every_step(spark, place, azurite.options, tmp_path, marks)


def test_a_sas_token_opens_files_and_logs_and_no_error_shows_it(azurite: Azurite) -> None:
    """Not the journal: Azurite does not take the deletes of obstore, which come in one batch, with such a token."""
    azurite.container("by-sas")  # of its own: Hadoop keeps a client for each
    token = azurite.sas()
    given = {name: value for name, value in azurite.options.items() if name != "account_key"} | {"sas_token": token}
    address = f"abfss://by-sas@{ACCOUNT}.dfs.core.windows.net/t"
    give_options(address, given)
    files, path = filesystem(address)
    with files.open_output_stream(f"{path}/a") as stream:
        stream.write(b"text")
    assert files.open_input_file(f"{path}/a").read() == b"text"
    put_commit(f"{address}/by-hand", 0, [{"add": {"path": "a"}}], {"app": 1}, "{}")
    write_deltalake(f"{address}/d", pa.table({"id": [1, 2, 3]}), storage_options=given)
    assert len(read_store(f"{address}/d", given)) == 3
    storage = storage_at(address, given | {"sas_token": f"{token}x"})
    with pytest.raises(StorageUnavailableError) as refused:
        storage.read("a")
    assert parse_qs(token)["sig"][0] not in unquote(str(refused.value))


@pytest.mark.timeout(900)
def test_partitions_mapped_columns_constraints_change_feeds_and_unions(
    spark: SparkSession, azurite: Azurite, place: str, tmp_path: Path
) -> None:
    require_sparks_commits(spark, place, azurite.options, tmp_path)


def test_of_two_writers_of_one_version_one_comes_through(azurite: Azurite, place: str) -> None:
    give_options(place, azurite.options)
    start = threading.Barrier(8)

    def write(number: int) -> bool:
        start.wait()
        try:
            put_commit(place, 3, [{"add": {"path": f"of {number}"}}], {"app": 1}, "{}")
        except ConcurrentModification:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        won = [number for number, is_written in enumerate(pool.map(write, range(8))) if is_written]
    assert len(won) == 1
    assert f'"of {won[0]}"'.encode() in storage_at(place, azurite.options).read(f"_delta_log/{3:020d}.json")


def test_of_sparks_commits_that_meet_none_is_replaced(spark: SparkSession, azurite: Azurite, place: str) -> None:
    require_none_replaced(spark, f"{place}/meeting", azurite.options)


def test_of_entries_that_spark_writes_at_once_one_comes_through(
    spark: SparkSession, azurite: Azurite, place: str
) -> None:
    """Delta's log store itself, without Delta's locks above it."""
    give_options(place, azurite.options)
    session = spark.newSession()
    for name, value in spark_options(place).items():
        session.conf.set(name, value)
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
            written = storage_at(place, azurite.options).read(f"_delta_log/{version:020d}.json")
            assert json.loads(written)["commitInfo"]["writer"] == won[0]


def config(place: str, azurite: Azurite, database: Path) -> str:
    account = "" if "@" in place else f"  account_name: {ACCOUNT}\n"
    return (
        f"pipeline: shop\nsource: {{kind: sqlite, path: {database}, tables: ['*']}}\nlake:\n  path: {place}\n"
        f"storage:\n  endpoint: {azurite.endpoint}\n  allow_http: true\n  account_key: ${{AZURE_TEST_KEY}}\n{account}"
    )


@pytest.mark.timeout(900)
def test_a_pipeline_that_is_killed_continues_and_nothing_shows_the_key(
    azurite: Azurite, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By whole commands: copy, merges, a new column, two kills, maintenance, status, verify."""
    database = tmp_path / "shop.db"
    monkeypatch.setenv("AZURE_TEST_KEY", KEY)
    with closing(sqlite3.connect(database, isolation_level=None)) as writer:
        writer.execute("CREATE TABLE item (id INTEGER PRIMARY KEY, name TEXT)")
        writer.executemany("INSERT INTO item VALUES (?, 'x')", [(number,) for number in range(500)])
        shop = PipelineDirectory(tmp_path, config(place, azurite, database))
        shop.lakefeed("sync")
        writer.execute("UPDATE item SET name = 'y' WHERE id % 10 = 0")
        writer.execute("DELETE FROM item WHERE id % 7 = 0")
        shop.run_until_killed("lake.during_commit=kill")
        writer.execute("ALTER TABLE item ADD COLUMN note TEXT")
        writer.execute("INSERT INTO item VALUES (1000, 'z', 'n')")
        with subprocess.Popen(
            [sys.executable, "-m", "lakefeed", "run", str(shop.config)], cwd=tmp_path, env={**os.environ},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        ) as process:  # fmt: skip
            assert process.stdout is not None
            process.stdout.readline()  # it has begun
            for number in range(20):
                writer.execute("UPDATE item SET note = ? WHERE id = 1000", (str(number),))
            process.kill()
            said = process.stdout.read()
        said += json.dumps(shop.lakefeed("sync"))
        said += json.dumps(shop.lakefeed("maintain"))
        status = shop.lakefeed("status")
        said += json.dumps(status)
        assert "equal" in json.dumps(shop.lakefeed("verify"))
        writer.row_factory = sqlite3.Row
        source = Counter(tuple(dict(row).items()) for row in writer.execute("SELECT id, name, note FROM item"))
    rows = read_store(f"{place}/main/item", azurite.options)
    assert Counter(tuple((name, row[name]) for name in ("id", "name", "note")) for row in rows) == source
    assert KEY not in said
    state = storage_at(f"{place}/_lakefeed", azurite.options)
    assert not [name for name in state.names() if KEY.encode() in state.read(name)]
