"""Iceberg on Spark Connect, without servers: settings, turns and requests, with stand-ins for sessions and metadata.

With real servers: ``tests/cluster/test_connect_iceberg.py``.
"""

from __future__ import annotations

import socket
import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import BucketTransform, IdentityTransform
from pyiceberg.types import LongType, NestedField

from lakefeed.errors import TableStoppedError
from lakefeed.lake.iceberg import catalog, copy
from lakefeed.lake.iceberg.library import recording, staging
from lakefeed.lake.iceberg.rest import RestAddition, RestTable, _respecified, altered_fields
from lakefeed.lake.iceberg.schema import Add, Drop
from lakefeed.lake.layout import Layout
from lakefeed.lake.spark.error import ConcurrentModification


class Settings(dict[str, str]):
    set = dict.__setitem__
    unset = dict.__delitem__


def session(kind: str = "pyspark.sql.connect.session") -> Any:
    """A stand-in that only has settings."""
    made = type("SparkSession", (), {"__module__": kind})()
    made.conf = Settings()
    return made


def table(spark: Any) -> RestTable:
    reader: Any = None
    return RestTable(reader, ("prod", "n", "t"), spark, "unused")


# Sessions


def test_a_session_of_spark_connect_stays_set_after_an_error() -> None:
    """Its server may plan the statement only now, and must still stage it."""
    remote = session()
    with staging(remote, {"lakefeed.applied": "1"}) as attempt:
        assert remote.conf["spark.wap.id"] == attempt
    assert not remote.conf
    with pytest.raises(TimeoutError), staging(remote, {"lakefeed.applied": "1"}):
        raise TimeoutError
    assert "spark.wap.id" in remote.conf
    assert remote.conf["spark.sql.iceberg.snapshot-property.lakefeed.applied"] == "1"


def test_a_classic_session_is_reset_after_an_error() -> None:
    own = session("pyspark.sql.session")
    with pytest.raises(TimeoutError), recording(own, {"lakefeed.applied": "1"}):
        raise TimeoutError
    assert not own.conf


def test_after_an_error_another_session_is_used() -> None:
    ours = table(session)
    with ours.session() as first:
        pass
    with ours.session() as again:
        assert again is first
    with pytest.raises(TimeoutError), ours.session():
        raise TimeoutError
    with ours.session() as other:
        assert other is not first


def test_maintenance_waits_for_the_session_of_a_copy() -> None:
    ours, entered = table(session), threading.Event()

    def maintain() -> None:
        with ours.session():
            entered.set()

    beside = threading.Thread(target=maintain)
    with ours.session():
        beside.start()
        assert not entered.wait(0.2)
    assert entered.wait(10)
    beside.join()


# The copy


def test_a_first_group_is_refused_if_another_generation_began_meanwhile() -> None:
    found = {"lakefeed.generation": "4"}
    store: Any = SimpleNamespace(
        record=lambda _: None, metadata=lambda: {"properties": found}, generation_key="lakefeed.generation"
    )
    assert copy._is_at(store, 5, None, "4")
    found["lakefeed.generation"] = "6"
    assert not copy._is_at(store, 5, None, "4")


def test_a_column_that_is_gone_at_the_commit_is_a_conflict() -> None:
    spark: Any = SimpleNamespace(
        table=lambda _: SimpleNamespace(columns=["id"]),
        read=SimpleNamespace(parquet=lambda *_: SimpleNamespace(columns=["id", "v"])),
    )
    addition = object.__new__(RestAddition)
    addition._table, addition.directory = table(session), "/nowhere"
    file: Any = SimpleNamespace(name="one.parquet")
    with pytest.raises(ConcurrentModification, match="no longer has the column v"):
        addition._rows(spark, [file])


# Columns and partitions


def test_a_column_that_another_part_has_added_is_not_added_again() -> None:
    fields = [{"id": 1, "name": "V", "type": "long"}]
    assert altered_fields(fields, 1, [Add("v", "long")]) == fields
    assert [one["id"] for one in altered_fields(fields, 1, [Drop("V"), Add("v", "long")])] == [2]


def test_a_column_that_somebody_dropped_is_named() -> None:
    with pytest.raises(TableStoppedError, match="no column 'v' any more"):
        altered_fields([], 0, [Drop("v")])


def test_a_partition_field_that_the_table_has_had_keeps_its_id() -> None:
    columns = Schema(NestedField(1, "id", LongType()), NestedField(2, "v", LongType()))
    bucket = PartitionField(source_id=1, field_id=1000, transform=BucketTransform(4), name="id_bucket")
    other = PartitionField(source_id=2, field_id=1001, transform=IdentityTransform(), name="v")
    metadata = SimpleNamespace(
        partition_specs=[PartitionSpec(bucket, spec_id=0), PartitionSpec(other, spec_id=1)],
        default_spec_id=1,
        last_partition_id=1001,
    )
    wanted = Layout(partition_by=("bucket(4, id)", "bucket(8, v)")).partitions
    updates, requirements = _respecified(SimpleNamespace(metadata=metadata), columns, wanted)
    assert [one["field-id"] for one in updates[0]["spec"]["fields"]] == [1000, 1002]
    assert requirements == [
        {"type": "assert-default-spec-id", "default-spec-id": 1},
        {"type": "assert-last-assigned-partition-id", "last-assigned-partition-id": 1001},
    ]


# The catalog


def test_a_catalog_that_does_not_answer_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    from requests.exceptions import ReadTimeout

    monkeypatch.setattr(catalog, "_SECONDS", (0.5, 0.5))
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        reader = catalog.CatalogMetadata("prod", {"type": "rest", "uri": address}, ("n", "t"))
        began = time.monotonic()
        with pytest.raises(ReadTimeout):
            reader.catalog()
    assert time.monotonic() - began < 30
