"""The emulator, and a Spark session with Google's connector, once for all tests here."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from tests.storage.google.emulator import BUCKET, Emulator

from lakefeed import spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def emulator() -> Iterator[Emulator]:
    """Every library finds the file of its account in the environment."""
    with Emulator.start() as server, pytest.MonkeyPatch.context() as patch:
        patch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(server.account()))
        yield server


@pytest.fixture(scope="session")
def spark(emulator: Emulator) -> Iterator[SparkSession]:
    """With Google's connector, and without those of the other clouds."""
    session = spark_session("lakefeed-google", stores=("google",), settings=emulator.spark)
    yield session
    session.stop()


@pytest.fixture
def place(emulator: Emulator) -> str:  # it makes the bucket
    """An empty one."""
    return f"{BUCKET}/{uuid.uuid4().hex}"
