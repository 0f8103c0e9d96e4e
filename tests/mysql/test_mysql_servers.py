"""Servers are fetched whole or not at all, and one that cannot be had says so in a sentence: never a skip."""

from __future__ import annotations

import hashlib
import io
import lzma
import subprocess
import tarfile
from pathlib import Path

import pytest

from lakefeed.testing.server import mysql
from lakefeed.testing.server.fetch import FetchError, installation


@pytest.fixture(autouse=True)
def _empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("LAKEFEED_DEBIAN", f"file://{tmp_path}/debian")


def _archive(place: Path, *, checksum: str = "") -> None:
    """A Debian archive with a libc6 whose loader says how it was called, and a program that needs it."""
    loader = "usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2"
    entries = []
    for name, file, content in (
        ("libc6", loader, b"#!/bin/sh\necho started $1 $(basename $3) $4\n"),
        ("hello", "usr/bin/hello", b"\x7fELF"),
    ):
        inner = io.BytesIO()
        with tarfile.open(fileobj=inner, mode="w:xz") as tar:
            member = tarfile.TarInfo(f"./{file}")
            member.size, member.mode = len(content), 0o755
            tar.addfile(member, io.BytesIO(content))
        data = inner.getvalue()
        head = "data.tar.xz".ljust(16) + "0".ljust(12) + "0".ljust(6) * 2 + "100644".ljust(8) + str(len(data)).ljust(10)
        package = b"!<arch>\n" + head.encode() + b"`\n" + data
        path = place / "pool" / f"{name}.deb"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(package)
        digest = checksum or hashlib.sha256(package).hexdigest()
        entries.append(
            f"Package: {name}\nDepends: perl, gone | libc6 (>= 2)\nFilename: pool/{name}.deb\nSHA256: {digest}"
        )
    index = place / "dists" / "some" / "main" / "binary-amd64" / "Packages.xz"
    index.parent.mkdir(parents=True)
    index.write_bytes(lzma.compress("\n\n".join([*entries, "Package: perl"]).encode()))


def test_a_program_is_started_by_the_loader_and_the_libraries_that_came_with_it(tmp_path: Path) -> None:
    _archive(tmp_path / "debian")
    place = installation("hello", debian=("some", ("hello",)))
    done = subprocess.run([place / "usr/bin/hello", "you"], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["started", "--library-path", "hello.elf", "you"]
    assert installation("hello", debian=("none", ("nothing",))) == place  # it is there: nothing is fetched


@pytest.mark.parametrize(
    ("checksum", "wanted", "said"),
    [("0" * 64, "hello", "fails the checksum"), ("", "other", "has no package other")],
)
def test_what_cannot_be_fetched_whole_leaves_nothing_behind(
    tmp_path: Path, checksum: str, wanted: str, said: str
) -> None:
    _archive(tmp_path / "debian", checksum=checksum)
    with pytest.raises(FetchError, match=rf"hello could not be fetched: .*{said}.*Remedy: .*make setup"):
        installation("hello", debian=("some", (wanted,)))
    assert [one.name for one in (tmp_path / "cache/lakefeed/servers").iterdir()] == ["hello.lock"]


def test_set_up_fails_with_a_sentence_for_each_server_that_cannot_be_had(capsys: pytest.CaptureFixture[str]) -> None:
    assert mysql.main([]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(" could not be fetched")[0] for line in lines] == ["mysql-8.0.15", "mariadb-10.11"]
    assert all("Remedy" in line for line in lines)


def test_a_version_that_there_is_not_is_refused_with_those_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAKEFEED_MYSQL", "5.1")
    with pytest.raises(
        FetchError, match=r"5\.1 is neither the path of a server nor a version of 8\.0\.15, 8\.0\.33, 9\.7"
    ):
        mysql.find_server("mysql")
