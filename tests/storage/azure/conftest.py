"""Azurite, and a Spark session with Azure's connector, once for all tests here."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from tests.storage.azure.azurite import ADDRESSES, Azurite

from lakefeed import spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def azurite() -> Iterator[Azurite]:
    with Azurite.start() as server:
        yield server


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """With Azure's connector, and without that of S3."""
    session = spark_session("lakefeed-azure", formats=("delta", "iceberg"), stores=("azure",))
    yield session
    session.stop()


@pytest.fixture(params=ADDRESSES, ids=["az", "abfs"])
def place(azurite: Azurite, request: pytest.FixtureRequest) -> str:
    """An empty one."""
    return f"{request.param}/{uuid.uuid4().hex}"
