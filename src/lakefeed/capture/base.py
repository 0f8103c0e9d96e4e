"""The seam between databases and the rest of Lakefeed: ChangeCapture and the values it uses.

A mechanism (log, trigger, polling) has two independent abilities, live changes and snapshots; the flow decides when to
use which. The lake, not the mechanism, knows whether a table needs a snapshot."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar, runtime_checkable

import pyarrow as pa

from lakefeed.change.change_set import ChangeSet
from lakefeed.change.choice import Choices
from lakefeed.change.position import Position
from lakefeed.change.table import Comments, TableId, TableSchema
from lakefeed.errors import SourceChangedError, SourceSetupError, StateError
from lakefeed.storage.base import Storage

if TYPE_CHECKING:
    from lakefeed.capture.poll.source import FullDiff

_T = TypeVar("_T")
_P = TypeVar("_P", bound=Position)


class Continuity(Enum):
    """Whether capture can go on from a position without a gap. FRESH: there is no resume point, so the lake's copies
    are stale."""

    RESUMED = "resumed"
    FRESH = "fresh"


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What a mechanism can do, as data, so that callers need not try.

    ``before_images``: it can deliver rows as they were before an update or delete, if asked to. ``every_change``: it
    delivers each change of a row, not only the row's state at the next poll. ``current_chunks``: a chunk has the rows
    as they are when it is read, however old its plan is, and never older than what ``live`` has delivered."""

    deletes: bool = True
    before_images: bool = False
    transactions: bool = True
    schema_changes: bool = False
    exact_snapshot: bool = False
    snapshot_resume: bool = False
    every_change: bool = True
    current_chunks: bool = False


class Level(Enum):
    ERROR = "error"
    WARNING = "warning"


class Statement(str):
    """A remedy that is SQL and can be run as printed. A comment at its end says what else is to be done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A problem found by preflight. ``remedy`` is the exact Statement or command that repairs it."""

    level: Level
    problem: str
    remedy: str
    table: TableId | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Lag:
    """How far the confirmed position is behind the source. Never negative; None where a figure does not exist.

    ``retained_bytes``: how much log the source keeps from the confirmed position on. ``left_bytes``, ``left_seconds``:
    how much more log can be written, or how much time can pass, before the source removes log that is not confirmed
    yet; None if it has no such limit. ``source``: further figures of this kind of source, under the source's names."""

    rows: int | None = None
    bytes: int | None = None
    seconds: float | None = None
    retained_bytes: int | None = None
    left_bytes: int | None = None
    left_seconds: float | None = None
    source: Mapping[str, int | str | None] = field(default_factory=dict)


class ChunkReader(AbstractContextManager["ChunkReader"], Protocol):
    """An open chunk. Iterate once to get its rows as Arrow, with the table's own columns (``TableSchema.arrow``) and no
    metadata; then read its bracket. All rows of a chunk come from states of the table between ``low`` and ``high``; if
    the two are equal, the chunk is exact."""

    def __iter__(self) -> Iterator[pa.RecordBatch]: ...
    @property
    def low(self) -> Position: ...
    @property
    def high(self) -> Position: ...


class Chunk(Protocol):
    """A part of a table that any process can read on its own. Picklable; holds no connection."""

    @property
    def table(self) -> TableId: ...
    def open(self) -> ChunkReader: ...
    def to_json(self) -> Mapping[str, Any]:
        """JSON that ``ChangeCapture.chunk`` turns back into an equal chunk after a restart."""


@dataclass(frozen=True, slots=True)
class SnapshotPlan:
    """The chunks of one table. Together they cover every key that exists or will exist, without overlap.

    ``exact_at``: the single state that all chunks are meant to be read at; if it can no longer be read, their ``high``
    shows that. ``is_exact``: there is one chunk, which is read at a single state, namely its ``high``."""

    schema: TableSchema
    chunks: tuple[Chunk, ...]
    rows_estimate: int
    exact_at: Position | None = None
    is_exact: bool = False


class TableSize(NamedTuple):
    """Approximate numbers of rows and bytes of a table; None where only reading the table would tell."""

    rows: int | None = None
    bytes: int | None = None


class ChangeCapture(ABC):
    """Changes and rows of one database, for one pipeline.

    Order of calls, crash-safe between any two of them:
      1. ``open``           connects; changes nothing in the source
      2. ``continuity``     read-only; asked once, before everything else
      3. (the lake durably stages the tables that must be copied)
      4. ``prepare``        creates the durable resume point; idempotent; before any snapshot
      5. ``snapshot``       plans the chunks; Spark tasks read them; ``copied`` once all chunks of a table are read
      6. ``live``           delivers change sets strictly after a position
      7. ``confirm``        lets the source forget everything up to a position; only after it is durable elsewhere
      8. ``close``          idempotent; the resume point stays

    Delivery is at least once: after a restart, changes that were not confirmed are delivered again, and confirmed ones
    are not. Change sets end at commit boundaries, so a transaction is never delivered in part.

    Threads: the iterator of ``live`` and ``confirm`` belong to one thread, the stream's. ``discover``, ``recall``,
    ``prepare``, ``snapshot``, ``copied`` and ``chunk`` belong to one thread at a time, which may differ from the
    stream's and runs concurrently with it: preparing and copying a table never delays the changes of other tables.
    ``lag``, ``end`` and ``check`` may be called from any thread at any time; they use connections of their own.
    ``close`` may be called from any thread and makes every other call return or raise within seconds.

    Errors: SourceUnavailableError may be retried (call ``close`` and ``open`` first); the others may not.
    TableStoppedError, SourceSetupError and DecodeError raised by ``prepare``, ``snapshot`` and chunks concern a single
    table.

    A capture of your own needs ``kind``, ``live`` and, so that its log can shrink, ``confirm``. The other methods have
    defaults for the simplest kind of source: one that can always resume, and has no snapshot and no lag.
    """

    kind: str
    """The source's name in positions and checkpoints: sqlite, postgres, mysql, mariadb, or your own."""

    slot: str | None = None
    """The name of the source's record of how far this capture has come, if it has a name: PostgreSQL's slot."""

    capabilities = Capabilities()

    def represent(self, choices: Choices) -> None:  # noqa: B027
        """Receives what the lake wants from the tables: which columns, which types, and what to do with values that
        these cannot hold. Called before each ``open``. A capture follows the rules as far as its source can; the flow
        leaves columns out itself, and stops a table whose schema does not comply with its rule."""

    def sizes(self, tables: Sequence[TableId]) -> Mapping[TableId, TableSize]:  # noqa: ARG002
        """Approximate sizes from the source's own statistics, without the tables that it has none for. Cheap; uses a
        connection of its own."""
        return {}

    def comments(self, table: TableId) -> Comments:  # noqa: ARG002
        """The current comments on a table and its columns. Cheap; uses a connection of its own."""
        return Comments()

    def keep_state(self, state: Storage) -> None:  # noqa: B027
        """Called once, before ``open``, with the pipeline's state storage, for a source that cannot store its resume
        point itself."""

    def open(self) -> None:  # noqa: B027  # a source without a connection needs none
        """Connect. Idempotent."""

    def close(self) -> None:  # noqa: B027
        """Release every connection. Idempotent; ``open`` may follow."""

    def identity(self) -> str | None:
        """Identifies this very database (system identifier, server uuid, file id). None until ``prepare`` assigns
        it."""
        return self.kind

    def take_over(self, known: str, position: Position) -> Position:  # noqa: ARG002
        """Called if ``identity`` differs from ``known``, the identity in the journal, which ends at ``position``.

        If this database provably continues that history (a promoted standby), returns where capture goes on:
        ``position``, or a later one if nothing lies in between. Otherwise PositionLostError or SourceChangedError says
        what is missing. Read-only; ``continuity`` is called next, with the returned position."""
        raise SourceChangedError(f"the journal belongs to {known}, not to {self.identity()}")

    def continuity(self, position: Position | None, tables: Sequence[TableId]) -> Continuity:  # noqa: ARG002
        """Whether live capture of ``tables`` can go on strictly after ``position``. FRESH: nothing was prepared, or the
        source no longer knows that it was. PositionLostError if the source was set back, has lost its log, or is
        behind ``position``: never a silent fresh start. A table whose own resume point is missing is not an error:
        ``live`` reports RecopyNeeded for it."""
        return Continuity.RESUMED

    def recall(self, schemas: Sequence[TableSchema]) -> None:  # noqa: B027
        """Receives the newest schema that each captured table was delivered with, in change sets or copies. Called
        before ``live``, and again for a table that is copied, so that a mechanism that records nothing in the source
        still notices what changed while no process ran. A mechanism with its own record may ignore it."""

    def discover(self) -> tuple[TableSchema, ...]:
        """The tables that the configured patterns match, as they are now. ConfigError for a pattern without a match."""
        return ()

    def unsent(self, table: TableId) -> str | None:  # noqa: ARG002
        """The Statement that makes the source send large values with every update, if it leaves out unchanged ones;
        None if it sends whole rows. ``table`` has been discovered."""
        return None

    def wants(self, table: TableId) -> bool:  # noqa: ARG002
        """Whether the configured patterns match ``table``, existing or not. Asks no database."""
        return True

    def prepare(self, tables: Sequence[TableId]) -> Position:
        """Create the resume point for ``tables`` and return its position. Tables captured already stay captured."""
        raise SourceSetupError(f"{self.kind} has no tables to prepare: {', '.join(map(str, tables))}")

    def snapshot(self, table: TableId, *, chunk_rows: int = 250_000) -> SnapshotPlan:  # noqa: ARG002
        """Plan the copy of one table. Never writes to the source. SourceSetupError if the table does not exist. By
        default the plan is empty: a source that only has changes has no rows to copy."""
        for schema in self.discover():
            if schema.table == table:
                return SnapshotPlan(schema, (), 0)
        raise SourceSetupError(f"{self.kind} has no table {table}, so it cannot be copied")

    def reread(
        self,
        known: TableSchema,
        *,
        keys: Sequence[tuple[Any, ...]] | None = None,  # noqa: ARG002
        chunk_rows: int = 250_000,  # noqa: ARG002
        where: Sequence[str] = (),  # noqa: ARG002
    ) -> SnapshotPlan:
        """Plan to read rows of a table again while it is captured: for a comparison, or to repair rows.

        ``known`` is the schema that the table was delivered with; those of its columns that still exist are read.
        ``keys`` (see ``dialect.key_rows``): only the rows with these keys. ``where``: SQL conditions on the alias
        ``t``. The bracket of each chunk says which commits its rows include; for a source that polls it is the time of
        the newest row. May be called from any thread, even before ``open``; writes nothing to the source and leaves
        this capture's state alone. SourceSetupError if the source cannot do this.
        """
        raise SourceSetupError(f"rows of {known.table} cannot be read beside the stream: {self.kind} has no such read")

    def copied(self, table: TableId) -> None:  # noqa: B027
        """The copy of ``table`` has finished or was given up: release what was kept open for it. Idempotent."""

    def chunk(self, data: Mapping[str, Any]) -> Chunk:
        """The inverse of ``Chunk.to_json``."""
        raise SourceSetupError(f"{self.kind} has no chunks, so {dict(data)} is not one of them")

    @abstractmethod
    def live(self, after: Position | None, *, wait_seconds: float = 1.0) -> Iterator[ChangeSet]:
        """Change sets strictly after ``after`` (None: after the resume point), without end, each starting where the
        previous one ended. Each ``next`` returns within about ``wait_seconds``, and at once if there are changes; a
        heartbeat means that there were none. ``wait_seconds=0`` never waits."""

    def end(self) -> Position | None:
        """Where the source's log ends now: everything committed so far lies at or before it, and a drain stops there.
        None if that is not known; draining a source under constant writes then stops after a minute."""
        return None

    def confirm(self, position: Position) -> None:  # noqa: B027
        """Let the source forget everything up to ``position``. Cumulative and cheap. Never moves back: confirming an
        older position does nothing."""

    def lag(self) -> Lag:
        """How far the confirmed position is behind the source. Unknown by default."""
        return Lag()

    def check(self) -> tuple[Finding, ...]:
        """Preflight. An empty tuple means ready; an exception means that the check itself could not run."""
        return ()

    def uninstall(self) -> tuple[str, ...]:
        """Remove everything that ``prepare`` made, without a trace. Returns the names of what was removed."""
        return ()


@runtime_checkable
class Comparable(Protocol):
    """Implemented by a capture whose source can be compared with the lake in full. Polling needs that; a log and
    triggers deliver every delete. May be called from any thread, beside the stream, and before ``open``."""

    def full_diff(self, table: TableId) -> FullDiff | None:
        """How, and how often, the table is compared; None if only on demand."""

    def differences(self, table: TableId) -> Path | None:
        """The directory from which the capture picks up the differences found in ``table``; None if there is none."""

    def keys(
        self, table: TableId, *, known: TableSchema | None = None, chunk_rows: int = 1_000_000, whole_rows: bool = False
    ) -> SnapshotPlan:
        """The plan of a comparison: chunks of the table's keys, or of whole rows. ``known``: the delivered schema."""

    def chunk(self, data: Mapping[str, Any]) -> Chunk:
        """The inverse of ``Chunk.to_json``."""


class Source(Protocol):
    """What a user writes, such as ``Sqlite("shop.db")``. ``bind`` turns it into the capture of one pipeline."""

    def bind(self, pipeline: str) -> ChangeCapture: ...


def opened(kept: _T | None) -> _T:
    """What ``open`` made; StateError before ``open`` and after ``close``."""
    if kept is None:
        raise StateError("the capture is not open", remedy="Call open first.")
    return kept


def of_kind(position: Position, *kinds: type[_P]) -> _P:
    """``position``, if it is one of the source's own kinds; otherwise SourceChangedError."""
    if not isinstance(position, kinds):
        raise SourceChangedError(f"{position.encode()} is a position of another kind of source, not of {kinds[0].kind}")
    return position
