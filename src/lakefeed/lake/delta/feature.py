"""What a Delta table's protocol and properties allow a writer and a reader of its files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from deltalake import DeltaTable

_FEATURES = frozenset({"appendOnly", "invariants", "timestampNtz"})
_KEPT = _FEATURES | {"changeDataFeed", "deletionVectors", "v2Checkpoint", "variantType"}
_TRACKING = ("delta.enableChangeDataFeed", "delta.enableRowTracking")
_MASKS = "delta.enableDeletionVectors"
_ABSENT = ("delta.enableChangeDataFeed", _MASKS, "delta.enableRowTracking", "delta.appendOnly")


@dataclass(frozen=True, slots=True)
class Features:
    """``takes_files``: our own commits can add and remove files; the table asks nothing else of a writer.

    ``takes_marks``: the same for a table with deletion vectors: our own commits can also mark rows.
    ``has_masked_rows``: files may have rows that are marked as deleted, also after deletion vectors were switched off.
    ``masks_rows``: Delta's merges mark rows instead of rewriting files.
    ``tracks_rows``: readers follow single rows (change data feed, row tracking), so unchanged rows must stay in their
    files. ``keeps_life``: a new copy can keep protocol, properties, id and comments; else Spark writes it.
    ``has_mapped_columns``: with Delta's column mapping, files have other column names than the table.
    ``is_clustered``: the table has, or had, clustering columns.
    """

    takes_files: bool
    has_masked_rows: bool
    masks_rows: bool
    takes_marks: bool
    tracks_rows: bool
    keeps_life: bool
    has_mapped_columns: bool
    is_clustered: bool


def features_of(table: DeltaTable) -> Features:
    """The features by the table's protocol and properties. A property's value may be ``true`` or ``TRUE``."""
    protocol, metadata = table.protocol(), table.metadata()
    settings = {name: value.lower() for name, value in metadata.configuration.items()}
    features = {*(protocol.writer_features or ()), *(protocol.reader_features or ())}
    known = features <= _FEATURES if protocol.min_writer_version >= 7 else protocol.min_writer_version <= 2
    switched_on = {name for name in _ABSENT if settings.get(name, "false") == "true"}
    mapped = settings.get("delta.columnMapping.mode", "none") != "none"
    constrained = any(name.startswith("delta.constraints.") for name in settings)
    masked = "deletionVectors" in features
    bare = not mapped and not constrained and not metadata.partition_columns
    return Features(
        takes_files=known and not switched_on and bare,
        takes_marks=masked and features <= _FEATURES | {"deletionVectors"} and switched_on == {_MASKS} and bare,
        has_masked_rows=masked,
        tracks_rows=any(settings.get(name) == "true" for name in _TRACKING),
        keeps_life=features <= _KEPT and bare,
        masks_rows=masked and settings.get(_MASKS) == "true",
        has_mapped_columns=mapped,
        is_clustered="clustering" in features,
    )
