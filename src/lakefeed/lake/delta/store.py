"""One Delta table: what its commits record, how much of it lies where, its files, and its commits.

What a table's commits record, as Delta application transactions (appId → version):

    lakefeed/<pipeline>/<table>                         the generation that the table is of
    lakefeed/<pipeline>/<table>/<generation>            applied change set number; there once the copy is complete
    lakefeed/<pipeline>/<table>/<generation>/schema     schema version
    lakefeed/<pipeline>/<table>/<generation>/copy       chunks of the copy that are in the table

Delta keeps these through overwrites, so each life of a table has ids of its own.

The log is read through the deltalake package: no JVM. Where the table allows it, Spark only writes files and the log
takes them in: a commit by Spark itself reads the table's whole log in a job of its own, to see which transactions it
records, and finds the rows of a merge in another: about a second and another two, whatever the batch
(docs/decisions/0010-delta-files.md). Files that no commit names are not part of the table: maintenance removes them.
"""

from __future__ import annotations

import json
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
from lakefeed.lake.spark.type import lake_arrow, quoted, spark_type
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

SESSION = {
    # The source of a merge is immutable files under a total order: reading it twice gives the same rows, so there
    # is no need to write it down first.
    "spark.databricks.delta.merge.materializeSource": "none",
    # Instants with statistics, which the older form does not have; dates before 1582 as they are.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
}
_VIEW = "lakefeed_changes"
_WRITER = {
    "compression": "zstd",
    "parquet.compression.codec.zstd.level": "1",  # as the copy's files; the default, 3, takes longer for little
    "mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
}
_LOCAL_TIME = pa.timestamp("us")
_CHECKPOINT_VERSIONS = 20
"""Versions from one checkpoint of the log to the next. What a table records is asked for at each sync, and deltalake
reads all entries since the last checkpoint for it, several times and each in a thread: 100 entries (its own default)
take 20 ms of a sync, 20 take 7 ms; a checkpoint takes 5."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaOptions:
    """``storage`` is deltalake's storage options, ``properties`` what tables are made with, ``layout`` how one lies on
    disk. Tables that a rule of ``marked`` matches have deletion vectors."""

    storage: Mapping[str, str] = field(default_factory=dict)
    properties: Mapping[str, str] = field(default_factory=dict)
    layout: Layout = field(default_factory=Layout)
    marked: tuple[Rule, ...] = ()

    def of_table(self, table: TableId, layout: Layout) -> DeltaOptions:
        """Those of one table, which has the layout."""
        is_marked = any(rule.matches(table) for rule in self.marked)
        return replace(self, layout=layout, properties={"delta.enableDeletionVectors": str(is_marked).lower()})


class DeltaStore:
    """See ``lake.store.TableStore`` for the contract. One thread at a time writes; ``applied`` may be asked by any."""

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
        self._lock = threading.RLock()  # ``commit`` asks ``applied`` inside
        self._table: DeltaTable | None = None  # as it was last read
        self._seen: tuple[tuple[int, int] | None, Applied | None] = (None, None)  # of a version and generation
        self._files = LiveFiles(path)
        self._own_version: int | None = None  # the newest that is a commit by files of this process

    # What the commits record

    def applied(self, generation: int, *, fresh: bool = True) -> Applied | None:
        with self._lock:
            table = self.refresh() if fresh or self._table is None else self._table
            if table is None:
                return None
            # Worked out once for each version: deltalake scans the log for it.
            at, ids = (table.version(), generation), AppIds(self.owner, generation)
            if self._seen[0] != at:
                number, version = table.transaction_version(ids.applied), table.transaction_version(ids.schema)
                found: Applied | None = None
                if table.transaction_version(ids.owner) == generation and number is not None and version is not None:
                    if table.version() != self._own_version:
                        self._refuse_restored(table.version(), ids, number)
                    # Rows by the files' statistics; None where they do not say it.
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
        """Those of a part, by the statistics of its files."""
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
        """Read the log: the table at its newest version. Another process may have committed, or removed it."""
        from deltalake import DeltaTable

        if not self._is_there():
            self._forget()
        elif self._table is None:
            self._table = DeltaTable(self._uri, storage_options=self._storage)
        else:
            self._table.update_incremental()
        return self._table

    def _is_there(self) -> bool:
        """Is there a log with an entry? A listing of the directory; ``deltalake`` takes ten times as long to say it."""
        try:
            with os.scandir(f"{self.location}/_delta_log") as entries:
                return any(entry.name.endswith((".json", ".parquet")) for entry in entries)
        except (FileNotFoundError, NotADirectoryError):
            return False

    def opened(self) -> DeltaTable | None:
        """A handle for one caller: to list a large table's files takes longer than others should wait for the lock."""
        from deltalake import DeltaTable

        if not self._is_there():
            return None
        return DeltaTable(self._uri, storage_options=self._storage)

    # Extent and rows

    def extent(self, column: str, bounds: KeyBounds | None) -> Extent | None:
        """How many of the table's files may have rows between the bounds; all, where their statistics do not tell.

        With deletion vectors no bytes are touched: a merge marks rows and rewrites no file. Nor where readers follow
        single rows: to write others again would be a change of each.
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
        # Delta cuts instants in statistics to milliseconds, so that a file may seem to end early.
        if bounds is not None and low in names and high in names and not isinstance(bounds.low, datetime):
            try:
                below: Any = pc.less(actions.column(high), pa.scalar(bounds.low))
                above: Any = pc.greater(actions.column(low), pa.scalar(bounds.high))
                outside: Any = pc.fill_null(pc.or_(below, above), False)  # a file without statistics may have rows
                touched = pc.invert(outside)
            except pa.ArrowException:  # the statistics are of another type than the key, which then says nothing
                pass
        if self.part is not None:
            touched = pc.and_(touched, _of_part(actions, self.part))
        # Of a table with partitions, a merge rewrites the files alone that have one of the rows.
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
        return session.read.schema(self._columns).parquet(
            *(spark_path(f"{self.location}/{path}", as_glob=True) for path in old.files)
        )

    @property
    def _columns(self) -> StructType:
        """The table's columns, as Spark has them."""
        from pyspark.sql.pandas.types import from_arrow_schema

        with self._lock:
            if self._table is None:
                raise LakeError(f"the table at {self._uri} is gone")
            described: Any = self._table.schema().to_arrow()  # another library's schema, by the Arrow C interface
        return from_arrow_schema(pa.schema(described), prefer_timestamp_ntz=True)

    def located(self, session: SparkSession, old: Replaceable, columns: Sequence[str]) -> DataFrame:
        return located_files(session, self._columns, self.location, old.files, columns)

    def live(self, found: DataFrame, old: Replaceable, count: int) -> DataFrame:
        """The located rows are few, those of them that are marked already still fewer: only they come to the driver."""
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
        """By Spark, or, where the table allows it, as an exchange of files or by marking rows: see the module.

        1 read what the table records; a step that it has is left out  2 find the rows that go  3 write those that come
        4 check that the table still is what the step was planned on  5 write the deletion vectors, which only the
        commit makes part of the table  6 one commit that names all of it.
        """
        with self._lock:
            table = self._table
            features = features_of(table) if table is not None else None
            appends = isinstance(step, AppendRows) and features is not None
            by_files = isinstance(step, RewriteRows) or (appends and features is not None and features.takes_files)
            by_marks = isinstance(step, MarkRows) or (appends and features is not None and features.takes_marks)
            # Spark would not see that another process has a part of these change sets.
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
                # What was read may be gone: a commit would then make a log without its beginning.
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
                if table.version() == before + 1:  # else others have committed behind it
                    self._own_version = table.version()
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
                    # With a condition: without one Delta would take the table's clustering away.
                    writer = writer.option("replaceWhere", "true")
                writer.save(spark_path(self.location))
        with self._lock:
            return self._done(stamp, fresh=True) or self._lost(stamp)

    def _write(self, rows: DataFrame) -> list[DataFile]:
        return write_files(rows, self.location)

    def _commit_files(self, table: DeltaTable, step: Step, written: Sequence[DataFile], stamp: Stamp) -> None:
        from deltalake.exceptions import CommitFailedError as Refused
        from deltalake.transaction import AddAction, CommitProperties, RemoveAction, Transaction

        now, version = int(time.time() * 1000), table.version() + 1
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
        self._checkpoint(table, version)

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
        """The next version of the table, made here."""
        version = table.version() + 1
        put_commit(self.location, version, actions, recorded, json.dumps(stamp.metadata))
        self._checkpoint(table, version)

    def _checkpoint(self, table: DeltaTable, version: int) -> None:
        if version % _CHECKPOINT_VERSIONS == 0:
            table.update_incremental()
            table.create_checkpoint()

    def _done(self, stamp: Stamp, *, fresh: bool = False) -> Applied | None:
        """What the table records, if it has the stamp's change set.

        CommitFailedError if the table is not where the stamp's change sets begin: the changes are to be planned again.
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
        """For every reader, without column ids (docs/decisions/0005-schema-evolution.md).

        Columns added without a default, and steps that leave the columns as they are, change metadata only. For
        columns added with a default, dropped, renamed or widened the table is rewritten in one commit. Delta could do
        most of it in metadata, with column mapping and type widening; some readers do not have these features.
        """
        place, first, last = spark_path(self.location), path[0], path[-1]
        if has_local_time(last) and not has_local_time(first):
            # A table made without a timestamp that has no zone must be allowed one first. A commit of its own, harmless
            # to repeat, in a session without the stamp: it must not be taken for the evolution.
            self.allow(Driver(session).child, LOCAL_TIME)
        if needs_mapping(last.names) and not needs_mapping(first.names):  # as above: a commit of its own
            self.set_properties(Driver(session).child, COLUMN_MAPPING)
        with self._stamped(session, stamp):
            if is_only_metadata_change(path) or self.part is not None:  # of a part, columns that go stay
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
        """Of a part, columns that go stay for the others."""
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

    def lost_by(self, path: Sequence[TableSchema]) -> str | None:  # noqa: ARG002  # the seam's
        """Nothing: ``evolve`` names what the table has, or refuses (``delta.owner``)."""
        return None

    @contextmanager
    def _stamped(self, session: SparkSession, stamp: Stamp) -> Iterator[None]:
        """The commit inside, by Spark, records the stamp; one that is recorded already is left out."""
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
        """The table, freshly read, for a copy: what it commits may be a table of another schema."""
        with self._lock:
            try:
                yield self.refresh()
            finally:
                self._forget()

    def _forget(self) -> None:
        """What was read of the table: there may be another in its place."""
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
        """The table has a feature of Delta from now on. A commit of its own, harmless to repeat.

        By Spark: deltalake forgets what older protocols imply.
        """
        self.set_properties(session, {f"delta.feature.{feature}": "supported"})

    def set_properties(self, session: Callable[[], SparkSession], properties: Mapping[str, str]) -> None:
        """As ``allow``. By Spark: deltalake would have readers know variants, too, to read deletion vectors."""
        place = quoted(spark_path(self.location))
        session().sql(f"ALTER TABLE delta.{place} SET TBLPROPERTIES ({listed_properties(properties)})")

    def pack(self, session: SparkSession, options: MaintenanceOptions, key: Sequence[str], share: float | None) -> None:
        """Small files into large ones: see ``maintenance``."""
        pack(session, self.location, options, key, share)

    def maintain(
        self, session: Callable[[], SparkSession], options: MaintenanceOptions, key: Sequence[str]
    ) -> MaintenanceResult:
        return maintain_table(self, session, options, key)


def is_only_metadata_change(path: Sequence[TableSchema]) -> bool:
    """Are columns added without a default, and nothing else?"""
    first, last, came_from = path[0], path[-1], lineage(path)
    kept = [name for name, was in came_from.items() if was == name]
    return (
        tuple(kept) == first.names
        and all(first.column(name).type == last.column(name).type for name in kept)
        and all(last.column(name).default is None for name, was in came_from.items() if was is None)
    )


def _of_part(actions: pa.Table, part: Part) -> Any:
    """Which files of the log are a part's: each has files of its own, because the origin is a partition."""
    return pc.equal(actions.column(f"partition.{part.column}"), pa.scalar(part.value))


def _type_text(field: Any) -> str:
    return json.dumps(json.loads(field.type.to_json())).strip('"')


def has_local_time(schema: TableSchema) -> bool:
    """Has it a timestamp without a zone, maybe in a list?"""
    kinds: list[Any] = list(schema.arrow.types)
    while any(map(pa.types.is_list, kinds)):
        kinds = [kind.value_type if pa.types.is_list(kind) else kind for kind in kinds]
    return _LOCAL_TIME in kinds


def write_files(rows: DataFrame, root: str) -> list[DataFile]:
    """One file for each of the frame's partitions that has rows."""
    place = f"{WRITTEN}{uuid.uuid4().hex}"
    rows.write.options(**_WRITER).parquet(f"{spark_path(root)}/{place}")
    files, directory = filesystem(f"{root}/{place}")
    # On a disk no directory shall stay for each commit, with a checksum file that nobody would ever remove.
    moves = isinstance(files, fs.LocalFileSystem)
    written: list[DataFile] = []
    for info in files.get_file_info(fs.FileSelector(directory, recursive=False)):
        if not info.base_name.endswith(".parquet"):
            continue
        footer = pq.read_metadata(info.path, filesystem=files)
        if footer.num_rows == 0:
            continue
        if moves:
            Path(info.path).rename(Path(root, info.base_name))
        name = info.base_name if moves else f"{place}/{info.base_name}"
        statistics = file_statistics(footer, footer.schema.to_arrow_schema())
        written.append(DataFile(name, footer.num_rows, info.size, statistics, int(info.mtime_ns // 1_000_000)))
    if moves:
        shutil.rmtree(directory)
    return written
