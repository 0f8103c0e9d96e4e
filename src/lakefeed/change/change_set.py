"""ChangeSet: whole source transactions in (start, end], over all tables."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from lakefeed.change.batch import ChangeBatch
from lakefeed.change.position import Position
from lakefeed.change.table import TableId, TableSchema


@dataclass(frozen=True, slots=True)
class TableDropped:
    """The source table no longer exists. The lake table stays as it is, and ``status`` reports it."""

    table: TableId


@dataclass(frozen=True, slots=True)
class RecopyNeeded:
    """The lake's rows of this table may differ from the source's. The lake's policy decides what to do about it.

    ``columns`` is None where changes may have been missed: any row may differ, and only a new copy repairs that.
    Otherwise no change was missed, but the table's definition changed: the same change set announces the new schema,
    and rows from before may now have other values in these columns of it. An empty tuple means that only the key
    changed.
    """

    table: TableId
    reason: str
    columns: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class TableBlocked:
    """From here on the source delivers no rows of this table until the table is prepared and copied again."""

    table: TableId
    reason: str
    remedy: str


TableNotice = TableDropped | RecopyNeeded | TableBlocked


@dataclass(frozen=True, slots=True)
class ChangeSet:
    """Whole source transactions, cut at a commit boundary.

    ``batches`` can be iterated repeatedly, with the same result, until ``end`` is confirmed. It may read lazily from
    the source or from a spill file, so that a transaction of any size fits into bounded memory. ``rows`` is the total
    over all batches. ``schemas`` are the tables whose schema changed here, whether or not rows of them follow.
    """

    start: Position | None
    end: Position
    batches: Iterable[ChangeBatch] = ()
    rows: int = 0
    schemas: tuple[TableSchema, ...] = ()
    notices: tuple[TableNotice, ...] = ()

    @property
    def is_heartbeat(self) -> bool:
        """Whether the change set has nothing for the lake and only reports how far the source has been read."""
        return self.rows == 0 and not self.notices and not self.schemas
