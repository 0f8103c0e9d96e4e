"""Local directories: see ``base`` for the contract, ``durable`` for how one file is written.

Write, fsync, rename, fsync the directory: this order makes a file durable, so it is the same everywhere.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from lakefeed.durable import (
    PRIVATE_FILE,
    fsync_directory,
    is_temporary,
    make_directory,
    named_errors,
    remove_temporaries,
    replace_file,
)
from lakefeed.errors import JournalError
from lakefeed.storage.base import Entry, NewFile, Storage


class LocalStorage(Storage):
    """``fsync=False`` survives a crash of the process but not of the machine."""

    directory: Path

    def __init__(self, directory: Path, *, fsync: bool = True) -> None:
        self.directory = directory
        self.address = str(directory)
        self._fsync = fsync
        self._known: set[Path] = set()  # directories of new files whose entry in the parent is durable

    def below(self, name: str = "") -> LocalStorage:
        return LocalStorage(self.directory / name, fsync=self._fsync)

    def without_fsync(self) -> LocalStorage:
        return LocalStorage(self.directory, fsync=False)

    def read(self, name: str) -> bytes:
        return (self.directory / name).read_bytes()

    def size(self, name: str) -> int | None:
        try:
            return (self.directory / name).stat().st_size
        except FileNotFoundError:
            return None

    def state(self, name: str) -> tuple[object, ...] | None:
        try:
            found = (self.directory / name).stat()
        except FileNotFoundError:
            return None
        return found.st_ino, found.st_mtime_ns, found.st_size

    def entries(self, folder: str = "") -> list[Entry]:
        found = list[Entry]()
        for item in _files(self.directory / folder):
            with suppress(FileNotFoundError):  # removed meanwhile
                facts = item.stat()
                found.append(Entry(self.name_of(item.path), facts.st_size, facts.st_blocks * 512))
        return sorted(found, key=lambda entry: entry.name)

    def names(self, folder: str = "") -> list[str]:
        return sorted(self.name_of(item.path) for item in _files(self.directory / folder))

    def folders(self, folder: str = "") -> list[str]:
        root = self.directory / folder
        return sorted(path.name for path in root.iterdir() if path.is_dir()) if root.is_dir() else []

    def has_folder(self, folder: str = "") -> bool:
        return (self.directory / folder).is_dir()

    def make_folder(self, folder: str = "") -> None:
        make_directory(self.directory / folder, fsync=self._fsync)

    def settle(self, folder: str = "") -> None:
        if self._fsync:
            for path in (self.directory.parent, self.directory, self.directory / folder):
                fsync_directory(path)

    def replace(self, name: str, data: bytes) -> None:
        path = self.directory / name
        if not path.parent.is_dir():
            make_directory(path.parent, fsync=self._fsync)
        replace_file(path, data, fsync=self._fsync)

    def create(self, name: str, data: bytes, *, before: Callable[[], None] | None = None) -> None:
        replace_file(self.directory / name, data, fsync=self._fsync, before_rename=before, exclusive=True)

    def age_seconds(self, name: str, *, exact: bool = True) -> float | None:  # noqa: ARG002  # there is one clock
        try:
            return time.time() - (self.directory / name).stat().st_mtime
        except FileNotFoundError:
            return None

    def report(self, name: str, data: bytes) -> None:
        """On a full disk it overwrites the existing file, which already has its space."""
        path = self.directory / name
        try:
            replace_file(path, data, fsync=False)
        except JournalError:
            with suppress(OSError), path.open("r+b") as file:
                file.write(data)
                file.truncate()

    def remove(self, names: Iterable[str]) -> None:
        for name in names:
            (self.directory / name).unlink(missing_ok=True)

    def remove_folder(self, folder: str = "") -> None:
        shutil.rmtree(self.directory / folder, ignore_errors=True)

    def move(self, other: Storage) -> None:
        if other.directory is None:
            raise JournalError(
                f"{self.address} cannot be moved to {other.address}: that is not a directory on this machine"
            )
        self.directory.rename(other.directory)

    def new_file(self, name: str) -> LocalFile:
        path = self.directory / name
        if path.parent not in self._known:
            make_directory(path.parent, fsync=False)
        return LocalFile(name, path, fsync=self._fsync)

    def finish(self, files: Sequence[NewFile]) -> None:
        if self._fsync and len(files) > 1:  # the file system serves parallel fsyncs with one flush
            with ThreadPoolExecutor(min(8, len(files)), "lakefeed-fsync") as pool:
                list(pool.map(lambda file: file.close(), files))
        else:
            for file in files:
                file.close()
        if not self._fsync:
            return
        folders = dict.fromkeys((self.directory / file.name).parent for file in files)
        for folder in folders:
            fsync_directory(folder)
        for parent in dict.fromkeys(folder.parent for folder in folders if folder not in self._known):
            fsync_directory(parent)
        self._known.update(folders)

    def path(self, name: str) -> str:
        return f"{self.address}/{name}"

    def name_of(self, path: str) -> str:
        return path.removeprefix(f"{self.address}/")

    def fetch(self, name: str) -> None:
        if not (self.directory / name).exists():
            raise FileNotFoundError(self.path(name))

    def clean(self, *, older_than_seconds: float = 0.0) -> int:
        return remove_temporaries(self.directory, older_than_seconds=older_than_seconds)


class LocalFile:
    """Written under its final name: nobody reads a name that no commit file has."""

    def __init__(self, name: str, path: Path, *, fsync: bool) -> None:
        self.name = name
        self._path = path
        self._fsync = fsync
        with named_errors(path):
            self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, PRIVATE_FILE)

    def write(self, block: memoryview) -> None:
        with named_errors(self._path):
            while block:
                block = block[os.write(self._descriptor, block) :]

    def close(self) -> None:
        if self._descriptor < 0:
            return
        with named_errors(self._path):
            try:
                if self._fsync:
                    os.fsync(self._descriptor)
            finally:
                os.close(self._descriptor)
                self._descriptor = -1

    def discard(self) -> None:
        with suppress(OSError):
            if self._descriptor >= 0:
                os.close(self._descriptor)
        self._descriptor = -1
        with suppress(OSError):
            self._path.unlink(missing_ok=True)


def _files(root: Path | str) -> Iterator[os.DirEntry[str]]:
    try:
        scan = os.scandir(root)  # measured: pathlib takes several times as long
    except (FileNotFoundError, NotADirectoryError):
        return
    with scan:
        for item in scan:
            if is_temporary(item.name):
                continue
            if item.is_dir():
                yield from _files(item.path)
            else:
                yield item
