"""``as_of``: which rows of a history table are valid at a time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import TYPE_CHECKING

import pytest

from lakefeed import as_of
from lakefeed.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

MARCH, APRIL, MAY = (datetime(2024, month, 1, tzinfo=UTC) for month in (3, 4, 5))


@pytest.fixture
def history(spark: SparkSession) -> DataFrame:
    rows = [(1, "a", MARCH, APRIL), (1, "b", APRIL, None), (2, "gone", MARCH, MAY)]
    return spark.createDataFrame(rows, "id int, v string, valid_from timestamp, valid_to timestamp")


def values(frame: DataFrame) -> list[str]:
    return sorted(row.v for row in frame.collect())


def test_an_interval_has_its_beginning_and_not_its_end(history: DataFrame) -> None:
    tick = timedelta(microseconds=1)
    assert values(as_of(history, MARCH - tick)) == []
    assert values(as_of(history, MARCH)) == ["a", "gone"]
    assert values(as_of(history, APRIL - tick)) == ["a", "gone"]
    assert values(as_of(history, APRIL)) == ["b", "gone"]
    assert values(as_of(history, MAY)) == ["b"]
    assert as_of(history, MAY).columns == history.columns


def test_a_time_is_an_instant_whatever_way_it_is_written(history: DataFrame) -> None:
    from pyspark.sql import functions as F  # noqa: N812

    elsewhere = (APRIL - timedelta(microseconds=1)).astimezone(timezone(timedelta(hours=9)))
    assert values(as_of(history, elsewhere)) == ["a", "gone"]
    assert values(as_of(history, "2024-04-01 00:00:00")) == ["b", "gone"]
    assert values(as_of(history, F.lit("2024-04-01T02:00:00+02:00"))) == ["b", "gone"]
    with pytest.raises(ConfigError, match="has no zone"):
        as_of(history, datetime(2024, 4, 1))


def test_the_columns_may_have_other_names_and_missing_ones_are_named(history: DataFrame) -> None:
    renamed = history.withColumnsRenamed({"valid_from": "be.gin", "valid_to": "en`d"})
    assert values(as_of(renamed, MAY, valid_from="be.gin", valid_to="en`d")) == ["b"]
    with pytest.raises(ConfigError, match=r"no column 'valid_from'; it has id, v, be\.gin"):
        as_of(renamed, MAY)
