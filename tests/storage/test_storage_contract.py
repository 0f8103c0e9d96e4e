"""Storage's contract over every implementation: local directories, and object stores by two real servers."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from lakefeed.storage.base import Storage
from lakefeed.storage.local import LocalStorage
from lakefeed.storage.location import storage_at
from lakefeed.testing.server.object_store import Moto, S3Server, Seaweed
from lakefeed.testing.storage_contract import StorageContract


class TestLocalStorage(StorageContract):
    @pytest.fixture(autouse=True)
    def place(self, tmp_path: Path) -> None:
        self._root = tmp_path

    def make_storage(self) -> Storage:
        return LocalStorage(self._root / "state")


class OnServer(StorageContract):
    server: S3Server

    def make_storage(self) -> Storage:
        return storage_at(f"s3://lakefeed/{uuid.uuid4().hex}/state", self.server.options)


class TestSeaweed(OnServer):
    @pytest.fixture(autouse=True)
    def serve(self, seaweed: Seaweed) -> None:
        self.server = seaweed


@pytest.mark.slow
class TestMoto(OnServer):
    @pytest.fixture(autouse=True)
    def serve(self, moto: Moto) -> None:
        self.server = moto
