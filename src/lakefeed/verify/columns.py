"""Which lake column is compared with which source column, and why others are not. Pure.

A column that differs because the configured evolution says so (ignored, kept, replaced) is listed, but is no
difference.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lakefeed.change.table import TableSchema
from lakefeed.lake.schema.mapping import ColumnMapping


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """``pairs`` are (lake, source), in the lake's order. ``chosen`` and ``differences`` are sentences."""

    pairs: tuple[tuple[str, str], ...]
    chosen: tuple[str, ...] = ()
    differences: tuple[str, ...] = ()

    @property
    def lake(self) -> tuple[str, ...]:
        return tuple(lake for lake, _ in self.pairs)

    @property
    def source(self) -> tuple[str, ...]:
        return tuple(source for _, source in self.pairs)


def paired_by_name(lake: Sequence[str], source: Sequence[str]) -> Columns:
    """Pairs columns of the same name."""
    return Columns(
        pairs=tuple((name, name) for name in lake if name in source),
        differences=(
            *(_lacking_in_lake(name) for name in source if name not in lake),
            *(_lacking_in_source(name) for name in lake if name not in source),
        ),
    )


def paired(lake: Sequence[str], source: Sequence[str], mapping: ColumnMapping, schema: TableSchema) -> Columns:
    """Pairs every column with the one that feeds it. ``schema`` is the source schema that the lake table maps."""
    fed = {one.column.name: one for one in mapping.columns}
    known = [name for name in lake if name in fed]
    whole = {name: fed[name].source for name in known if fed[name].is_live and not fed[name].since}
    ignored = [name for name in mapping.ignored(schema) if name in source]
    left_out = [
        column.name for _, column in schema.left_out if column.name in source and column.name not in schema.names
    ]
    expected = {
        *ignored,
        *left_out,
        *(one.source for one in mapping.columns if one.is_live and one.column.name in lake),
    }
    return Columns(
        pairs=tuple((name, feeds) for name, feeds in whole.items() if feeds in source),
        chosen=(
            *(f"column {name} of the source is ignored" for name in ignored),
            *(f"column {name} of the source is left out by its rule" for name in left_out),
            *(
                f"column {name} is kept, and the source no longer feeds it"
                if not fed[name].is_live
                else f"column {name} has the source's {fed[name].source} only in rows changed after its type changed"
                for name in known
                if name not in whole
            ),
        ),
        differences=(
            *(_lacking_in_lake(name) for name in source if name not in expected),
            *(_lacking_in_source(name) for name in lake if name not in fed),
            *(_lacking_in_source(name) for name, feeds in whole.items() if feeds not in source),
        ),
    )


def _lacking_in_lake(name: str) -> str:
    return f"column {name} is not in the lake"


def _lacking_in_source(name: str) -> str:
    return f"column {name} is not in the source"
