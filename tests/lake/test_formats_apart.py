"""Neither format makes a table where the other one has one: each would clean up the other's files."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from pyiceberg.catalog.sql import SqlCatalog

from lakefeed.change.table import TableSchema
from lakefeed.errors import TableStoppedError
from lakefeed.lake.base import TableCopy
from lakefeed.lake.delta import Delta
from lakefeed.lake.iceberg import Iceberg
from lakefeed.testing.builders import at, table
from lakefeed.testing.format_contract import one
from lakefeed.testing.scripted_log import ListChunk

SCHEMA = table("main.t", {"id": pa.int64()}, key=("id",)).at_version(1)


def no_spark() -> object:
    raise AssertionError("nothing of this needs Spark")


def seed(place: Path) -> TableCopy:
    chunk = ListChunk.of(SCHEMA, [{"id": 1}], read_at=1, marks=place)
    return TableCopy(schema=SCHEMA, generation=1, base=0, position=at(1), chunks=[chunk])


def refused(lake: Delta | Iceberg, schema: TableSchema, place: Path) -> TableStoppedError:
    with pytest.raises(TableStoppedError) as stopped:
        one(lake.bind("shop"), schema).load(seed(place), lambda _: None)
    assert "did not make" in stopped.value.message
    assert "move that table away" in stopped.value.remedy
    return stopped.value


@pytest.mark.parametrize("name", ["v1.metadata.json", "v1.gz.metadata.json", "00000-1b2c.metadata.json"])
def test_delta_refuses_a_path_with_the_metadata_of_an_iceberg_table(tmp_path: Path, name: str) -> None:
    metadata = tmp_path / "lake" / "main" / "t" / "metadata"
    metadata.mkdir(parents=True)
    (metadata / name).write_text("{}")
    error = refused(Delta(no_spark, tmp_path / "lake"), SCHEMA, tmp_path)  # type: ignore[arg-type]
    assert "an Iceberg table" in error.message
    assert not (tmp_path / "lake" / "main" / "t" / "_delta_log").exists()


def test_delta_refuses_the_path_of_a_table_of_a_sql_catalog(tmp_path: Path) -> None:
    catalog = SqlCatalog("c", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=f"file://{tmp_path}/lake")
    catalog.create_namespace("main")
    made = catalog.create_table("main.t", pa.schema([pa.field("id", pa.int64())]))
    place = made.location().removeprefix("file://")
    assert Path(place) == tmp_path / "lake" / "main" / "t"
    refused(Delta(no_spark, tmp_path / "lake"), SCHEMA, tmp_path)  # type: ignore[arg-type]
    catalog.close()


@pytest.mark.parametrize("kind", ["hadoop", "jdbc"])
def test_iceberg_refuses_a_path_that_holds_a_delta_table(tmp_path: Path, kind: str) -> None:
    write_deltalake(str(tmp_path / "lake" / "main" / "t"), pa.table({"id": [1]}))
    catalog = {"type": kind} if kind == "hadoop" else {"type": kind, "uri": f"jdbc:sqlite:{tmp_path}/catalog.db"}
    refused(Iceberg(no_spark, tmp_path / "lake", catalog=catalog), SCHEMA, tmp_path)  # type: ignore[arg-type]


def test_a_folder_that_is_called_metadata_is_no_iceberg_table(tmp_path: Path) -> None:
    (tmp_path / "lake" / "main" / "t" / "metadata").mkdir(parents=True)
    lake_table = one(Delta(no_spark, tmp_path / "lake").bind("shop"), SCHEMA)  # type: ignore[arg-type]
    assert lake_table.load(seed(tmp_path), lambda _: None).rows == 1
