"""Two object stores, once for all tests here."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from lakefeed.testing.server.object_store import Moto, Seaweed


@pytest.fixture(scope="session")
def seaweed() -> Iterator[Seaweed]:
    with Seaweed.start() as server:
        server.bucket("lakefeed")
        yield server


@pytest.fixture(scope="session")
def moto() -> Iterator[Moto]:
    with Moto.start() as server:
        server.bucket("lakefeed")
        yield server


@pytest.fixture
def address(seaweed: Seaweed) -> str:  # it makes the bucket
    """An empty place in it."""
    return f"s3://lakefeed/{uuid.uuid4().hex}"
