"""What a change of a table's definition means for the rows that the lake has already.

Polling sees no statement, only the catalog before and after; rows that a change filled without touching ``updated_at``
would never be read again. Where that cannot be excluded, the table is copied anew.
"""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

from lakefeed.capture.poll.connector import PollTable
from lakefeed.change.schema_change import AddColumn, ChangeKey, RetypeColumn, diff
from lakefeed.change.table import TableSchema


def text_columns(known: TableSchema | None, table: PollTable) -> frozenset[str]:
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


def reseed_reason(old: TableSchema, new: TableSchema, is_filled: Callable[[str], bool]) -> str | None:
    """Why the rows must be copied anew, None if they need not. ``is_filled``: a row has a value in that column."""
    for change in diff(old, new):
        match change:
            case ChangeKey(before, after):
                return f"its key changed from ({', '.join(before)}) to ({', '.join(after)})"
            case RetypeColumn(name, was, now):
                return f"the type of {name} changed from {was} to {now}"
            case AddColumn(column) if column.name in new.key:
                return "the table was created again"
            case AddColumn(column) if is_filled(column.name):
                return f"rows have values in the new column {column.name}"
    return None
