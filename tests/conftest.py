"""Fixtures that more than one folder of tests needs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def pytest_configure(config: pytest.Config) -> None:
    # PySpark leaves the socket of each collected result to the garbage collector; warnings are errors here.
    config.addinivalue_line("filterwarnings", "ignore:unclosed <socket:ResourceWarning")


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """The one Spark session of a test run, built as Lakefeed builds its own."""
    from lakefeed.lake.session import spark_session

    # Tests merge a few rows in a fresh JVM: compiling them well would take longer than running them.
    session = spark_session(
        "lakefeed-tests", settings={"spark.driver.extraJavaOptions": "-XX:+UseParallelGC -XX:TieredStopAtLevel=1"}
    )
    yield session
    session.stop()
