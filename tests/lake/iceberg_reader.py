"""An Iceberg table by a reader that is not its writer: pyiceberg."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def metadata_file(location: str) -> Path:
    """The newest metadata of a table of a Hadoop catalog, by listing: not as Lakefeed finds it."""
    found = Path(location, "metadata").glob("v*.metadata.json")
    return max(found, key=lambda path: int(path.name[1:].split(".")[0]))


def static_table(location: str) -> Any:
    from pyiceberg.table import StaticTable

    return StaticTable.from_metadata(str(metadata_file(location)))


def read_iceberg(location: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = static_table(location).scan().to_arrow().to_pylist()
    return rows


def history(location: str) -> list[dict[str, str]]:
    """The summaries of the snapshots that were the table's content, oldest first."""
    table = static_table(location)
    summaries = {one.snapshot_id: one.summary.additional_properties for one in table.metadata.snapshots}
    return [summaries[entry.snapshot_id] for entry in table.history() if entry.snapshot_id in summaries]
