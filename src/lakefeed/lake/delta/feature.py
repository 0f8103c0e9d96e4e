"""What a Delta table's protocol and properties allow a writer and a reader of its files."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from deltalake import DeltaTable

_FEATURES = frozenset({"appendOnly", "invariants", "timestampNtz"})
_ABSENT = ("delta.enableChangeDataFeed", "delta.enableDeletionVectors", "delta.enableRowTracking", "delta.appendOnly")


def takes_files(table: DeltaTable) -> bool:
    """Has the table nothing that a writer would have to keep up besides files and their statistics?"""
    protocol, metadata = table.protocol(), table.metadata()
    features = {*(protocol.writer_features or ()), *(protocol.reader_features or ())}
    known = features <= _FEATURES if protocol.min_writer_version >= 7 else protocol.min_writer_version <= 2
    settings = metadata.configuration
    plain = all(settings.get(name, "false").lower() != "true" for name in _ABSENT)
    constrained = any(name.startswith("delta.constraints.") for name in settings)
    return known and plain and not has_mapped_columns(table) and not constrained and not metadata.partition_columns


def has_masked_rows(table: DeltaTable) -> bool:
    """May files have rows that are deleted? Once the feature is on, older files keep theirs when it is set off."""
    return "deletionVectors" in (table.protocol().reader_features or ())


def masks_rows(table: DeltaTable) -> bool:
    """Do merges mark deleted rows, instead of rewriting their files?"""
    setting = table.metadata().configuration.get("delta.enableDeletionVectors", "false")
    return has_masked_rows(table) and setting.lower() == "true"


def has_mapped_columns(table: DeltaTable) -> bool:
    """Delta's own column mapping: names in the files that are not the table's."""
    return bool(table.metadata().configuration.get("delta.columnMapping.mode", "none").lower() != "none")
