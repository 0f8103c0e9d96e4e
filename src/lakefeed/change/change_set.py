"""ChangeSet: whole source transactions in (start, end], over all tables."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from lakefeed.change.batch import ChangeBatch
from lakefeed.change.position import Position
from lakefeed.change.table import TableId, TableSchema


@dataclass(frozen=True, slots=True)
class TableDropped:
    """The source table is gone. The lake table is kept as it is and reported."""

    table: TableId


@dataclass(frozen=True, slots=True)
class RecopyNeeded:
    """What the lake has of this table may not be what the source has. What is done about it is the lake's policy.

    ``columns`` None: changes may have been missed, so that any row may differ and only a copy tells. Otherwise no
    change was missed: the table's definition changed, the same change set announces the new schema, and rows from
    before may have other values now in these columns of it. No columns: only the key is another one.
    """

    table: TableId
    reason: str
    columns: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class TableBlocked:
    """Rows of this table are not delivered from here on, until it is prepared and copied again."""

    table: TableId
    reason: str
    remedy: str


TableNotice = TableDropped | RecopyNeeded | TableBlocked


@dataclass(frozen=True, slots=True)
class ChangeSet:
    """Whole source transactions, cut at a commit boundary.

    ``batches`` can be iterated more than once with the same result until ``end`` is confirmed; it may be read lazily
    from the source or from a spill file, so that a transaction of any size needs bounded memory. ``rows`` is their
    total. ``schemas`` are tables whose shape changed here, rows or no rows.
    """

    start: Position | None
    end: Position
    batches: Iterable[ChangeBatch] = ()
    rows: int = 0
    schemas: tuple[TableSchema, ...] = ()
    notices: tuple[TableNotice, ...] = ()

    @property
    def is_heartbeat(self) -> bool:
        """Nothing for the lake in it: it only says how far the source has come."""
        return self.rows == 0 and not self.notices and not self.schemas
