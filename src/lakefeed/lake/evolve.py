"""Evolve: a lake table's columns follow the source's. One atomic, idempotent commit per step to a newer version.

- Added columns without a default: only the table's metadata changes.
- Columns added with a default, dropped or renamed: the table is rewritten in one commit. Delta could do the last two
  in metadata alone with column mapping, but that is a table feature some readers do not have; every reader can
  read what this makes. The price is one rewrite per such change.
- A changed type or key is not followed in place: the table stops until it is copied anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from lakefeed.change.schema_change import ChangeKey, RetypeColumn, SchemaChange, diff
from lakefeed.change.table import TableSchema
from lakefeed.errors import TableStoppedError
from lakefeed.lake.projection import lineage


def refuse_unfollowed(path: Sequence[TableSchema]) -> None:
    """TableStoppedError if a step on the way cannot be followed in place."""
    target = path[-1]
    for before, after in pairwise(path):
        for change in diff(before, after):
            if isinstance(change, RetypeColumn | ChangeKey):
                raise TableStoppedError(
                    f"table {target.table}: {_said(change)}, which its lake table cannot follow in place",
                    remedy=f"Remove the lake table and start the pipeline again: {target.table} is then copied anew.",
                    table=str(target.table),
                )


def is_only_metadata(path: Sequence[TableSchema]) -> bool:
    """Does the last schema only add columns that read as NULL, behind those of the first?"""
    first, last = path[0], path[-1]
    came_from = lineage(path)
    kept = [name for name, was in came_from.items() if was == name]
    added = [last.column(name) for name, was in came_from.items() if was is None]
    return tuple(kept) == first.names and all(column.default is None for column in added)


def _said(change: SchemaChange) -> str:
    if isinstance(change, RetypeColumn):
        return f"column '{change.name}' changed from {change.old} to {change.new}"
    if isinstance(change, ChangeKey):
        return f"the key changed from ({', '.join(change.old)}) to ({', '.join(change.new)})"
    return str(change)
