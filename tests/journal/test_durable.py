"""replace_file: whole or not at all, and the file system's refusals by their right names."""

from __future__ import annotations

import errno
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from lakefeed.durable import fsync_directory, is_temporary, replace_file
from lakefeed.errors import JournalError, JournalFullError, Retry


def _names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_content_is_put_and_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "file"
    replace_file(path, b"first, and longer")
    replace_file(path, b"second", fsync=False)
    assert path.read_bytes() == b"second"
    assert _names(tmp_path) == ["file"]


def test_before_rename_sees_the_temporary_file_complete_and_the_old_content_in_place(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    seen: list[tuple[bytes, list[bytes]]] = []

    def look() -> None:
        temporary = [other.read_bytes() for other in tmp_path.iterdir() if is_temporary(other)]
        seen.append((path.read_bytes(), temporary))

    replace_file(path, b"new", before_rename=look)
    assert seen == [(b"old", [b"new"])]


def test_an_error_before_the_rename_leaves_the_old_content_and_passes_through(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def refuse() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        replace_file(path, b"new", before_rename=refuse)
    assert path.read_bytes() == b"old"
    assert _names(tmp_path) == ["file"]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_no_room_is_an_error_of_its_own_that_is_retried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def no_room(_: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "fsync", no_room)
    with pytest.raises(JournalFullError, match="file") as refused:
        replace_file(tmp_path / "file", b"x")
    assert refused.value.retry is Retry.BACKOFF
    assert _names(tmp_path) == []


def test_any_other_refusal_names_the_file_and_is_not_taken_for_no_room(tmp_path: Path) -> None:
    with pytest.raises(JournalError, match="missing") as refused:
        replace_file(tmp_path / "missing" / "file", b"x")
    assert not isinstance(refused.value, JournalFullError)
    with pytest.raises(JournalError, match="missing"):
        fsync_directory(tmp_path / "missing")


def test_d22_writers_of_one_file_do_not_share_a_temporary_name(tmp_path: Path) -> None:
    path = tmp_path / "file"
    both_written = threading.Barrier(2, timeout=60)

    def wait_for_the_other() -> None:
        both_written.wait()

    contents = [b"a" * 5000, b"b" * 5000]
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda data: replace_file(path, data, before_rename=wait_for_the_other), contents))
    assert path.read_bytes() in contents
    assert _names(tmp_path) == ["file"]
