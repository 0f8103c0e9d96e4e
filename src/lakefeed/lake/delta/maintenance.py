"""Maintenance of one Delta table: pack small files, fold deletion vectors, remove what no kept version needs.

Commits leave behind files that no version needs, and one entry of the log each.

Delta keeps the entries for a month. Hadoop writes a checksum file beside each file on a local disk (``.NAME.crc``), of
which deltalake knows nothing.
"""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from pyarrow import fs

from lakefeed.lake.delta.feature import features_of
from lakefeed.lake.delta.mark import LiveFiles, row_count
from lakefeed.lake.location import filesystem, spark_path
from lakefeed.lake.maintenance import MaintenanceOptions, MaintenanceResult, MarkedFile, folded_from, needs_packing
from lakefeed.lake.spark.type import quoted

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from pyspark.sql import SparkSession

    from lakefeed.lake.delta.store import DeltaStore

WRITTEN = "lakefeed-"
"""How the names of directories begin that Spark writes into, one for each commit."""

_ENTRY = re.compile(r"(\d{20})\.")
_CHECKPOINT = re.compile(r"\d{20}\.checkpoint\.parquet")
"""One that is whole in one file. Other kinds are kept or removed, but nothing is removed because of them."""

_REMEMBERED, _REMEMBERED_HOURS = "delta.deletedFileRetentionDuration", 168
"""How long a table's checkpoints say which files were removed, and Delta's own default for it."""

_LOGGED = "delta.logRetentionDuration"
_UNIT_HOURS = {"week": 168.0, "day": 24.0, "hour": 1.0, "minute": 1 / 60, "second": 1 / 3600}
_PART = re.compile(r"([0-9.]+)\s+(week|day|hour|minute|second)s?\b")

WRITE_HOURS = 24
"""How long a file that no commit names may still be waiting for its commit."""

_LOG_VERSIONS = 10
"""Entries of the log that are kept for each version: they are small, and only listed."""
_LISTING_TASKS = "32"
_STRAY_SECONDS = 3600.0
"""From when on a checksum file without its own file is not about to get it."""


def maintain_table(
    store: DeltaStore, session: Callable[[], SparkSession], options: MaintenanceOptions, key: Sequence[str]
) -> MaintenanceResult:
    """See ``LakeTable.maintain``. The session is asked for only if it is needed."""
    table = store.opened()
    if table is None:
        return MaintenanceResult()
    sizes = table.get_add_actions(flatten=True).column("size_bytes").to_pylist()
    before = after = len(sizes)
    try:
        marked: list[MarkedFile] = []
        if features_of(table).takes_marks:
            for entry in LiveFiles(store.location).at(table.version()).values():
                vector, rows = entry.get("deletionVector"), row_count(entry)
                marked += [MarkedFile(entry["size"], vector["cardinality"] / rows)] if vector and rows else []
        share = folded_from(marked, options)
        packs = needs_packing(before, sum(sizes), options)  # by the lake's file size, as for every table
        if share is not None or packs:
            # Delta sorts neither by a partition column nor a table whose owner has clustered it, which sorts it, too.
            there = {field.name for field in table.schema().fields} - set(table.metadata().partition_columns)
            layout = store.options.layout
            by = layout.cluster_by or (key if options.cluster else ())
            by = () if features_of(table).is_clustered or not packs else by
            sized = replace(options, file_bytes=layout.file_bytes or options.file_bytes)
            store.pack(session(), sized, [name for name in by if name in there], share)
            packed = store.opened()
            after = len(packed.get_add_actions(flatten=True).column("path")) if packed is not None else after
    finally:  # a table that cannot be packed must not grow without end, too
        removed = clean(store, session, options)
    return MaintenanceResult(files_before=before, files_after=after, removed=removed)


def pack(
    session: SparkSession, location: str, options: MaintenanceOptions, key: Sequence[str], share: float | None = None
) -> None:
    """Small files into large ones, sorted by ``key`` if there is one; files with more than ``share`` marked rows, too.

    Delta writes no single file again: one with many marks goes together with small ones, which every window adds.

    In commits of at most eight large files, so that a sync that comes between costs that many.
    """
    session.conf.set("spark.databricks.delta.optimize.batchSize", str(options.file_bytes * 8))
    session.conf.set("spark.databricks.delta.optimize.maxFileSize", str(options.file_bytes))
    session.conf.set("spark.databricks.delta.optimize.minFileSize", str(options.file_bytes // 2))
    folds = share if share is not None else 1.0 if options.insists else options.marked_share
    session.conf.set("spark.databricks.delta.optimize.maxDeletedRowsRatio", str(folds))
    order = f" ZORDER BY ({', '.join(map(quoted, key))})" if key else ""
    session.sql(f"OPTIMIZE delta.{quoted(spark_path(location))}{order}")


def clean(store: DeltaStore, session: Callable[[], SparkSession], options: MaintenanceOptions) -> int:
    """Remove files and entries of the log that no kept version needs. Returns how many files, as far as it is known."""
    table = store.opened()
    if options.keep_hours is None or table is None:
        return 0
    settings = table.metadata().configuration
    # What the table's owner wants to keep longer is kept longer.
    keep_hours = max(options.keep_hours, interval_hours(settings.get(_REMEMBERED, "")))
    removed = vacuum(table, keep_hours)
    if sees_strays(table, keep_hours) and not features_of(table).takes_files:
        # By Spark, which knows deletion vectors. It does not say how many files went.
        child = session()
        child.conf.set("spark.databricks.delta.retentionDurationCheck.enabled", "false")
        child.conf.set("spark.databricks.delta.vacuum.logging.enabled", "false")  # no commits where nothing is done
        # Tasks that list files: Spark's default is ten thousand, which is a minute's work for no files at all.
        child.conf.set("spark.sql.sources.parallelPartitionDiscovery.parallelism", _LISTING_TASKS)
        hours = max(WRITE_HOURS, round(keep_hours))
        child.sql(f"VACUUM delta.{quoted(spark_path(store.location))} RETAIN {hours} HOURS")
    features = features_of(table)
    if features.takes_files or features.takes_marks:  # a feature that is not known here may ask for checkpoints to stay
        kept = options.keep_versions * _LOG_VERSIONS
        removed += remove_old_entries(store.location, table.version(), kept, interval_hours(settings.get(_LOGGED, "")))
    return removed + remove_stray_checksums(store.location)


def sees_strays(table: DeltaTable, keep_hours: float) -> bool:
    """Is a file that the log does not name known not to be one that was removed less than ``keep_hours`` ago?

    Not if checkpoints forget removed files earlier. A table that says itself how long they are to be known is believed.
    """
    return keep_hours <= _REMEMBERED_HOURS or _REMEMBERED in table.metadata().configuration


def vacuum(table: DeltaTable, keep_hours: float) -> int:
    """Remove the files that no version younger than so many hours uses. Returns how many.

    Those too that the log does not name (any more): of writes that were not committed, and of versions that it has
    forgotten. Only for tables without deletion vectors: deltalake does not know that they are in use.
    """
    strays = features_of(table).takes_files and sees_strays(table, keep_hours)
    hours = max(1, round(keep_hours))
    passes = [] if strays and hours >= WRITE_HOURS else [(hours, False)]
    passes += [(max(hours, WRITE_HOURS), True)] if strays else []
    removed = 0
    for retained, full in passes:
        gone = table.vacuum(retention_hours=retained, dry_run=False, enforce_retention_duration=False, full=full)
        removed += len(gone)
    return removed


def interval_hours(text: str) -> float:
    """Delta's ``interval 30 days`` in hours, or ``interval 1 week 2 days``; 0 for a text that says nothing."""
    parts = _PART.findall(text.lower())
    return sum(float(number) * _UNIT_HOURS[unit] for number, unit in parts)


def remove_old_entries(root: str, newest: int, keep: int, keep_hours: float = 0) -> int:
    """Remove what only versions need that are more than ``keep`` commits older than ``newest``. Returns how many files.

    None of them is younger than ``keep_hours``.

    Everything before a checkpoint can go, because it has the state of all that was before it. The oldest go first: what
    is left after a crash has no hole.
    """
    files, directory = filesystem(f"{root}/_delta_log")
    listed = files.get_file_info(fs.FileSelector(directory, recursive=False))
    found = {info.base_name: info.path for info in listed}
    versions = {name: int(entry[1]) for name in found if (entry := _ENTRY.match(name))}
    if keep_hours:
        recent = datetime.now(UTC) - timedelta(hours=keep_hours)
        young = [versions[info.base_name] for info in listed if info.base_name in versions and info.mtime > recent]
        newest = min([newest, *(version - 1 + keep for version in young)])
    whole = [version for name, version in versions.items() if _CHECKPOINT.fullmatch(name) and version <= newest - keep]
    if not whole:
        return 0
    old = sorted(name for name, version in versions.items() if version < max(whole))
    for name in old:
        files.delete_file(found[name])
    return len(old)


def remove_stray_checksums(root: str) -> int:
    """Remove the checksum files whose own file is gone, in the table's directory and its log. Returns how many.

    A directory of a write that was not finished goes with the last of its files. Nothing else is touched: other
    directories that begin with an underscore or a dot are not the table's.
    """
    if "://" in root:
        return 0  # only Hadoop's local file system writes them

    def is_checksum(path: Path) -> bool:
        return path.name.startswith(".") and path.name.endswith(".crc")

    for directory in Path(root).glob(f"{WRITTEN}*/"):
        is_old = directory.stat().st_mtime <= time.time() - WRITE_HOURS * 3600
        if is_old and all(one.is_dir() or is_checksum(one) for one in directory.rglob("*")):
            shutil.rmtree(directory)
    own = [one for one in Path(root).glob("[!_.]*") if one.is_dir()]
    latest, removed = time.time() - _STRAY_SECONDS, 0
    for side in (one for directory in (Path(root), Path(root, "_delta_log"), *own) for one in directory.iterdir()):
        if not is_checksum(side):
            continue
        file = side.with_name(side.name.removeprefix(".").removesuffix(".crc"))
        try:
            if not file.exists() and side.stat().st_mtime <= latest:
                side.unlink()
                removed += 1
        except FileNotFoundError:  # somebody else was faster
            continue
    return removed
