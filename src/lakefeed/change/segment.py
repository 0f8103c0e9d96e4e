"""Segments and windows: how the lake sees the journal. Produced by the journal, read by Spark."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from lakefeed.change.position import Position
from lakefeed.change.table import TableId, TableSchema


@dataclass(frozen=True, slots=True)
class Counts:
    """Changes by operation, as the source made them."""

    inserted: int = 0
    updated: int = 0
    deleted: int = 0
    truncated: int = 0

    def __add__(self, other: Counts) -> Counts:
        return Counts(
            self.inserted + other.inserted,
            self.updated + other.updated,
            self.deleted + other.deleted,
            self.truncated + other.truncated,
        )

    @property
    def total(self) -> int:
        return self.inserted + self.updated + self.deleted + self.truncated


@dataclass(frozen=True, slots=True)
class Segment:
    """One Parquet file of the journal: changes of one table, one schema version, rows ordered by ``_lakefeed_seq``.

    ``rows`` are all of the file's, ``counts`` the changes among them: the rest are before images. ``truncated_at`` is
    the seq of the last truncate in it, ``absent`` the columns that some row did not carry, ``replaced`` how many values
    ``out_of_range`` has replaced, by column. All of it is known without reading the file, so that the common case plans
    without them. ``crc32`` is the checksum of the whole file; None
    where nobody has taken it (CRC-32 measured at more than twice the speed of SHA-256).
    """

    table: TableId
    path: str
    rows: int
    bytes: int
    schema_version: int
    first_seq: int
    last_seq: int
    counts: Counts
    truncated_at: int | None = None
    absent: tuple[str, ...] = ()
    replaced: tuple[tuple[str, int], ...] = ()
    crc32: int | None = None


@dataclass(frozen=True, slots=True)
class StaleReason:
    """Why rows may be stale: a RecopyNeeded (see there), and the version of the table's schema from then on."""

    version: int
    reason: str
    columns: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Window:
    """All of one table's changes in the change sets (after, upto].

    ``target`` is the table's schema at ``upto``; ``schemas`` has every version that ``segments`` use, the target and
    the versions between the one at ``after`` and the target. ``exact`` is False while some of the changes may be inside
    the copied rows already (the copy was read while they happened): then an insert may meet its own row, and history
    is not to be made of them. ``copied_at``: the copied rows have exactly those of the changes that were committed up
    to there; None where nobody knows which. ``stale_reasons`` are why rows from before these change sets may be stale.
    ``recorded`` is the number that the lake table is known to record: one that records another was rolled back, or
    brought further by somebody else, and takes nothing; None where nobody has asked the table.
    """

    table: TableId
    after: int
    upto: int
    end: Position | None
    segments: tuple[Segment, ...]
    target: TableSchema
    schemas: Mapping[int, TableSchema] = field(default_factory=dict)
    exact: bool = True
    copied_at: Position | None = None
    stale_reasons: tuple[StaleReason, ...] = ()
    recorded: int | None = None

    @property
    def counts(self) -> Counts:
        return sum((segment.counts for segment in self.segments), Counts())

    @property
    def rows(self) -> int:
        return sum(segment.rows for segment in self.segments)

    @property
    def has_before_images(self) -> bool:
        return self.rows > self.counts.total

    @property
    def bytes(self) -> int:
        return sum(segment.bytes for segment in self.segments)

    @property
    def last_seq(self) -> int | None:
        return max((segment.last_seq for segment in self.segments), default=None)

    @property
    def truncated_at(self) -> int | None:
        marks = [segment.truncated_at for segment in self.segments if segment.truncated_at is not None]
        return max(marks, default=None)

    def open_stale_reasons(self, version: int) -> tuple[StaleReason, ...]:
        """Those that a lake table with this version of the schema has yet to settle.

        A reason for columns is settled by the evolution to its version; one for all rows only by a new copy.
        """
        return tuple(one for one in self.stale_reasons if one.columns is None or one.version > version)

    @property
    def absent(self) -> frozenset[str]:
        return frozenset(name for segment in self.segments for name in segment.absent)
