"""What is durable was forced out, file and directory, before anybody relies on it: fails if one fsync is dropped."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from lakefeed import durable
from lakefeed.capture.poll.store import FileWatermarkStore
from lakefeed.change.watermark import Mark
from lakefeed.durable import fsync_directory, make_directory, remove_temporaries, replace_file
from lakefeed.embed.checkpoint import Checkpoint
from lakefeed.embed.store import FileCheckpointStore
from lakefeed.journal.journal import Journal
from lakefeed.journal.options import JournalOptions
from lakefeed.testing.builders import batch, change_set, table

T, U = (table(f"main.{name}", {"id": pa.int64()}, key=("id",)) for name in "tu")


class Disk:
    """Every fsync and every rename, in order, by the path they concern."""

    def __init__(self, root: Path, patch: pytest.MonkeyPatch) -> None:
        self.root = root
        self.seen: list[tuple[str, str]] = []
        real_fsync, real_replace, real_link = os.fsync, Path.replace, os.link

        def fsync(descriptor: int) -> None:
            self.seen.append(("fsync", self._name(Path(f"/proc/self/fd/{descriptor}").readlink())))
            real_fsync(descriptor)

        def replaced(path: Path, target: Path) -> Path:
            self.seen.append(("rename", self._name(target)))
            return real_replace(path, target)

        def linked(path: Path, target: Path) -> None:
            """A rename that never replaces: a link, and the temporary name goes."""
            self.seen.append(("rename", self._name(target)))
            real_link(path, target)

        patch.setattr(os, "link", linked)
        patch.setattr(os, "fsync", fsync)
        patch.setattr(Path, "replace", replaced)

    def take(self) -> list[tuple[str, str]]:
        seen, self.seen = self.seen, []
        return seen

    def _name(self, path: Path) -> str:
        """Relative, without what is unique to a temporary file or a segment."""
        if durable.is_temporary(path):
            path = path.with_name("temporary")
        if path.suffix == ".parquet":
            path = path.with_name("segment")
        return path.relative_to(self.root).as_posix() if path != self.root else "."


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    with monkeypatch.context() as patch:
        yield Disk(tmp_path, patch)


def test_segments_and_their_directories_are_forced_out_before_the_commit_names_them(tmp_path: Path, disk: Disk) -> None:
    with Journal.open(tmp_path / "j", options=JournalOptions()) as journal:
        disk.take()
        for number in (1, 2):
            rows = [
                batch(T, [("insert", {"id": number})], start_seq=0),
                batch(U, [("insert", {"id": number})], start_seq=1),
            ]
            journal.append(change_set(journal.end, number, *rows))
            seen = disk.take()
            commit = seen.index(("rename", f"j/commits/{number:020d}.json"))
            before, after = seen[:commit], seen[commit + 1 :]
            for name in ("main.t", "main.u"):
                segment, folder = ("fsync", f"j/segments/{name}/segment"), ("fsync", f"j/segments/{name}")
                assert before.index(segment) < before.index(folder)
            # A folder that is new must be durable in the one above it; later change sets have no need of that.
            assert (("fsync", "j/segments") in before) is (number == 1)
            assert before[-1] == ("fsync", "j/commits/temporary")
            assert after == [("fsync", "j/commits")]


def test_a_folder_that_a_failed_append_has_left_is_made_durable_by_the_next(tmp_path: Path, disk: Disk) -> None:
    with Journal.open(tmp_path / "j", options=JournalOptions()) as journal:
        wrong = change_set(None, 1, batch(T, [("insert", {"id": 1})]))
        object.__setattr__(wrong, "rows", 5)
        with pytest.raises(Exception, match="says 5"):
            journal.append(wrong)
        disk.take()
        (tmp_path / "j" / "segments" / "main.t").mkdir(exist_ok=True)
        journal.append(change_set(None, 1, batch(T, [("insert", {"id": 1})])))
        assert ("fsync", "j/segments") in disk.take()


def test_a_schema_version_is_durable_before_the_commit_that_uses_it_and_a_trim_mark_before_the_trim(
    tmp_path: Path, disk: Disk
) -> None:
    with Journal.open(tmp_path / "j", options=JournalOptions(keep_seconds=0, keep_change_sets=1)) as journal:
        disk.take()
        journal.append(change_set(None, 1, batch(T, [("insert", {"id": 1})])))
        seen = disk.take()
        schema = ["fsync j/schemas/temporary", "rename j/schemas/main.t.json", "fsync j/schemas"]
        assert [" ".join(step) for step in seen][:3] == schema
        journal.append(change_set(1, 2, batch(T, [("insert", {"id": 2})])))
        disk.take()
        journal.trim(2)
        steps = [" ".join(step) for step in disk.take() if "j/pins" not in step[1]]  # an announcement need not last
        assert steps[:3] == ["fsync j/temporary", "rename j/origin.json", "fsync j"]


def test_a_new_journals_directories_are_durable(tmp_path: Path, disk: Disk) -> None:
    with Journal.open(tmp_path / "deep" / "j", options=JournalOptions()):
        seen = {path for what, path in disk.take() if what == "fsync"}
    assert {".", "deep", "deep/j"} <= seen


@pytest.mark.parametrize("store", ["checkpoint", "watermark"])
def test_a_saved_checkpoint_and_a_saved_watermark_are_forced_out_file_and_directory(
    tmp_path: Path, disk: Disk, store: str
) -> None:
    folder = tmp_path / "deep" / "state"
    if store == "checkpoint":
        with FileCheckpointStore(folder) as checkpoints:
            made = disk.take()
            checkpoints.save("k", Checkpoint.postgres_lsn(1))
            seen = disk.take()
            checkpoints.delete("k")
            assert disk.take() == [("fsync", "deep/state")]
    else:
        watermarks = FileWatermarkStore(folder / "k.json")
        watermarks.save("db", {"main.t": Mark(5, (1,))})  # the first one makes the directory
        seen = disk.take()
        made, seen = seen[:-3], seen[-3:]
    assert {("fsync", "."), ("fsync", "deep")} <= set(made)
    assert seen == [("fsync", "deep/state/temporary"), ("rename", "deep/state/k.json"), ("fsync", "deep/state")]


def test_fsync_can_be_left_out(tmp_path: Path, disk: Disk) -> None:
    with Journal.open(tmp_path / "j", options=JournalOptions(fsync=False)) as journal:
        disk.take()
        journal.append(change_set(None, 1, batch(T, [("insert", {"id": 1})])))
        assert {what for what, _ in disk.take()} == {"rename"}


def test_temporaries_of_killed_writers_are_removed_and_those_of_living_ones_are_spared(tmp_path: Path) -> None:
    left = [tmp_path / f".{name}.1-ab.tmp" for name in ("old.json", "young.json")]
    for path in left:
        path.write_bytes(b"half")
    os.utime(left[0], (0, 0))
    (tmp_path / "kept.json").write_bytes(b"whole")
    assert remove_temporaries(tmp_path, older_than_seconds=3600) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == [".young.json.1-ab.tmp", "kept.json"]
    assert remove_temporaries(tmp_path) == 1
    assert remove_temporaries(tmp_path / "none") == 0


def test_an_opener_removes_temporaries_of_the_whole_state_directory(tmp_path: Path) -> None:
    with Journal.open(tmp_path, options=JournalOptions(fsync=False)):
        pass
    for folder in (tmp_path, tmp_path / "commits", tmp_path / "schemas", tmp_path / "tables", tmp_path / "a" / "b"):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / ".x.json.1-ab.tmp").write_bytes(b"half")
        os.utime(folder / ".x.json.1-ab.tmp", (0, 0))
    young = tmp_path / "tables" / ".y.json.1-ab.tmp"
    young.write_bytes(b"half")
    with Journal.open(tmp_path, options=JournalOptions(fsync=False)):
        assert list(tmp_path.rglob("*.tmp")) == [young]


def test_a_directory_is_made_with_its_parents_and_twice(tmp_path: Path) -> None:
    make_directory(tmp_path / "a" / "b")
    make_directory(tmp_path / "a" / "b")
    replace_file(tmp_path / "a" / "b" / "c", b"x")
    fsync_directory(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b" / "c").read_bytes() == b"x"
