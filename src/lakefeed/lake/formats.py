"""The table formats: what a session needs for each, and how Lakefeed recognises and reads a table of it at a path.

To add a format, add a folder beside ``delta`` and ``iceberg`` and one entry here. This module imports a format only
when it uses it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any

from pyarrow import fs

from lakefeed.lake.location import filesystem

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lakefeed.change.table import TableId
    from lakefeed.lake.history import TableHistory


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """``lake`` names the class that a user writes and ``rows`` the ``reader.StoredRows`` of a path: ``module:name``.

    ``coordinates`` are the Maven names of the jars, with the versions of Spark and Scala that they are built for;
    ``settings`` are what a session needs beside the extension. A table of the format has files with an ending of
    ``markers`` in its ``folder``; without ``markers`` the folder is enough.
    """

    lake: str
    rows: str
    coordinates: str
    extension: str
    settings: Mapping[str, str] = field(default_factory=dict)
    folder: str
    markers: tuple[str, ...] = ()

    def is_at(self, location: str) -> bool:
        """Is there a table of this format at a path?"""
        files, root = filesystem(f"{location}/{self.folder}")
        if not self.markers:
            return bool(files.get_file_info(root).type == fs.FileType.Directory)
        found = files.get_file_info(fs.FileSelector(root, allow_not_found=True))
        return any(info.base_name.endswith(self.markers) for info in found)


FORMATS: dict[str, Format] = {
    "delta": Format(
        lake="lakefeed.lake.delta.format:Delta",
        rows="lakefeed.lake.delta.history:DeltaRows",
        coordinates="io.delta:delta-spark_4.1_2.13:4.4.0",
        extension="io.delta.sql.DeltaSparkSessionExtension",
        settings={"spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog"},
        folder="_delta_log",
    ),
    # Iceberg's catalog is no setting of the session: each table's own child session gets it.
    "iceberg": Format(
        lake="lakefeed.lake.iceberg.format:Iceberg",
        rows="lakefeed.lake.iceberg.history:rows_of",
        coordinates="org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0",
        extension="org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        folder="metadata",
        markers=(".metadata.json", ".metadata.json.gz"),
    ),
}
"""The formats by their names in the configuration. A path without a table counts as the first one."""


def format_at(location: str) -> str | None:
    """The format of the table at a path; None if there is no table."""
    return next((name for name, known in FORMATS.items() if known.is_at(location)), None)


def other_format_at(location: str, own: str) -> str | None:
    """The format of a table at a path, if it is another than ``own``, as people write it; else None."""
    return next((name.title() for name, known in FORMATS.items() if name != own and known.is_at(location)), None)


def history_at(
    spark: SparkSession, root: str, location: str, table: TableId, stored: TableId | None = None
) -> TableHistory:
    """The versions of a table below the lake's path ``root``, in the format that it has at ``location``; maybe a part
    of the table ``stored``."""
    known = FORMATS[format_at(location) or next(iter(FORMATS))]
    history: TableHistory = imported(known.lake)(spark, root).history(table, stored)
    return history


def imported(name: str) -> Any:
    """The object that ``module:name`` names, imported now."""
    module, _, attribute = name.partition(":")
    return getattr(import_module(module), attribute)
