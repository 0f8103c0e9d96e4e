"""The session with the format in it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def reading(spark: SparkSession) -> SparkSession:
    import lakefeed

    lakefeed.register_source(spark)
    return spark
