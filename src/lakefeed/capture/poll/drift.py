"""What a change of a table's definition means for the rows that the lake has already.

Polling sees no statement, only the catalog before and after; rows that a change filled without touching ``updated_at``
would never be read again. Where that cannot be excluded, it is said which columns may be wrong.
"""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

from lakefeed.capture.dialect import DescribedTable
from lakefeed.change.change_set import RecopyNeeded
from lakefeed.change.schema_change import AddColumn, ChangeKey, RetypeColumn, diff
from lakefeed.change.table import TableSchema


def text_columns(known: TableSchema | None, table: DescribedTable) -> frozenset[str]:
    """Columns that have been delivered as text although their declared type is another, and still is that one."""
    if known is None:
        return frozenset()
    declared = {column.name: column for column in table.schema.columns}
    return frozenset(
        column.name
        for column in known.columns
        if pa.types.is_string(column.type)
        and column.name in declared
        and declared[column.name].type != column.type
        and declared[column.name].source_type == column.source_type
    )


def recopy_notice(old: TableSchema, new: TableSchema, is_filled: Callable[[str], bool]) -> RecopyNeeded | None:
    """What is to be said against the rows of before; None: nothing. ``is_filled``: a row has a value in that column."""
    reasons: list[str] = []
    doubted: list[str] = []
    for change in diff(old, new):
        match change:
            case ChangeKey(before, after):
                reasons.append(f"its key changed from ({', '.join(before)}) to ({', '.join(after)})")
            case RetypeColumn(name, was, now):
                reasons.append(f"the type of {name} changed from {was} to {now}")
                doubted.append(name)
            case AddColumn(column) if column.name in new.key:
                return RecopyNeeded(new.table, "the table was created again")
            case AddColumn(column) if is_filled(column.name):
                reasons.append(f"rows have values in the new column {column.name}")
                doubted.append(column.name)
    return RecopyNeeded(new.table, reasons[0], tuple(doubted)) if reasons else None
