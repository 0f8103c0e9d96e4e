"""StoreLease: one pipeline has one writer, on a storage where no kernel can lock a file.

The lease is an object that says who writes, with a generation that grows with every holder, and for how many
seconds. The holder puts it again every third of that time, on the condition that it is still what it put last. A holder
that has not come through for four fifths of the time stops by itself; another takes over once the whole time has passed
since the last renewal, by the store's own clock or by what it has watched itself. No machine's wall clock is asked. A
lease that was given back, or whose process has died on this very machine, is free at once. A holder that works no more
(``is_alive``) does not renew it.

The lease keeps two writers from working at the same time. If a writer was suspended and comes back late, the journal
prevents harm: a change set's number is given once (``Storage.create``), and every other file is replaced only by a
writer that knows its content (``Storage.replace``).
"""

from __future__ import annotations

import atexit
import json
import logging
import os
import socket
import threading
import time
import uuid
import weakref
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

from lakefeed.errors import JournalError, LeaseError, LeaseLostError, StorageUnavailableError
from lakefeed.storage.base import Storage

log = logging.getLogger(__name__)

_RENEWALS, _SAFE_SHARE = 3, 0.8
_GRACE_SECONDS = 1.0
"""Object stores date objects in whole seconds."""
_AGAIN_SECONDS = 1.0
_RELEASE_SECONDS, _EXIT_SECONDS = 5.0, 30.0
_renewing: weakref.WeakSet[StoreLease] = weakref.WeakSet()


@dataclass(frozen=True, slots=True)
class Claim:
    """The content of a lease object. ``process`` identifies a process across machines, reboots and containers."""

    pid: int
    host: str
    since: datetime
    generation: int
    seconds: float
    process: str
    token: str
    renewals: int = 0
    released: bool = False

    def to_bytes(self) -> bytes:
        names = ("pid", "host", "generation", "seconds", "process", "token", "renewals", "released")
        body: dict[str, Any] = {name: getattr(self, name) for name in names}
        return json.dumps({**body, "since": self.since.isoformat()}).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Claim | None:
        """None for anything that is not a lease."""
        try:
            body = json.loads(data)
            return cls(**{**body, "since": datetime.fromisoformat(body["since"])})
        except (ValueError, KeyError, TypeError):
            return None

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host} since {self.since.isoformat(timespec='seconds')}"


class StoreLease:
    """See ``lease.Lease`` for the interface."""

    def __init__(self, root: Storage, name: str, claim: Claim, sent_at: float) -> None:
        self.held = True
        self._root = root
        self._name = name
        self._claim = claim
        self._valid_until = sent_at + claim.seconds * _SAFE_SHARE
        self._lost: str | None = None
        self.is_alive: Callable[[], bool] = lambda: True
        """Asked before each renewal. Where it says no, none is made, and the lease runs out."""
        self._owner = os.getpid()
        self._putting = threading.Lock()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._renew, name="lakefeed-lease", daemon=True)
        self._thread.start()
        _at_exit()
        _renewing.add(self)

    @property
    def generation(self) -> int:
        return self._claim.generation

    @classmethod
    def acquire(cls, root: Storage, name: str, *, seconds: float) -> StoreLease:
        """A LeaseError names the holder if another writer has it."""
        root = root.below()  # its own object, so that only this lease's reads count as known content
        found = _read(root, name)
        before = Claim.from_bytes(found) if found is not None else None
        if found is not None and (before is None or is_taken(root, name, found, before)):
            holder = str(before) if before is not None else "another process"
            left = f"; its lease expires {before.seconds:.0f} s after its last renewal" if before else ""
            raise LeaseError(f"the journal {root} is written by {holder}{left}")
        root.require_fence()
        claim = Claim(
            pid=os.getpid(),
            host=socket.gethostname(),
            since=datetime.now(UTC),
            generation=(before.generation if before is not None else 0) + 1,
            seconds=seconds,
            process=f"{_machine()}/{_started(os.getpid())}" if _machine() else "",
            token=uuid.uuid4().hex,
        )
        sent_at = _now()
        try:
            if found is None:
                root.create(name, claim.to_bytes())
            else:
                root.replace(name, claim.to_bytes())
        except (FileExistsError, LeaseLostError) as error:
            raise LeaseError(f"the journal {root} was just taken by another process") from error
        return cls(root, name, claim, sent_at)

    def outgrow(self, generation: int) -> None:
        """Take a generation above ``generation``: a lost lease object must not make an old one come back."""
        if self.generation <= generation:
            self._put(generation=generation + 1)

    def check(self) -> None:
        """LeaseLostError unless this process renewed it recently. Sends no request."""
        if not self.held or self._owner != os.getpid():
            raise LeaseError(f"the lease of {self._root} is not held; a forked process does not have its parent's")
        if self._lost is not None:
            raise LeaseLostError(self._lost)
        if _now() > self._valid_until:
            raise LeaseLostError(
                f"the lease of {self._root} could not be renewed for {self._claim.seconds * _SAFE_SHARE:.0f} s, so "
                "another process may have it by now"
            )

    def release(self) -> None:
        """Idempotent. The content stays, because the next holder continues from its generation."""
        if not self.held:
            return
        self.held = False
        self.stop(_RELEASE_SECONDS)
        if self._owner == os.getpid() and self._lost is None and _now() <= self._valid_until:
            with suppress(JournalError):  # otherwise it expires
                self._put(released=True)

    def stop(self, seconds: float) -> None:
        """Stop renewing, and wait up to ``seconds`` for a running request."""
        self._over.set()
        if self._owner == os.getpid() and threading.current_thread() is not self._thread:
            self._thread.join(seconds)

    def _renew(self) -> None:
        pause = self._claim.seconds / _RENEWALS
        while not self._over.wait(pause):
            pause = self._claim.seconds / _RENEWALS
            if not self.is_alive():
                log.warning("the lease of %s is not renewed: threads of its pipeline hang", self._root)
                continue
            try:
                self._put()
            except LeaseLostError as error:
                if not self._over.is_set():
                    log.warning("%s", error.message)
                return
            except JournalError as error:
                log.warning("the lease of %s was not renewed: %s", self._root, error.message)
                pause = min(pause, _AGAIN_SECONDS)

    def _put(self, *, generation: int | None = None, released: bool = False) -> None:
        with self._putting:
            was = self._claim
            claim = Claim(
                pid=was.pid,
                host=was.host,
                since=was.since,
                generation=generation or was.generation,
                seconds=was.seconds,
                process=was.process,
                token=was.token,
                renewals=was.renewals + 1,
                released=released,
            )
            sent_at = _now()
            try:
                self._root.replace(self._name, claim.to_bytes())
            except LeaseLostError as error:
                found = _read(self._root, self._name)
                holder = Claim.from_bytes(found) if found is not None else None
                if holder is not None and holder.token == was.token:  # our own earlier put has succeeded after all
                    self._claim = holder
                    raise StorageUnavailableError(f"the store was slow to take the lease of {self._root}") from error
                self._lost = f"the lease of {self._root} was taken over by {holder or 'another writer'}"
                raise LeaseLostError(self._lost) from error
            self._claim = claim
            self._valid_until = sent_at + claim.seconds * _SAFE_SHARE


_watched: dict[str, tuple[bytes, float, float]] = {}
"""Leases of others that this process has met: the content, since when it has not changed, and its age at that time."""


def is_taken(root: Storage, name: str, found: bytes, claim: Claim) -> bool:
    """Whether the holder may still be alive. A lease that was met before is watched; its age is not asked again."""
    if claim.released or _has_died(claim):
        return False
    place = root.place(name)
    content, since, age = _watched.get(place, (b"", 0.0, 0.0))
    if content != found:
        # A lease met for the first time may be old; one that has changed while it was watched is new.
        age = (root.age_seconds(name) or 0.0) if not content else 0.0
        content, since = found, _now()
        _watched[place] = (content, since, age)
    return max(0.0, age) + _now() - since < claim.seconds + _GRACE_SECONDS


def store_holder(root: Storage, name: str) -> Claim | None:
    """Who writes, as far as one request shows; None if nobody does."""
    root = root.below()
    found = _read(root, name)
    claim = Claim.from_bytes(found) if found is not None else None
    if claim is None or claim.released or _has_died(claim):
        return None
    age = root.age_seconds(name, exact=False)
    return claim if age is not None and age < claim.seconds + _GRACE_SECONDS else None


@cache
def _at_exit() -> None:
    """Once per process: an interpreter that ends while a thread is inside the store's library is aborted."""

    def stop_all() -> None:
        for lease in list(_renewing):
            lease.stop(_EXIT_SECONDS)

    atexit.register(stop_all)


def _read(root: Storage, name: str) -> bytes | None:
    try:
        return root.read(name)
    except FileNotFoundError:
        return None


def _has_died(claim: Claim) -> bool:
    """Certain only: its process was on this machine, in this container, and no longer exists."""
    machine, _, started = claim.process.rpartition("/")
    return bool(machine) and machine == _machine() and started != _started(claim.pid)


def _machine() -> str:
    """Identifies this machine since its boot, and the container on it; empty if the system does not say."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return ""


def _started(pid: int) -> str:
    """When a process was started, in kernel ticks; empty if it does not exist or has ended."""
    try:
        facts = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if facts[0] in "ZX" else facts[19]


def _now() -> float:
    """Seconds on a clock that nobody sets and that continues while the machine sleeps."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))
