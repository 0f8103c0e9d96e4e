"""The seam between databases and the rest: ChangeCapture and the values it deals in.

A mechanism (log, trigger, polling) has two independent abilities, live changes and snapshots; the flow decides when
to use which. Whether a table needs a snapshot is the lake's answer, not the mechanism's."""

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
    """Can capture go on from a position without a gap? FRESH: there is no resume point; the lake's copies are stale."""

    RESUMED = "resumed"
    FRESH = "fresh"


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What a mechanism can see. Data, so that callers decide by looking and not by trying.

    ``before_images``: rows as they were before an update or delete come along, if they are asked for. ``every_change``:
    each change of a row is delivered, and not only what it has come to since the last poll. ``current_chunks``: a
    chunk, however old its plan, has the rows as they are when it is read, never older than what ``live`` gave."""

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
    """A remedy that is SQL and can be run as it is. What else is to be done stands in a comment at its end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A problem that preflight found. ``remedy`` is the exact Statement or command that repairs it."""

    level: Level
    problem: str
    remedy: str
    table: TableId | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Lag:
    """How far the confirmed position trails the source. Never negative; None where there is no such notion.

    ``retained_bytes``: what of its log the source has from the confirmed position on. ``left_bytes``, ``left_seconds``:
    how much more log may be written, or time may pass, before the source removes what is not confirmed yet; None where
    it sets no such limit. ``source`` is what else this kind of source says about its log, by the source's own names."""

    rows: int | None = None
    bytes: int | None = None
    seconds: float | None = None
    retained_bytes: int | None = None
    left_bytes: int | None = None
    left_seconds: float | None = None
    source: Mapping[str, int | str | None] = field(default_factory=dict)


class ChunkReader(AbstractContextManager["ChunkReader"], Protocol):
    """An open chunk: iterate once for its rows as Arrow, with the table's own columns (``TableSchema.arrow``) and no
    metadata, then ask for the bracket. All rows of one chunk come from states of the table between ``low`` and
    ``high``; where the two are equal, the chunk is exact."""

    def __iter__(self) -> Iterator[pa.RecordBatch]: ...
    @property
    def low(self) -> Position: ...
    @property
    def high(self) -> Position: ...


class Chunk(Protocol):
    """A piece of a table that any process can read on its own. Picklable; holds no connection."""

    @property
    def table(self) -> TableId: ...
    def open(self) -> ChunkReader: ...
    def to_json(self) -> Mapping[str, Any]:
        """What ``ChangeCapture.chunk`` turns back into an equal chunk after a restart."""


@dataclass(frozen=True, slots=True)
class SnapshotPlan:
    """The chunks of one table. Together they cover every key that exists or will exist, without overlap. ``exact_at``:
    the one state that they are all read at, if that can still be read then; their ``high`` says whether it was.
    ``is_exact``: there is one chunk, and it is read at one state, whichever that is: its ``high``."""

    schema: TableSchema
    chunks: tuple[Chunk, ...]
    rows_estimate: int
    exact_at: Position | None = None
    is_exact: bool = False


class TableSize(NamedTuple):
    """About how many rows and bytes a table has; None where nobody knows without reading it."""

    rows: int | None = None
    bytes: int | None = None


class ChangeCapture(ABC):
    """Changes and rows of one database, for one pipeline.

    Order of calls, crash-safe between any two of them:
      1. ``open``           connect; nothing is changed in the source
      2. ``continuity``     read-only, asked first, once
      3. (the lake stages what must be copied, durably)
      4. ``prepare``        the durable resume point exists from here on; idempotent; before any snapshot
      5. ``snapshot``       plan the chunks; Spark tasks read them; ``copied`` when a table's are all read
      6. ``live``           change sets strictly after a position
      7. ``confirm``        the source may forget everything up to a position; only after it is durable elsewhere
      8. ``close``          idempotent; the resume point stays

    Delivery is at least once: what was not confirmed is delivered again after a restart, and what was confirmed is
    not. Change sets end at commit boundaries, so a transaction is never delivered in part.

    Threads: the iterator of ``live`` and ``confirm`` belong to one thread, the stream's. ``discover``, ``recall``,
    ``prepare``, ``snapshot``, ``copied`` and ``chunk`` belong to one thread at a time, which may be another than the
    stream's and works beside it: preparing and copying a table never delays the changes of the others. ``lag``,
    ``end`` and ``check`` may be called from any thread at any time, on connections of their own. ``close`` may be
    called from any thread and makes every other call return or raise within seconds.

    Errors: SourceUnavailableError may be retried (call ``close`` and ``open`` first); the others may not.
    TableStoppedError, SourceSetupError and DecodeError of ``prepare``, ``snapshot`` and chunks concern one table alone.

    A capture of one's own needs ``kind``, ``live`` and, so that its log may shrink, ``confirm``. Everything else has a
    default that is true of the simplest source there is: one that always resumes, has no snapshot and no notion of lag.
    """

    kind: str
    """The source's name in positions and checkpoints: sqlite, postgres, mysql, mariadb, or one's own."""

    slot: str | None = None
    """What the source keeps the capture's place under, where that has a name: PostgreSQL's replication slot."""

    capabilities = Capabilities()

    def represent(self, choices: Choices) -> None:  # noqa: B027
        """What the lake wants of the tables: which columns, as which types, and what becomes of values that these
        cannot hold. Called before ``open``, and before each one that follows. A capture does as much of it as its
        source has; the flow leaves columns out itself, and stops a table whose schema is not as its rule says."""

    def sizes(self, tables: Sequence[TableId]) -> Mapping[TableId, TableSize]:  # noqa: ARG002
        """About how large tables are, by the source's own statistics; those that it has none of are left out. On a
        connection of its own; cheap."""
        return {}

    def comments(self, table: TableId) -> Comments:  # noqa: ARG002
        """What the source says to people of a table, as it is now. On a connection of its own; cheap."""
        return Comments()

    def keep_state(self, state: Storage) -> None:  # noqa: B027
        """Called once, before ``open``: where the pipeline keeps its state, for a source that keeps no resume point."""

    def open(self) -> None:  # noqa: B027  # a source without a connection needs none
        """Connect. Idempotent."""

    def close(self) -> None:  # noqa: B027
        """Let go of every connection. Idempotent; ``open`` may follow."""

    def identity(self) -> str | None:
        """Names this very database (system identifier, server uuid, file id). None before ``prepare`` made one."""
        return self.kind

    def take_over(self, known: str, position: Position) -> Position:  # noqa: ARG002
        """Asked where ``identity`` is not ``known``, the one of the journal, which ends at ``position``. Returns where
        capture goes on if this database demonstrably continues that history (a promoted standby): ``position``, or a
        later one where nothing lies between. PositionLostError or SourceChangedError says what is missing. Read-only:
        ``continuity`` follows, at the position that this returned."""
        raise SourceChangedError(f"the journal belongs to {known}, not to {self.identity()}")

    def continuity(self, position: Position | None, tables: Sequence[TableId]) -> Continuity:  # noqa: ARG002
        """Can live capture of ``tables`` go on strictly after ``position``? FRESH: nothing was prepared, or the source
        has forgotten that it was. PositionLostError if the source has moved back, lost its log or is behind it: never a
        silent fresh start. A table whose own resume point is missing is no error: ``live`` reports RecopyNeeded."""
        return Continuity.RESUMED

    def recall(self, schemas: Sequence[TableSchema]) -> None:  # noqa: B027
        """The newest schemas that earlier change sets and copies were delivered with, one per captured table. Called
        before ``live``, and again for a table that is copied: so a mechanism that keeps no record in the source still
        notices what changed while no process ran. One that does may ignore it."""

    def discover(self) -> tuple[TableSchema, ...]:
        """The tables the configured patterns match, as they are now. ConfigError for a pattern that matches none."""
        return ()

    def unsent(self, table: TableId) -> str | None:  # noqa: ARG002
        """The Statement that has the source send large values with every update, where it leaves out those that did not
        change; None where it sends whole rows. Of a table that was discovered."""
        return None

    def wants(self, table: TableId) -> bool:  # noqa: ARG002
        """Do the configured patterns match ``table``, whether it is there or not? Asks nobody."""
        return True

    def prepare(self, tables: Sequence[TableId]) -> Position:
        """Create the resume point for ``tables`` (others that are captured already stay). Returns where it is."""
        raise SourceSetupError(f"{self.kind} has no tables to prepare: {', '.join(map(str, tables))}")

    def snapshot(self, table: TableId, *, chunk_rows: int = 250_000) -> SnapshotPlan:  # noqa: ARG002
        """Plan the copy of one table. Never writes to the source. SourceSetupError if there is no such table. A source
        that has changes alone has no rows to copy: by default the plan is empty."""
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
        """Plan to read rows of a table again, beside whoever captures it: for a comparison, or to repair rows.

        ``known`` is the schema that it was delivered with: of that, the columns that are still there are read. ``keys``
        (see ``dialect.key_rows``): the rows with these alone. ``where``: SQL conditions on the alias ``t``. The bracket
        of each chunk says which commits its rows have; a source that polls says the time of the newest row. Any thread,
        also before ``open``; writes nothing, neither to the source nor to what this capture remembers.
        SourceSetupError if the source cannot do that.
        """
        raise SourceSetupError(f"rows of {known.table} cannot be read beside the stream: {self.kind} has no such read")

    def copied(self, table: TableId) -> None:  # noqa: B027
        """The copy of ``table`` is over, finished or given up: what is kept open for it may go. Idempotent."""

    def chunk(self, data: Mapping[str, Any]) -> Chunk:
        """Inverse of ``Chunk.to_json``."""
        raise SourceSetupError(f"{self.kind} has no chunks, so {dict(data)} is not one of them")

    @abstractmethod
    def live(self, after: Position | None, *, wait_seconds: float = 1.0) -> Iterator[ChangeSet]:
        """Change sets strictly after ``after`` (None: the resume point), for ever, each starting where the one before
        ended. Each ``next`` answers within about ``wait_seconds``, at once if something is there: a heartbeat tells
        that nothing was. ``wait_seconds=0`` never waits."""

    def end(self) -> Position | None:
        """Where the source's log ends now: all that is committed lies at or before it. A drain stops there. None: not
        known; a drain of a source that is written to all the time then stops after a minute."""
        return None

    def confirm(self, position: Position) -> None:  # noqa: B027
        """Cumulative and cheap. Confirming an old position again is harmless; it never moves back."""

    def lag(self) -> Lag:
        """How far the confirmed position trails the source. Unknown by default."""
        return Lag()

    def check(self) -> tuple[Finding, ...]:
        """Preflight. An empty tuple: ready. An error raised means that the check itself could not run."""
        return ()

    def uninstall(self) -> tuple[str, ...]:
        """Remove everything that ``prepare`` made. Returns the names of what was removed; leaves no trace."""
        return ()


@runtime_checkable
class Comparable(Protocol):
    """What a capture adds if its source can be compared with the lake in full. Polling does; a log and triggers deliver
    every delete and have nothing to compare. Any thread, beside the stream, and before ``open``."""

    def full_diff(self, table: TableId) -> FullDiff | None:
        """How the table is to be compared, and how often; None if it is only on demand."""

    def differences(self, table: TableId) -> Path | None:
        """The directory from which the capture takes what a comparison of ``table`` found; None if there is none."""

    def keys(
        self, table: TableId, *, known: TableSchema | None = None, chunk_rows: int = 1_000_000, whole_rows: bool = False
    ) -> SnapshotPlan:
        """The plan of a comparison: chunks of the table's keys, or of whole rows. ``known``: as it was delivered."""

    def chunk(self, data: Mapping[str, Any]) -> Chunk:
        """A planned chunk back from its JSON."""


class Source(Protocol):
    """What a user writes: ``Sqlite("shop.db")``. Bound to a pipeline's name it becomes a capture."""

    def bind(self, pipeline: str) -> ChangeCapture: ...


def opened(kept: _T | None) -> _T:
    """What ``open`` made and ``close`` let go of."""
    if kept is None:
        raise StateError("the capture is not open", remedy="Call open first.")
    return kept


def of_kind(position: Position, *kinds: type[_P]) -> _P:
    """The position, which must be one of the source's own kinds."""
    if not isinstance(position, kinds):
        raise SourceChangedError(f"{position.encode()} is a position of another kind of source, not of {kinds[0].kind}")
    return position
