"""``read_at``: a lake table at a place of the source, against what the source had there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable
from tests.reading.shop import Rows, Shop

from lakefeed import Delta, Iceberg, read_at
from lakefeed.change.lsn import PostgresLsn
from lakefeed.change.table import TableId
from lakefeed.errors import ConfigError, LakeError
from lakefeed.journal.journal import Journal
from lakefeed.lake.history import LogCommit, state_at
from lakefeed.testing.builders import at, batch, change_set

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def rows(frame: DataFrame) -> Rows:
    return [(row.id, row.name) for row in frame.orderBy("id").collect()]


@pytest.mark.spark
@pytest.mark.parametrize("kind", [Delta, Iceberg])
def test_a_table_is_read_at_every_place_as_the_source_was_there(
    spark: SparkSession, tmp_path: Path, kind: type[Delta] | type[Iceberg]
) -> None:
    shop = Shop(spark, tmp_path, kind)
    shop.execute("INSERT INTO goods VALUES (1, 'lamp'), (2, 'chair')")
    seen = {shop.sync(): shop.goods()}
    for statement in ("UPDATE goods SET name = NULL WHERE id = 1", "DELETE FROM goods WHERE id = 2"):
        shop.execute(statement)
        seen[shop.sync()] = shop.goods()
    shop.execute("INSERT INTO other VALUES (1, 'of no concern')")
    seen[shop.sync()] = shop.goods()
    assert len(seen) == 4
    journal = Journal.read(shop.state)
    for number, expected in seen.items():
        assert rows(read_at(spark, shop.lake, "main.goods", change_set=number)) == expected
        position = journal.position(number)
        assert position is not None
        assert rows(read_at(spark, shop.lake, "main.goods", position=position)) == expected
        assert rows(read_at(spark, str(shop.lake), "main.goods", position=position.encode())) == expected
        assert rows(read_at(spark, kind(spark, shop.lake), "main.goods", change_set=number)) == expected


@pytest.mark.spark
def test_of_an_iceberg_table_what_is_not_there_yet_or_was_expired_is_said(spark: SparkSession, tmp_path: Path) -> None:
    shop = Shop(spark, tmp_path, Iceberg)
    shop.execute("INSERT INTO goods VALUES (1, 'lamp')")
    first = shop.sync()
    for name in ("light", "bulb"):
        shop.execute(f"UPDATE goods SET name = '{name}'")
        newest = shop.sync()
    with pytest.raises(LakeError, match=rf"cannot be read at change set 77: the journal has .* to {newest}, not 77"):
        read_at(spark, shop.lake, "main.goods", change_set=77)
    with pytest.raises(LakeError, match=r"cannot be read at position 0@0: its log begins with change set"):
        read_at(spark, shop.lake, "main.goods", position=at(0))
    with pytest.raises(LakeError, match=r"no Iceberg table of main.nothing"):
        read_at(spark, Iceberg(spark, shop.lake), "main.nothing", change_set=1)
    theirs = spark.newSession()
    for key, value in (("", "org.apache.iceberg.spark.SparkCatalog"), (".type", "hadoop"), (".cache-enabled", "false")):
        theirs.conf.set(f"spark.sql.catalog.theirs{key}", value)
    theirs.conf.set("spark.sql.catalog.theirs.warehouse", f"file://{shop.lake}")
    compact = "CALL theirs.system.rewrite_data_files(table => 'main.goods', options => map('rewrite-all', 'true'))"
    theirs.sql(compact).collect()
    assert rows(read_at(spark, shop.lake, "main.goods", change_set=newest)) == [(1, "bulb")], "also when packed"
    assert rows(read_at(spark, shop.lake, "main.goods", change_set=first)) == [(1, "lamp")]
    expire = "CALL theirs.system.expire_snapshots(table => 'main.goods', older_than => TIMESTAMP '2999-01-01 00:00:00'"
    theirs.sql(f"{expire}, retain_last => 2)").collect()
    assert rows(read_at(spark, shop.lake, "main.goods", change_set=newest)) == [(1, "bulb")]
    with pytest.raises(LakeError, match=rf"its log begins with change set {newest}") as expired:
        read_at(spark, shop.lake, "main.goods", change_set=first)
    assert "maintenance.keep_hours" in expired.value.remedy


@pytest.mark.spark
def test_what_is_not_there_yet_or_no_more_is_said(spark: SparkSession, tmp_path: Path) -> None:
    shop = Shop(spark, tmp_path)
    shop.execute("INSERT INTO goods VALUES (1, 'lamp')")
    first = shop.sync()
    shop.execute("UPDATE goods SET name = 'light'")
    second = shop.sync()
    with Journal.open(shop.state) as journal:  # captured, not applied
        schema, end = journal.latest_schema(TableId("main", "goods")), journal.end
        assert schema is not None
        assert end is not None
        journal.append(change_set(end, at(99), batch(schema, [("delete", {"id": 1})])))
    assert rows(read_at(spark, shop.lake, "main.goods", change_set=second + 1)) == []
    assert rows(read_at(spark, shop.lake, "main.goods", position=at(99))) == []
    with pytest.raises(LakeError, match=r"cannot be read at position 100@0: the journal ends at 99@0, before 100@0"):
        read_at(spark, shop.lake, "main.goods", position=at(100))
    with pytest.raises(LakeError, match=r"cannot be read at change set 77: the journal has the change sets 1 to"):
        read_at(spark, shop.lake, "main.other", change_set=77)
    table = DeltaTable(shop.lake / "main" / "goods")
    table.optimize.compact()
    table.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)
    with pytest.raises(LakeError, match=r"1 of 1 files of that version are gone") as gone:
        read_at(spark, shop.lake, "main.goods", change_set=first)
    assert "VACUUM" in gone.value.remedy
    assert rows(read_at(spark, shop.lake, "main.goods", change_set=second)) == [(1, "light")]
    with pytest.raises(LakeError, match=r"cannot be read at position 0@0: its log begins with change set"):
        read_at(spark, shop.lake, "main.goods", position=at(0))
    with pytest.raises(LakeError, match=r"no Delta table of main.nothing"):
        read_at(spark, shop.lake, "main.nothing", change_set=1)
    with pytest.raises(ConfigError, match=r"exactly|either position or change_set"):
        read_at(spark, shop.lake, "main.goods")
    with pytest.raises(ConfigError, match=r"positions are of kind sqlite"):
        read_at(spark, shop.lake, "main.goods", position=PostgresLsn(5))


def commit(version: int, upto: int, *, applied: bool = True, generation: int = 1, high: int | None = None) -> LogCommit:
    metadata = {
        "pipeline": "shop",
        "generation": generation,
        "change_sets": {"after": 0, "upto": upto},
        "position": at(upto).encode(),
    }
    if high is not None:
        metadata["copy"] = {"chunks": 1, "rows": 1, "high": at(high).encode()}
    return LogCommit(version=version, metadata=metadata, applied=upto if applied else None)


def upto(number: int) -> Callable[[LogCommit], bool]:
    return lambda one: one.upto <= number


def test_a_copy_that_is_not_complete_shows_nothing() -> None:
    log = [commit(0, 2, applied=False, high=2), commit(1, 2, high=2)]
    assert state_at(log[:1], upto(9)) is None
    found = state_at(log, upto(9))
    assert found is not None
    assert (found.version, found.is_newest) == (1, True)
    anew = [*log, commit(2, 5, applied=False, generation=2, high=7)]
    older = state_at(anew, upto(9))
    assert older is not None
    assert (older.version, older.is_newest) == (1, False), "the old rows, not a half of the new copy"


def test_changed_columns_belong_to_the_change_set_that_changed_them_and_maintenance_to_what_is_before_it() -> None:
    log = [commit(0, 1), commit(1, 5, applied=False), LogCommit(version=2), commit(3, 9)]
    versions = {number: state_at(log, upto(number)) for number in (0, 1, 5, 9)}
    assert versions[0] is None
    assert {number: state.version for number, state in versions.items() if state} == {1: 0, 5: 2, 9: 3}


def test_the_copy_counts_up_to_the_newest_position_that_it_was_read_at() -> None:
    log = [commit(0, 9, high=99), commit(1, 2, applied=False, generation=2, high=8), commit(2, 2, generation=2, high=5)]
    found = state_at([*log, commit(3, 4, generation=2)], upto(4))
    assert found is not None
    assert found.copied_upto == at(8)
