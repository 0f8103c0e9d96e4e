"""The invariants of history tables are found where they are broken, and only there."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from lakefeed.lake.mode import Temporal
from lakefeed.lake.mode.check import temporal_violations

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

COLUMNS = "case string, id int, since timestamp, until timestamp, now boolean, _lakefeed_seq bigint"
MODE = Temporal(valid_from="since", valid_to="until", is_current="now")
ONE, TWO, THREE = (datetime(2024, 1, day, tzinfo=UTC) for day in (1, 2, 3))
ROWS = [
    ("right", 1, ONE, ONE, False, 0), ("right", 1, ONE, TWO, False, 5), ("right", 1, THREE, None, True, 7),
    ("right", None, ONE, TWO, False, 1), ("right", 2, ONE, None, True, 1),
    ("two current", 1, ONE, None, True, 1), ("two current", 1, TWO, None, True, 2),
    ("overlap", 1, ONE, THREE, False, 1), ("overlap", 1, TWO, None, True, 2),
    ("negative", 1, TWO, ONE, False, 1),
    ("current with an end", 1, ONE, TWO, True, 1),
    ("open and not current", 1, ONE, None, None, 1),
    ("no beginning", 1, None, TWO, False, 1),
]  # fmt: skip
BROKEN = {
    ("two current", 1, "it overlaps with the version after it"),
    ("two current", 1, "it is not the only current one of its key"),
    ("two current", 2, "it is not the only current one of its key"),
    ("overlap", 1, "it overlaps with the version after it"),
    ("negative", 1, "it ends before it begins"),
    ("current with an end", 1, "it is current and has an end, or neither"),
    ("open and not current", 1, "it is current and has an end, or neither"),
    ("no beginning", 1, "it has no beginning"),
}


def test_acceptance_7_each_broken_invariant_is_found_and_nothing_else(spark: SparkSession) -> None:
    found = temporal_violations(spark.createDataFrame(ROWS, COLUMNS), ["case", "id"], MODE).collect()
    assert {(row["case"], row["_lakefeed_seq"], row["problem"]) for row in found} == BROKEN
    assert len(found) == len(BROKEN)
