"""Delta keeps the contract of mode append."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.lake.on_delta import OnDelta

from lakefeed.lake.mode import Append
from lakefeed.testing.mode_contract import AppendContract
from lakefeed.testing.mode_history import Dice, MirrorModel, histories, plain

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


class TestDeltaAppend(OnDelta, AppendContract):
    """See ``AppendContract``."""


def test_the_view_of_the_documentation_over_a_change_log_is_the_mirror(spark: SparkSession) -> None:
    """The SQL is taken out of docs/modes.md as it stands there."""
    text = (Path(__file__).parents[2] / "docs" / "modes.md").read_text()
    statement = text.split("<!-- run by: tests/lake/test_append.py -->")[1].split("```sql")[1].split("```")[0]
    dice = Dice(11, cases=40, length=400)
    model = MirrorModel()
    model.copy(dice.copied)
    for event in dice.events:
        model.apply(event)
    contract = TestDeltaAppend()
    contract.spark = spark
    with contract.stage(Append(), histories()) as stage:
        stage.copy(dice.copied)
        stage.play([dice.events])
        spark.read.format("delta").load(stage.lake_table.location).createOrReplaceTempView("change_log")
        found = [row.asDict() for row in spark.sql(statement).collect()]
    assert {plain(row) for row in found} == {plain(model.rows[key]) for key in model.rows if key not in model.deleted}
    assert len(found) == len(model.rows) - len(model.deleted)
