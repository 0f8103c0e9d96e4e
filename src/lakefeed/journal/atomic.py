"""The only way Lakefeed writes a file that must survive: temporary name → fsync → rename → fsync of the directory.

A reader sees the old content or the new content, never a part of it. After ``write_atomic`` returns with ``fsync``
on, a power cut does not undo it: the content was forced out before the rename, and the rename (a change of the
directory) before the return. Without ``fsync`` a process crash still leaves old or new; a power cut may not.
"""

from __future__ import annotations

import errno
import os
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from lakefeed.errors import JournalError, JournalFullError

_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT})
_TEMPORARY_SUFFIX = ".tmp"


def write_atomic(
    path: Path, data: bytes, *, fsync: bool = True, before_rename: Callable[[], None] | None = None
) -> None:
    """Put ``data`` at ``path``, whole or not at all. The steps:

    1. write to a temporary name, unique to this call, in the same directory
    2. fsync the temporary file
    3. ``before_rename``, for callers that check or crash there
    4. rename over ``path``
    5. fsync the directory

    If a step before 4 fails, nothing has changed and the temporary file is removed. If 5 fails, the new content is
    visible but may not survive a power cut: the error says so, and writing the same again repairs it.
    Raises JournalFullError if there is no room, JournalError for any other refusal of the file system.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{uuid.uuid4().hex}{_TEMPORARY_SUFFIX}")
    with _named_errors(path):
        try:
            _write_new(temporary, data, fsync=fsync)
            if before_rename is not None:
                before_rename()
            temporary.replace(path)
        except BaseException:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise
    if fsync:
        fsync_directory(path.parent)


def fsync_directory(path: Path) -> None:
    """Make renames, creations and removals inside ``path`` survive a power cut."""
    with _named_errors(path):
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def is_temporary(path: Path) -> bool:
    """True for the names under which ``write_atomic`` writes: what a crash may leave behind."""
    return path.name.startswith(".") and path.name.endswith(_TEMPORARY_SUFFIX)


def _write_new(path: Path, data: bytes, *, fsync: bool) -> None:
    with path.open("xb") as file:
        file.write(data)
        file.flush()
        if fsync:
            os.fsync(file.fileno())


@contextmanager
def _named_errors(path: Path) -> Iterator[None]:
    """Map the file system's refusals once, here."""
    try:
        yield
    except OSError as error:
        if error.errno in _NO_ROOM:
            raise JournalFullError(f"no room left to write {path}: {error.strerror}") from error
        raise JournalError(f"{path} cannot be written: {error.strerror or error}") from error
