"""Storage: where a pipeline's state is kept. The seam below the journal: local directories, object stores.

A storage is a tree of named files below one address; a name is relative, with slashes. The contract, which
``testing.storage_contract`` runs over every implementation:

- Whole or not at all: a reader sees the old content of a name or the new one, never a part of it.
- Durable: what ``replace``, ``create`` and ``finish`` have returned from survives the end of the process and of the
  machine.
- ``create`` is the fence: of several callers, in any process, that create one name, exactly one returns; the others
  get FileExistsError. One that cannot know whether it was the one (the answer was lost) gets an error, and reads.
- ``replace`` never takes back what another writer wrote unseen: a storage that several writers can reach at once (an
  object store) replaces only the content that this object has last read or written, and raises LeaseLostError if there
  is other content. A local directory has no such check: whoever writes there has the lease, a lock of the kernel.
- What is written is found: ``read``, ``size`` and ``entries`` see all that was written before they were called.
- Files of ``new_file`` are there for readers after ``finish``; a name is never written twice that way.
- Errors: FileNotFoundError and FileExistsError as said; JournalFullError and StorageUnavailableError, which are tried
  again; JournalError for anything else that the storage refuses. No call waits without an end.
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
    """One file: its name, its size, and the room that it takes."""

    name: str
    bytes: int
    stored_bytes: int


class NewFile(Protocol):
    """A file while it is written, piece by piece, by one thread. It ends with ``Storage.finish`` or ``discard``."""

    name: str

    def write(self, block: memoryview) -> None:
        """Add to its end."""

    def close(self) -> None:
        """Nothing more is written. Makes the content durable where that costs no request. Idempotent."""

    def discard(self) -> None:
        """Remove it, whatever state it is in. Raises nothing."""


@dataclass(frozen=True, slots=True)
class StoredFile:
    """One file of a storage."""

    storage: Storage
    name: str

    def __str__(self) -> str:
        return self.storage.place(self.name)

    def read(self) -> bytes | None:
        """None if there is none."""
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
    """The directory itself, where the storage is a local one. Locks of the kernel need it."""
    is_remote: bool = False
    """Each call is a request over the network: callers gather, and ask less often."""

    def __str__(self) -> str:
        return self.address

    @abstractmethod
    def below(self, name: str = "") -> Storage:
        """The storage of the names below ``name``: an object of its own, that has read nothing yet."""

    def place(self, name: str) -> str:
        """The address of one file, for people."""
        return f"{self.address}/{name}"

    @abstractmethod
    def read(self, name: str) -> bytes: ...

    def read_all(self, names: Sequence[str]) -> list[bytes]:
        """``read`` of each, in order; at the same time where that is faster."""
        return [self.read(name) for name in names]

    @abstractmethod
    def size(self, name: str) -> int | None:
        """How many bytes the file has; None if there is none."""

    @abstractmethod
    def entries(self, folder: str = "") -> list[Entry]:
        """Every file below a folder, at any depth, by name; what a killed writer left half-written is none."""

    def names(self, folder: str = "") -> list[str]:
        """Those of ``entries``, where sizes do not matter: of a local directory that is faster."""
        return [entry.name for entry in self.entries(folder)]

    @abstractmethod
    def folders(self, folder: str = "") -> list[str]:
        """The names directly below a folder that are folders themselves, in order."""

    @abstractmethod
    def has_folder(self, folder: str = "") -> bool:
        """True once ``make_folder`` has made it, or a file is in it; and while its parent is there, for ever after."""

    @abstractmethod
    def make_folder(self, folder: str = "") -> None:
        """Durable on return. Idempotent."""

    def settle(self, folder: str = "") -> None:  # noqa: B027  # most storages have nothing to do
        """What was made durable as a folder, and those above it, but may not have been when a crash came, is now."""

    @abstractmethod
    def replace(self, name: str, data: bytes) -> None:
        """Put ``data`` under a name, new or not. Its folder is made if need be."""

    @abstractmethod
    def age_seconds(self, name: str, *, exact: bool = True) -> float | None:
        """How long ago the file was written; None if there is none.

        ``exact``: by the storage's own clock, which may cost requests; else by this machine's.
        """

    @abstractmethod
    def create(self, name: str, data: bytes, *, before: Callable[[], None] | None = None) -> None:
        """Put ``data`` under a name that is not there yet, else FileExistsError.

        ``before`` is called as late as can be, for callers that check or crash there.
        """

    @abstractmethod
    def report(self, name: str, data: bytes) -> None:
        """Put ``data`` under a name for others to see. The last writer wins, and what fails is left out."""

    @abstractmethod
    def remove(self, names: Iterable[str]) -> None:
        """Remove files, in order; those that are not there are no error. On a crash some are gone and some are not."""

    @abstractmethod
    def remove_folder(self, folder: str = "") -> None:
        """Remove a folder and all that is in it."""

    @abstractmethod
    def move(self, other: Storage) -> None:
        """Everything is below the address of ``other`` from now on, which is a sibling and is not there yet."""

    @abstractmethod
    def new_file(self, name: str) -> NewFile:
        """Begin a large file."""

    @abstractmethod
    def finish(self, files: Sequence[NewFile]) -> None:
        """Make files that have been written durable under their names. If it raises, discard them all."""

    # Files as files: for readers that take a path (Parquet, Spark)

    @abstractmethod
    def path(self, name: str) -> str:
        """Where readers of this machine find the file, once ``fetch`` has returned."""

    @abstractmethod
    def name_of(self, path: str) -> str:
        """Inverse of ``path``."""

    def fetch(self, name: str) -> None:  # noqa: B027
        """Make the file readable at its path. FileNotFoundError if there is none."""

    def release(self, names: Iterable[str]) -> None:  # noqa: B027
        """Nobody of this process needs these at their paths any more; ``fetch`` may bring them back."""

    def clean(self, *, older_than_seconds: float = 0.0) -> int:  # noqa: ARG002
        """Remove what writers that were killed left half-written. Returns how many files."""
        return 0

    def require_fence(self) -> None:  # noqa: B027
        """ConfigError if the storage lets two writers have one name, whatever it was asked: nothing is safe there."""

    def without_fsync(self) -> Storage:
        """The same, which survives the end of the process only: for tests and benchmarks."""
        return self
