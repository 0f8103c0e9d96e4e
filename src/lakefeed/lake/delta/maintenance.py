"""Maintenance of one Delta table: pack small files, fold deletion vectors, remove what no kept version needs.

Each commit adds an entry to the log, which Delta keeps for a month, and leaves files that newer versions do not need.
On a local disk Hadoop writes a checksum file beside each file (``.NAME.crc``), which deltalake does not remove.
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
"""The prefix of the directories that Spark writes into, one for each commit."""

_ENTRY = re.compile(r"(\d{20})\.")
_CHECKPOINT = re.compile(r"\d{20}\.checkpoint\.parquet")
"""A checkpoint in one file. Other kinds do not count as checkpoints when older entries are removed."""

_REMEMBERED, _REMEMBERED_HOURS = "delta.deletedFileRetentionDuration", 168
"""The property that says how long checkpoints name removed files, and Delta's default."""

_LOGGED = "delta.logRetentionDuration"
_UNIT_HOURS = {"week": 168.0, "day": 24.0, "hour": 1.0, "minute": 1 / 60, "second": 1 / 3600}
_PART = re.compile(r"([0-9.]+)\s+(week|day|hour|minute|second)s?\b")

WRITE_HOURS = 24
"""A file that no commit names may still get its commit within so many hours."""

_LOG_VERSIONS = 10
"""Keep so many entries of the log for each version to keep: they are small, and only listed."""
_LISTING_TASKS = "32"
_STRAY_SECONDS = 3600.0
"""A checksum file older than this whose file does not exist is a stray."""


def maintain_table(
    store: DeltaStore, session: Callable[[], SparkSession], options: MaintenanceOptions, key: Sequence[str]
) -> MaintenanceResult:
    """See ``LakeTable.maintain``. Calls ``session`` only if it needs Spark."""
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
        packs = needs_packing(before, sum(sizes), options)  # by the configured size, not by the rule's file_bytes
        if share is not None or packs:
            # Delta does not sort by a partition column, nor a clustered table: its clustering orders the rows.
            there = {field.name for field in table.schema().fields} - set(table.metadata().partition_columns)
            layout = store.options.layout
            by = layout.cluster_by or (key if options.cluster else ())
            by = () if features_of(table).is_clustered or not packs else by
            sized = replace(options, file_bytes=layout.file_bytes or options.file_bytes)
            store.pack(session(), sized, [name for name in by if name in there], share)
            packed = store.opened()
            after = len(packed.get_add_actions(flatten=True).column("path")) if packed is not None else after
    finally:  # clean up even if packing fails, so that the table does not grow without end
        removed = clean(store, session, options)
    return MaintenanceResult(files_before=before, files_after=after, removed=removed)


def pack(
    session: SparkSession, location: str, options: MaintenanceOptions, key: Sequence[str], share: float | None = None
) -> None:
    """Pack small files into large ones, sorted by ``key`` if there is one; also files with more than ``share`` marked
    rows.

    Delta rewrites no single file alone: it packs a file with many marks together with small ones, which every window
    adds. Each commit makes at most eight large files, so a conflict with a sync costs no more than these.
    """
    session.conf.set("spark.databricks.delta.optimize.batchSize", str(options.file_bytes * 8))
    session.conf.set("spark.databricks.delta.optimize.maxFileSize", str(options.file_bytes))
    session.conf.set("spark.databricks.delta.optimize.minFileSize", str(options.file_bytes // 2))
    folds = share if share is not None else 1.0 if options.insists else options.marked_share
    session.conf.set("spark.databricks.delta.optimize.maxDeletedRowsRatio", str(folds))
    order = f" ZORDER BY ({', '.join(map(quoted, key))})" if key else ""
    session.sql(f"OPTIMIZE delta.{quoted(spark_path(location))}{order}")


def clean(store: DeltaStore, session: Callable[[], SparkSession], options: MaintenanceOptions) -> int:
    """Remove files and log entries that no kept version needs. Returns how many, without those that Spark removes."""
    table = store.opened()
    if options.keep_hours is None or table is None:
        return 0
    settings = table.metadata().configuration
    # The table's owner may want to keep files longer.
    keep_hours = max(options.keep_hours, interval_hours(settings.get(_REMEMBERED, "")))
    removed = vacuum(table, keep_hours)
    if sees_strays(table, keep_hours) and not features_of(table).takes_files:
        # By Spark, which knows deletion vectors. It does not report how many files it removed.
        child = session()
        child.conf.set("spark.databricks.delta.retentionDurationCheck.enabled", "false")
        child.conf.set("spark.databricks.delta.vacuum.logging.enabled", "false")  # else VACUUM commits, too
        # Few tasks list the files: Spark's default of ten thousand takes a minute even without files.
        child.conf.set("spark.sql.sources.parallelPartitionDiscovery.parallelism", _LISTING_TASKS)
        hours = max(WRITE_HOURS, round(keep_hours))
        child.sql(f"VACUUM delta.{quoted(spark_path(store.location))} RETAIN {hours} HOURS")
    features = features_of(table)
    if features.takes_files or features.takes_marks:  # an unknown feature may need the older checkpoints
        kept = options.keep_versions * _LOG_VERSIONS
        removed += remove_old_entries(store.location, table.version(), kept, interval_hours(settings.get(_LOGGED, "")))
    return removed + remove_stray_checksums(store.location)


def sees_strays(table: DeltaTable, keep_hours: float) -> bool:
    """Is every file that the log does not name a stray, and none removed less than ``keep_hours`` ago?

    Yes if Delta's default keeps removed files in checkpoints for so long. A table that sets a time itself is believed.
    """
    return keep_hours <= _REMEMBERED_HOURS or _REMEMBERED in table.metadata().configuration


def vacuum(table: DeltaTable, keep_hours: float) -> int:
    """Remove the files that no version younger than ``keep_hours`` uses. Returns how many.

    Also removes files that the log does not name (any more): those of uncommitted writes and of forgotten versions. It
    does that only for tables without deletion vectors, whose files deltalake does not know to be in use.
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
    """The hours of Delta's ``interval 30 days`` or ``interval 1 week 2 days``; 0 for any other text."""
    parts = _PART.findall(text.lower())
    return sum(float(number) * _UNIT_HOURS[unit] for number, unit in parts)


def remove_old_entries(root: str, newest: int, keep: int, keep_hours: float = 0) -> int:
    """Remove log entries that only versions more than ``keep`` commits before ``newest`` need. Returns how many files.

    Keeps entries younger than ``keep_hours``. Everything before a checkpoint can go: the checkpoint has the state. The
    oldest entries go first, so that a crash leaves no gap.
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
    """Remove checksum files whose file is gone, in the table's directories and its log. Returns how many.

    Also removes old directories of writes that have no other files left. Directories that begin with an underscore or a
    dot are not the table's, and stay.
    """
    if "://" in root:
        return 0  # only Hadoop's local file system writes checksum files

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
        except FileNotFoundError:  # another process has removed it
            continue
    return removed
