"""What a table's owner set stays through a new copy, on Iceberg and Delta, or the copy is refused before it begins."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from tests.lake.iceberg_reader import read_iceberg, static_table

from lakefeed.change.table import TableSchema
from lakefeed.errors import RebuildNeededError, TableStoppedError
from lakefeed.lake.base import LakeTable, TableCopy
from lakefeed.lake.delta import Delta
from lakefeed.lake.iceberg import Iceberg
from lakefeed.lake.iceberg.schema import Add, Drop, Move, Widen, replacements, schema_json
from lakefeed.lake.loader import GROUP_CHUNKS
from lakefeed.lake.maintenance import MaintenanceOptions
from lakefeed.lake.mode import Mirror, Mode, Temporal
from lakefeed.testing.builders import at, batch, table
from lakefeed.testing.format_contract import one
from lakefeed.testing.scripted_log import ListChunk, ScriptedLog

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KINDS: dict[str, pa.DataType] = {"id": pa.int64(), "v": pa.string(), "n": pa.int32()}
SCHEMA = table("main.t", KINDS, key=("id",)).at_version(1)
WIDER = table("main.t", {"id": pa.int64(), "w": pa.int32(), "v": pa.string(), "n": pa.int64()}, key=("id",))
_MARKS = count()


def copied(
    lake_table: LakeTable,
    schema: TableSchema,
    rows: Sequence[dict[str, Any]],
    root: Path,
    generation: int,
    base: int = 0,
) -> None:
    """A copy with a chunk for each row."""
    marks = root / f"marks-{next(_MARKS)}"
    marks.mkdir()
    chunks = [ListChunk.of(schema, [row], read_at=1, marks=marks) for row in rows]
    copy = TableCopy(schema=schema, generation=generation, base=base, position=at(1), chunks=chunks)
    lake_table.load(copy, lambda _: None)


def test_which_columns_of_an_iceberg_table_stay_in_a_new_copy() -> None:
    lists = table("main.t", {**KINDS, "l": pa.list_(pa.int64()), "d": pa.decimal128(5, 2)}, key=("id",))
    assert replacements(schema_json(lists), schema_json(lists)) == []
    other = {
        "l": pa.list_(pa.string()),
        "id": pa.int64(),
        "d": pa.decimal128(9, 2),
        "n": pa.int64(),
        "new": pa.date32(),
    }
    assert replacements(schema_json(lists), schema_json(table("main.t", other, key=("id",)))) == [
        Drop("v"),
        Drop("l"),
        Widen("d", "decimal(9, 2)"),
        Widen("n", "long"),
        Add("l", {"type": "list", "element-id": 6, "element-required": False, "element": "string"}),
        Add("new", "date"),
        Move("l", None),
        *(Move(name, after) for after, name in [("l", "id"), ("id", "d"), ("d", "n"), ("n", "new")]),
    ]


@pytest.fixture
def owner(spark: SparkSession, tmp_path: Path) -> SparkSession:
    """A session of the tables' owner, who knows them as catalog ``theirs``."""
    session = spark.newSession()
    session.conf.set("spark.sql.catalog.theirs", "org.apache.iceberg.spark.SparkCatalog")
    session.conf.set("spark.sql.catalog.theirs.type", "hadoop")
    session.conf.set("spark.sql.catalog.theirs.cache-enabled", "false")
    session.conf.set("spark.sql.catalog.theirs.warehouse", f"file://{tmp_path / 'lake'}")
    return session


ICEBERG_OWNER = (
    "ALTER TABLE theirs.main.t ADD PARTITION FIELD bucket(4, id)",
    "ALTER TABLE theirs.main.t WRITE ORDERED BY v",
    "ALTER TABLE theirs.main.t ALTER COLUMN v COMMENT 'what it is worth'",
    (
        "ALTER TABLE theirs.main.t SET TBLPROPERTIES ('department' = 'finance', 'comment' = 'of the finance', "
        "'write.metadata.previous-versions-max' = '77', 'write.delete.mode' = 'copy-on-write')"
    ),
    "ALTER TABLE theirs.main.t CREATE TAG audited",
)


@pytest.mark.spark
def test_a_new_copy_of_an_iceberg_table_keeps_what_its_owner_set(
    spark: SparkSession, owner: SparkSession, tmp_path: Path
) -> None:
    lake_table = one(Iceberg(spark, tmp_path / "lake").bind("shop"), SCHEMA)
    copied(lake_table, SCHEMA, [{"id": 1, "v": "old", "n": 1}, {"id": 2, "v": "old", "n": 2}], tmp_path, 1)
    for statement in ICEBERG_OWNER:
        owner.sql(statement)
    owner.sql("DELETE FROM theirs.main.t WHERE id = 2")  # marks or files of deleted rows go, too
    before = static_table(lake_table.location).metadata
    log = ScriptedLog(tmp_path)
    wider = log.schema_of(WIDER)
    rows = [{"id": n, "w": 5, "v": "new", "n": n} for n in range(GROUP_CHUNKS + 2)]
    copied(lake_table, wider, rows, tmp_path, 2)

    after = static_table(lake_table.location).metadata
    assert sorted(read_iceberg(lake_table.location), key=lambda row: row["id"]) == rows, "and nothing of the old rows"
    applied = lake_table.applied(2)
    assert applied is not None
    assert (applied.number, applied.rows) == (0, len(rows))
    assert after.table_uuid == before.table_uuid, "streaming readers go by it"
    kept = {name: value for name, value in before.properties.items() if not name.startswith("lakefeed.")}
    assert {name: value for name, value in after.properties.items() if not name.startswith("lakefeed.")} == kept
    assert not [name for name in after.properties if "previous-versions" in name and name.startswith("lakefeed.")]
    assert after.spec() == before.spec()
    assert after.spec().fields
    assert after.sort_order_by_id(after.default_sort_order_id).fields
    assert after.refs["audited"] == before.refs["audited"]
    columns = {field.name: (field.field_id, field.doc) for field in after.schema().fields}
    assert {name: columns[name] for name in ("id", "v", "n")} == {
        field.name: (field.field_id, field.doc) for field in before.schema().fields
    }
    assert columns["v"][1] == "what it is worth"
    assert list(columns) == ["id", "w", "v", "n"], "in the source's order"

    log.add(batch(wider, [("update", {"id": 1, "w": 6, "v": "newer", "n": 1}), ("delete", {"id": 0})]))
    lake_table.apply(log.window(wider.table, 0, 1), 2)
    assert {row["id"]: row["v"] for row in read_iceberg(lake_table.location)} == {
        1: "newer", **dict.fromkeys(range(2, GROUP_CHUNKS + 2), "new"),
    }  # fmt: skip
    again = static_table(lake_table.location).metadata
    assert (again.spec(), again.table_uuid) == (before.spec(), before.table_uuid)


@pytest.mark.spark
@pytest.mark.parametrize(
    ("statement", "what", "ends"),
    [
        ("ADD PARTITION FIELD v", "the partition field v", "DROP PARTITION FIELD v"),
        ("WRITE ORDERED BY v", "the sort order", "WRITE UNORDERED"),
    ],
)
def test_a_column_that_the_owner_uses_is_not_dropped_from_an_iceberg_table_before_the_remedy(
    spark: SparkSession, owner: SparkSession, tmp_path: Path, statement: str, what: str, ends: str
) -> None:
    """Neither by a new copy nor by the source's DROP COLUMN; the printed statement is what lets both go on."""
    log = ScriptedLog(tmp_path)
    first, second = log.schema_of(SCHEMA), table("main.t", {"id": pa.int64(), "n": pa.int32()}, key=("id",))
    lake_table = one(Iceberg(spark, tmp_path / "lake").bind("shop"), first)
    copied(lake_table, first, [{"id": 1, "v": "old", "n": 1}], tmp_path, 1)
    owner.sql(f"ALTER TABLE theirs.main.t {statement}")
    narrow = log.schema_of(second)
    log.add(batch(narrow, [("insert", {"id": 2, "n": 2})]))
    attempts = (
        lambda: copied(lake_table, narrow, [{"id": 3, "n": 3}], tmp_path, 2),
        lambda: lake_table.apply(log.window(narrow.table, 0, 1), 1),
    )
    for attempt in attempts:
        with pytest.raises(TableStoppedError, match=f"column 'v' .* {what} of the lake table uses it") as stopped:
            attempt()
    assert read_iceberg(lake_table.location) == [{"id": 1, "v": "old", "n": 1}], "as it was"
    remedy = stopped.value.remedy.partition(". The pipeline")[0]
    assert remedy == f"ALTER TABLE `lakefeed`.`main`.`t` {ends}"
    owner.sql(remedy.replace("`lakefeed`", "theirs"))
    attempts[1]()
    assert {row["id"] for row in read_iceberg(lake_table.location)} == {1, 2}
    attempts[0]()
    assert read_iceberg(lake_table.location) == [{"id": 3, "n": 3}]


@pytest.mark.spark
@pytest.mark.parametrize("mode", [Mirror(), Temporal()])
def test_a_type_for_which_an_iceberg_table_is_written_again_costs_nothing_of_the_owners(
    spark: SparkSession, owner: SparkSession, tmp_path: Path, mode: Mode
) -> None:
    log = ScriptedLog(tmp_path)
    first = log.schema_of(SCHEMA)
    lake_table = one(Iceberg(spark, tmp_path / "lake", mode=mode).bind("shop"), first)
    copied(lake_table, first, [{"id": 1, "v": "old", "n": 1}], tmp_path, 1)
    owner.sql("ALTER TABLE theirs.main.t ADD PARTITION FIELD bucket(4, id)")
    retyped = log.schema_of(table("main.t", {**KINDS, "n": pa.decimal128(12, 2)}, key=("id",)))
    log.add(batch(retyped, [("insert", {"id": 2, "v": "new", "n": 2})]))
    with pytest.raises(TableStoppedError, match="would lose the partition field id_bucket") as stopped:
        lake_table.apply(log.window(retyped.table, 0, 1), 1)
    assert isinstance(stopped.value, RebuildNeededError) is mode.equals_source, "a copy would end the history"
    assert static_table(lake_table.location).metadata.spec().fields


def partitioned(spark: SparkSession, location: str) -> None:
    rows = spark.read.format("delta").load(location)
    rows.write.format("delta").mode("overwrite").option("overwriteSchema", "true").partitionBy("v").save(location)


def altered(*statements: str) -> Any:
    def alter(spark: SparkSession, location: str) -> None:
        for statement in statements:
            spark.sql(f"ALTER TABLE delta.`{location}` {statement}")

    return alter


DELTA_OWNERS = {
    "partitions": partitioned,
    "column mapping": altered("SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name')"),
    "constraint": altered("ADD CONSTRAINT known CHECK (v <> 'unknown')"),
    "clustering": altered("CLUSTER BY (v)"),
}


def described(spark: SparkSession, location: str) -> dict[str, Any]:
    found = spark.sql(f"DESCRIBE DETAIL delta.`{location}`").collect()[0].asDict()
    names = ("id", "partitionColumns", "clusteringColumns", "properties", "tableFeatures")
    schema = spark.read.format("delta").load(location).schema
    return {**{name: found[name] for name in names}, "v": schema["v"].metadata.get("comment")}


@pytest.mark.spark
@pytest.mark.parametrize(
    "owned", ["constraint", *(pytest.param(one, marks=pytest.mark.slow) for one in ("column mapping", "partitions"))]
)
def test_a_new_copy_of_a_delta_table_keeps_what_only_spark_can_write(
    spark: SparkSession, tmp_path: Path, owned: str
) -> None:
    log = ScriptedLog(tmp_path)
    first = log.schema_of(SCHEMA)
    lake_table = one(Delta(spark, tmp_path / "lake").bind("shop"), first)
    copied(lake_table, first, [{"id": 1, "v": "old", "n": 1}], tmp_path, 1)
    altered("ALTER COLUMN v COMMENT 'what it is worth'")(spark, lake_table.location)
    DELTA_OWNERS[owned](spark, lake_table.location)
    before = described(spark, lake_table.location)
    wider = log.schema_of(WIDER)
    rows = [{"id": n, "w": 5, "v": "new", "n": n} for n in range(GROUP_CHUNKS + 2)]
    copied(lake_table, wider, rows, tmp_path, 2, base=0)
    applied = lake_table.applied(2)
    assert applied is not None
    assert (applied.number, applied.schema_version) == (0, 2)
    assert lake_table.applied(1) is None
    read = spark.read.format("delta").load(lake_table.location)
    assert read.columns == ["id", "w", "v", "n"]
    assert sorted((row.asDict() for row in read.collect()), key=lambda row: row["id"]) == rows
    after = described(spark, lake_table.location)
    maximum = "delta.columnMapping.maxColumnId"  # one more column has one more id
    for found in (before, after):
        found["properties"].pop(maximum, None)
    assert after == before
    log.add(batch(wider, [("update", {"id": 1, "w": 6, "v": "newer", "n": 1})]))
    lake_table.apply(log.window(wider.table, 0, 1), 2)
    read = spark.read.format("delta").load(lake_table.location)
    assert {row["id"]: row["v"] for row in read.collect()}[1] == "newer"
    assert DeltaTable(lake_table.location).metadata().id == before["id"]
    packing = MaintenanceOptions(most_files=0, cluster=True)
    assert lake_table.maintain(packing, ("v", "id")).packed, "by an order that such a table may have"


@pytest.mark.spark
@pytest.mark.parametrize("owned", ["partitions", "constraint", "clustering"])
def test_a_delta_table_that_a_new_copy_would_take_something_from_is_not_copied(
    spark: SparkSession, tmp_path: Path, owned: str
) -> None:
    lake_table = one(Delta(spark, tmp_path / "lake").bind("shop"), SCHEMA)
    copied(lake_table, SCHEMA, [{"id": 1, "v": "old", "n": 1}], tmp_path, 1)
    DELTA_OWNERS[owned](spark, lake_table.location)
    before = described(spark, lake_table.location)
    narrow = table("main.t", {"id": pa.int64(), "n": pa.int32()}, key=("id",)).at_version(2)
    with pytest.raises(TableStoppedError, match=r"and the lake table .*v.*, which it would lose"):
        copied(lake_table, narrow, [{"id": 3, "n": 3}], tmp_path, 2)
    assert described(spark, lake_table.location) == before
    assert [row["id"] for row in spark.read.format("delta").load(lake_table.location).collect()] == [1]


@pytest.mark.spark
def test_a_clustered_delta_table_stays_clustered_until_its_owner_says_otherwise(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Also when the source empties the table. The printed statements let a copy through and cluster the table again."""
    log = ScriptedLog(tmp_path)
    schema = log.schema_of(SCHEMA)
    lake_table = one(Delta(spark, tmp_path / "lake").bind("shop"), schema)
    copied(lake_table, schema, [{"id": 1, "v": "old", "n": 1}], tmp_path, 1)
    DELTA_OWNERS["clustering"](spark, lake_table.location)
    log.add(batch(schema, [("truncate", {}), ("insert", {"id": 2, "v": "new", "n": 2})]))
    lake_table.apply(log.window(schema.table, 0, 1), 1)
    assert described(spark, lake_table.location)["clusteringColumns"] == ["v"]
    assert [row["id"] for row in spark.read.format("delta").load(lake_table.location).collect()] == [2]
    with pytest.raises(TableStoppedError, match="is clustered by v, which it would lose") as stopped:
        copied(lake_table, schema, [{"id": 3, "v": "copied", "n": 3}], tmp_path, 2, base=1)
    first, _, second = stopped.value.remedy.partition("; when the table is live again, ")
    spark.sql(first)
    copied(lake_table, schema, [{"id": 3, "v": "copied", "n": 3}], tmp_path, 2, base=1)
    spark.sql(second.partition(". The pipeline")[0])
    assert described(spark, lake_table.location)["clusteringColumns"] == ["v"]
    assert [row["id"] for row in spark.read.format("delta").load(lake_table.location).collect()] == [3]
    assert lake_table.maintain(MaintenanceOptions(most_files=-1, cluster=True), ("id",)).error is None


@pytest.mark.spark
def test_rows_that_a_constraint_of_the_owners_forbids_do_not_replace_those_that_are_there(
    spark: SparkSession, tmp_path: Path
) -> None:
    lake_table = one(Delta(spark, tmp_path / "lake").bind("shop"), SCHEMA)
    copied(lake_table, SCHEMA, [{"id": 1, "v": "old", "n": 1}], tmp_path, 1)
    DELTA_OWNERS["constraint"](spark, lake_table.location)
    with pytest.raises(TableStoppedError, match="known"):
        copied(lake_table, SCHEMA, [{"id": 1, "v": "unknown", "n": 1}], tmp_path, 2)
    assert [row["v"] for row in spark.read.format("delta").load(lake_table.location).collect()] == ["old"]
    copied(lake_table, SCHEMA, [{"id": 1, "v": "mended", "n": 1}], tmp_path, 2)
    assert [row["v"] for row in spark.read.format("delta").load(lake_table.location).collect()] == ["mended"]
