"""Files that must survive: the one way Lakefeed writes them, and JSON with a checksum.

A reader sees the old content or the new content, never a part of it. When ``replace_file`` returns with ``fsync`` on, a
power cut does not undo it: the content was flushed before the rename, and the rename (a change of the directory) before
the return. Without ``fsync``, the file is old or new after a crash of the process, but not after a power cut.

A crash in the middle leaves a temporary file. The owner of a directory removes those with ``remove_temporaries``.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from lakefeed.errors import JournalDamagedError, JournalError, JournalFullError

_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT})
_NO_LINKS = frozenset({errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK})
_TEMPORARY_SUFFIX = ".tmp"

STATE_FOLDER = "_lakefeed"
PRIVATE_FILE, PRIVATE_DIRECTORY = 0o600, 0o700
"""Permissions of what Lakefeed stores: a journal has the rows of every table, so nobody else may read it."""


@contextmanager
def named_errors(path: Path) -> Iterator[None]:
    """Maps errors of the file system, once: JournalFullError if there is no room, otherwise JournalError.

    FileExistsError passes through: it is an answer, not a failure.
    """
    try:
        yield
    except FileExistsError:
        raise
    except OSError as error:
        if error.errno in _NO_ROOM:
            raise JournalFullError(f"no room left to write {path}: {error.strerror}") from error
        remedy = "Make it writable for this user, or set lake.path to a directory that is."
        there = next((parent for parent in (path, *path.parents) if parent.exists()), path)
        if there.is_file() and there != path:
            remedy = "Set lake.path to a directory."
            raise JournalError(f"{path} cannot be created, because {there} is a file", remedy=remedy) from error
        raise JournalError(f"{path} cannot be written: {error.strerror or error}", remedy=remedy) from error


def replace_file(
    path: Path,
    data: bytes,
    *,
    fsync: bool = True,
    before_rename: Callable[[], None] | None = None,
    exclusive: bool = False,
) -> None:
    """Write ``data`` to ``path``, completely or not at all. The directory must exist. The steps:

    1. write to a temporary name, unique to this call, in the same directory
    2. fsync the temporary file
    3. ``before_rename``, for callers that check something or crash there
    4. rename over ``path``; if ``exclusive``, FileExistsError if it already exists
    5. fsync the directory

    If a step before 4 fails, nothing has changed and the temporary file is removed. If 5 fails, the new content is
    visible but may not survive a power cut: the error says so, and writing the same content again repairs it.
    Errors are those of ``named_errors``.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{uuid.uuid4().hex}{_TEMPORARY_SUFFIX}")
    with named_errors(path):
        try:
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, PRIVATE_FILE)
            with os.fdopen(descriptor, "wb") as file:  # 1
                file.write(data)
                file.flush()
                if fsync:
                    os.fsync(file.fileno())  # 2
            if before_rename is not None:
                before_rename()  # 3
            if not exclusive:
                temporary.replace(path)  # 4
            else:
                try:
                    os.link(temporary, path)  # 4: a second name, which never replaces a file; then the first is removed
                    temporary.unlink()
                except OSError as error:
                    if error.errno not in _NO_LINKS:
                        raise
                    # Without hard links. The caller holds the pipeline's lock, so nobody comes in between.
                    if path.exists():
                        raise FileExistsError(errno.EEXIST, "it already exists", str(path)) from None
                    temporary.replace(path)
        except FileExistsError:
            temporary.unlink(missing_ok=True)
            raise
        except BaseException:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise
    if fsync:
        fsync_directory(path.parent)  # 5


def fsync_directory(path: Path) -> None:
    """Make renames, creations and removals in ``path`` survive a power cut."""
    with named_errors(path):
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def make_directory(path: Path, *, fsync: bool = True) -> None:
    """Create ``path`` and its missing parents; each becomes durable in the directory above it. Idempotent.

    ``path``, and missing directories below a directory ``_lakefeed``, are private to this user. Missing directories
    above it belong to the lake, which others may read. The permissions of existing directories stay as they are.
    """
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    with named_errors(path):
        for folder in reversed(missing):
            is_private = folder == path or STATE_FOLDER in folder.parts
            folder.mkdir(mode=PRIVATE_DIRECTORY if is_private else 0o777, exist_ok=True)
        path.mkdir(exist_ok=True)  # FileExistsError if it is a file
    for folder in missing if fsync else ():
        fsync_directory(folder.parent)


def is_temporary(path: Path | str) -> bool:
    """Whether ``replace_file`` writes under such a name, so that a crash may leave it behind."""
    name = path.name if isinstance(path, Path) else path
    return name.startswith(".") and name.endswith(_TEMPORARY_SUFFIX)


def remove_temporaries(folder: Path, *, older_than_seconds: float = 0.0) -> int:
    """Remove what killed writers left in ``folder`` (not below it). Returns the number of files.

    The caller owns the folder; if others may write there now, ``older_than_seconds`` spares their files.
    """
    removed = 0
    for path in folder.iterdir() if folder.is_dir() else ():
        with suppress(FileNotFoundError):  # its writer was alive after all, and has renamed it
            if not is_temporary(path):
                continue
            if older_than_seconds and time.time() - path.stat().st_mtime < older_than_seconds:
                continue
            path.unlink()
            removed += 1
    return removed


def pack(body: dict[str, Any]) -> bytes:
    """The bytes of a JSON file with ``body`` and its checksum, readable for people."""
    return json.dumps({"sha256": _checksum(body), "body": body}, indent=1, ensure_ascii=False).encode()


def unpack(data: bytes, path: Path | str) -> dict[str, Any]:
    """The inverse of ``pack``. JournalDamagedError, naming ``path``, for anything that ``pack`` did not write."""
    try:
        document = json.loads(data)
        body, checksum = document["body"], document["sha256"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:  # RecursionError: endless brackets
        raise JournalDamagedError(f"{path} is damaged: it is not the JSON that was written ({error})") from error
    if not isinstance(body, dict) or checksum != _checksum(body):
        raise JournalDamagedError(f"{path} is damaged: its checksum does not match its content")
    return body


def _checksum(body: dict[str, Any]) -> str:
    canonical = json.dumps(body, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()
