"""Recovery: litter goes, damage is named, nothing is ever read as "start from zero"."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from lakefeed.durable import pack
from lakefeed.errors import JournalDamagedError, JournalError, SourceChangedError
from lakefeed.journal.journal import Journal
from lakefeed.journal.options import JournalOptions
from lakefeed.testing.builders import at, batch, change_set, table

T = table("main.t", {"id": pa.int64()}, key=("id",))
FAST = JournalOptions(fsync=False, keep_seconds=0, keep_change_sets=1)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A closed journal with change sets 2, 3, 4 (1 was trimmed)."""
    with Journal.open(tmp_path, options=FAST) as journal:
        for place in range(4):
            journal.append(change_set(place or None, place + 1, batch(T, [("insert", {"id": place})])))
        journal.trim(1)
    return tmp_path


def commit_file(root: Path, number: int) -> Path:
    return root / "commits" / f"{number:020d}.json"


def segment(root: Path, number: int) -> Path:
    [path] = root.glob(f"segments/main.t/{number:020d}-*.parquet")
    return path


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def empty(folder: Path) -> None:
    for path in folder.iterdir():
        path.unlink()


def edit(path: Path) -> None:
    document = json.loads(path.read_text())
    document["body"]["last_seq"] = 0
    path.write_text(json.dumps(document))


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "a missing commit in the middle": (lambda root: commit_file(root, 3).unlink(), "0003.json is missing"),
    "a missing commit at the low end": (lambda root: commit_file(root, 2).unlink(), "0002.json is missing"),
    "an empty commit file": (lambda root: commit_file(root, 4).write_bytes(b""), "0004.json is damaged"),
    "half a commit file": (lambda root: commit_file(root, 4).write_text('{"sha256":'), "0004.json is dam"),
    "a commit file with another value": (lambda root: edit(commit_file(root, 4)), "0004.json is damaged"),
    "a commit under another number": (
        lambda root: shutil.copy(commit_file(root, 4), commit_file(root, 5)),
        "0005.json is damaged",
    ),
    "JSON that is no commit": (lambda root: commit_file(root, 4).write_text("[1]"), "0004.json is damaged"),
    "a missing segment": (lambda root: segment(root, 3).unlink(), "is missing; change set 3"),
    "a shorter segment": (lambda root: segment(root, 3).write_bytes(b"PAR1"), "has 4 bytes; change set 3"),
    "no commits directory": (lambda root: shutil.rmtree(root / "commits"), "commits is missing"),
    "no segments directory": (lambda root: shutil.rmtree(root / "segments"), "segments is missing, but there are com"),
    "no schemas directory": (lambda root: shutil.rmtree(root / "schemas"), "schemas is missing, but there are commit"),
    "an emptied commits directory": (
        lambda root: empty(root / "commits"),
        "every commit file is gone",
    ),
    "a missing origin": (lambda root: (root / "origin.json").unlink(), "origin.json is missing"),
    "a damaged origin": (lambda root: flip(root / "origin.json"), "origin.json is damaged"),
    "a damaged schema history": (lambda root: flip(root / "schemas" / "main.t.json"), "main.t.json is damaged"),
    "a missing schema history": (
        lambda root: (root / "schemas" / "main.t.json").unlink(),
        "main.t.json lacks version 1",
    ),
}


@pytest.mark.parametrize("case", DAMAGE)
def test_damage_stops_the_open_and_names_the_file(root: Path, case: str) -> None:
    damage, text = DAMAGE[case]
    damage(root)
    segments = sorted(root.glob("segments/*/*"))
    for _ in range(2):  # the first attempt must not have swept the evidence away
        with pytest.raises(JournalDamagedError) as caught:
            Journal.open(root, options=FAST)
        assert text in caught.value.message
    assert sorted(root.glob("segments/*/*")) == segments


def test_a_segment_with_the_right_size_and_wrong_bytes_is_found_by_verify(root: Path) -> None:
    flip(segment(root, 3))
    with Journal.open(root, options=FAST) as journal, pytest.raises(JournalDamagedError, match="fails its checksum"):
        journal.verify()


def test_segments_of_lost_commits_are_evidence_and_stay(root: Path) -> None:
    commit_file(root, 3).unlink()
    commit_file(root, 4).unlink()
    kept = segment(root, 4)
    with pytest.raises(JournalDamagedError, match=r"0003\.json is missing, but .* was written after it"):
        Journal.open(root, options=FAST)
    assert kept.exists()


def test_litter_is_removed_and_other_files_are_not(root: Path) -> None:
    litter = [
        root / "commits" / f".{5:020d}.json.12-abc.tmp",
        root / "schemas" / ".main.t.json.12-abc.tmp",
        root / "segments" / "main.t" / f"{5:020d}-1-4-0.parquet",
        root / "segments" / "main.t" / f"{1:020d}-1-0-0.parquet",
        commit_file(root, 1),
    ]
    others = [root / "commits" / "notes.txt", root / "segments" / "README"]
    for path in (*litter, *others):
        path.write_bytes(b"half")
    with Journal.open(root, options=FAST) as journal:
        assert (journal.trimmed, journal.head, journal.verify()) == (1, 4, 3)
    assert [path.exists() for path in litter] == [False] * 5
    assert [path.exists() for path in others] == [True] * 2


@pytest.mark.parametrize("made", [("commits",), ("commits", "segments"), ("commits", "schemas")])
def test_a_journal_that_was_killed_while_it_was_made_is_made_to_its_end(tmp_path: Path, made: tuple[str, ...]) -> None:
    for folder in made:
        (tmp_path / folder).mkdir()
    with Journal.read(tmp_path) as looked_at:
        assert looked_at.head == 0
    with Journal.open(tmp_path, options=FAST) as journal:
        journal.append(change_set(None, 1, batch(T, [("insert", {"id": 1})])))
    with Journal.open(tmp_path, options=FAST) as journal:
        assert (journal.head, journal.verify()) == (1, 1)


def test_an_open_that_failed_gives_the_lease_back(root: Path) -> None:
    text = commit_file(root, 4).read_bytes()
    commit_file(root, 4).write_bytes(b"")
    with pytest.raises(JournalDamagedError):
        Journal.open(root, options=FAST)
    commit_file(root, 4).write_bytes(text)
    with Journal.open(root, options=FAST) as journal:
        assert (journal.head, journal.end) == (4, at(4))


def test_a_commit_of_a_later_format_is_not_guessed_at(root: Path) -> None:
    path = commit_file(root, 4)
    path.write_bytes(pack(json.loads(path.read_text())["body"] | {"format": 2}))
    with pytest.raises(JournalError, match="has the format 2; this version reads 1"):
        Journal.open(root, options=FAST)


def test_a_server_that_succeeds_another_is_recorded_for_good(root: Path) -> None:
    with Journal.open(root, identity="a", options=FAST) as journal:
        with pytest.raises(SourceChangedError):
            journal.adopt("c", succeeds="b")
        journal.adopt("b", succeeds="a")
        journal.append(change_set(4, 5, batch(T, [("insert", {"id": 9})])))
        journal.trim(4)
    with Journal.open(root, identity="b", options=FAST) as journal:
        (before,) = journal.predecessors
        assert (before.identity, before.change_set, before.position) == ("a", 4, str(at(4)))
        assert journal.commit(5).identity == journal.identity == "b"


def test_a_commit_file_whose_content_is_none_is_damaged_whatever_its_checksum_says(root: Path) -> None:
    commit_file(root, 4).write_bytes(pack({"format": 1, "number": 4, "tables": []}))
    with pytest.raises(JournalDamagedError, match="it is not a commit file"):
        Journal.open(root, options=FAST)
