"""Evolve: a lake table's columns follow the source's. One atomic, idempotent commit per step to a newer version.

What is followed is the policy's business (``policy``, ``following``). How it is done in a table format without column
ids, such as Delta as every reader can read it:

- Added columns without a default, and steps that leave the columns as they are: only metadata changes.
- Columns added with a default, dropped, renamed or widened: the table is rewritten in one commit. Delta could do most
  of it in metadata alone, with column mapping and type widening, but these are table features that some readers do not
  have; every reader can read what this makes. The price is one rewrite per such change.
"""

from __future__ import annotations

from collections.abc import Sequence

from lakefeed.change.table import TableSchema
from lakefeed.lake.projection import lineage


def is_only_metadata(path: Sequence[TableSchema]) -> bool:
    """Does the last schema only add columns that read as NULL, behind those of the first?"""
    first, last = path[0], path[-1]
    came_from = lineage(path)
    kept = [name for name, was in came_from.items() if was == name]
    added = [last.column(name) for name, was in came_from.items() if was is None]
    same = all(first.column(name).type == last.column(name).type for name in kept)
    return same and tuple(kept) == first.names and all(column.default is None for column in added)
