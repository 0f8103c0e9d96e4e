"""Iceberg keeps the contracts of every mode."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.lake.iceberg_reader import read_iceberg

from lakefeed.change.table import TableId
from lakefeed.lake import window
from lakefeed.lake.base import TableFormat
from lakefeed.lake.iceberg import Iceberg
from lakefeed.lake.mode import Mode
from lakefeed.testing.mode_contract import AppendContract, KeylessContract, MirrorContract, ModeContract
from lakefeed.testing.temporal_contract import TemporalContract

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


class _OnIceberg:
    spark: SparkSession

    @pytest.fixture(autouse=True)
    def _spark(self, spark: SparkSession) -> None:
        self.spark = spark

    def make_format(self, root: Path, mode: Mode) -> TableFormat:
        return Iceberg(self.spark, root, mode=mode).bind("contract")

    def read_rows(self, tables: TableFormat, table: TableId) -> list[dict[str, Any]]:
        return read_iceberg(tables.table(tables.routes(table)[0]).location)


class TestIcebergMirror(_OnIceberg, MirrorContract):
    pass


class _OnLargeIceberg(_OnIceberg):
    """Tables as if they were large: every key is named in the merge."""

    @pytest.fixture(autouse=True)
    def _large(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(window, "_LARGE_BYTES", 0)
        monkeypatch.setattr(window, "_DENSE", 0)


@pytest.mark.slow
class TestLargeIceberg(_OnLargeIceberg, ModeContract):
    """The histories of the contracts, which any merge condition must keep; one by one, the rules run below."""

    KEPT = MirrorContract.KEPT
    test_mirror = MirrorContract.test_deleted_rows_stay_with_their_values_however_changes_are_grouped
    test_temporal = (
        TemporalContract.test_b10_acceptance_7_any_history_gives_the_versions_of_a_plain_model_however_it_is_grouped
    )


@pytest.mark.slow
class TestLargeIcebergMirror(_OnLargeIceberg, MirrorContract):
    pass


@pytest.mark.slow
class TestLargeIcebergTemporal(_OnLargeIceberg, TemporalContract):
    pass


class TestIcebergKeyless(_OnIceberg, KeylessContract):
    pass


class TestIcebergAppend(_OnIceberg, AppendContract):
    pass


class TestIcebergTemporal(_OnIceberg, TemporalContract):
    pass
