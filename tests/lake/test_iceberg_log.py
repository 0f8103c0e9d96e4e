"""What Iceberg tables record, which alterations a schema change is, which catalog is meant: no Spark, no JVM."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lakefeed.change.table import Column, TableId, TableSchema
from lakefeed.errors import ConfigError, LakeError, TableStoppedError
from lakefeed.lake.base import Applied
from lakefeed.lake.iceberg.catalog import CatalogMetadata, HadoopMetadata, IcebergCatalog
from lakefeed.lake.iceberg.record import Copied, Record
from lakefeed.lake.iceberg.schema import (
    Add,
    Drop,
    Move,
    Rename,
    alterations,
    default_value,
    schema_json,
    with_field_ids,
)
from lakefeed.lake.iceberg.store import IcebergStore
from lakefeed.testing.builders import at, table

OWNER = "shop/main.t"
OURS = Record(owner=OWNER, generation=7, applied=3, schema_version=1, copied=Copied(chunks=1, rows=5, high=at(1)))


def snapshot(number: int, parent: int | None, summary: Mapping[str, str]) -> dict[str, Any]:
    totals = {"operation": "append", "total-records": "9", "total-position-deletes": "2", "total-equality-deletes": "0"}
    made: dict[str, Any] = {"snapshot-id": number, "timestamp-ms": number, "summary": {**totals, **summary}}
    return made if parent is None else {**made, "parent-snapshot-id": parent}


def ours(number: int) -> dict[str, str]:
    return replace(OURS, applied=number).summary({"position": at(number).encode()})


def written(root: Path, version: int, *snapshots: dict[str, Any], owner: str = OWNER) -> None:
    metadata = root / "metadata"
    metadata.mkdir(exist_ok=True, parents=True)
    content = {
        "current-snapshot-id": snapshots[-1]["snapshot-id"],
        "snapshots": snapshots,
        "properties": {"lakefeed.owner": owner, "lakefeed.generation": "7", "lakefeed.schema-version": "2"},
    }
    (metadata / f"v{version}.metadata.json").write_text(json.dumps(content))


def log_of(root: Path) -> IcebergStore:
    unused: Any = None  # Iceberg's own library: nothing here needs a JVM
    return IcebergStore(("lakefeed", "main", "t"), HadoopMetadata(str(root)), OWNER, str(root), lambda: unused)


def test_a_snapshot_of_somebody_else_leaves_what_was_recorded(tmp_path: Path) -> None:
    written(tmp_path, 1, snapshot(1, None, ours(3)), snapshot(2, 1, {"operation": "replace"}))
    assert log_of(tmp_path).applied(7) == Applied(number=3, schema_version=2, rows=7)
    assert log_of(tmp_path).applied(8) is None, "another generation"


def test_only_ancestors_of_the_content_count(tmp_path: Path) -> None:
    staged = snapshot(2, 1, ours(4))
    written(tmp_path, 1, snapshot(1, None, ours(3)), staged, snapshot(3, 1, {"operation": "replace"}))
    found = log_of(tmp_path).applied(7)
    assert found is not None
    assert found.number == 3


def test_b03_a_table_whose_records_have_expired_is_an_error_and_never_number_0(tmp_path: Path) -> None:
    written(tmp_path, 1, snapshot(2, 1, {"operation": "replace"}))
    with pytest.raises(TableStoppedError, match="expired") as stopped:
        log_of(tmp_path).applied(7)
    assert "copied again" in stopped.value.remedy
    assert stopped.value.table == "main.t"


def test_a_table_of_another_pipeline_is_foreign_and_records_nothing(tmp_path: Path) -> None:
    written(tmp_path, 1, snapshot(1, None, ours(3)), owner="other/main.t")
    assert log_of(tmp_path).is_foreign()
    assert log_of(tmp_path).applied(7) is None
    assert not log_of(tmp_path / "nowhere").is_foreign()
    (tmp_path / "delta" / "_delta_log").mkdir(parents=True)
    assert log_of(tmp_path / "delta").is_foreign()


def test_the_newest_metadata_counts_whatever_the_hint_says(tmp_path: Path) -> None:
    log = log_of(tmp_path)
    for version in (1, 2, 3):
        written(tmp_path, version, snapshot(version, None, ours(version)))
        found = log.applied(7)
        assert found is not None
        assert found.number == version
        (tmp_path / "metadata" / "version-hint.text").write_text("1")
    (tmp_path / "metadata" / "v1.metadata.json").unlink()
    (tmp_path / "metadata" / "v2.metadata.json").unlink()
    found = log_of(tmp_path).applied(7)
    assert found is not None
    assert found.number == 3, "the hint's own file is gone"


def test_compressed_metadata_is_read_and_damaged_metadata_is_an_error(tmp_path: Path) -> None:
    written(tmp_path, 1, snapshot(1, None, ours(5)))
    plain = tmp_path / "metadata" / "v1.metadata.json"
    (tmp_path / "metadata" / "v2.gz.metadata.json").write_bytes(gzip.compress(plain.read_bytes()))
    found = log_of(tmp_path).applied(7)
    assert found is not None
    assert found.number == 5
    (tmp_path / "metadata" / "v3.metadata.json").write_text("{")
    with pytest.raises(LakeError, match=r"v3\.metadata\.json does not parse"):
        log_of(tmp_path).applied(7)


def test_states_are_those_past_the_copy(tmp_path: Path) -> None:
    early = replace(OURS, applied=0).summary({"position": at(0).encode()})
    written(tmp_path, 1, snapshot(1, None, early), snapshot(2, 1, ours(3)), snapshot(3, 2, {}), snapshot(4, 3, ours(5)))
    assert [(state.number, state.version) for state in log_of(tmp_path).states(7)] == [(3, 2), (5, 4)]


def test_nothing_of_spark_or_pyiceberg_is_imported_to_look_at_a_table(tmp_path: Path) -> None:
    written(tmp_path / "main" / "t", 1, snapshot(1, None, ours(3)))
    program = (
        "import sys\n"
        "from lakefeed.change.table import TableId\n"
        "from lakefeed.lake.iceberg import Iceberg\n"
        f"tables = Iceberg(lambda: 1 / 0, {str(tmp_path)!r}).bind('shop')\n"
        "assert tables.table(tables.routes(TableId('main', 't'))[0]).applied(7).number == 3\n"
        "loaded = {m.split('.')[0] for m in sys.modules} & {'pyspark', 'py4j', 'pyiceberg', 'deltalake'}\n"
        "assert not loaded, loaded\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def columns(*names: str, version: int) -> TableSchema:
    """Columns whose first letter is their stable id."""
    made = tuple(Column(name, pa.string(), id=name[0]) for name in names)
    return TableSchema(TableId("main", "t"), made, (), version)


def test_a_swap_of_two_names_goes_by_way_of_a_third() -> None:
    before = TableSchema(
        TableId("main", "t"), (Column("a", pa.string(), id="1"), Column("b", pa.string(), id="2")), (), 1
    )
    after = TableSchema(
        TableId("main", "t"), (Column("b", pa.string(), id="1"), Column("a", pa.string(), id="2")), (), 2
    )
    assert alterations([before, after]) == [
        Rename("a", "_lakefeed_was_a"), Rename("b", "_lakefeed_was_b"),
        Rename("_lakefeed_was_a", "b"), Rename("_lakefeed_was_b", "a"),
    ]  # fmt: skip


def test_a_column_dropped_and_added_again_under_its_name_is_a_new_one() -> None:
    path = [columns("k", "x", version=1), columns("k", version=2), columns("x", "k", version=3)]
    assert alterations(path) == [Drop("x"), Add("x", "string"), Move("x", None), Move("k", "x")]


@pytest.mark.parametrize(
    ("kind", "default", "value"),
    [
        (pa.int64(), 7, 7), (pa.float64(), 1, 1.0), (pa.bool_(), "t", True), (pa.bool_(), 0, False),
        (pa.decimal128(10, 2), "1.5", Decimal("1.50")), (pa.date32(), "2024-02-29", "2024-02-29"),
        (pa.timestamp("us"), "2024-02-29 01:02:03", "2024-02-29T01:02:03.000000"),
        (pa.timestamp("us", tz="UTC"), "2024-02-29 01:02:03+02", "2024-02-28T23:02:03.000000+00:00"),
        (pa.binary(), "ab", b"ab"), (pa.string(), "x", "x"), (pa.string(), None, None),
    ],
)  # fmt: skip
def test_a_default_is_told_in_the_columns_own_type(kind: pa.DataType, default: Any, value: Any) -> None:
    found = default_value(Column("c", kind, default=default))
    assert (found, type(found)) == (value, type(value))


def test_a_default_that_is_none_of_the_columns_type_stops_the_table() -> None:
    with pytest.raises(TableStoppedError, match="is no int64"):
        default_value(Column("c", pa.int64(), default="x"))


def test_files_carry_the_ids_of_the_tables_columns_and_of_what_is_in_them() -> None:
    schema = table("main.t", {"id": pa.int64(), "tags": pa.list_(pa.string())}, key=("id",))
    described = schema_json(schema)
    marked = with_field_ids(pa.schema([("id", pa.int64()), ("tags", pa.list_(pa.string()))]), described)
    assert marked.field("id").metadata == {b"PARQUET:field_id": b"1"}
    tags: Any = marked.field("tags")
    assert tags.metadata == {b"PARQUET:field_id": b"2"}
    assert tags.type.value_field.metadata == {b"PARQUET:field_id": b"3"}


def test_a_catalog_is_told_to_spark_and_to_pyiceberg_in_their_own_words(tmp_path: Path) -> None:
    plain = IcebergCatalog.of({}, str(tmp_path), "{schema}")
    assert plain.location(TableId("main", "a/b")) == f"{tmp_path}/main/a~2Fb"
    assert plain.settings()["spark.sql.catalog.lakefeed.warehouse"] == f"file://{tmp_path}"
    given = {"name": "prod", "type": "jdbc", "uri": "jdbc:sqlite:/c.db"}
    catalog = IcebergCatalog.of(given, str(tmp_path), "raw.{schema}")
    assert catalog.identifier(TableId("main", "t")) == (("raw", "main"), "t")
    assert catalog.location(TableId("main", "t")) == "prod.raw.main.t"
    assert catalog.settings()["spark.sql.catalog.prod.uri"] == "jdbc:sqlite:/c.db"
    reader = catalog.reader(TableId("main", "t"))
    assert isinstance(reader, CatalogMetadata)
    assert reader._properties["uri"] == "sqlite:////c.db"


@pytest.mark.parametrize(
    ("given", "namespace", "said"),
    [
        ({"type": "nessy"}, "{schema}", "choose|not a type"),
        ({"type": "rest"}, "{schema}", "needs its address"),
        ({}, "a..b", "not a namespace"),
        ({"warehouse": "/elsewhere"}, "{schema}", "is the lake's path"),
    ],
)
def test_a_wrong_catalog_is_refused_with_what_there_is(given: dict[str, str], namespace: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        IcebergCatalog.of(given, "/lake", namespace)
