"""Storage's contract and a journal in Azure Blob Storage, by Azurite, Microsoft's emulator of it. Run by make azure.

Not collected with the other tests: Azurite comes from npm.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import signal
import socket
import sqlite3
import tempfile
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import closing, suppress
from datetime import UTC, datetime
from pathlib import Path

import pytest

from lakefeed import Pipeline, Sqlite
from lakefeed.storage.base import Storage
from lakefeed.storage.location import storage_at
from lakefeed.testing.memory_lake import MemoryLake
from lakefeed.testing.server.base import Server, free_port
from lakefeed.testing.storage_contract import StorageContract

ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="  # every Azurite's
PROGRAM = Path(__file__).parents[2] / ".azurite/node_modules/.bin/azurite-blob"
ADDRESSES = ("az://lakefeed", f"abfs://lakefeed@{ACCOUNT}.dfs.core.windows.net")


class Azurite(Server):
    orderly, crash = signal.SIGTERM, signal.SIGKILL
    port_is_taken = "EADDRINUSE"

    def command(self) -> list[str]:
        place = ["--blobHost", "127.0.0.1", "--blobPort", str(self.port), "--location", str(self.directory / "data")]
        return [str(PROGRAM), *place, "--silent", "--disableTelemetry", "--skipApiVersionCheck"]

    def answers(self) -> bool:
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
            return True
        return False

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}/{ACCOUNT}"

    @property
    def options(self) -> dict[str, str]:
        own = {"azure_storage_account_name": ACCOUNT, "azure_storage_account_key": KEY}
        return {**own, "azure_storage_endpoint": self.endpoint, "allow_http": "true"}

    def container(self, name: str) -> None:
        """Make one, by a request that is signed with the account's key: obstore makes none."""
        headers = {"x-ms-date": f"{datetime.now(UTC):%a, %d %b %Y %H:%M:%S} GMT", "x-ms-version": "2021-08-06"}
        lines = "".join(f"{key}:{value}\n" for key, value in sorted(headers.items()))
        text = f"PUT{chr(10) * 12}{lines}/{ACCOUNT}/{ACCOUNT}/{name}\nrestype:container"
        digest = hmac.new(base64.b64decode(KEY), text.encode(), hashlib.sha256).digest()
        headers["Authorization"] = f"SharedKey {ACCOUNT}:{base64.b64encode(digest).decode()}"
        request = urllib.request.Request(f"{self.endpoint}/{name}?restype=container", method="PUT", headers=headers)
        with urllib.request.urlopen(request, timeout=10):
            pass


@pytest.fixture(scope="module")
def azurite() -> Iterator[Azurite]:
    assert PROGRAM.exists(), "make azure installs it"
    server = Azurite(Path(tempfile.mkdtemp(prefix="lakefeed-azurite-")), free_port())
    with server:
        server.begin()
        server.container("lakefeed")
        yield server


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
