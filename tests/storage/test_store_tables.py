"""Delta tables in an object store: the contract of every table format, each step of a pipeline, two writers."""

from __future__ import annotations

import json
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from tests.storage.on_store import (
    OnStore,
    Shop,
    require_every_step,
    require_none_replaced,
    require_sparks_commits,
)

from lakefeed import Delta
from lakefeed.change.table import TableId
from lakefeed.errors import SparkSetupError
from lakefeed.lake.delta.log import put_commit
from lakefeed.lake.delta.remote import packable
from lakefeed.lake.iceberg.catalog import IcebergCatalog
from lakefeed.lake.iceberg.format import refuse_without_java
from lakefeed.lake.route import Route
from lakefeed.lake.spark.error import ConcurrentModification
from lakefeed.lake.spark.session import spark_session
from lakefeed.storage.location import give_options, storage_at
from lakefeed.testing.format_contract import TableFormatContract
from lakefeed.testing.mode_contract import KeylessContract, MirrorContract
from lakefeed.testing.server.object_store import Moto, Seaweed
from lakefeed.testing.server.proxy import HttpProxy, ProxyProcess

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


@pytest.mark.slow
class TestDeltaInAStore(OnStore, TableFormatContract):
    pass


@pytest.mark.slow
class TestMarkedDeltaInAStore(OnStore, TableFormatContract):
    deletion_vectors = True


@pytest.mark.slow
class TestMirrorInAStore(OnStore, MirrorContract):
    pass


@pytest.mark.slow
class TestKeylessInAStore(OnStore, KeylessContract):
    pass


@pytest.mark.parametrize("marks", [pytest.param(False, marks=pytest.mark.slow), True], ids=["files", "marks"])
def test_every_step_of_a_pipeline_is_a_commit_that_is_put_if_absent(
    spark: SparkSession, seaweed: Seaweed, address: str, tmp_path: Path, marks: bool
) -> None:
    require_every_step(spark, address, seaweed.options, tmp_path, marks)


@pytest.mark.slow
def test_truncated_and_rebuilt_tables(spark: SparkSession, seaweed: Seaweed, address: str, tmp_path: Path) -> None:
    shop = Shop(tmp_path, spark, address, seaweed.options)
    shop.sql("INSERT INTO item VALUES (1, 'a', 1), (2, 'b', 2)")
    with shop.pipeline:
        shop.sync()
        shop.sql("DELETE FROM item", "INSERT INTO item VALUES (3, 'c', 3)")
        shop.sync()
        for from_source in (False, True):
            shop.pipeline.rebuild("main.item", from_source=from_source)
            shop.sync()


@pytest.mark.parametrize("kind", ["seaweed", "moto"])
def test_of_two_writers_of_one_version_one_comes_through(kind: str, request: pytest.FixtureRequest) -> None:
    server: Seaweed | Moto = request.getfixturevalue(kind)
    location = f"s3://lakefeed/{kind}-two-writers"
    give_options(location, server.options)
    put_commit(location, 3, [{"add": {"path": "one"}}], {"app": 1}, "{}")
    with pytest.raises(ConcurrentModification, match="version 3"):
        put_commit(location, 3, [{"add": {"path": "two"}}], {"app": 1}, "{}")
    written = storage_at(location, server.options).read(f"_delta_log/{3:020d}.json")
    assert b'"one"' in written
    assert b'"two"' not in written


@pytest.mark.slow
@pytest.mark.parametrize("marks", [False, True], ids=["files", "marks"])
def test_requests_of_tables(
    spark: SparkSession, seaweed: Seaweed, tmp_path: Path, marks: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """Prints what docs/object-stores.md has; journal and tables together."""
    bucket = f"counted-{'marks' if marks else 'files'}"  # of its own: Hadoop keeps a client for each
    with ProxyProcess(seaweed.port) as proxy:
        options = {**seaweed.options, "endpoint": proxy.endpoint}
        shop = Shop(tmp_path, spark, f"{seaweed.bucket(bucket)}/shop", options, deletion_vectors=marks)
        shop.sql("INSERT INTO item VALUES (1, 'a', 1), (2, 'b', 2), (3, 'c', 3)")

        def counted(what: str) -> Counter[str]:
            before = proxy.requests
            result = shop.pipeline.sync_once()
            assert not result.errors, result.errors
            found = proxy.requests - before
            with capsys.disabled():
                print(f"\n{bucket} {what}: {dict(found)}")
            return found

        with shop.pipeline:
            counted("first copy")
            for number in range(4):
                shop.sql(f"UPDATE item SET price = price + 1 WHERE id = {number % 3 + 1}")
                busy = counted("a window of one change")
            idle = counted("nothing new")
    assert sum(busy.values()) <= 60, busy
    assert sum(idle.values()) <= 10, idle


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_partitions_mapped_columns_constraints_change_feeds_and_unions(
    spark: SparkSession, seaweed: Seaweed, address: str, tmp_path: Path
) -> None:
    require_sparks_commits(spark, address, seaweed.options, tmp_path)


@pytest.mark.parametrize("kind", ["seaweed", pytest.param("moto", marks=pytest.mark.slow)])
def test_of_sparks_commits_that_meet_none_is_replaced(
    spark: SparkSession, kind: str, request: pytest.FixtureRequest
) -> None:
    """Appends of four threads at once: nothing in this JVM keeps them apart, only the store does."""
    server: Seaweed | Moto = request.getfixturevalue(kind)
    location = f"{server.bucket(f'spark-{kind}')}/meeting"  # of its own: Hadoop keeps a client for each
    require_none_replaced(spark, location, server.options)


def test_other_threads_go_on_while_a_table_waits_for_the_store(seaweed: Seaweed, address: str) -> None:
    """The lease is renewed by one of them."""
    with HttpProxy(seaweed.port) as proxy:  # a thread, too: without Python's lock it would not answer
        options = {**seaweed.options, "endpoint": proxy.endpoint}
        write_deltalake(f"{address}/main/t", pa.table({"id": [1]}), storage_options=seaweed.options)
        lake = Delta(spark_session, address, storage_options=options).bind("p")
        began = time.monotonic()
        assert lake.table(Route.same(TableId("main", "t"))).applied(1) is None
        assert time.monotonic() - began < 10


def test_iceberg_on_spark_connect_is_refused_in_one_sentence_without_a_rest_catalog() -> None:
    session: Any = type("SparkSession", (), {"__module__": "pyspark.sql.connect.session"})()
    with pytest.raises(SparkSetupError, match="type hadoop are committed through the JVM of a classic") as caught:
        refuse_without_java(session, IcebergCatalog.of({}, "/lake", "{schema}"))
    assert "type: rest" in str(caught.value.remedy)
    refuse_without_java(session, IcebergCatalog.of({"type": "rest", "uri": "http://x"}, "/lake", "{schema}"))


def entry(size: int, rows: int = 100, marked: int = 0) -> dict[str, Any]:
    found: dict[str, Any] = {"size": size, "stats": json.dumps({"numRecords": rows})}
    return found | ({"deletionVector": {"cardinality": marked}} if marked else {})


@pytest.mark.parametrize(
    ("entries", "wanted"),
    [
        ({"a": entry(10), "b": entry(20)}, ["a", "b"]),
        ({"a": entry(10), "b": entry(900)}, []),  # one small file is as good as any
        ({"a": entry(900, marked=60), "b": entry(900)}, ["a"]),
        ({"a": entry(900, marked=60), "b": entry(10)}, ["a", "b"]),
        (
            {str(number): entry(400) for number in range(30)},
            [str(number) for number in sorted(range(30), key=str)][:20],
        ),
    ],
)
def test_files_that_are_packed_together(entries: dict[str, dict[str, Any]], wanted: list[str]) -> None:
    assert packable(entries, 1000, 0.5) == wanted
