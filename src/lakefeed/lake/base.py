"""The seam between the journal and the tables: ChangeLog in, SyncEngine and TableFormat out. No Spark here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol

from lakefeed.change.choice import Choices
from lakefeed.change.position import Position
from lakefeed.change.segment import Counts, Window
from lakefeed.change.table import Comments, TableId, TableSchema
from lakefeed.errors import RebuildCause
from lakefeed.lake.layout import Difference
from lakefeed.lake.maintenance import MaintenanceOptions, MaintenanceResult

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa

    from lakefeed.lake.loader import ChunkFile
    from lakefeed.lake.route import Route
    from lakefeed.lake.rule.resolve import Resolved
    from lakefeed.lake.rule.rows import RowRule
    from lakefeed.lake.schema.mapping import ColumnMapping
    from lakefeed.lake.schema.policy import Evolution

    Batches = Iterator[pa.RecordBatch]
    MadeBy = tuple[RowRule, Resolved, Callable[[Resolved, Batches, Path], Batches]]


class ChangeLog(Protocol):
    """What the lake needs of a journal. Several threads may call it while the journal grows."""

    @property
    def head(self) -> int:
        """The number of the newest change set; 0 if there is none."""

    def position(self, number: int) -> Position | None:
        """The end position of a change set; None if the log does not know it (any more)."""

    def window(self, table: TableId, after: int, upto: int) -> Window:
        """All changes of one table in (after, upto]. JournalError if the journal has trimmed a part."""

    def check(self, window: Window) -> None:
        """Call it before reading the window's segments: JournalDamagedError names one that has changed on disk."""

    def schema(self, table: TableId, version: int) -> TableSchema:
        """One version of a table's schema."""


class ChunkSource(Protocol):
    """What the lake needs of a capture's chunk. ``capture.base.Chunk`` satisfies it."""

    @property
    def table(self) -> TableId: ...

    def open(self) -> Any: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TableCopy:
    """The copy of one table: which generation of the lake table, from which change set on, which chunks.

    ``generation`` names one life of the lake table: a rebuilt table gets the next one, so nobody takes numbers that the
    old one recorded for the new one's. ``base`` is the journal's head before the first chunk is read: change sets up to
    it are inside the rows; Lakefeed applies those after it on top. ``as_of`` is the time of the rows, if that is not
    when the copy was planned: a rebuild copies an older state, and replays history on top of it.
    """

    schema: TableSchema
    generation: int
    base: int
    position: Position | None
    chunks: Sequence[ChunkSource]
    as_of: datetime | None = None
    comments: Comments = field(default_factory=Comments)
    """The source's comments; under the lake table's names, once ``schema`` has these."""
    ruled: Callable[[Sequence[ChunkSource]], Sequence[ChunkSource]] | None = None
    """If a rule makes the rows: turns a group of ``chunks`` into chunks of the lake table's rows (``lake.rule``).
    ``schema`` then has the lake table's columns."""

    wrote: Callable[[Sequence[ChunkFile]], None] | None = None
    """Called with the files of each group of chunks, before the group's commit, to count what is in them."""

    def group(self, start: int, count: int) -> Sequence[ChunkSource]:
        """The chunks that the copy reads for ``count`` chunks of the plan, from ``start`` on."""
        chunks = self.chunks[start : start + count]
        return self.ruled(chunks) if self.ruled is not None and chunks else chunks

    @property
    def table(self) -> TableId:
        return self.schema.table

    @property
    def description(self) -> str:
        """The lake table's comment, for people."""
        if self.comments.table:
            return self.comments.table
        return f"Made of {self.table}, kept by Lakefeed. Key: {', '.join(self.schema.key) or 'none'}."

    def metadata(self, pipeline: str) -> dict[str, Any]:
        """The metadata of the copy's commits, for people and for ``history``; each commit adds its ``copy``."""
        return {
            "pipeline": pipeline,
            "table": str(self.table),
            "generation": self.generation,
            "change_sets": {"after": 0, "upto": self.base},
            "schema_version": self.schema.version,
            "position": self.position.encode() if self.position else None,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """A finished copy: its rows, and the highest position at which a chunk was read (None for an empty plan)."""

    rows: int
    high: Position | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """What one table has: the change set number, schema version and rows its own commits record."""

    number: int
    schema_version: int
    rows: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TableVersion:
    """An earlier state of a lake table that is still readable: after change set ``number``.

    ``version`` is the format's own number for it. ``position`` is that change set's end.
    """

    number: int
    schema_version: int
    position: Position | None
    version: int


class LakeTable(Protocol):
    """One table of a lake, in one format and one mode.

    Exactly once: every commit records what it did (generation, change set number, schema version) in the same atomic
    step as the data. To do the same step again, after a crash or in another process, commits nothing.
    ``applied`` starts no Spark job and no JVM. Other methods may, unless they say so.
    Threads: one at a time; different tables in parallel.
    """

    @property
    def route(self) -> Route: ...

    @property
    def location(self) -> str:
        """Where readers find the table."""

    def applied(self, generation: int) -> Applied | None:
        """What the table's own commits record. None: there is no table, or it is of another generation."""

    def load(self, copy: TableCopy, progress: Callable[[int], None]) -> Loaded:
        """Copy a table, one commit for each group of chunks. The first commit replaces whatever was there.

        Does not read groups again that an interrupted call has committed. ``progress`` gets the rows that each adds.
        """

    def apply(self, window: Window, generation: int) -> Applied:
        """Bring the table from ``window.after`` to ``window.upto`` in one commit, evolving its schema first.

        Returns what the table records after it. A window that the table already has commits nothing. CommitFailedError:
        the table is not where the window begins.
        """

    def states(self, generation: int) -> tuple[TableVersion, ...]:
        """The states of this generation that are still readable and exact (past the copy), oldest first. No JVM."""

    def chunks(self, state: TableVersion, schema: TableSchema) -> tuple[ChunkSource, ...] | None:
        """The source's rows as the table had them at ``state``, to copy a table from; ``schema`` is the source's then.

        They stay readable while a copy replaces this same table. None if the table does not have the source's rows.
        """

    def current(self, source: TableSchema, generation: int) -> Any:
        """The source's rows as the table has them now: a Spark DataFrame, in a session of its own. Any thread.

        ``source`` is the source's schema at the version that the table has. Leaves out columns for which older rows
        have their values in another lake column. None for a mode that does not keep the current rows.
        """

    def check(self, schema: TableSchema, before: TableSchema | None = None) -> tuple[str, ...]:
        """TableStoppedError if the rule or the format cannot make the table from a source table with this schema; or
        cannot go on with it, if the source had the schema ``before``.

        Returns the source's columns that the rule needs even if an update does not send them.
        """

    def made_by(self, schema: TableSchema, mapping: ColumnMapping, generation: int) -> MadeBy | None:
        """The rule that makes the table's rows, for a comparison; None if they are the source's rows.

        TableStoppedError if another rule than the configuration's has made them.
        """

    def rule(self, generation: int | None = None) -> RowRule:
        """The rule of the configuration that makes the table's rows. No JVM.

        TableStoppedError if another rule has made those of ``generation``.
        """

    def touched(self, generation: int) -> Mapping[str, int]:
        """How many values the table's rule has changed, by what it does, and how many rows it left out. No JVM."""

    def is_in_place(self, path: Sequence[TableSchema]) -> bool:
        """Would an evolution along ``path``, schemas of the source, change metadata alone? No JVM."""

    def laid_out_otherwise(self) -> tuple[Difference, ...]:
        """Where the table's partitions, order and properties differ from the configuration. No JVM."""

    def maintain(self, options: MaintenanceOptions, key: Sequence[str]) -> MaintenanceResult:
        """Pack small files, and remove what nobody needs any more. Runs beside syncs: see ``flow.maintenance``.

        Changes no row, and nothing that ``applied`` returns. ``key`` is the source table's.
        """


class TableFormat(Protocol):
    """The lake of one pipeline in one table format: Delta or Iceberg."""

    def routes(self, source: TableId) -> tuple[Route, ...]:
        """The lake tables of a source table, at least one. Pure."""

    @property
    def columns(self) -> Callable[[TableId], tuple[str, ...]] | None:
        """Gives the globs of the columns to capture of a source table; None if no rule leaves any out."""

    @property
    def sensitive(self) -> Callable[[TableId], RowRule] | None:
        """Gives the masks to apply to a source table before the journal; None if no rule has any."""

    @property
    def choices(self) -> Choices:
        """What the rules choose about reading the source's tables."""

    def matching(self, source: TableId) -> tuple[str, ...]:
        """The patterns of rules that match a source table. Pure."""

    def unused(self, schemas: Iterable[TableSchema]) -> tuple[str, ...]:
        """One sentence for each part of the rules that matches none of these tables, or none of their columns. Pure."""

    def scratch(self, path: str) -> TableFormat:
        """The same format and sessions for scratch tables in a local directory: see ``flow.warm_up``. LakeError if
        Spark's workers are elsewhere and do not see it."""

    def progress(self) -> object:
        """A value that changes whenever this pipeline's jobs elsewhere (in Spark) make progress; None if none runs.

        May be slow, or hang, if these do. Any thread.
        """

    def newest_commit(self, route: Route) -> str | None:
        """Names the newest commit of a route's lake table, whoever made it: another one, another name.

        Much cheaper than to ask the table. None if that cannot be had, or there is no table. Any thread.
        """

    def evolution(self, route: Route) -> Evolution:
        """What the lake table of a route does when its source's schema changes, by the configuration. Pure."""

    def table(self, route: Route) -> LakeTable:
        """The lake table of a route, whether it exists yet or not. Always the same object for a route. Any thread."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableResult:
    """One table after a sync: its applied number, what changed in it, and what stopped it, if anything.

    ``rebuild``: why the table needs a new copy to go on. ``is_own``: the error is this table's alone
    (TableStoppedError); any other may be the lake's.
    """

    applied: int
    counts: Counts = field(default_factory=Counts)
    error: str | None = None
    remedy: str | None = None
    rebuild: RebuildCause | None = None
    is_own: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncResult:
    """What one ``sync_once`` did. If nothing was new, all counters are 0 and ``last_seq`` is None."""

    change_sets: int = 0
    counts: Counts = field(default_factory=Counts)
    tables: Mapping[TableId, TableResult] = field(default_factory=dict)
    last_seq: int | None = None
    last_position: Position | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncStatus:
    """The state of replication. ``lag`` counts the change sets behind; never negative, None before the first sync."""

    running: bool
    last_synced: int | None
    latest_available: int
    tables: Mapping[TableId, Applied | None] = field(default_factory=dict)

    @property
    def lag(self) -> int | None:
        return None if self.last_synced is None else max(0, self.latest_available - self.last_synced)


class SyncEngine(Protocol):
    """Applies the journal to the lake.

    ``sync_once`` is idempotent: after a cycle that failed half-way, call it again, and nothing is applied twice.
    Concurrent calls are safe: one works, the other waits and then finds nothing to do. An error of one table is in its
    TableResult and does not stop the others; an error that it raises concerns all of them.
    ``status`` answers from memory. It never waits for a running sync or an unreachable lake.
    """

    def sync_once(self) -> SyncResult: ...

    def status(self) -> SyncStatus: ...


class Lake(Protocol):
    """What a user writes: ``Delta(spark, "lake")``. ``bind`` makes it the table format of a pipeline."""

    @property
    def path(self) -> str: ...

    def bind(self, pipeline: str) -> TableFormat: ...
