"""Maintenance of one Iceberg table: pack small files, fold deletion vectors, expire old snapshots.

The table keeps its record. A snapshot made by packing has none, so Lakefeed puts an empty one with the record on top
before it expires snapshots, and publishes it only if nobody has committed in between.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from lakefeed.lake.iceberg.record import ATTEMPT
from lakefeed.lake.maintenance import MaintenanceOptions, MaintenanceResult, folded_from, needs_packing
from lakefeed.lake.spark.type import quoted

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lakefeed.lake.iceberg.store import IcebergStore

KEPT_SNAPSHOTS = 10
"""So many snapshots stay whatever their age."""
_NO_LIMIT = 1 << 60
"""No file is split for its size. By default Iceberg, when it packs, also splits files of 1.8 times the target."""


def maintain_table(
    store: IcebergStore, session: Callable[[], SparkSession], options: MaintenanceOptions, key: Sequence[str]
) -> MaintenanceResult:
    """See ``LakeTable.maintain``. Calls ``session`` only if it needs Spark."""
    size = store.size()
    if size is None:
        return MaintenanceResult()
    before = after = size[0]
    try:
        # Reading each file's marks takes JVM calls: do it only if the table has marks at all.
        has_many = store.marked_share > options.marked_share / 4
        share = folded_from(store.library.marked_files(), options) if has_many else None
        packs = needs_packing(*size, options)
        if share is not None or packs:
            by = store.layout.cluster_by or (key if options.cluster else ()) if packs else ()
            sized = replace(options, file_bytes=store.layout.file_bytes or options.file_bytes)
            is_ordered = bool(by) and store.is_ordered
            pack(session(), store.name, sized, store.having(by), share, is_ordered=is_ordered, only_folds=not packs)
            packed = store.size()
            after = packed[0] if packed is not None else after
    finally:  # clean up even if packing fails, so that the table does not grow without end
        removed = clean(store, session, options)
    return MaintenanceResult(files_before=before, files_after=after, removed=removed)


def pack(
    session: SparkSession,
    name: Sequence[str],
    options: MaintenanceOptions,
    key: Sequence[str],
    share: float | None = None,
    *,
    is_ordered: bool,
    only_folds: bool = False,
) -> None:
    """Pack small files into large ones, sorted by the table's own sort order, else by ``key`` if there is one.

    Also rewrites files with more than ``share`` marked rows; with ``only_folds`` these alone.
    """
    folds = share if share is not None else 1.0 if options.insists else options.marked_share
    given = {
        "delete-ratio-threshold": str(folds),
        "target-file-size-bytes": str(options.file_bytes),
        "max-file-size-bytes": str(_NO_LIMIT),
        "min-input-files": "2",
    }
    if only_folds:
        given["min-file-size-bytes"] = "0"
    listed = ", ".join(_text(part) for pair in given.items() for part in pair)
    order = _text(", ".join(f"{quoted(column)} ASC NULLS FIRST" for column in key))
    sort = f", strategy => 'sort', sort_order => {order}" if key else ""
    sort = ", strategy => 'sort'" if is_ordered else sort
    table = _text(".".join(map(quoted, name[1:])))
    call = f"rewrite_data_files(table => {table}{sort}, options => map({listed}))"
    session.sql(f"CALL {quoted(name[0])}.system.{call}").collect()


def clean(store: IcebergStore, session: Callable[[], SparkSession], options: MaintenanceOptions) -> int:
    """Put a snapshot with a record on top, if the current one has none; then expire old snapshots. Returns how many
    files that removed.

    The table's properties may keep snapshots longer.
    """
    with store.turn if store.part is not None else nullcontext():
        found = store.newest_below_others()
        if found is not None:
            record, commit = found
            attempt = uuid.uuid4().hex
            summary = store.summary(record, {**commit, "maintenance": True})
            store.library.stage_nothing({**summary, ATTEMPT: attempt})
            staged = store.staged(attempt)
            if staged is not None and staged.before == record:
                store.library.publish(staged.snapshot)
    kept_seconds, least = store.kept_snapshots()
    kept = max(KEPT_SNAPSHOTS, least)
    aged = time.time() - options.keep_hours * 3600 if options.keep_hours is not None else None
    limit = store.expirable(aged, options.keep_versions, kept=kept, until=time.time() - kept_seconds)
    if limit is None:
        return 0
    before = datetime.fromtimestamp(limit, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")
    call = (
        f"expire_snapshots(table => {_text('.'.join(map(quoted, store.name[1:])))}, "
        f"older_than => TIMESTAMP '{before}+00:00', retain_last => {kept})"
    )
    counts = session().sql(f"CALL {quoted(store.name[0])}.system.{call}").collect()[0]
    return sum(int(count or 0) for count in counts)


def _text(value: str) -> str:
    """A text literal of Spark SQL."""
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
