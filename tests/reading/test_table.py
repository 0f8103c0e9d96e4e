"""Lake tables by name: as a DataFrame, and in the session's catalog."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import lakefeed
from lakefeed import ConfigError, Delta, Iceberg, LakeError, Pipeline, Rule, Sqlite

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def database(tmp_path: Path) -> Path:
    with closing(sqlite3.connect(tmp_path / "s.db")) as connection, connection:
        connection.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, name TEXT)")
        connection.execute("INSERT INTO orders VALUES (1, 'a'), (2, 'b')")
    return tmp_path / "s.db"


@pytest.mark.spark
@pytest.mark.parametrize("kind", [Delta, Iceberg])
def test_a_table_is_read_as_it_is_now(
    spark: SparkSession, database: Path, tmp_path: Path, kind: type[Delta] | type[Iceberg]
) -> None:
    lake = kind(spark, tmp_path / "lake")
    with Pipeline(Sqlite(database), lake, name="shop") as pipeline:
        pipeline.sync_once()
    for where in (tmp_path / "lake", lake):
        assert [row.asDict() for row in lakefeed.table(spark, where, "main.orders").sort("id").collect()] == [
            {"id": 1, "name": "a"}, {"id": 2, "name": "b"},
        ]  # fmt: skip
        assert lakefeed.to_arrow(where, "main.orders").num_rows == 2
    with pytest.raises(LakeError, match=r"there is no table main\.nope"):
        lakefeed.table(spark, tmp_path / "lake", "main.nope")


@pytest.mark.spark
@pytest.mark.parametrize("kind", [Delta, Iceberg])
def test_registered_tables_are_in_the_catalog_by_name(
    spark: SparkSession, database: Path, tmp_path: Path, kind: type[Delta] | type[Iceberg]
) -> None:
    with Pipeline(Sqlite(database), kind(spark, tmp_path / "lake"), name="shop") as pipeline:
        pipeline.sync_once()
        for _ in range(2):  # again is harmless
            assert lakefeed.register_tables(spark, tmp_path / "lake", schema="main", database="shop") == ["shop.orders"]
        assert spark.sql("SELECT count(*) AS n FROM shop.orders").first() == (2,)
        with closing(sqlite3.connect(database)) as connection, connection:
            connection.execute("ALTER TABLE orders ADD COLUMN note TEXT")
            connection.execute("INSERT INTO orders VALUES (3, 'c', 'new')")
        pipeline.sync_once()
        assert spark.sql("SELECT count(*) AS n, max(note) FROM shop.orders").first() == (3, "new")
    spark.sql("DROP DATABASE shop CASCADE")
    assert lakefeed.to_arrow(tmp_path / "lake", "main.orders").num_rows == 3, "its files are the lake's"
    with pytest.raises(LakeError, match="there is no table of nope"):
        lakefeed.register_tables(spark, tmp_path / "lake", schema="nope", database="main2")
    assert not spark.catalog.databaseExists("main2")


@pytest.mark.spark
def test_tables_have_names_of_three_levels(spark: SparkSession, database: Path, tmp_path: Path) -> None:
    renamed = [Rule("orders", name="{table}_eu", namespace="sales", only=True)]
    for kind, catalog in ((Delta, "spark_catalog"), (Iceberg, "books")):
        lake = tmp_path / kind.__name__
        with Pipeline(Sqlite(database), kind(spark, lake, rules=renamed), name=kind.__name__.lower()) as pipeline:
            assert not pipeline.sync_once().errors
            name = f"{catalog}.sales.orders_eu"
            for _ in range(2):
                assert lakefeed.register_tables(spark, lake, schema="sales", catalog=catalog) == [name]
            assert spark.sql(f"SELECT count(*) AS n FROM {name}").first() == (2,)
            with closing(sqlite3.connect(database)) as connection, connection:
                connection.execute("UPDATE orders SET name = 'B' WHERE id = 2")
            assert not pipeline.sync_once().errors
            assert spark.sql(f"SELECT max(name) AS name FROM {name}").first() == ("a",)
            assert set(lakefeed.to_arrow(lake, "sales.orders_eu")["name"].to_pylist()) == {"B", "a"}
    assert spark.sql("SHOW TABLES IN books.sales").first()["tableName"] == "orders_eu"  # type: ignore[index]
    spark.sql("DROP DATABASE spark_catalog.sales CASCADE")

    # A second name for the lake of Iceberg tables is a database that it does not have; another lake is no `books`.
    with pytest.raises(ConfigError, match=r"is books\.sales\.orders_eu in a catalog of its lake, and cannot be in eu"):
        lakefeed.register_tables(spark, tmp_path / "Iceberg", schema="sales", database="eu", catalog="books")
    (tmp_path / "other" / "sales").mkdir(parents=True)
    (tmp_path / "Iceberg" / "sales" / "orders_eu").rename(tmp_path / "other" / "sales" / "orders_eu")
    with pytest.raises(ConfigError, match=r"the session has another catalog called books: .*warehouse is "):
        lakefeed.register_tables(spark, tmp_path / "other", schema="sales", catalog="books")


@pytest.mark.spark
def test_a_name_can_be_pointed_to_another_lake_of_another_format(
    spark: SparkSession, database: Path, tmp_path: Path
) -> None:
    for number, kind in enumerate((Delta, Iceberg, Delta), start=1):
        lake = tmp_path / f"lake{number}"
        with Pipeline(Sqlite(database), kind(spark, lake), name=f"shop{number}") as pipeline:
            pipeline.sync_once()
        lakefeed.register_tables(spark, lake, schema="main", database="moved")
        assert spark.sql("SELECT count(*) AS n FROM moved.orders").first() == (2,)
        assert lakefeed.to_arrow(lake, "main.orders").num_rows == 2
    spark.sql("DROP DATABASE moved CASCADE")
