"""One Delta table: what a table format can do to it. See ``delta_log`` for what commits record."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lakefeed.change.table import TableSchema
from lakefeed.lake.base import Applied, ChunkSource, Loaded, TableCopy, TableVersion
from lakefeed.lake.bounds import KeyBounds
from lakefeed.lake.delta_cleanup import WRITE_HOURS, remove_stray_checksums
from lakefeed.lake.delta_evolve import evolve_table
from lakefeed.lake.delta_files import write_files
from lakefeed.lake.delta_history import read_log
from lakefeed.lake.delta_load import load_table
from lakefeed.lake.delta_log import AppIds, DeltaLog
from lakefeed.lake.file_chunk import CurrentRows, FileChunk
from lakefeed.lake.history import exact_states
from lakefeed.lake.location import spark_path
from lakefeed.lake.maintenance import MaintenanceOptions, MaintenanceResult, needs_packing
from lakefeed.lake.route import Route
from lakefeed.lake.shape import Shape
from lakefeed.lake.sparktype import quoted
from lakefeed.lake.step import AppendRows, MergeRows, Replaceable, RewriteRows, Step
from lakefeed.lake.store import Extent, Stamp

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_VIEW = "lakefeed_changes"
_LOG_VERSIONS = 10
"""Entries of the log that are kept for each version: they are small, and only listed."""
_LISTING_TASKS = "32"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaOptions:
    """``storage`` is deltalake's storage options, ``properties`` what tables are made with."""

    storage: Mapping[str, str] = field(default_factory=dict)
    properties: Mapping[str, str] = field(default_factory=dict)


class DeltaStore:
    """See ``lake.store.TableStore`` for the contract."""

    def __init__(self, path: str, pipeline: str, route: Route, options: DeltaOptions) -> None:
        self.location = path
        self._table = route.table
        self._owner = f"lakefeed/{pipeline}/{route.table}"
        self._log = DeltaLog(path, storage_options=options.storage, properties=options.properties)

    def recorded(self, generation: int) -> Applied | None:
        return self._log.applied(AppIds(self._owner, generation))

    def load(
        self, copy: TableCopy, shape: Shape, session: Callable[[], SparkSession], progress: Callable[[int], None]
    ) -> Loaded:
        ids = AppIds(self._owner, copy.generation)
        return load_table(copy, shape, self._log, ids, context=lambda: session().sparkContext, progress=progress)

    def extent(self, column: str, bounds: KeyBounds | None) -> Extent | None:
        return self._log.extent(column, bounds)

    def states(self, generation: int) -> tuple[TableVersion, ...]:
        commits = exact_states(read_log(self.location, self._table), generation)
        return tuple(
            TableVersion(
                number=commit.applied or 0,
                schema_version=int((commit.metadata or {})["schema_version"]),
                position=commit.position,
                version=commit.version,
            )
            for commit in commits
        )

    def chunks(self, state: TableVersion, schema: TableSchema, current: CurrentRows) -> tuple[ChunkSource, ...]:
        files = self._log.files(state.version)
        return tuple(FileChunk(schema, path, current, state.position) for path in files)

    def read(self, session: SparkSession) -> DataFrame:
        return session.read.format("delta").load(spark_path(self.location))

    def read_files(self, session: SparkSession, old: Replaceable) -> DataFrame:
        return self._log.read_files(session, old)

    def commit(self, session: SparkSession, step: Step, stamp: Stamp) -> None:
        ids = AppIds(self._owner, stamp.generation)
        if not self._log.is_due(ids, stamp):
            return
        if isinstance(step, RewriteRows) or (isinstance(step, AppendRows) and self._log.takes_files()):
            # Spark writes files, and the log takes them in: see ``delta_files``.
            old = step.old if isinstance(step, RewriteRows) else None
            self._log.exchange(write_files(step.rows, self.location), old, ids, stamp)
            return
        with self._stamped(session, stamp):
            if isinstance(step, MergeRows):
                step.rows.createOrReplaceTempView(_VIEW)
                session.sql(step.statement(f"delta.{quoted(spark_path(self.location))}", _VIEW))
                return
            mode = "append" if isinstance(step, AppendRows) else "overwrite"
            step.rows.write.format("delta").mode(mode).save(spark_path(self.location))

    def maintain(
        self, session: Callable[[], SparkSession], options: MaintenanceOptions, key: Sequence[str]
    ) -> MaintenanceResult:
        extent = self._log.extent("", None)
        if extent is None:
            return MaintenanceResult()
        after = extent.files
        try:
            if needs_packing(extent.files, extent.bytes, options):
                self._pack(session(), options, self._log.having(key) if options.cluster else ())
                packed = self._log.extent("", None)
                after = packed.files if packed is not None else after
        finally:  # a table that cannot be packed must not grow without end, too
            removed = self._clean(session, options)
        return MaintenanceResult(files_before=extent.files, files_after=after, removed=removed)

    def _clean(self, session: Callable[[], SparkSession], options: MaintenanceOptions) -> int:
        if options.keep_hours is None:
            return 0
        removed = self._log.vacuum(options.keep_hours)
        if self._log.leaves_strays(options.keep_hours):
            self._vacuum(session(), options.keep_hours)
        removed += self._log.forget(options.keep_versions * _LOG_VERSIONS)
        return removed + remove_stray_checksums(self.location)

    def _vacuum(self, session: SparkSession, keep_hours: float) -> None:
        """By Spark, which knows deletion vectors. It does not say how many files went."""
        session.conf.set("spark.databricks.delta.retentionDurationCheck.enabled", "false")
        session.conf.set("spark.databricks.delta.vacuum.logging.enabled", "false")  # no commits where nothing is done
        # Tasks that list files: Spark's default is ten thousand, which is a minute's work for no files at all.
        session.conf.set("spark.sql.sources.parallelPartitionDiscovery.parallelism", _LISTING_TASKS)
        hours = max(WRITE_HOURS, round(keep_hours))
        session.sql(f"VACUUM delta.{quoted(spark_path(self.location))} RETAIN {hours} HOURS")

    def _pack(self, session: SparkSession, options: MaintenanceOptions, key: Sequence[str]) -> None:
        session.conf.set("spark.databricks.delta.optimize.maxFileSize", str(options.file_bytes))
        session.conf.set("spark.databricks.delta.optimize.minFileSize", str(options.file_bytes // 2))
        if options.insists:
            session.conf.set("spark.databricks.delta.optimize.maxDeletedRowsRatio", "1.0")
        order = f" ZORDER BY ({', '.join(map(quoted, key))})" if key else ""
        session.sql(f"OPTIMIZE delta.{quoted(spark_path(self.location))}{order}")

    def evolve(self, session: SparkSession, path: Sequence[TableSchema], stamp: Stamp) -> None:
        with self._stamped(session, stamp):
            evolve_table(session, path, self.location)

    @contextmanager
    def _stamped(self, session: SparkSession, stamp: Stamp) -> Iterator[None]:
        """The commit inside records the stamp; one that is recorded already is left out."""
        ids = AppIds(self._owner, stamp.generation)
        app_id, version = (
            (ids.applied, stamp.number) if stamp.number is not None else (ids.schema, stamp.schema_version)
        )
        settings = {
            "spark.databricks.delta.write.txnAppId": app_id,
            "spark.databricks.delta.write.txnVersion": str(version),
            "spark.databricks.delta.commitInfo.userMetadata": json.dumps(stamp.metadata),
        }
        for name, value in settings.items():
            session.conf.set(name, value)
        try:
            yield
        finally:
            for name in settings:
                session.conf.unset(name)
