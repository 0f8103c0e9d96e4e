"""Storage's contract and a journal in Azure Blob Storage, by Azurite. Run by make azure.

Not collected with the other tests: Azurite comes from npm.
"""

from __future__ import annotations

import sqlite3
import uuid
from contextlib import closing
from pathlib import Path

import pytest
from tests.storage.azure.azurite import ADDRESSES, Azurite

from lakefeed import Pipeline, Sqlite
from lakefeed.storage.base import Storage
from lakefeed.storage.location import storage_at
from lakefeed.testing.memory_lake import MemoryLake
from lakefeed.testing.storage_contract import StorageContract


@pytest.mark.parametrize("address", ADDRESSES)
class TestAzure(StorageContract):
    @pytest.fixture(autouse=True)
    def serve(self, azurite: Azurite, address: str) -> None:
        self._server, self._address = azurite, address

    def make_storage(self) -> Storage:
        return storage_at(f"{self._address}/{uuid.uuid4().hex}/state", self._server.options)


@pytest.mark.parametrize("address", ADDRESSES)
def test_a_journal_there_goes_on_where_another_process_ended(azurite: Azurite, address: str, tmp_path: Path) -> None:
    path, lake, place = tmp_path / "shop.db", MemoryLake(str(tmp_path / "lake")), f"{address}/{uuid.uuid4().hex}"
    with closing(sqlite3.connect(path, isolation_level=None)) as writer:
        writer.execute("CREATE TABLE a (id INTEGER PRIMARY KEY)")
        for number in range(3):
            writer.execute("INSERT INTO a VALUES (?)", (number,))
            with Pipeline(Sqlite(str(path)), lake, journal=place, storage_options=azurite.options) as pipeline:
                pipeline.sync_once()
    assert sorted(row["id"] for row in lake.rows("main.a")) == [0, 1, 2]
