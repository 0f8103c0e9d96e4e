"""Rows that Spark has computed, as files of a Delta table: Spark writes them, the table's log takes them in.

A commit by Spark itself reads the table's whole log in a job of its own, to see which transactions it records, and
looks for the rows of a merge in another: about a second and another two, whatever the batch
(docs/decisions/0010-delta-files.md). Files that no commit names are not part of the table: maintenance removes them.
"""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from lakefeed.lake.location import filesystem, spark_glob, spark_path
from lakefeed.lake.statistics import file_statistics

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from pyspark.sql import DataFrame, SparkSession

SESSION = {
    # Instants with statistics, which the older form does not have; dates before 1582 as they are.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
}
WRITTEN = "lakefeed-"
"""How the names of directories begin that Spark writes into, one for each commit."""
_WRITER = {"compression": "zstd", "mapreduce.fileoutputcommitter.marksuccessfuljobs": "false"}
_FEATURES = frozenset({"appendOnly", "invariants", "timestampNtz"})
_ABSENT = ("delta.enableChangeDataFeed", "delta.enableDeletionVectors", "delta.enableRowTracking", "delta.appendOnly")


@dataclass(frozen=True, slots=True)
class DataFile:
    """One written file. ``name`` is its path below the table."""

    name: str
    bytes: int
    statistics: str
    written_ms: int


class ConcurrentModification(Exception):  # noqa: N818  # its name is how ``outcome.is_conflict`` knows it
    """Somebody has committed since the step was planned: what was read may not be what is there."""


def takes_files(table: DeltaTable) -> bool:
    """Has the table nothing that a writer would have to keep up besides files and their statistics?"""
    protocol, metadata = table.protocol(), table.metadata()
    features = {*(protocol.writer_features or ()), *(protocol.reader_features or ())}
    known = features <= _FEATURES if protocol.min_writer_version >= 7 else protocol.min_writer_version <= 2
    settings = metadata.configuration
    plain = all(settings.get(name, "false") != "true" for name in _ABSENT)
    mapped = settings.get("delta.columnMapping.mode", "none") != "none"
    constrained = any(name.startswith("delta.constraints.") for name in settings)
    return known and plain and not mapped and not constrained and not metadata.partition_columns


def write_files(rows: DataFrame, root: str) -> list[DataFile]:
    """One file for each of the frame's partitions that has rows."""
    place = f"{WRITTEN}{uuid.uuid4().hex}"
    rows.write.options(**_WRITER).parquet(f"{spark_path(root)}/{place}")
    files, directory = filesystem(f"{root}/{place}")
    found = files.get_file_info(fs.FileSelector(directory, recursive=False))
    written = [_described(files, one, place) for one in found if one.base_name.endswith(".parquet")]
    described = [file for file in written if file is not None]
    return _moved_up(described, root, directory) if isinstance(files, fs.LocalFileSystem) else described


def _moved_up(written: Sequence[DataFile], root: str, directory: str) -> list[DataFile]:
    """On a disk no directory shall stay for each commit, with a checksum file that nobody would ever remove."""
    moved = [replace(file, name=Path(file.name).name) for file in written]
    for file, to in zip(written, moved, strict=True):
        Path(root, file.name).rename(Path(root, to.name))
    shutil.rmtree(directory)
    return moved


def read_files(session: SparkSession, table: DeltaTable, root: str, paths: Sequence[str]) -> DataFrame:
    """The rows of some of the table's files, with the table's columns: older files may lack the newer ones."""
    from pyspark.sql.pandas.types import from_arrow_schema

    described: Any = table.schema().to_arrow()  # another library's schema, by the Arrow C interface
    schema = from_arrow_schema(pa.schema(described), prefer_timestamp_ntz=True)
    return session.read.schema(schema).parquet(*(spark_glob(f"{root}/{path}") for path in paths))


def _described(files: Any, info: Any, place: str) -> DataFile | None:
    footer = pq.read_metadata(info.path, filesystem=files)
    if footer.num_rows == 0:
        return None
    statistics = file_statistics(footer, footer.schema.to_arrow_schema())
    return DataFile(f"{place}/{info.base_name}", info.size, statistics, int(info.mtime_ns // 1_000_000))
