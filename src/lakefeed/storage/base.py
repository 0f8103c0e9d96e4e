"""Storage: where a pipeline's state is kept. The seam below the journal: local directories, object stores.

A storage is a tree of named files below one address; names are relative, with slashes. The contract, which
``testing.storage_contract`` checks for every implementation:

- Atomic: a reader sees the old content of a name or the new one, never a part of it.
- Durable: once ``replace``, ``create`` or ``finish`` has returned, its effect survives the end of the process and of
  the machine.
- ``create`` is the fence: of several callers, in any process, that create the same name, exactly one succeeds; the
  others get FileExistsError. A caller that cannot know whether it succeeded (the response was lost) gets an error, and
  must read.
- ``replace`` never overwrites what another writer wrote unseen: a storage that several writers can reach at once (an
  object store) replaces only the content that this object last read or wrote, and raises LeaseLostError if it finds
  other content. A local directory has no such check: its writer has the lease, a lock of the kernel.
- Consistent: ``read``, ``size`` and ``entries`` see everything that was written before they were called.
- Files of ``new_file`` exist for readers after ``finish``; a name is never written twice that way.
- Errors: FileNotFoundError and FileExistsError as described; JournalFullError and StorageUnavailableError, which are
  retried; JournalError for anything else that the storage refuses. No call waits without a limit.
- Threads: any method from any thread.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Entry:
    """One file: its name, its size, and its size on disk."""

    name: str
    bytes: int
    stored_bytes: int


class NewFile(Protocol):
    """A file being written, block by block, by one thread. ``Storage.finish`` or ``discard`` ends it."""

    name: str

    def write(self, block: memoryview) -> None:
        """Append a block."""

    def close(self) -> None:
        """No more writes follow. Makes the content durable if that costs no request. Idempotent."""

    def discard(self) -> None:
        """Remove it, whatever state it is in. Never raises."""


@dataclass(frozen=True, slots=True)
class StoredFile:
    """One file of a storage."""

    storage: Storage
    name: str

    def __str__(self) -> str:
        return self.storage.place(self.name)

    def read(self) -> bytes | None:
        """None if the file does not exist."""
        try:
            return self.storage.read(self.name)
        except FileNotFoundError:
            return None

    def replace(self, data: bytes) -> None:
        self.storage.replace(self.name, data)


class Storage(ABC):
    """See the module. ``address``: an absolute path or a URL, without secrets."""

    address: str
    directory: Path | None = None
    """The directory itself, if the storage is local. Kernel locks need it."""
    is_remote: bool = False
    """Each call is a network request: callers batch, and ask less often."""

    def __str__(self) -> str:
        return self.address

    @abstractmethod
    def below(self, name: str = "") -> Storage:
        """The storage of the names below ``name``: a new object, which has not read anything yet."""

    def place(self, name: str) -> str:
        """The address of one file, for people."""
        return f"{self.address}/{name}"

    @abstractmethod
    def read(self, name: str) -> bytes: ...

    def read_all(self, names: Sequence[str]) -> list[bytes]:
        """``read`` of each, in order; in parallel if that is faster."""
        return [self.read(name) for name in names]

    @abstractmethod
    def size(self, name: str) -> int | None:
        """The size of the file in bytes; None if it does not exist."""

    @abstractmethod
    def state(self, name: str) -> tuple[object, ...] | None:
        """What tells a file from any other that has or will have this name; None if it does not exist."""

    @abstractmethod
    def entries(self, folder: str = "") -> list[Entry]:
        """Every file below a folder, at any depth, sorted by name; without what a killed writer left half-written."""

    def names(self, folder: str = "") -> list[str]:
        """The names of ``entries``, without sizes, which is faster for a local directory."""
        return [entry.name for entry in self.entries(folder)]

    @abstractmethod
    def folders(self, folder: str = "") -> list[str]:
        """The names of the folders directly below a folder, sorted."""

    @abstractmethod
    def has_folder(self, folder: str = "") -> bool:
        """True once ``make_folder`` has made it or a file is in it; then it stays true while its parent exists."""

    @abstractmethod
    def make_folder(self, folder: str = "") -> None:
        """Durable on return. Idempotent."""

    def settle(self, folder: str = "") -> None:  # noqa: B027  # most storages have nothing to do
        """Make a folder and those above it durable now, in case a crash came before they were."""

    @abstractmethod
    def replace(self, name: str, data: bytes) -> None:
        """Write ``data`` under a name, new or not. Creates its folder if need be."""

    @abstractmethod
    def age_seconds(self, name: str, *, exact: bool = True) -> float | None:
        """How long ago the file was written; None if it does not exist.

        ``exact``: by the storage's own clock, which may cost requests; otherwise by this machine's.
        """

    @abstractmethod
    def create(self, name: str, data: bytes, *, before: Callable[[], None] | None = None) -> None:
        """Write ``data`` under a name that must not exist yet, else FileExistsError.

        ``before`` is called as late as possible, for callers that check something or crash there.
        """

    @abstractmethod
    def report(self, name: str, data: bytes) -> None:
        """Write ``data`` under a name for others to see. The last writer wins; failures are ignored."""

    @abstractmethod
    def remove(self, names: Iterable[str]) -> None:
        """Remove files, in order; missing ones are not an error. After a crash some may be gone and some not."""

    @abstractmethod
    def remove_folder(self, folder: str = "") -> None:
        """Remove a folder and everything in it."""

    @abstractmethod
    def move(self, other: Storage) -> None:
        """Move everything to the address of ``other``, a sibling that does not exist yet."""

    @abstractmethod
    def new_file(self, name: str) -> NewFile:
        """Start a large file."""

    @abstractmethod
    def finish(self, files: Sequence[NewFile]) -> None:
        """Make files that have been written durable under their names. If it raises, discard them all."""

    # Access by path, for readers that need one (Parquet, Spark)

    @abstractmethod
    def path(self, name: str) -> str:
        """Where readers on this machine find the file, once ``fetch`` has returned."""

    @abstractmethod
    def name_of(self, path: str) -> str:
        """The inverse of ``path``."""

    def fetch(self, name: str) -> None:  # noqa: B027
        """Make the file readable at its path. FileNotFoundError if it does not exist."""

    def release(self, names: Iterable[str]) -> None:  # noqa: B027
        """This process no longer needs these files at their paths; ``fetch`` may bring them back."""

    def clean(self, *, older_than_seconds: float = 0.0) -> int:  # noqa: ARG002
        """Remove what killed writers left half-written. Returns the number of files."""
        return 0

    def require_fence(self) -> None:  # noqa: B027
        """ConfigError if the storage ignores conditions, so that two writers could get the same name: that is
        unsafe."""

    def without_fsync(self) -> Storage:
        """The same storage, but it only survives the end of the process: for tests and benchmarks."""
        return self
