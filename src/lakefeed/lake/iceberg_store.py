"""One Iceberg table: what a table format can do to it. See ``iceberg_log`` for what commits record.

How a step is committed exactly once, also against a process that still believes the table to be its own:

  1 look at what the table records; a step that it has is left out
  2 Spark writes the step as a *staged* snapshot: it is in the metadata, but the table's content is as before
  3 look at what the snapshot that the staged one was made on records; if that has the step, leave the staged one alone
  4 publish: one commit that makes the staged snapshot the content, if the content still is what it was made on
Between 1 and 2 another process may come first, which 3 sees; between 3 and 4, which 4 refuses. A staged snapshot that
is never published is seen by no reader, and goes when snapshots are expired.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from lakefeed.change.table import TableSchema
from lakefeed.errors import CommitFailedError, LakeError
from lakefeed.lake.base import Applied, ChunkSource, Loaded, TableCopy, TableVersion
from lakefeed.lake.bounds import KeyBounds
from lakefeed.lake.file_chunk import CurrentRows
from lakefeed.lake.iceberg_chunk import chunks_of
from lakefeed.lake.iceberg_evolve import alterations, is_in_place
from lakefeed.lake.iceberg_java import JavaTable
from lakefeed.lake.iceberg_load import IcebergCopy
from lakefeed.lake.iceberg_log import ATTEMPT, SCHEMA_VERSION, IcebergLog
from lakefeed.lake.iceberg_maintenance import IcebergMaintenance
from lakefeed.lake.maintenance import MaintenanceOptions, MaintenanceResult
from lakefeed.lake.projection import projected
from lakefeed.lake.shape import Shape
from lakefeed.lake.sparktype import quoted
from lakefeed.lake.step import AppendRows, MergeRows, Replaceable, Step
from lakefeed.lake.store import Extent, Stamp

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_VIEW = "lakefeed_changes"
_PROPERTY = "spark.sql.iceberg.snapshot-property."
_PARTITIONS = "spark.sql.shuffle.partitions"
_SMALL_BYTES, _SMALL_ROWS = 32 << 20, 50_000
"""Of a whole table and of a merge, up to which one task is about as fast as several."""

PROPERTIES = {
    "format-version": "3",
    "write.delete.mode": "merge-on-read",
    "write.update.mode": "merge-on-read",
    "write.merge.mode": "merge-on-read",
    # Only with this does Spark stage what it is told to stage.
    "write.wap.enabled": "true",
    # A commit a second would otherwise leave a metadata file a second.
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "50",
    # Snapshots by others (a compaction) record nothing: a few of ours stay behind them, whoever expires.
    "history.expire.min-snapshots-to-keep": "10",
}
"""What tables are made with; docs/decisions/0008-iceberg-writes.md has the reasons and figures."""


class IcebergStore:
    """See ``lake.store.TableStore`` for the contract. ``name`` is the table's parts in Spark SQL, the catalog first."""

    def __init__(self, name: Sequence[str], log: IcebergLog, table: JavaTable) -> None:
        self.location = log.location
        self._name = ".".join(map(quoted, name))
        self._log = log
        self._table = table
        self._maintenance = IcebergMaintenance(name, log, table)

    def recorded(self, generation: int) -> Applied | None:
        return self._log.applied(generation)

    def load(
        self, copy: TableCopy, shape: Shape, session: Callable[[], SparkSession], progress: Callable[[int], None]
    ) -> Loaded:
        loader = IcebergCopy(self._log, self._table, PROPERTIES)
        return loader.load(copy, shape, lambda: session().sparkContext, progress)

    def extent(self, column: str, bounds: KeyBounds | None) -> Extent | None:  # noqa: ARG002
        """A merge rewrites no file (deleted rows are marked), so that no bytes are ever touched.

        Of the touched files only whether there are any is asked for: to count them takes a call into the JVM each.
        """
        size = self._log.size()
        if size is None:
            return None
        files, total = size
        none = not files or (bounds is not None and not self._table.is_touched(bounds))
        return Extent(files=files, bytes=total, touched_files=0 if none else files, touched_bytes=0)

    def states(self, generation: int) -> tuple[TableVersion, ...]:
        return self._log.states(generation)

    def chunks(self, state: TableVersion, schema: TableSchema, current: CurrentRows) -> tuple[ChunkSource, ...]:
        return chunks_of(self._log.metadata_file(), state, schema, current)

    def read(self, session: SparkSession) -> DataFrame:
        return session.table(self._name)

    def read_files(self, session: SparkSession, old: Replaceable) -> DataFrame:  # noqa: ARG002  # the seam's
        raise LakeError(f"no extent of {self.location} names files to replace: its rows are masked, not rewritten")

    def commit(self, session: SparkSession, step: Step, stamp: Stamp) -> None:
        record = self._log.record(stamp.generation)
        if record is None or record.applied is None or stamp.number is None:
            raise LakeError(f"there is no whole table of generation {stamp.generation} at {self.location}")
        if record.applied >= stamp.number:
            return
        attempt = uuid.uuid4().hex
        after = record.at(stamp.number, record.schema_version)
        with _staging(session, attempt, after.summary(stamp.metadata)):
            self._write(session, step)
        self._publish(attempt, stamp, stamp.number)

    def maintain(
        self, session: Callable[[], SparkSession], options: MaintenanceOptions, key: Sequence[str]
    ) -> MaintenanceResult:
        return self._maintenance.run(session, options, key)

    def evolve(self, session: SparkSession, path: Sequence[TableSchema], stamp: Stamp) -> None:
        """Of two processes that alter columns at once, the second finds its columns changed already and fails."""
        record = self._log.record(stamp.generation)
        if record is None or stamp.schema_version is None:
            raise LakeError(f"there is no table of generation {stamp.generation} at {self.location}")
        if record.schema_version >= stamp.schema_version:
            return
        if is_in_place(path):
            self._table.alter(alterations(path), {SCHEMA_VERSION: str(stamp.schema_version)})
            return
        after = record.at(record.applied, stamp.schema_version)
        with _recording(session, after.summary(stamp.metadata)):
            self._rewrite(session, path, stamp.schema_version)

    def _rewrite(self, session: SparkSession, path: Sequence[TableSchema], version: int) -> None:
        """The whole table under other types, in one commit; it records the number that the rows are of.

        This replaces whatever was committed since it was begun. What it then records is true of what it then has, so
        that the changes that it has undone are applied again.
        """
        rows = self.read(session).select(*projected(path))
        rows.writeTo(self._name).using("iceberg").tableProperty(SCHEMA_VERSION, str(version)).replace()

    def _write(self, session: SparkSession, step: Step) -> None:
        from pyspark.sql import functions as F  # noqa: N812

        if isinstance(step, MergeRows):
            step.rows.createOrReplaceTempView(_VIEW)
            with self._few_files(session, step.count):
                session.sql(step.statement(self._name, _VIEW))
        elif isinstance(step, AppendRows):
            step.rows.writeTo(self._name).append()
        else:
            step.rows.writeTo(self._name).overwrite(F.lit(True))

    @contextmanager
    def _few_files(self, session: SparkSession, count: int) -> Iterator[None]:
        """A small merge into a small table is written by one task: a file for every core, every second, adds up."""
        size = self._log.size()
        if size is None or size[1] > _SMALL_BYTES or count > _SMALL_ROWS:
            yield
            return
        before: Any = session.conf.get(_PARTITIONS)
        session.conf.set(_PARTITIONS, "1")
        try:
            yield
        finally:
            session.conf.set(_PARTITIONS, before)  # unset, it would be Spark's default and not the session's

    def _publish(self, attempt: str, stamp: Stamp, number: int) -> None:
        """See the module for the steps 3 and 4. ``number`` is the stamp's."""
        staged = self._log.staged(attempt)
        if staged is None:
            raise CommitFailedError(f"Spark wrote no snapshot for change set {number} into {self.location}")
        before = staged.before
        if before is None or before.generation != stamp.generation or before.applied is None:
            raise CommitFailedError(f"the table at {self.location} was replaced while change set {number} was written")
        if before.applied >= number:
            return
        if before.applied > stamp.metadata["change_sets"]["after"]:
            raise CommitFailedError(f"another process has brought {self.location} to change set {before.applied}")
        if not staged.published:
            self._table.publish(staged.snapshot)


@contextmanager
def _staging(session: SparkSession, attempt: str, summary: Mapping[str, str]) -> Iterator[None]:
    """What is written inside becomes a staged snapshot with this summary. The session is the table's own."""
    session.conf.set("spark.wap.id", attempt)
    try:
        with _recording(session, {**summary, ATTEMPT: attempt}):
            yield
    finally:
        session.conf.unset("spark.wap.id")


@contextmanager
def _recording(session: SparkSession, summary: Mapping[str, str]) -> Iterator[None]:
    """What is written inside becomes a snapshot with this summary."""
    settings = {_PROPERTY + key: value for key, value in summary.items()}
    for name, value in settings.items():
        session.conf.set(name, value)
    try:
        yield
    finally:
        for name in settings:
            session.conf.unset(name)
