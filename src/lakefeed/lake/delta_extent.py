"""How much of a Delta table lies where: by the statistics of its files, without reading rows. No JVM."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from lakefeed.lake.bounds import KeyBounds
from lakefeed.lake.delta_files import takes_files
from lakefeed.lake.step import Replaceable
from lakefeed.lake.store import Extent

if TYPE_CHECKING:
    from deltalake import DeltaTable


@dataclass(frozen=True, slots=True)
class StoredFiles:
    """What a table's log says of its files at one version. ``masked``: with deletion vectors."""

    actions: pa.Table
    version: int
    replaceable: bool
    masked: bool


def stored_files(table: DeltaTable) -> StoredFiles:
    actions = pa.table(table.get_add_actions(flatten=True))
    return StoredFiles(actions, table.version(), takes_files(table), masks_rows(table))


def extent_of(read: StoredFiles, column: str, bounds: KeyBounds | None) -> Extent:
    """How many of the files may have rows between the bounds; all, where their statistics do not tell.

    With deletion vectors no bytes are touched: a merge marks rows and rewrites no file.
    """
    actions = read.actions
    sizes = actions.column("size_bytes")
    touched = _may_have(actions, column, bounds)
    return Extent(
        files=actions.num_rows,
        bytes=int(pc.sum(sizes, min_count=0).as_py()),
        touched_files=int(pc.sum(touched, min_count=0).as_py()),
        touched_bytes=0 if read.masked else int(pc.sum(sizes.filter(touched), min_count=0).as_py()),
        replaceable=Replaceable(read.version, _paths(actions.filter(touched))) if read.replaceable else None,
    )


def masks_rows(table: DeltaTable) -> bool:
    """Are rows deleted by marking them, so that a file's statistics do not tell what is left of it?"""
    features = table.protocol().reader_features or []
    return "deletionVectors" in features and table.metadata().configuration.get("delta.enableDeletionVectors") == "true"


def count_rows(table: DeltaTable) -> int | None:
    """By the files' statistics; None where they do not tell."""
    if masks_rows(table):
        return None
    counts = pa.table(table.get_add_actions(flatten=True)).column("num_records")
    return None if counts.null_count else int(pc.sum(counts, min_count=0).as_py())


def _paths(actions: pa.Table) -> tuple[str, ...]:
    return tuple(str(path) for path in actions.column("path").to_pylist())


def _may_have(actions: pa.Table, column: str, bounds: KeyBounds | None) -> Any:
    """For each file: may it have a row between the bounds? A file without statistics may."""
    everything = pa.repeat(pa.scalar(True), actions.num_rows)
    low, high = f"min.{column}", f"max.{column}"
    if bounds is None or low not in actions.column_names or high not in actions.column_names:
        return everything
    if isinstance(bounds.low, datetime):
        return everything  # Delta cuts instants in statistics to milliseconds, so that a file may seem to end early
    try:
        below: Any = pc.less(actions.column(high), pa.scalar(bounds.low))
        above: Any = pc.greater(actions.column(low), pa.scalar(bounds.high))
    except pa.ArrowException:  # the statistics are of another type than the key, which then tells nothing
        return everything
    outside: Any = pc.fill_null(pc.or_(below, above), False)
    return pc.invert(outside)
