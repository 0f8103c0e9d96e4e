"""Maintenance of one Iceberg table: pack small files, expire old snapshots. What the table records survives both.

A snapshot made by packing records nothing, so one that does is put on top of it before anything is expired: empty, and
published only if nothing was committed in between.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from lakefeed.lake.iceberg_java import JavaTable
from lakefeed.lake.iceberg_log import ATTEMPT, IcebergLog
from lakefeed.lake.maintenance import MaintenanceOptions, MaintenanceResult, needs_packing
from lakefeed.lake.sparktype import quoted

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KEPT_SNAPSHOTS = 10
"""That stay whatever their age."""
_NO_LIMIT = 1 << 60
"""Bytes from which a file is split. By default 1.8 times the target: to pack small ones takes large ones apart."""
_ONLY_SMALL = {"delete-ratio-threshold": "1.0"}


class IcebergMaintenance:
    """``name`` is the table's parts in Spark SQL, the catalog first."""

    def __init__(self, name: Sequence[str], log: IcebergLog, table: JavaTable) -> None:
        self._catalog = quoted(name[0])
        self._argument = _text(".".join(map(quoted, name[1:])))
        self._log = log
        self._table = table

    def run(
        self, session: Callable[[], SparkSession], options: MaintenanceOptions, key: Sequence[str]
    ) -> MaintenanceResult:
        size = self._log.size()
        if size is None:
            return MaintenanceResult()
        before = after = size[0]
        try:
            if needs_packing(*size, options):
                self._pack(session(), options, self._log.having(key) if options.cluster else ())
                packed = self._log.size()
                after = packed[0] if packed is not None else after
        finally:  # a table that cannot be packed must not grow without end, too
            removed = self._clean(session, options)
        return MaintenanceResult(files_before=before, files_after=after, removed=removed)

    def _clean(self, session: Callable[[], SparkSession], options: MaintenanceOptions) -> int:
        self._record_again()
        aged = time.time() - options.keep_hours * 3600 if options.keep_hours is not None else None
        limit = self._log.expirable(aged, options.keep_versions, kept=KEPT_SNAPSHOTS)
        return self._expire(session(), limit) if limit is not None else 0

    def _pack(self, session: SparkSession, options: MaintenanceOptions, key: Sequence[str]) -> None:
        told = {
            "target-file-size-bytes": str(options.file_bytes),
            "max-file-size-bytes": str(_NO_LIMIT),
            "min-input-files": "2",
            **(_ONLY_SMALL if options.insists else {}),
        }
        given = ", ".join(_text(part) for pair in told.items() for part in pair)
        order = _text(", ".join(f"{quoted(name)} ASC NULLS FIRST" for name in key))
        sort = f", strategy => 'sort', sort_order => {order}" if key else ""
        call = f"rewrite_data_files(table => {self._argument}{sort}, options => map({given}))"
        session.sql(f"CALL {self._catalog}.system.{call}").collect()

    def _record_again(self) -> None:
        """Put a snapshot that records on top of those that do not."""
        found = self._log.newest_below_others()
        if found is None:
            return
        record, commit = found
        attempt = uuid.uuid4().hex
        self._table.stage_nothing({**record.summary({**commit, "maintenance": True}), ATTEMPT: attempt})
        staged = self._log.staged(attempt)
        if staged is not None and staged.before == record:
            self._table.publish(staged.snapshot)

    def _expire(self, session: SparkSession, limit: float) -> int:
        before = datetime.fromtimestamp(limit, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")
        call = (
            f"expire_snapshots(table => {self._argument}, older_than => TIMESTAMP '{before}+00:00', "
            f"retain_last => {KEPT_SNAPSHOTS})"
        )
        counts = session.sql(f"CALL {self._catalog}.system.{call}").collect()[0]
        return sum(int(count or 0) for count in counts)


def _text(value: str) -> str:
    """As a literal of Spark SQL."""
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
