"""Layout: how the rows of one relation in the stream become rows of a table."""

from __future__ import annotations

from dataclasses import dataclass

from lakefeed.change.table import TableSchema


@dataclass(frozen=True, slots=True)
class Layout:
    """``schema.columns`` are the columns of the relation message, in its order. An empty key: rows match as a whole.

    ``whole_old_rows``: an old row that is said to be full is. Not so where a partition has another replica identity.
    """

    relation: int
    schema: TableSchema
    whole_old_rows: bool = True

    @property
    def key(self) -> frozenset[int]:
        """Places of the key columns."""
        return frozenset(place for place, name in enumerate(self.schema.names) if name in self.schema.key)
