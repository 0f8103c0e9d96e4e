"""Fixtures that more than one folder of tests needs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings
from tests import jvm

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from tests.workers import SparkScheduling

# A busy machine is no finding: how long one example takes says nothing. Loaded before any test is imported.
settings.register_profile("lakefeed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("lakefeed")


def pytest_configure(config: pytest.Config) -> None:
    # For every JVM that a test starts.
    os.environ.setdefault("JAVA_TOOL_OPTIONS", jvm.options())
    # PySpark leaves the socket of each collected result to the garbage collector; warnings are errors here.
    config.addinivalue_line("filterwarnings", "ignore:unclosed <socket:ResourceWarning")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The few that take minutes come first, so that no process has them left when the others are done."""
    items.sort(key=lambda item: item.get_closest_marker("crash") is None)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> SparkScheduling | None:
    """For ``make test``: see ``tests.workers``."""
    if config.getoption("dist") != "loadfile":
        return None
    from tests.workers import SparkScheduling

    return SparkScheduling(config, log)


def pytest_report_header() -> str:
    """Which servers the tests can have: what is not in this line was not run."""
    from lakefeed.testing.server.postgres import find_binaries

    found = ", ".join(map(str, find_binaries())) or "none found, so its tests will fail"
    return f"PostgreSQL: {found} (of 15, 16, 17, 18; LAKEFEED_POSTGRES_BIN lists more places to look)"


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """The one Spark session of a test run, built as Lakefeed builds its own."""
    from lakefeed.lake.spark.session import spark_session

    # Tests merge a few rows: to generate and compile code for each query would take longer than to run it. Tests that
    # start the command line in a process of its own leave Spark's code generation as it is.
    session = spark_session(
        "lakefeed-tests",
        settings={
            "spark.driver.extraJavaOptions": "-XX:+UseParallelGC -XX:TieredStopAtLevel=4",  # it lives for many minutes
            "spark.sql.codegen.wholeStage": "false",
            "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        },
        formats=("delta", "iceberg"),
        stores=("s3",),
    )
    yield session
    session.stop()


@pytest.fixture(autouse=True)
def _no_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process of the tests has one Spark session, the one above: no `run` in it starts another to warm it up."""
    from lakefeed.flow import run_loop

    monkeypatch.setattr(run_loop, "warm_up", lambda *_: None)
