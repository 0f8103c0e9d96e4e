"""Checkpoints as files, one per key: ``<directory>/<key>.json``.

The file is pretty-printed JSON with a checksum (``checked_json``). The key stands inside as well, so that a file that
was renamed or copied by hand is not taken for another stream's.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from lakefeed.errors import (
    CheckpointDamagedError,
    CheckpointError,
    ConfigError,
    JournalDamagedError,
    LakefeedError,
    StateError,
)
from lakefeed.journal import checked_json
from lakefeed.journal.atomic import fsync_directory, is_temporary, write_atomic
from lakefeed.journal.checkpoint import Checkpoint
from lakefeed.journal.checkpoint_rule import refuse_rewind, validate_key
from lakefeed.journal.lease import Lease

_FORMAT = 1
_SUFFIX = ".json"
_LEASE = ".lease"


class FileCheckpointStore:
    """A CheckpointStore in a directory, which it creates, and owns until ``close``.

    ``save``, crash-safe between any two steps:
      1. the rules of ``checkpoint_rule``, against what is stored
      2. temporary file, fsync: a crash leaves an orphan, which the next open removes
      3. is the lease still ours? rename
      4. fsync of the directory
      5. the cache learns of it
    ``fsync=False`` leaves out both fsyncs: a killed process still leaves old or new, a power cut may lose either.

    ``read_only=True`` takes no lease, creates and removes nothing and caches nothing, so that status tools can look
    while a pipeline runs: every call reads the files as they are then.
    """

    def __init__(self, directory: Path | str, *, fsync: bool = True, read_only: bool = False) -> None:
        self._directory = Path(directory)
        self._fsync = fsync
        self._mutex = threading.Lock()
        self._closed = False
        self._cache: dict[str, Checkpoint] = {}
        self._lease: Lease | None = None
        if read_only:
            _require_directory(self._directory)
            return
        self._lease = self._take_directory()
        try:
            self._remove_orphans()
            self._cache = self._read_all()[0]
        except BaseException:
            self._lease.release()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def save(self, key: str, checkpoint: Checkpoint) -> None:
        validate_key(key)
        with self._mutex:
            lease = self._require_lease()
            refuse_rewind(key, self._find(key), checkpoint)
            data = _encode(key, checkpoint)
            self._cache.pop(key, None)  # if the write fails after its rename, the file knows and the cache does not
            write_atomic(self._file(key), data, fsync=self._fsync, before_rename=lease.check)
            self._cache[key] = checkpoint

    def load(self, key: str) -> Checkpoint | None:
        validate_key(key)
        with self._mutex:
            self._refuse_closed()
            return self._find(key)

    def delete(self, key: str) -> None:
        validate_key(key)
        with self._mutex:
            self._require_lease().check()
            try:
                self._file(key).unlink(missing_ok=True)
            except OSError as error:
                raise CheckpointError(f"{self._file(key)} cannot be deleted: {error.strerror}") from error
            self._cache.pop(key, None)
            if self._fsync:
                fsync_directory(self._directory)

    def list(self) -> tuple[str, ...]:
        with self._mutex:
            self._refuse_closed()
            return tuple(sorted(self._keys() | set(self._cache)))

    def all(self) -> Mapping[str, Checkpoint]:
        with self._mutex:
            self._refuse_closed()
            return dict(sorted(self._read_all()[0].items()))

    def damaged(self) -> Mapping[str, str]:
        with self._mutex:
            self._refuse_closed()
            return dict(sorted(self._read_all()[1].items()))

    def close(self) -> None:
        with self._mutex:
            self._closed = True
            if self._lease is not None:
                self._lease.release()

    def _find(self, key: str) -> Checkpoint | None:
        """The cache first: no one else writes here. A file that it does not know was damaged, or put there by hand."""
        if key in self._cache:
            return self._cache[key]
        found = _read(self._file(key), key)
        if found is not None and self._lease is not None:
            self._cache[key] = found
        return found

    def _read_all(self) -> tuple[dict[str, Checkpoint], dict[str, str]]:
        """What can be read, and what is wrong with the rest: one damaged file does not stop the others."""
        good, bad = dict(self._cache), dict[str, str]()
        for key in self._keys() - set(good):
            try:
                validate_key(key)
                found = _read(self._file(key), key)
            except LakefeedError as error:
                bad[key] = error.message
            else:
                if found is not None:  # None: deleted meanwhile, by the owner of a store that is only read here
                    good[key] = found
        return good, bad

    def _keys(self) -> set[str]:
        try:
            names = [path.name for path in self._directory.iterdir()]
        except OSError as error:
            raise CheckpointError(f"{self._directory} cannot be listed: {error.strerror}") from error
        return {name.removesuffix(_SUFFIX) for name in names if name.endswith(_SUFFIX) and not name.startswith(".")}

    def _file(self, key: str) -> Path:
        return self._directory / f"{key}{_SUFFIX}"

    def _take_directory(self) -> Lease:
        """Create the directory if need be, durably, and become its only writer."""
        missing = [path for path in (self._directory, *self._directory.parents) if not path.exists()]
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            for path in missing if self._fsync else ():
                fsync_directory(path.parent)
            return Lease.acquire(self._directory / _LEASE)
        except OSError as error:
            raise ConfigError(f"{self._directory} cannot be a checkpoint directory: {error.strerror}") from error

    def _remove_orphans(self) -> None:
        """What a killed writer left. Nobody else can be writing: the lease is ours."""
        for path in self._directory.iterdir():
            if is_temporary(path):
                path.unlink(missing_ok=True)

    def _require_lease(self) -> Lease:
        self._refuse_closed()
        if self._lease is None:
            raise StateError(f"{self._directory} was opened to read only", remedy="Open it without read_only.")
        return self._lease

    def _refuse_closed(self) -> None:
        if self._closed:
            raise StateError("the checkpoint store is closed", remedy="Open a new one.")


def _require_directory(directory: Path) -> None:
    if not directory.is_dir():
        raise ConfigError(f"there is no checkpoint directory {directory}")


def _encode(key: str, checkpoint: Checkpoint) -> bytes:
    return checked_json.pack({"format": _FORMAT, "key": key, "checkpoint": checkpoint.to_json()})


def _read(path: Path, key: str) -> Checkpoint | None:
    """The checkpoint in a file, None if there is no file. Anything else is damage, and says which file."""
    try:
        body = checked_json.unpack(path.read_bytes(), path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise CheckpointDamagedError(f"{path} cannot be read: {error.strerror}") from error
    except JournalDamagedError as error:
        raise CheckpointDamagedError(error.message) from error
    except RecursionError as error:  # what the JSON reader says of brackets without end
        raise CheckpointDamagedError(f"{path} is damaged: it is nested too deeply") from error
    if body.get("format") != _FORMAT:
        raise CheckpointDamagedError(f"{path} has the format {body.get('format')}; this version reads {_FORMAT}")
    if body.get("key") != key:
        raise CheckpointDamagedError(f"{path} is the checkpoint of '{body.get('key')}', not of '{key}'")
    try:
        return Checkpoint.from_json(body["checkpoint"])
    except (KeyError, TypeError, CheckpointError) as error:
        raise CheckpointDamagedError(f"{path} is damaged: {error}") from error
