"""Segments and windows: the lake's view of the journal. The journal makes them, Spark reads the files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from lakefeed.change.position import Position
from lakefeed.change.table import TableId, TableSchema


@dataclass(frozen=True, slots=True)
class Counts:
    """Numbers of changes, by operation in the source."""

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
    """One Parquet file of the journal: changes of one table and one schema version, ordered by ``_lakefeed_seq``.

    ``rows`` counts all rows of the file, ``counts`` the changes among them; the others are before images.
    ``truncated_at`` is the seq of the last truncate, ``absent`` the columns that some row did not carry, ``replaced``
    the number of values that ``out_of_range`` replaced, by column. The commit file records all of this, so that the
    lake plans a window without opening its segments. ``crc32`` is the checksum of the whole file, or None where it was
    not computed (CRC-32 was measured at more than twice the speed of SHA-256).
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
    """Why rows may be stale: the content of a RecopyNeeded, and the version of the table's schema from then on."""

    version: int
    reason: str
    columns: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Window:
    """All of one table's changes in the change sets (after, upto].

    ``target`` is the table's schema at ``upto``. ``schemas`` has every version that ``segments`` use, the target, and
    the versions between the one at ``after`` and the target. ``exact`` is False if the copied rows may already contain
    some of the changes, which happened while the copy was read: an insert may then meet its own row, and the window
    must not be turned into history. ``copied_at``: the copied rows contain exactly the changes that were committed up
    to this position; None if that is not known. ``stale_reasons`` say why rows from before these change sets may be
    stale. ``recorded`` is the change set number that the lake table is expected to record; a table that records
    another one was rolled back or advanced by somebody else, and refuses the window. None if the table was not asked.
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
        """The reasons that a lake table with this schema version still has to settle.

        Evolving the table to a reason's version settles a reason about columns; only a new copy settles one about rows.
        """
        return tuple(one for one in self.stale_reasons if one.columns is None or one.version > version)

    @property
    def absent(self) -> frozenset[str]:
        return frozenset(name for segment in self.segments for name in segment.absent)
