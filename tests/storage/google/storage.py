"""The storage of the journal in an emulator of Google Cloud Storage, behind an imitation of its XML interface.

See ``front``. Run by make google.
"""

from __future__ import annotations

import sqlite3
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
from tests.storage.google.emulator import BUCKET, Emulator

from lakefeed import Pipeline, Sqlite
from lakefeed.errors import LeaseLostError
from lakefeed.storage.base import Storage
from lakefeed.storage.location import storage_at
from lakefeed.testing.memory_lake import MemoryLake
from lakefeed.testing.storage_contract import StorageContract


class TestGoogle(StorageContract):
    @pytest.fixture(autouse=True)
    def serve(self, emulator: Emulator) -> None:
        self._server = emulator

    def make_storage(self) -> Storage:
        return storage_at(f"{BUCKET}/{uuid.uuid4().hex}/state", self._server.options)


def test_what_is_gone_already_keeps_nothing_else_from_being_removed(emulator: Emulator, place: str) -> None:
    storage = storage_at(place, emulator.options)
    names = [f"{number:02d}" for number in range(60)]
    for name in names:
        storage.create(name, b"x")
    storage.remove(["none", *names])
    assert storage.names() == []


def test_a_journal_there_goes_on_where_another_process_ended(emulator: Emulator, place: str, tmp_path: Path) -> None:
    path, lake = tmp_path / "shop.db", MemoryLake(str(tmp_path / "lake"))
    with closing(sqlite3.connect(path, isolation_level=None)) as writer:
        writer.execute("CREATE TABLE a (id INTEGER PRIMARY KEY)")
        for number in range(3):
            writer.execute("INSERT INTO a VALUES (?)", (number,))
            with Pipeline(Sqlite(str(path)), lake, journal=place, storage_options=emulator.options) as pipeline:
                pipeline.sync_once()
    assert sorted(row["id"] for row in lake.rows("main.a")) == [0, 1, 2]


@pytest.mark.parametrize("exists", [False, True], ids=["new", "there"])
def test_of_writers_of_the_journal_that_meet_one_comes_through(emulator: Emulator, place: str, exists: bool) -> None:
    """A commit file that is new, and a lease that each of them has read."""
    if exists:
        storage_at(place, emulator.options).create("x", b"before")
    start = threading.Barrier(8)

    def write(number: int) -> bool:
        storage = storage_at(place, emulator.options)
        if exists:
            storage.read("x")
        start.wait()
        try:
            (storage.replace if exists else storage.create)("x", f"of {number}".encode())
        except (FileExistsError, LeaseLostError):
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        won = [number for number, is_written in enumerate(pool.map(write, range(8))) if is_written]
    assert len(won) == 1
    assert storage_at(place, emulator.options).read("x") == f"of {won[0]}".encode()
