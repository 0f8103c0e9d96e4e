"""The contract suite of Storage. Every implementation runs it:

class TestMyStorage(StorageContract):
    def make_storage(self) -> Storage:
        return MyStorage()
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from lakefeed.errors import LeaseLostError
from lakefeed.storage.base import Storage, StoredFile


class StorageContract(ABC):
    """What holds for every Storage."""

    @abstractmethod
    def make_storage(self) -> Storage:
        """An empty storage, a new one each time."""

    @pytest.fixture
    def storage(self) -> Storage:
        return self.make_storage()

    def test_what_is_replaced_is_read_by_another_object_and_by_name(self, storage: Storage) -> None:
        storage.replace("a.json", b"one")
        storage.replace("a.json", b"two")
        storage.replace("deep/er/b c.json", b"")
        assert (storage.read("a.json"), storage.below().read("deep/er/b c.json")) == (b"two", b"")
        assert storage.below("deep").read("er/b c.json") == b""
        assert (storage.size("a.json"), storage.size("none")) == (3, None)
        assert storage.read_all(["a.json", "deep/er/b c.json", "a.json"]) == [b"two", b"", b"two"]
        with pytest.raises(FileNotFoundError):
            storage.read("none")
        with pytest.raises(FileNotFoundError):
            storage.read_all(["a.json", "none", "a.json"])
        assert StoredFile(storage, "none").read() is None

    def test_the_state_of_a_file_tells_it_from_the_one_that_replaces_it(self, storage: Storage) -> None:
        storage.replace("a.json", b"one")
        first = storage.state("a.json")
        assert first is not None
        assert (storage.below().state("a.json"), storage.state("none")) == (first, None)
        storage.remove(["a.json"])
        storage.create("a.json", b"two")
        assert storage.state("a.json") not in (None, first), "of the same size"

    def test_entries_have_every_file_below_a_folder_and_its_size(self, storage: Storage) -> None:
        assert (storage.entries(), storage.entries("none"), storage.folders()) == ([], [], [])
        for name in ("b", "a/2", "a/1", "a/c/3", "ab/4"):
            storage.replace(name, name.encode())
        assert [(entry.name, entry.bytes) for entry in storage.entries()] == [
            ("a/1", 3), ("a/2", 3), ("a/c/3", 5), ("ab/4", 4), ("b", 1),
        ]  # fmt: skip
        assert storage.names("a") == ["a/1", "a/2", "a/c/3"], "and not those of ab"
        assert [entry.name for entry in storage.below("a").entries()] == ["1", "2", "c/3"]
        assert (storage.folders(), storage.folders("a")) == (["a", "ab"], ["c"])

    def test_more_files_than_a_store_lists_at_once_are_all_listed(self, storage: Storage) -> None:
        names = [f"many/{number:04d}" for number in range(1100)]
        storage.make_folder("many")
        with ThreadPoolExecutor(16) as pool:
            list(pool.map(lambda name: storage.report(name, b"x"), names))
        assert storage.names("many") == names
        storage.remove(names[:1050])
        assert storage.names("many") == names[1050:]

    def test_a_folder_is_there_once_it_is_made_and_a_new_place_has_none(self, storage: Storage) -> None:
        assert not storage.has_folder("commits")
        for _ in range(2):
            storage.make_folder("commits")
        assert (storage.has_folder("commits"), storage.has_folder("commit"), storage.entries()) == (True, False, [])
        assert storage.folders() == ["commits"]

    def test_a_name_is_created_once(self, storage: Storage) -> None:
        storage.make_folder("commits")
        calls: list[int] = []
        storage.create("commits/1", b"first", before=lambda: calls.append(1))
        with pytest.raises(FileExistsError):
            storage.below().create("commits/1", b"second")
        assert (storage.read("commits/1"), calls) == (b"first", [1])

        def fails() -> None:
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            storage.create("commits/2", b"never", before=fails)
        assert storage.names() == ["commits/1"]

    def test_of_many_that_create_one_name_at_once_one_returns(self, storage: Storage) -> None:
        storage.make_folder("commits")

        def create(number: int) -> int:
            try:
                storage.below().create("commits/1", f"writer {number}".encode())
            except FileExistsError:
                return 0
            return number

        for _ in range(5):
            with ThreadPoolExecutor(8) as pool:
                winners = [number for number in pool.map(create, range(1, 9)) if number]
            assert len(winners) == 1
            assert storage.below().read("commits/1") == f"writer {winners[0]}".encode()
            storage.remove(["commits/1"])

    def test_a_writer_that_was_away_does_not_take_back_what_another_has_written(self, storage: Storage) -> None:
        if not storage.is_remote:
            return  # a local directory has the kernel's lock: see the contract
        old, new = storage.below(), storage.below()
        old.replace("state", b"of the old one")
        assert new.read("state") == b"of the old one"
        new.replace("state", b"of the new one")
        new.replace("state", b"of the new one, again")
        with pytest.raises(LeaseLostError, match="another writer has changed"):
            old.replace("state", b"late")
        assert storage.read("state") == b"of the new one, again"
        old.read("state")
        old.replace("state", b"by one who knows")
        with pytest.raises(LeaseLostError):
            new.replace("state", b"late")
        third = storage.below()
        third.replace("second", b"x")
        storage.remove(["second"])
        with pytest.raises(LeaseLostError):
            third.replace("second", b"y")

    def test_what_is_written_again_with_the_same_content_is_no_conflict(self, storage: Storage) -> None:
        """A request whose response was lost, and that is sent again, must not be taken for another writer's."""
        old = storage.below()
        old.replace("state", b"one")
        storage.below().replace("state", b"two")
        if storage.is_remote:
            with pytest.raises(LeaseLostError):
                old.replace("state", b"one")
        storage.below().replace("state", b"three")
        old.read("state")
        storage.below().replace("state", b"four")
        old.replace("state", b"four")

    def test_reports_are_the_last_writers(self, storage: Storage) -> None:
        storage.make_folder()
        one, other = storage.below(), storage.below()
        one.report("liveness.json", b"1")
        other.report("liveness.json", b"2")
        one.report("liveness.json", b"3")
        assert other.read("liveness.json") == b"3"

    def test_removing_what_is_not_there_is_no_error(self, storage: Storage) -> None:
        for name in ("a", "b/c", "b/d"):
            storage.replace(name, b"x")
        storage.remove(["a", "none", "none/at/all"])
        assert storage.names() == ["b/c", "b/d"]
        storage.remove([])
        storage.remove_folder("b")
        assert (storage.names(), storage.has_folder("b")) == ([], False)

    def test_a_large_file_is_there_once_it_is_finished_and_can_be_read_as_a_file(self, storage: Storage) -> None:
        blocks = [bytes([number]) * 700_000 for number in range(12)]
        files = [storage.new_file(f"segments/t{number}/1.parquet") for number in range(3)]
        for file in files:
            for block in blocks:
                file.write(memoryview(block))
        files[2].discard()
        storage.finish(files[:2])
        assert [entry.bytes for entry in storage.entries("segments")] == [8_400_000, 8_400_000]
        for reader in (storage, storage.below()):
            reader.fetch("segments/t0/1.parquet")
            path = reader.path("segments/t0/1.parquet")
            assert Path(path).read_bytes() == b"".join(blocks)
            assert reader.name_of(path) == "segments/t0/1.parquet"
        storage.release(["segments/t0/1.parquet"])
        storage.fetch("segments/t0/1.parquet")
        assert Path(storage.path("segments/t0/1.parquet")).stat().st_size == 8_400_000
        with pytest.raises(FileNotFoundError):
            storage.fetch("segments/t2/1.parquet")
        files[1].discard()
        assert storage.names() == ["segments/t0/1.parquet"]

    def test_a_place_can_be_moved_as_a_whole(self, storage: Storage) -> None:
        mine, other = storage.below("shop"), storage.below("shop.uninstalled-1")
        mine.make_folder("commits")
        mine.replace("commits/1", b"one")
        mine.replace("origin.json", b"{}")
        mine.move(other)
        assert (mine.names(), mine.has_folder()) == ([], False)
        assert [(name, other.read(name)) for name in other.names()] == [("commits/1", b"one"), ("origin.json", b"{}")]

    def test_the_age_of_a_file_is_by_the_storages_clock(self, storage: Storage) -> None:
        assert storage.age_seconds("lease") is None
        storage.replace("lease", b"x")
        for exact in (True, False):
            age = storage.age_seconds("lease", exact=exact)
            assert age is not None
            assert -2 < age < 60
        assert storage.names() == ["lease"]

    def test_it_keeps_the_fence(self, storage: Storage) -> None:
        storage.require_fence()
        assert storage.names() == []
