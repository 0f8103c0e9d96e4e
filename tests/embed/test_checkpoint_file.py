"""The file store: the common contract, and what only files can get wrong."""

from __future__ import annotations

import errno
import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from lakefeed.embed.checkpoint import Checkpoint, CheckpointStore
from lakefeed.embed.store import FileCheckpointStore
from lakefeed.errors import (
    CheckpointDamagedError,
    CheckpointRewindError,
    ConfigError,
    JournalError,
    JournalFullError,
    LeaseError,
    StateError,
)
from lakefeed.testing.checkpoint_contract import CheckpointStoreContract

OLD, NEW = Checkpoint.postgres_lsn(0x10), Checkpoint.postgres_lsn(0x20)


class TestFileCheckpointStore(CheckpointStoreContract):
    @pytest.fixture(autouse=True)
    def _directory(self, tmp_path: Path) -> None:
        self.directory = tmp_path / "checkpoints"

    def make_store(self) -> CheckpointStore:
        return FileCheckpointStore(self.directory)


def _save(directory: Path, key: str, checkpoint: Checkpoint) -> Path:
    with FileCheckpointStore(directory) as store:
        store.save(key, checkpoint)
    return directory / f"{key}.json"


def _edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert text.count(old) == 1
    path.write_text(text.replace(old, new))


class Calls:
    """What reaches the operating system, in order: fsyncs by what they force out, renames and removals."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seen: list[str] = []
        fsync, replace = os.fsync, os.replace

        def recorded_fsync(descriptor: int) -> None:
            is_directory = stat.S_ISDIR(os.fstat(descriptor).st_mode)
            self.seen.append("fsync directory" if is_directory else "fsync file")
            fsync(descriptor)

        def recorded_replace(source: Path, target: Path) -> None:
            self.seen.append("rename")
            replace(source, target)

        monkeypatch.setattr(os, "fsync", recorded_fsync)
        monkeypatch.setattr(os, "replace", recorded_replace)


def test_d12_opening_creates_the_directory_and_makes_that_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = Calls(monkeypatch)
    with FileCheckpointStore(tmp_path / "a" / "b"):
        assert (tmp_path / "a" / "b").is_dir()
        assert calls.seen.count("fsync directory") == 2


def test_d12_a_directory_that_cannot_be_made_is_a_configuration_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="file"):
        FileCheckpointStore(tmp_path / "file" / "below")


def test_d14_d15_a_save_forces_the_file_out_then_renames_then_forces_the_directory_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with FileCheckpointStore(tmp_path) as store:
        calls = Calls(monkeypatch)
        store.save("k", OLD)
        assert calls.seen == ["fsync file", "rename", "fsync directory"]
        store.delete("k")
        assert calls.seen[3:] == ["fsync directory"]


def test_d12_without_fsync_a_save_is_still_a_rename(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with FileCheckpointStore(tmp_path, fsync=False) as store:
        calls = Calls(monkeypatch)
        store.save("k", OLD)
        store.delete("k")
        assert calls.seen == ["rename"]


def test_d14_the_file_is_json_that_people_can_read(tmp_path: Path) -> None:
    text = _save(tmp_path, "k", OLD).read_text()
    assert json.loads(text)["body"]["checkpoint"] == OLD.to_json()
    assert len(text.splitlines()) > 8


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_d14_a_save_that_fails_before_its_rename_leaves_the_old_checkpoint_and_no_litter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    with FileCheckpointStore(tmp_path) as store:
        store.save("k", OLD)
        before = sorted(path.name for path in tmp_path.iterdir())

        def no_room(*_: object) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr(os, step, no_room)
            with pytest.raises(JournalFullError, match=r"k\.json"):
                store.save("k", NEW)
        assert store.load("k") == OLD
        assert sorted(path.name for path in tmp_path.iterdir()) == before
        store.save("k", NEW)
        assert store.load("k") == NEW


def test_d14_a_save_that_fails_after_its_rename_raises_and_shows_what_the_file_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fsync = os.fsync

    def fails_for_directories(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EIO, "Input/output error")
        fsync(descriptor)

    with FileCheckpointStore(tmp_path) as store:
        store.save("k", OLD)
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", fails_for_directories)
            with pytest.raises(JournalError, match="Input/output"):
                store.save("k", NEW)
        assert store.load("k") == NEW
        with pytest.raises(CheckpointRewindError):
            store.save("k", OLD)


def test_d16_a_file_that_appears_while_the_store_is_open_is_found(tmp_path: Path) -> None:
    text = _save(tmp_path, "k", OLD).read_text()
    (tmp_path / "k.json").unlink()
    with FileCheckpointStore(tmp_path) as store:
        assert store.load("k") is None
        (tmp_path / "k.json").write_text(text)
        assert store.load("k") == OLD


@pytest.mark.parametrize("content", [b"", b"{", b"null", b"[]", b'{"body": {}}', b"\xff\xfe\x00", b"[" * 100_000])
def test_d16_d19_a_corrupt_file_is_an_error_that_names_it_and_the_others_go_on(tmp_path: Path, content: bytes) -> None:
    path = _save(tmp_path, "bad", OLD)
    _save(tmp_path, "good", OLD)
    path.write_bytes(content)
    with FileCheckpointStore(tmp_path) as store:
        with pytest.raises(CheckpointDamagedError, match=r"bad\.json"):
            store.load("bad")
        assert list(store.damaged()) == ["bad"]
        assert "bad.json" in store.damaged()["bad"]
        assert store.load("good") == OLD
        assert store.list() == ("bad", "good")
        assert store.all() == {"good": OLD}


def test_d19_a_damaged_stream_takes_no_save_until_it_is_deleted_on_purpose(tmp_path: Path) -> None:
    path = _save(tmp_path, "k", OLD)
    path.write_bytes(path.read_bytes()[:-20])
    with FileCheckpointStore(tmp_path) as store:
        with pytest.raises(CheckpointDamagedError):
            store.save("k", NEW)
        store.delete("k")
        store.save("k", NEW)
        assert store.damaged() == {}


def test_d19_a_damaged_stream_goes_on_once_its_file_is_restored(tmp_path: Path) -> None:
    path = _save(tmp_path, "k", OLD)
    backup = path.read_bytes()
    path.write_bytes(b"")
    with FileCheckpointStore(tmp_path) as store:
        assert list(store.damaged()) == ["k"]
        path.write_bytes(backup)
        assert store.load("k") == OLD
        assert store.damaged() == {}


def test_d23_one_changed_digit_fails_the_checksum(tmp_path: Path) -> None:
    path = _save(tmp_path, "k", OLD)
    _edit(path, '"0/10"', '"0/11"')
    with FileCheckpointStore(tmp_path) as store, pytest.raises(CheckpointDamagedError, match="checksum"):
        store.load("k")


def test_d23_a_file_copied_to_another_key_is_not_that_streams_checkpoint(tmp_path: Path) -> None:
    path = _save(tmp_path, "one", OLD)
    (tmp_path / "two.json").write_bytes(path.read_bytes())
    with FileCheckpointStore(tmp_path) as store, pytest.raises(CheckpointDamagedError, match="'one'"):
        store.load("two")


def test_d19_a_file_whose_name_is_no_key_is_reported(tmp_path: Path) -> None:
    path = _save(tmp_path, "k", OLD)
    (tmp_path / "a..b.json").write_bytes(path.read_bytes())
    (tmp_path / "notes.txt").write_text("not ours")
    with FileCheckpointStore(tmp_path) as store:
        assert list(store.damaged()) == ["a..b"]
        assert store.all() == {"k": OLD}


def test_d20_a_new_store_on_the_same_directory_returns_an_equal_checkpoint(tmp_path: Path) -> None:
    saved = NEW.with_transaction_id("77").with_metadata("slot", "ü")
    _save(tmp_path, "k", saved)
    with FileCheckpointStore(tmp_path) as store:
        assert store.load("k") == saved
        with pytest.raises(CheckpointRewindError):
            store.save("k", OLD)


def test_d22_orphaned_temporary_files_are_removed_at_open_and_nothing_else(tmp_path: Path) -> None:
    _save(tmp_path, "k", OLD)
    orphan = tmp_path / ".k.json.123-abc.tmp"
    orphan.write_text("half a check")
    (tmp_path / "mine.tmp").write_text("not ours")
    with FileCheckpointStore(tmp_path) as store:
        assert not orphan.exists()
        assert (tmp_path / "mine.tmp").exists()
        assert store.list() == ("k",)


def test_d22_t31_a_second_writable_store_is_refused_in_the_same_process(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "real")
    with FileCheckpointStore(tmp_path / "real"):
        for directory in (tmp_path / "real", link):
            with pytest.raises(LeaseError, match=str(os.getpid())):
                FileCheckpointStore(directory)
    FileCheckpointStore(link).close()


def test_d22_a_second_writable_store_is_refused_in_another_process(tmp_path: Path) -> None:
    script = "import sys; from lakefeed.embed.store import FileCheckpointStore as F; F(sys.argv[1])"
    command = [sys.executable, "-c", script, str(tmp_path)]
    with FileCheckpointStore(tmp_path):
        refused = subprocess.run(command, capture_output=True, text=True, check=False)
        assert refused.returncode != 0
        assert "LeaseError" in refused.stderr
        assert f"process {os.getpid()} on" in refused.stderr
    assert subprocess.run(command, check=False).returncode == 0


def test_d22_a_writer_whose_lease_was_taken_away_does_not_write(tmp_path: Path) -> None:
    with FileCheckpointStore(tmp_path) as first:
        first.save("k", OLD)
        (tmp_path / ".lease").unlink()
        with FileCheckpointStore(tmp_path) as second:
            second.save("k", NEW)
            with pytest.raises(LeaseError):
                first.save("k", Checkpoint.postgres_lsn(0x18))
            with pytest.raises(LeaseError):
                first.delete("k")
            assert second.load("k") == NEW


def test_a_read_only_store_looks_while_another_writes_and_changes_nothing(tmp_path: Path) -> None:
    with FileCheckpointStore(tmp_path) as writer, FileCheckpointStore(tmp_path, read_only=True) as reader:
        orphan = tmp_path / ".k.json.1-a.tmp"
        orphan.write_text("a write that is going on")
        assert reader.list() == ()
        writer.save("k", OLD)
        assert reader.load("k") == OLD
        writer.save("k", NEW)
        assert reader.load("k") == NEW
        assert reader.all() == {"k": NEW}
        writer.delete("k")
        assert reader.load("k") is None
        with pytest.raises(StateError, match="read-only"):
            reader.save("k", NEW)
        with pytest.raises(StateError, match="read-only"):
            reader.delete("k")
        FileCheckpointStore(tmp_path, read_only=True).close()
        assert orphan.exists()


def test_a_read_only_store_needs_its_directory_to_exist(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nowhere"):
        FileCheckpointStore(tmp_path / "nowhere", read_only=True)
    assert not (tmp_path / "nowhere").exists()
