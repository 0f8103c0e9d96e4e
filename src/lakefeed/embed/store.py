"""Checkpoint stores: in memory, for tests and for streams that always start from the beginning, and in files.

One file per key, ``<directory>/<key>.json``: JSON with a checksum (``durable.pack``). It contains the key, too, so that
a file that was renamed or copied by hand is not taken for another stream's.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from lakefeed.durable import fsync_directory, make_directory, pack, remove_temporaries, replace_file, unpack
from lakefeed.embed.checkpoint import Checkpoint, refuse_rewind, validate_key
from lakefeed.errors import (
    CheckpointDamagedError,
    CheckpointError,
    ConfigError,
    JournalDamagedError,
    JournalError,
    LakefeedError,
    LeaseError,
    StateError,
)
from lakefeed.journal.lease import Lease

_FORMAT = 1
_SUFFIX = ".json"
_LEASE = ".lease"


class MemoryCheckpointStore:
    """Follows the rules of every CheckpointStore; nothing is durable."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._checkpoints: dict[str, Checkpoint] = {}
        self._closed = False

    def save(self, key: str, checkpoint: Checkpoint) -> None:
        validate_key(key)
        with self._lock:
            self._refuse_closed()
            refuse_rewind(key, self._checkpoints.get(key), checkpoint)
            self._checkpoints[key] = checkpoint

    def load(self, key: str) -> Checkpoint | None:
        validate_key(key)
        with self._lock:
            self._refuse_closed()
            return self._checkpoints.get(key)

    def delete(self, key: str) -> None:
        validate_key(key)
        with self._lock:
            self._refuse_closed()
            self._checkpoints.pop(key, None)

    def list(self) -> tuple[str, ...]:
        return tuple(self.all())

    def all(self) -> Mapping[str, Checkpoint]:
        with self._lock:
            self._refuse_closed()
            return dict(sorted(self._checkpoints.items()))

    def damaged(self) -> Mapping[str, str]:
        """Always empty."""
        return {}

    def close(self) -> None:
        with self._lock:
            self._closed = True

    def _refuse_closed(self) -> None:
        if self._closed:
            raise StateError("the checkpoint store is closed", remedy="Open a new one.")


class FileCheckpointStore:
    """A CheckpointStore in a directory, which it creates and owns until ``close``.

    ``save``, crash-safe between any two steps:
      1. apply the rules of ``validate_key`` and ``refuse_rewind`` to what is stored
      2. write a temporary file and fsync it: a crash leaves an orphan, which the next open removes
      3. check that the lease is still ours, and rename
      4. fsync the directory
      5. update the cache
    ``fsync=False`` leaves out both fsyncs: a killed process still leaves old or new; a power cut may lose both.

    ``read_only=True`` takes no lease, creates, removes and caches nothing, so that status tools can read while a
    pipeline runs: every call reads the files as they are then.
    """

    def __init__(self, directory: Path | str, *, fsync: bool = True, read_only: bool = False) -> None:
        self._directory = Path(directory)
        self._fsync = fsync
        self._mutex = threading.Lock()
        self._closed = False
        self._cache: dict[str, Checkpoint] = {}
        self._lease: Lease | None = None
        if read_only:
            if not self._directory.is_dir():
                raise ConfigError(f"there is no checkpoint directory {directory}")
            return
        try:
            make_directory(self._directory, fsync=fsync)
            self._lease = Lease.acquire(self._directory / _LEASE)
        except LeaseError:
            raise
        except (JournalError, OSError) as error:
            raise ConfigError(f"{self._directory} cannot be a checkpoint directory: {error}") from error
        try:
            remove_temporaries(self._directory)  # we have the lease, so nobody else is writing
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
            data = pack({"format": _FORMAT, "key": key, "checkpoint": checkpoint.to_json()})
            self._cache.pop(key, None)  # if the write fails after its rename, only the file is right
            replace_file(self._file(key), data, fsync=self._fsync, before_rename=lease.check)
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
        """From the cache if possible: nobody else writes here. An unknown file was damaged, or put there by hand."""
        if key in self._cache:
            return self._cache[key]
        found = _read(self._file(key), key)
        if found is not None and self._lease is not None:
            self._cache[key] = found
        return found

    def _read_all(self) -> tuple[dict[str, Checkpoint], dict[str, str]]:
        """What can be read, and what is wrong with the others: one damaged file does not affect the rest."""
        good, bad = dict(self._cache), dict[str, str]()
        for key in self._keys() - set(good):
            try:
                validate_key(key)
                found = _read(self._file(key), key)
            except LakefeedError as error:
                bad[key] = error.message
            else:
                if found is not None:  # None: deleted meanwhile by the store's owner, if this one is read-only
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

    def _require_lease(self) -> Lease:
        self._refuse_closed()
        if self._lease is None:
            raise StateError(f"{self._directory} was opened read-only", remedy="Open it without read_only.")
        return self._lease

    def _refuse_closed(self) -> None:
        if self._closed:
            raise StateError("the checkpoint store is closed", remedy="Open a new one.")


def _read(path: Path, key: str) -> Checkpoint | None:
    """The checkpoint in a file; None if there is no file. Anything else is damage, and the error names the file."""
    try:
        body = unpack(path.read_bytes(), path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise CheckpointDamagedError(f"{path} cannot be read: {error.strerror}") from error
    except JournalDamagedError as error:
        raise CheckpointDamagedError(error.message) from error
    if body.get("format") != _FORMAT:
        raise CheckpointDamagedError(f"{path} has the format {body.get('format')}; this version reads {_FORMAT}")
    if body.get("key") != key:
        raise CheckpointDamagedError(f"{path} is the checkpoint of '{body.get('key')}', not of '{key}'")
    try:
        return Checkpoint.from_json(body["checkpoint"])
    except (KeyError, TypeError, CheckpointError) as error:
        raise CheckpointDamagedError(f"{path} is damaged: {getattr(error, 'message', error)}") from error
