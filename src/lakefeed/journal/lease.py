"""Lease: one pipeline has one writer.

The lock is ``flock`` on the lease file: the kernel releases it when the process ends, however it ends, and refuses a
second opener in the same process too. The file's content says who holds it, with a generation that grows with every
holder. The content is the fence: right before it makes a change set visible, a writer checks that the file still has
what it wrote. A writer that has lost its file (deleted, replaced, locked by another host on a network file system)
finds out there and stops. Programs that this process starts do not inherit the lock, and a forked child releases its
copy at once: otherwise the child would keep the lock after the parent's end.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import time
import uuid
import weakref
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

from lakefeed.durable import PRIVATE_FILE, named_errors
from lakefeed.errors import LeaseError
from lakefeed.journal.store_lease import Claim, StoreLease, store_holder
from lakefeed.storage.base import Storage
from lakefeed.storage.location import storage_at

# ``lease_holder`` takes the lock for an instant to learn whether it is free; an opener waits until that has passed.
_TRIES = 10
_PAUSE_SECONDS = 0.02

_held: weakref.WeakSet[Lease] = weakref.WeakSet()


@dataclass(frozen=True, slots=True)
class Holder:
    """Who writes a journal, and since when. ``generation`` counts the holders."""

    pid: int
    host: str
    since: datetime
    generation: int

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host} since {self.since.isoformat(timespec='seconds')}"


class Lease:
    """The right to write, from ``acquire`` to ``release`` or the end of the process.

    ``held``: not released. Whether somebody else has taken it over is for ``check`` to find out.
    """

    def __init__(self, path: Path, descriptor: int, generation: int) -> None:
        self.held = True
        self._path = path
        self._descriptor = descriptor
        self._content = b""
        self.generation = generation
        self._write()

    @classmethod
    def acquire(cls, path: Path) -> Lease:
        """LeaseError, naming the holder, if another writer has it."""
        with named_errors(path):
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE_FILE)
        try:
            for attempt in range(_TRIES):
                with suppress(BlockingIOError):
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                if attempt == _TRIES - 1:
                    holder = _parse(path)
                    raise LeaseError(f"the journal {path.parent} is written by {holder or 'another process'}")
                time.sleep(_PAUSE_SECONDS)
            previous = _parse(path)
            with named_errors(path):
                lease = cls(path, descriptor, (previous.generation if previous else 0) + 1)
        except BaseException:
            os.close(descriptor)
            raise
        _watch_forks()
        _held.add(lease)
        return lease

    def outgrow(self, generation: int) -> None:
        """Take a generation above ``generation``: a lost lease file must not make an old one come back."""
        if self.generation <= generation:
            self.generation = generation + 1
            self._write()

    def check(self) -> None:
        """LeaseError unless the lease file still says what this holder wrote."""
        if not self.held:
            raise LeaseError(f"the lease {self._path} is not held; a forked process does not have its parent's")
        try:
            content = self._path.read_bytes()
        except OSError as error:
            raise LeaseError(f"the lease {self._path} is gone; another writer may own the journal") from error
        if content != self._content:
            holder = _parse(self._path)
            raise LeaseError(f"the lease {self._path} was taken over by {holder or 'another writer'}")

    def release(self) -> None:
        """Idempotent. The content stays, because the next holder continues from its generation."""
        if self.held:
            self.held = False
            os.close(self._descriptor)
            _held.discard(self)

    def _write(self) -> None:
        """Without a rename, since a renamed file would be another lock; in one write, so that readers see it whole."""
        body = {
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "since": datetime.now(UTC).isoformat(),
            "generation": self.generation,
            "token": uuid.uuid4().hex,
        }
        self._content = json.dumps(body).encode()
        os.pwrite(self._descriptor, self._content, 0)
        os.ftruncate(self._descriptor, len(self._content))
        os.fsync(self._descriptor)


def acquire_lease(root: Storage, name: str, *, seconds: float) -> Lease | StoreLease:
    """Become the writer. A LeaseError names the holder if there is one. ``seconds``: see ``store_lease``."""
    if root.directory is not None:
        return Lease.acquire(root.directory / name)
    return StoreLease.acquire(root, name, seconds=seconds)


def lease_holder(root: Path | str | Storage) -> Holder | Claim | None:
    """Who writes the journal at ``root`` right now; None if nobody does."""
    storage = storage_at(root)
    if storage.directory is None:
        return store_holder(storage, "lease")
    path = storage.directory / "lease"
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return None
    except BlockingIOError:
        return _parse(path)
    finally:
        os.close(descriptor)


@cache
def _watch_forks() -> None:
    """Once per process: a forked child closes its copies. The parent's lock stays, because the parent holds it, too."""

    def give_up() -> None:
        for lease in list(_held):
            lease.release()

    os.register_at_fork(after_in_child=give_up)


def _parse(path: Path) -> Holder | None:
    """The content of a lease file; None if it is not valid (new, or its writer died while writing it)."""
    try:
        body = json.loads(path.read_bytes())
        return Holder(body["pid"], body["host"], datetime.fromisoformat(body["since"]), body["generation"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
