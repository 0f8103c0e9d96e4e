"""One Delta table: what its commits record, its extent, its files, and its commits.

A table's commits record, as Delta application transactions (appId → version):

    lakefeed/<pipeline>/<table>                         the table's generation
    lakefeed/<pipeline>/<table>/<generation>            applied change set number; there once the copy is complete
    lakefeed/<pipeline>/<table>/<generation>/schema     schema version
    lakefeed/<pipeline>/<table>/<generation>/copy       chunks of the copy that are in the table

Delta keeps these through overwrites, so each generation of a table has ids of its own.

The store reads the log with the deltalake package: no JVM. Where the table allows it, Spark only writes files, and this
module adds them to the log. A commit by Spark itself runs a job that reads the table's whole log, to see which
transactions it records, and another that finds the rows of a merge: about one second and another two, whatever the
batch (docs/decisions/0010-delta-files.md). Files that no commit names are not part of the table: maintenance removes
them.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import fs
from pyroaring import BitMap

from lakefeed.change.table import TableId, TableSchema
from lakefeed.errors import CommitFailedError, LakeError, TableStoppedError
from lakefeed.failpoint import hit
from lakefeed.lake.base import Applied, ChunkSource, Loaded, TableCopy, TableVersion
from lakefeed.lake.delta.copy import (
    COLUMN_MAPPING,
    LOCAL_TIME,
    FileChunk,
    listed_properties,
    load_table,
    needs_mapping,
    part_condition,
)
from lakefeed.lake.delta.feature import features_of
from lakefeed.lake.delta.history import AppIds, exact_versions, newest_restore
from lakefeed.lake.delta.log import put_commit
from lakefeed.lake.delta.maintenance import WRITTEN, maintain_table, pack
from lakefeed.lake.delta.mark import LiveFiles, adding, located_files, marking, paths_of
from lakefeed.lake.delta.owner import overwriting
from lakefeed.lake.layout import Difference, Layout
from lakefeed.lake.loader import DataFile, file_statistics
from lakefeed.lake.location import delta_uri, filesystem, spark_path
from lakefeed.lake.maintenance import MaintenanceOptions, MaintenanceResult
from lakefeed.lake.mode.base import CurrentRows, Mode
from lakefeed.lake.route import Part, Route, Rule
from lakefeed.lake.schema.projection import lineage, projected
from lakefeed.lake.spark.driver import Driver
from lakefeed.lake.spark.error import ConcurrentModification
from lakefeed.lake.spark.type import lake_arrow, quoted, spark_columns, spark_type
from lakefeed.lake.store import (
    AppendRows,
    Extent,
    MarkRows,
    MergeRows,
    Replaceable,
    RewriteRows,
    Stamp,
    Step,
    completed,
    is_only_added,
    not_where_expected,
)
from lakefeed.lake.vector import FILE, ROW, located_and_written, positions
from lakefeed.lake.window import KeyBounds

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

log = logging.getLogger(__name__)

SESSION = {
    # A merge reads immutable files under a total order. It gets the same rows each time, so Delta need not store them
    # first.
    "spark.databricks.delta.merge.materializeSource": "none",
    # INT96, the default, has no statistics. Dates before 1582 are written as they are.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
}
_VIEW = "lakefeed_changes"
_WRITER = {
    "compression": "zstd",
    "parquet.compression.codec.zstd.level": "1",  # as the copy's files; the default, 3, takes longer and gains little
    "mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
}
_LOCAL_TIME = pa.timestamp("us")
_CHECKPOINT_VERSIONS = 20
"""Versions from one checkpoint of the log to the next. Each sync asks what a table records, and deltalake reads all
entries since the last checkpoint for it, several times and each in a thread: 100 entries (its own default) take 20 ms
of a sync, 20 take 7 ms; a checkpoint takes 5."""
_LARGE_CHECKPOINT, _LARGE_CHECKPOINT_VERSIONS = 5_000, 100
"""A checkpoint has every file, and for a week every file that was removed. From so many entries on make fewer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaOptions:
    """``storage`` has deltalake's storage options, ``properties`` those of new tables, ``layout`` a table's partitions
    and order. Tables that a rule of ``marked`` matches get deletion vectors."""

    storage: Mapping[str, str] = field(default_factory=dict)
    properties: Mapping[str, str] = field(default_factory=dict)
    layout: Layout = field(default_factory=Layout)
    marked: tuple[Rule, ...] = ()

    def of_table(self, table: TableId, layout: Layout) -> DeltaOptions:
        """The options of one table, which has the layout."""
        is_marked = any(rule.matches(table) for rule in self.marked)
        return replace(self, layout=layout, properties={"delta.enableDeletionVectors": str(is_marked).lower()})


class DeltaStore:
    """Contract: ``lake.store.TableStore``. One thread at a time writes; any thread may ask ``applied``."""

    reserved: tuple[str, ...] = ()
    parts: tuple[str, ...] = ()

    def __init__(self, path: str, pipeline: str, route: Route, options: DeltaOptions) -> None:
        self.location = path
        self.pipeline = pipeline
        self.owner = f"lakefeed/{pipeline}/{route.table}"
        self.options = options
        self.layout = options.layout
        self._route = route
        self.part = route.part
        self._uri = delta_uri(path)
        self._storage = dict(options.storage) or None
        self._lock = threading.RLock()  # ``commit`` holds it while it asks ``applied``
        self._table: DeltaTable | None = None  # as it was last read
        self._seen: tuple[tuple[int, int] | None, Applied | None] = (None, None)  # (version, generation), its answer
        self._files = LiveFiles(path)
        self._own_version: int | None = None  # the newest version that this process committed without Spark

    # What the commits record

    def applied(self, generation: int, *, fresh: bool = True) -> Applied | None:
        with self._lock:
            table = self.refresh() if fresh or self._table is None else self._table
            if table is None:
                return None
            # Once for each version: deltalake scans the log for it.
            at, ids = (table.version(), generation), AppIds(self.owner, generation)
            if self._seen[0] != at:
                number, version = table.transaction_version(ids.applied), table.transaction_version(ids.schema)
                found: Applied | None = None
                if table.transaction_version(ids.owner) == generation and number is not None and version is not None:
                    if table.version() != self._own_version:
                        self._refuse_restored(table.version(), ids, number)
                    # The number of rows by the files' statistics; None if these do not say.
                    counts = pa.table(table.get_add_actions(flatten=True)).column("num_records")
                    features = features_of(table)
                    known = not features.has_masked_rows and not counts.null_count
                    rows = int(pc.sum(counts, min_count=0).as_py()) if known else None
                    if self.part is not None:
                        rows = self._own_rows(table) if known else None
                    if features.takes_marks:
                        self._files.at(table.version())
                        rows = self._files.rows
                    found = Applied(number=number, schema_version=version, rows=rows)
                self._seen = (at, found)
            return self._seen[1]

    def _own_rows(self, table: DeltaTable) -> int:
        """The number of rows of a part, by the statistics of its files."""
        actions = pa.table(table.get_add_actions(flatten=True))
        own: Any = _of_part(actions, self.part) if self.part is not None else True
        return int(pc.sum(actions.filter(own).column("num_records"), min_count=0).as_py() or 0)

    def _refuse_restored(self, version: int, ids: AppIds, number: int) -> None:
        """TableStoppedError if the rows were restored to a version that did not have change set ``number``.

        Delta's RESTORE brings older rows back and leaves the recorded number as it is.
        """
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError

        restored = newest_restore(self.location, version)
        if restored is None:
            return
        at, source = restored
        with suppress(DeltaError):
            if source is not None:
                then = DeltaTable(self._uri, version=source, storage_options=self._storage)
                if then.transaction_version(ids.applied) == number:
                    return
        place, table = spark_path(self.location), self._route.table
        raise TableStoppedError(
            f"table {table}: version {at} of {self.location} restored older rows, which lack changes up to change set "
            f"{number}",
            remedy=f"Undo it: RESTORE TABLE delta.{quoted(place)} TO VERSION AS OF {at - 1}. Or copy the table again: "
            f"lakefeed rebuild FILE {table} --from-source.",
            table=str(table),
        )

    def refresh(self) -> DeltaTable | None:
        """Read the log: the table at its newest version. Another process may have committed to it, or removed it."""
        from deltalake import DeltaTable

        if not self._is_there():
            self._forget()
        elif self._table is None:
            self._table = DeltaTable(self._uri, storage_options=self._storage)
        else:
            self._table.update_incremental()
        return self._table

    def _is_there(self) -> bool:
        """Has the log an entry? Lists the directory: ``deltalake`` takes ten times as long to answer."""
        try:
            with os.scandir(f"{self.location}/_delta_log") as entries:
                return any(entry.name.endswith((".json", ".parquet")) for entry in entries)
        except (FileNotFoundError, NotADirectoryError):
            return False

    def opened(self) -> DeltaTable | None:
        """A handle for one caller, who can list a large table's files without holding the lock."""
        from deltalake import DeltaTable

        if not self._is_there():
            return None
        return DeltaTable(self._uri, storage_options=self._storage)

    # Extent and rows

    def extent(self, column: str, bounds: KeyBounds | None) -> Extent | None:
        """A file is touched unless its statistics say that it has no row between the bounds.

        With deletion vectors no bytes are touched: a merge marks rows and rewrites no file. Nor with row tracking: each
        row that is written again would look changed to its readers. Nor with partitions: a merge rewrites only files
        that have one of the rows.
        """
        with self._lock:
            table = self._table
            if table is None:
                return None
            actions = pa.table(table.get_add_actions(flatten=True))
            version, features = table.version(), features_of(table)
        sizes, names = actions.column("size_bytes"), actions.column_names
        touched: Any = pa.repeat(pa.scalar(True), actions.num_rows)
        low, high = f"min.{column}", f"max.{column}"
        # Delta cuts timestamps in statistics to milliseconds, so a file may seem to end early.
        if bounds is not None and low in names and high in names and not isinstance(bounds.low, datetime):
            try:
                below: Any = pc.less(actions.column(high), pa.scalar(bounds.low))
                above: Any = pc.greater(actions.column(low), pa.scalar(bounds.high))
                outside: Any = pc.fill_null(pc.or_(below, above), False)  # a file without statistics may have rows
                touched = pc.invert(outside)
            except pa.ArrowException:  # the statistics have another type than the key: every file may have its rows
                pass
        if self.part is not None:
            touched = pc.and_(touched, _of_part(actions, self.part))
        # See the docstring: no bytes are touched.
        merges = features.masks_rows or features.tracks_rows or bool(table.metadata().partition_columns)
        paths = actions.filter(touched).column("path").to_pylist()
        of_version = Replaceable(version, tuple(map(str, paths)))
        marks = features.takes_marks and not actions.column("num_records").null_count
        return Extent(
            files=actions.num_rows,
            bytes=int(pc.sum(sizes, min_count=0).as_py()),
            touched_files=int(pc.sum(touched, min_count=0).as_py()),
            touched_bytes=0 if merges else int(pc.sum(sizes.filter(touched), min_count=0).as_py()),
            replaceable=of_version if features.takes_files else None,
            markable=of_version if marks else None,
        )

    def read(self, session: SparkSession) -> DataFrame:
        from pyspark.sql import functions as F  # noqa: N812

        rows = session.read.format("delta").load(spark_path(self.location))
        return rows.where(F.col(quoted(self.part.column)) == self.part.value) if self.part is not None else rows

    def read_files(self, session: SparkSession, old: Replaceable) -> DataFrame:
        """The rows of some of the table's files, with the table's columns: older files may lack the newer ones."""
        return session.read.schema(spark_columns(self._arrow)).parquet(
            *(spark_path(f"{self.location}/{path}", as_glob=True) for path in old.files)
        )

    @property
    def _columns(self) -> StructType:
        """The table's columns, as Spark's types."""
        from pyspark.sql.pandas.types import from_arrow_schema

        return from_arrow_schema(self._arrow, prefer_timestamp_ntz=True)

    @property
    def _arrow(self) -> pa.Schema:
        with self._lock:
            if self._table is None:
                raise LakeError(f"the table at {self._uri} is gone")
            described: Any = self._table.schema().to_arrow()  # another library's schema, by the Arrow C interface
        return pa.schema(described)

    def located(self, session: SparkSession, old: Replaceable, columns: Sequence[str]) -> DataFrame:
        return located_files(session, self._columns, self.location, old.files, columns)

    def live(self, found: DataFrame, old: Replaceable, count: int) -> DataFrame:
        """The located rows are few. Only their addresses come to the driver, to be compared with the vectors."""
        from pyspark.sql import functions as F  # noqa: N812

        found = found.localCheckpoint()
        with self._lock:
            self._files.at(old.version)
            marks = self._files.marks(old.files)
        if not marks:
            return found
        met = positions(found.select(FILE, ROW), count)
        paths = paths_of(met, self.location, old.files)
        dead = [(address, row) for address, rows in met.items() for row in rows & marks.get(paths[address], BitMap())]
        if not dead:
            return found
        gone = found.sparkSession.createDataFrame(dead, f"{FILE} string, {ROW} long")
        return found.join(F.broadcast(gone), [FILE, ROW], "left_anti")

    # Commits

    def commit(self, session: SparkSession, step: Step, stamp: Stamp) -> Applied:
        """By Spark; or, where the table allows it, by exchanging files or marking rows: see the module.

        1 read what the table records; if it has the step, end  2 find the rows that go  3 write the rows that come
        4 check that the table is still at the version that the step was planned on  5 write the deletion vectors, which
        only the commit makes part of the table  6 name all of it in one commit.
        """
        with self._lock:
            table = self._table
            features = features_of(table) if table is not None else None
            appends = isinstance(step, AppendRows) and features is not None
            by_files = isinstance(step, RewriteRows) or (appends and features is not None and features.takes_files)
            by_marks = isinstance(step, MarkRows) or (appends and features is not None and features.takes_marks)
            # Fresh where Spark commits: it would not notice that another process has applied some of these change sets.
            done = self._done(stamp, fresh=not by_files and not by_marks)  # 1
        if done is not None:
            return done
        if isinstance(step, AppendRows | RewriteRows | MarkRows) and (by_files or by_marks):
            if isinstance(step, MarkRows):
                found, written = located_and_written(
                    step.gone, step.count, step.report, lambda: self._write(step.rows)
                )  # 2, 3
            else:
                found, written = {}, self._write(step.rows)  # 3
            with self._lock:
                done, table = self._done(stamp), self._table  # another thread may have read it again
                if done is not None or table is None:
                    return done or self._lost(stamp)  # the files are part of nothing: maintenance removes them
                if isinstance(step, RewriteRows | MarkRows) and table.version() != step.old.version:  # 4
                    planned = f"not at {step.old.version}"
                    raise ConcurrentModification(f"the table is at version {table.version()}, {planned}")
                # If the log has been removed since, a commit would begin a new one without its first versions.
                files, entry = filesystem(f"{self.location}/_delta_log/{table.version():020d}.json")
                if files.get_file_info(entry).type is not fs.FileType.File:
                    self._forget()
                    raise CommitFailedError(f"the table at {self.location} was removed or replaced")
                before = table.version()
                if by_marks:
                    self._commit_marks(table, step, found, written, stamp)
                else:
                    self._commit_files(table, step, written, stamp)
                table.update_incremental()
                if table.version() == before + 1:  # else others have committed after ours
                    self._own_version = table.version()
                if (before + 1) % _CHECKPOINT_VERSIONS == 0:
                    self._checkpoint(table, before + 1)
                return self._done(stamp) or self._lost(stamp)
        whole = completed(step, self._columns.names) if self.part is not None else step
        with self._stamped(session, stamp):
            if isinstance(whole, MergeRows):
                whole.rows.createOrReplaceTempView(_VIEW)
                session.sql(whole.statement(f"delta.{quoted(spark_path(self.location))}", _VIEW))
            else:
                mode = "append" if isinstance(whole, AppendRows) else "overwrite"
                writer = whole.rows.write.format("delta").mode(mode)
                if mode == "overwrite" and self.part is not None:
                    writer = writer.option("replaceWhere", part_condition(self.part))
                elif mode == "overwrite" and features is not None and features.is_clustered:
                    # With a condition, Delta keeps the table's clustering.
                    writer = writer.option("replaceWhere", "true")
                writer.save(spark_path(self.location))
        with self._lock:
            return self._done(stamp, fresh=True) or self._lost(stamp)

    def _write(self, rows: DataFrame) -> list[DataFile]:
        """Write one file for each of the frame's partitions that has rows."""
        place = f"{WRITTEN}{uuid.uuid4().hex}"
        rows.write.options(**_WRITER).parquet(f"{spark_path(self.location)}/{place}")
        files, directory = filesystem(f"{self.location}/{place}")
        # On a disk, move the files up: a directory of each commit would stay, with a checksum file nobody removes.
        moves = isinstance(files, fs.LocalFileSystem)
        written: list[DataFile] = []
        for info in files.get_file_info(fs.FileSelector(directory, recursive=False)):
            if not info.base_name.endswith(".parquet"):
                continue
            footer = pq.read_metadata(info.path, filesystem=files)
            if footer.num_rows == 0:
                continue
            if moves:
                Path(info.path).rename(Path(self.location, info.base_name))
            name = info.base_name if moves else f"{place}/{info.base_name}"
            statistics = file_statistics(footer, footer.schema.to_arrow_schema())
            written.append(DataFile(name, footer.num_rows, info.size, statistics, int(info.mtime_ns // 1_000_000)))
        if moves:
            shutil.rmtree(directory)
        return written

    def _commit_files(self, table: DeltaTable, step: Step, written: Sequence[DataFile], stamp: Stamp) -> None:
        from deltalake.exceptions import CommitFailedError as Refused
        from deltalake.transaction import AddAction, CommitProperties, RemoveAction, Transaction

        now = int(time.time() * 1000)
        added = [AddAction(one.name, one.bytes, {}, one.written_ms, True, one.statistics) for one in written]
        removed = [RemoveAction(path, True, now) for path in step.old.files] if isinstance(step, RewriteRows) else []
        properties = CommitProperties(
            custom_metadata={"userMetadata": json.dumps(stamp.metadata)},
            app_transactions=[Transaction(AppIds(self.owner, stamp.generation).applied, stamp.number or 0)],
            max_commit_retries=0,
        )
        try:
            table.create_write_transaction([*added, *removed], "append", table.schema(), commit_properties=properties)
        except Refused as error:
            raise ConcurrentModification(str(error)) from error

    def _commit_marks(
        self, table: DeltaTable, step: Step, found: Mapping[str, BitMap], written: Sequence[DataFile], stamp: Stamp
    ) -> None:
        actions = adding(written)
        if isinstance(step, MarkRows) and found:
            paths = paths_of(found, self.location, step.old.files)
            new = {paths[address]: rows for address, rows in found.items()}
            entries = self._files.at(step.old.version)
            if not new.keys() <= entries.keys():
                self._forget()
                raise ConcurrentModification(f"the log of {self.location} names other files than it did")
            actions += marking(self.location, entries, self._files.marks(new), new)  # 5
        hit("lake.after_marks")
        self._put(table, actions, {AppIds(self.owner, stamp.generation).applied: stamp.number or 0}, stamp)  # 6

    def _put(
        self, table: DeltaTable, actions: Sequence[Mapping[str, Any]], recorded: Mapping[str, int], stamp: Stamp
    ) -> None:
        """Write the table's next version into its log, without Spark."""
        put_commit(self.location, table.version() + 1, actions, recorded, json.dumps(stamp.metadata))

    def _checkpoint(self, table: DeltaTable, version: int) -> None:
        """A checkpoint only makes the log faster to read: the commit stands without it."""
        try:
            files, newest = filesystem(f"{self.location}/_delta_log/_last_checkpoint")
            is_large = False
            if files.get_file_info(newest).type is fs.FileType.File:
                is_large = json.loads(files.open_input_stream(newest).read()).get("size", 0) >= _LARGE_CHECKPOINT
            if not is_large or version % _LARGE_CHECKPOINT_VERSIONS == 0:
                table.create_checkpoint()
        except Exception as error:  # noqa: BLE001  # whatever deltalake raises, the table is as it should be
            log.warning("the log of %s gets no checkpoint and takes longer to read: %s", self.location, error)

    def _done(self, stamp: Stamp, *, fresh: bool = False) -> Applied | None:
        """What the table records, if it has the stamp's change set; else None.

        CommitFailedError if the table is not where the stamp's change sets begin: the caller plans them again.
        """
        recorded = self.applied(stamp.generation, fresh=fresh)
        if recorded is None:
            raise CommitFailedError(f"the table at {self.location} is not of generation {stamp.generation} any more")
        if stamp.number is None or recorded.number >= stamp.number:
            return recorded
        if stamp.found is not None and recorded.number != stamp.found:
            raise not_where_expected(self.location, recorded.number, stamp.found)
        return None

    def _lost(self, stamp: Stamp) -> NoReturn:
        raise CommitFailedError(f"the table at {self.location} does not record change set {stamp.number}")

    def evolve(self, session: SparkSession, path: Sequence[TableSchema], stamp: Stamp) -> None:
        """So that every reader can read the table (docs/decisions/0005-schema-evolution.md).

        A path that only adds columns without a default changes metadata alone. If it adds one with a default, or drops,
        renames or widens one, Spark rewrites the table in one commit. With column mapping and type widening Delta could
        do most of that in metadata, but some readers lack these features.
        """
        place, first, last = spark_path(self.location), path[0], path[-1]
        if has_local_time(last) and not has_local_time(first):
            # The table needs the feature before its first timestamp without a zone. That is a commit of its own,
            # harmless to repeat. Its session has no stamp: nobody must take this commit for the evolution.
            self.allow(Driver(session).child, LOCAL_TIME)
        if needs_mapping(last.names) and not needs_mapping(first.names):  # the same: a commit of its own
            self.set_properties(Driver(session).child, COLUMN_MAPPING)
        with self._stamped(session, stamp):
            if is_only_metadata_change(path) or self.part is not None:  # other parts keep a column that this one drops
                columns = ", ".join(f"{quoted(column.name)} {spark_type(column.type)}" for column in last.columns)
                nothing = session.createDataFrame([], columns)
                nothing.write.format("delta").mode("append").option("mergeSchema", "true").save(place)
            else:
                rows = self.read(session).select(*projected(path))
                with self._lock:
                    table = self.refresh()
                if table is None:
                    raise LakeError(f"the table at {self.location} is gone")
                if features_of(table).keeps_life:
                    rows.write.format("delta").mode("overwrite").option("overwriteSchema", "true").save(place)
                else:
                    overwriting(session, self.location, table, rows, self._route.table).save(place)

    def is_in_place(self, path: Sequence[TableSchema]) -> bool:
        """A part drops no columns: the other parts keep them."""
        kept = [name for name, was in lineage(path).items() if was == name]
        return is_only_added(path) and (self.part is not None or tuple(kept) == path[0].names)

    def laid_out_otherwise(self) -> tuple[Difference, ...]:
        table = self.opened()
        if table is None:
            return ()
        names = {one.name: str(one) for one in self.layout.partitions}
        partitions = [names.get(name, name) for name in table.metadata().partition_columns]
        return self.layout.differences(partitions, table.metadata().configuration)

    def lay_out(self, session: SparkSession) -> None:
        place = quoted(spark_path(self.location))
        properties = listed_properties(dict(self.layout.properties))
        session.sql(f"ALTER TABLE delta.{place} SET TBLPROPERTIES ({properties})")

    def other_type(self, schema: TableSchema) -> str | None:
        from deltalake import Schema

        table = self.opened()
        if table is None:
            return None
        there = {one.name.lower(): one for one in table.schema().fields}
        for one in Schema.from_arrow(lake_arrow(schema)).fields:
            found = there.get(one.name.lower())
            if found is not None and found.type != one.type:
                return f"the column {found.name} as {_type_text(found)}, not as {_type_text(one)}"
        return None

    def can_evolve(self, path: Sequence[TableSchema]) -> bool:  # noqa: ARG002  # the seam's
        return True

    def lost_by(self, path: Sequence[TableSchema]) -> str | None:  # noqa: ARG002  # the seam's
        """Nothing: ``evolve`` names what the table has, or refuses (``delta.owner``)."""
        return None

    @contextmanager
    def _stamped(self, session: SparkSession, stamp: Stamp) -> Iterator[None]:
        """Inside, Spark's commit records the stamp. If the table has recorded it already, Delta skips the commit."""
        ids = AppIds(self.owner, stamp.generation)
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

    # Copies, earlier states, maintenance

    def load(
        self, copy: TableCopy, mode: Mode, session: Callable[[], SparkSession], progress: Callable[[int], None]
    ) -> Loaded:
        return load_table(self, copy, mode, session, progress)

    @contextmanager
    def writing(self) -> Iterator[DeltaTable | None]:
        """The table, freshly read, for a copy. Afterwards the store forgets what it read: the copy may change all."""
        with self._lock:
            try:
                yield self.refresh()
            finally:
                self._forget()

    def _forget(self) -> None:
        """Forget what was read of the table: another one may have taken its path."""
        self._table, self._seen, self._files = None, (None, None), LiveFiles(self.location)

    def states(self, generation: int) -> tuple[TableVersion, ...]:
        return exact_versions(self.location, self._route.table, generation)

    def chunks(self, state: TableVersion, schema: TableSchema, current: CurrentRows) -> tuple[ChunkSource, ...]:
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError

        named = f"version {state.version} of the table at {self.location}"
        try:
            table = DeltaTable(self._uri, version=state.version, storage_options=self._storage)
        except DeltaError as error:
            raise LakeError(f"{named} cannot be read: {error}") from error
        features = features_of(table)
        if features.has_masked_rows:
            raise LakeError(f"{named} has deletion vectors, which mask rows of its files")
        if features.has_mapped_columns:
            raise LakeError(f"{named} has column mapping, so that its files have other column names than the table")
        if table.metadata().partition_columns:
            raise LakeError(f"{named} has partitions, so that its files lack the columns that it is partitioned by")
        paths = [f"{self.location}/{name}" for name in pa.table(table.get_add_actions()).column("path").to_pylist()]
        for path in paths:
            system, place = filesystem(path)
            if system.get_file_info(place).type is not fs.FileType.File:
                raise LakeError(f"{named} has lost a file: {path}")
        return tuple(FileChunk(schema, path, current, state.position) for path in paths)

    def allow(self, session: Callable[[], SparkSession], feature: str) -> None:
        """Give the table a feature of Delta. A commit of its own, harmless to repeat.

        By Spark: deltalake loses the features that older protocol versions imply.
        """
        self.set_properties(session, {f"delta.feature.{feature}": "supported"})

    def set_properties(self, session: Callable[[], SparkSession], properties: Mapping[str, str]) -> None:
        """As ``allow``. By Spark: deltalake would require readers of deletion vectors to support variants, too."""
        place = quoted(spark_path(self.location))
        session().sql(f"ALTER TABLE delta.{place} SET TBLPROPERTIES ({listed_properties(properties)})")

    def pack(self, session: SparkSession, options: MaintenanceOptions, key: Sequence[str], share: float | None) -> None:
        """Pack small files into large ones: see ``delta.maintenance``."""
        pack(session, self.location, options, key, share)

    def maintain(
        self, session: Callable[[], SparkSession], options: MaintenanceOptions, key: Sequence[str]
    ) -> MaintenanceResult:
        return maintain_table(self, session, options, key)


def is_only_metadata_change(path: Sequence[TableSchema]) -> bool:
    """Does the path only add columns without a default?"""
    first, last, came_from = path[0], path[-1], lineage(path)
    kept = [name for name, was in came_from.items() if was == name]
    return (
        tuple(kept) == first.names
        and all(first.column(name).type == last.column(name).type for name in kept)
        and all(last.column(name).default is None for name, was in came_from.items() if was is None)
    )


def _of_part(actions: pa.Table, part: Part) -> Any:
    """Which files of the log belong to a part. No file belongs to two: the parts are partitions."""
    return pc.equal(actions.column(f"partition.{part.column}"), pa.scalar(part.value))


def _type_text(field: Any) -> str:
    return json.dumps(json.loads(field.type.to_json())).strip('"')


def has_local_time(schema: TableSchema) -> bool:
    """Has the schema a timestamp without a zone, also inside lists?"""
    kinds: list[Any] = list(schema.arrow.types)
    while any(map(pa.types.is_list, kinds)):
        kinds = [kind.value_type if pa.types.is_list(kind) else kind for kind in kinds]
    return _LOCAL_TIME in kinds
