"""Tables that Spark makes by a rule keep every contract of tables without one: the rule here changes nothing, and every
row of copy and stream goes through it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.lake.iceberg_reader import read_iceberg
from tests.lake.on_delta import read_delta

from lakefeed.change.table import TableId
from lakefeed.errors import TableStoppedError
from lakefeed.lake.base import TableFormat
from lakefeed.lake.delta import Delta
from lakefeed.lake.iceberg import Iceberg
from lakefeed.lake.mode import Mirror, Mode, Temporal
from lakefeed.lake.route import Origin, Rule
from lakefeed.lake.rule.rows import RowOptions
from lakefeed.testing.format_contract import TableFormatContract
from lakefeed.testing.mode_contract import AppendContract, KeylessContract, MirrorContract, ModeContract
from lakefeed.testing.temporal_contract import TemporalContract, product, products

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow]
RULES = (Rule("*", rows=RowOptions(where="coalesce(1 = 1, false)")),)
UNION = (Rule("*", name="whole", only=True, union=Origin()),)


class _OnDelta:
    @pytest.fixture(autouse=True)
    def _spark(self, spark: SparkSession) -> None:
        self.spark = spark

    def make_format(self, root: Path, mode: Mode = Mirror()) -> TableFormat:  # noqa: B008  # immutable
        return Delta(self.spark, root, mode=mode, rules=RULES).bind("contract")

    def read_rows(self, tables: TableFormat, table: TableId) -> list[dict[str, Any]]:
        return read_delta(tables.table(tables.routes(table)[0]).location)


class _OnIceberg(_OnDelta):
    def make_format(self, root: Path, mode: Mode = Mirror()) -> TableFormat:  # noqa: B008
        return Iceberg(self.spark, root, mode=mode, rules=RULES).bind("contract")

    def read_rows(self, tables: TableFormat, table: TableId) -> list[dict[str, Any]]:
        return read_iceberg(tables.table(tables.routes(table)[0]).location)


class _UnionOnDelta:
    """A part of a lake table that several source tables may feed."""

    @pytest.fixture(autouse=True)
    def _spark(self, spark: SparkSession) -> None:
        self.spark = spark

    def make_format(self, root: Path, mode: Mode = Mirror()) -> TableFormat:  # noqa: B008  # immutable
        return Delta(self.spark, root, mode=mode, rules=UNION).bind("contract")

    def read_rows(self, tables: TableFormat, table: TableId) -> list[dict[str, Any]]:
        return without_origin(read_delta(tables.table(tables.routes(table)[0]).location), table)


class _UnionOnIceberg(_UnionOnDelta):
    def make_format(self, root: Path, mode: Mode = Mirror()) -> TableFormat:  # noqa: B008
        return Iceberg(self.spark, root, mode=mode, rules=UNION).bind("contract")

    def read_rows(self, tables: TableFormat, table: TableId) -> list[dict[str, Any]]:
        return without_origin(read_iceberg(tables.table(tables.routes(table)[0]).location), table)


def without_origin(rows: list[dict[str, Any]], table: TableId) -> list[dict[str, Any]]:
    assert {row["origin"] for row in rows} <= {str(table)}
    return [{name: value for name, value in row.items() if name != "origin"} for row in rows]


class TestUnionDelta(_UnionOnDelta, MirrorContract):
    pass


class TestUnionDeltaKeyless(_UnionOnDelta, KeylessContract):
    pass


class TestUnionIceberg(_UnionOnIceberg, MirrorContract):
    pass


class TestUnionIcebergTemporal(_UnionOnIceberg, TemporalContract):
    def test_adding_a_column_closes_nothing(self) -> None:
        """With a default it would be in older rows, too, which are written again: a part with a history waits."""
        with pytest.raises(TableStoppedError, match="lose the rows of the other parts"):
            super().test_adding_a_column_closes_nothing()


class TestUnionIcebergAppend(_UnionOnIceberg, AppendContract):
    def test_columns_that_were_not_sent_have_the_names_of_today(self) -> None:
        """A renamed column: a part of a log waits."""
        with pytest.raises(TableStoppedError, match="lose the rows of the other parts"):
            super().test_columns_that_were_not_sent_have_the_names_of_today()


class TestRuledDelta(_OnDelta, TableFormatContract):
    pass


class TestRuledIceberg(_OnIceberg, TableFormatContract):
    pass


class TestRuledDeltaModes(_OnDelta, ModeContract):
    pass


class TestRuledDeltaTemporal(_OnDelta, TemporalContract):
    def test_acceptance_6_a_partial_update_of_an_unknown_row_stops_the_table(self) -> None:
        """The rule's own sentence, since it is the rule that needs the value."""
        with self.stage(Temporal(), products()) as stage:
            stage.copy([product(1)])
            stage.add(("delete", {"id": 1}), ("update", product(1, None)), absent={1: ["name"]})
            with pytest.raises(TableStoppedError, match="its rule needs a large value that an update did not send"):
                stage.sync()
            assert self.versions(stage, "name", "is_current") == [("n", True)]
