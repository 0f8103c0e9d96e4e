"""A Delta table in an object store: every commit puts an entry into the log, if absent.

Spark reads rows, and its tasks write files. For a plain table this module makes the log's entries (``log``):

- it appends, exchanges or marks rows as on a disk;
- for a merge it finds the files that have matching rows, and exchanges those;
- for a truncate, or a schema change that rewrites all rows, it exchanges all files;
- for new columns, properties and features it writes an entry with metadata alone;
- to pack small files, it exchanges files without changing a row.

A task gives its file a random name. A commit names only the files that successful tasks have reported, so a task that
Spark gave up and that goes on writing does no harm.

If a table has more than files and marks (partitions, column mapping, constraints, clustering, a change data feed),
Spark commits, as on a disk. But Spark's commits to a store are ordinary puts: the second of two writers would replace
the first one's. So they go through a log store of ours (``spark.log_store``), or Lakefeed refuses them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa

from lakefeed.change.table import TableId, TableSchema
from lakefeed.errors import LakeError, TableStoppedError
from lakefeed.lake.base import Applied, Loaded, TableCopy
from lakefeed.lake.delta.copy import LOCAL_TIME, needs_mapping, with_comments
from lakefeed.lake.delta.feature import features_of
from lakefeed.lake.delta.history import AppIds
from lakefeed.lake.delta.log import allowing, described, put_commit, removed
from lakefeed.lake.delta.mark import adding, paths_of, row_count
from lakefeed.lake.delta.store import DeltaStore, has_local_time, is_only_metadata_change
from lakefeed.lake.loader import DataFile, write_chunk
from lakefeed.lake.location import spark_path
from lakefeed.lake.maintenance import MaintenanceOptions
from lakefeed.lake.mode.base import Mode
from lakefeed.lake.schema.projection import projected
from lakefeed.lake.spark.driver import Driver
from lakefeed.lake.spark.error import ConcurrentModification
from lakefeed.lake.spark.log_store import commits_if_absent
from lakefeed.lake.spark.type import lake_arrow, quoted
from lakefeed.lake.store import (
    BROADCAST_ROWS,
    MergeRows,
    Replaceable,
    ReplaceRows,
    RewriteRows,
    Stamp,
    Step,
)
from lakefeed.lake.vector import FILE, ROW
from lakefeed.storage.location import give_options, options_of, storage_at

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from pyspark.sql import DataFrame, SparkSession

_NAME = "_lakefeed_name"
_MANY_FILES = 200
"""From so many files on, Delta's reader reads the table: it takes them from the log, without a request for each."""
_PACKED_FILES = 8
"""One commit packs at most so many large files: a conflict with a sync costs no more."""
_FILE_BYTES, _TASK_BYTES = 128 << 20, 1 << 20
"""The size of files that a merge writes, and up to which one task writes alone."""
_WRITTEN = "name string, rows long, bytes long, statistics string, written_ms long"


class StoreDelta(DeltaStore):
    """Contract: ``lake.store.TableStore``. How it commits: see the module."""

    def _is_there(self) -> bool:
        """Asks the store itself: deltalake holds Python's global lock until the store answers, so that renewals of the
        lease, and all other threads, would wait for a slow store."""
        return storage_at(self.location, self._storage).has_folder("_delta_log")

    # Rows

    def read(self, session: SparkSession) -> DataFrame:
        """The rows at the version that the next commit is planned on."""
        if not self._is_plain():
            return super().read(session)
        old = self._all_files()
        if len(old.files) > _MANY_FILES:
            reader = session.read.format("delta").option("versionAsOf", old.version)
            return reader.load(spark_path(self.location))
        return self.read_files(session, old)

    def read_files(self, session: SparkSession, old: Replaceable) -> DataFrame:
        """The rows that are not marked as deleted."""
        from pyspark.sql import functions as F  # noqa: N812

        if not old.files:
            return session.createDataFrame([], self._columns)
        with self._lock:
            self._files.at(old.version)
            marks = self._files.marks(old.files)
        rows = super().read_files(session, old)
        if not marks:
            return rows
        names = {path: path.rpartition("/")[2] for path in old.files}
        if len(set(names.values())) < len(names):
            raise LakeError(f"the table at {self.location} has two files of one name: Lakefeed cannot read their marks")
        dead = pa.table(
            {
                _NAME: pa.array([names[path] for path, gone in marks.items() for _ in gone], pa.string()),
                ROW: pa.array([row for gone in marks.values() for row in gone], pa.int64()),
            }
        )
        name = F.element_at(F.split(F.col("_metadata.file_path"), "/"), -1).alias(_NAME)
        placed = rows.select("*", name, F.col("_metadata.row_index").alias(ROW))
        gone = F.broadcast(session.createDataFrame(dead))
        return placed.join(gone, [_NAME, ROW], "left_anti").drop(_NAME, ROW)

    def _all_files(self) -> Replaceable:
        with self._lock:
            if self._table is None and self.refresh() is None:
                raise LakeError(f"the table at {self.location} is gone")
            version = self._table.version() if self._table is not None else 0
            return Replaceable(version, tuple(self._files.at(version)))

    # Commits

    def commit(self, session: SparkSession, step: Step, stamp: Stamp) -> Applied:
        if not self._is_plain():
            return super().commit(self._committing(session), step, stamp)
        return super().commit(session, self._committable(session, step), stamp)

    def _committable(self, session: SparkSession, step: Step) -> Step:
        """The step as an exchange of files, where on a disk Spark would commit it."""
        from pyspark.sql import functions as F  # noqa: N812

        if isinstance(step, ReplaceRows):
            return RewriteRows(step.rows, self._all_files())
        if not isinstance(step, MergeRows):
            return step
        old = step.within if step.within is not None else self._all_files()
        touched = Replaceable(old.version, ())
        if old.files:
            used = [name for name in self._columns.names if f"t.{quoted(name)}" in step.condition]
            rows = F.broadcast(step.rows) if step.count <= BROADCAST_ROWS else step.rows
            stored = self.located(session, old, used).alias("t")
            met = stored.join(rows.alias("s"), F.expr(step.condition), "left_semi").select(FILE).distinct().collect()
            named = paths_of([str(one[0]) for one in met], self.location, old.files)
            touched = Replaceable(old.version, tuple(named.values()))
        with self._lock:
            entries = self._files.at(old.version)
            size = sum(entries[path]["size"] for path in touched.files)
        least = Driver(session).cores if size > _TASK_BYTES else 1
        rows = step.merged(self.read_files(session, touched)).coalesce(max(least, math.ceil(size / _FILE_BYTES)))
        return RewriteRows(rows, touched)

    def _write(self, rows: DataFrame, schema: pa.Schema | None = None) -> list[DataFile]:
        """The tasks write the files themselves, under random names: see the module."""
        if schema is None:
            with self._lock:
                if self._table is None:
                    raise LakeError(f"the table at {self.location} is gone")
                described: Any = self._table.schema().to_arrow()  # another library's, by the Arrow C interface
                schema = plain_schema(pa.schema(described))
        there = set(rows.columns)
        schema = pa.schema([one for one in schema if one.name in there])  # readers get NULL for a column that lacks
        write = partial(
            write_partition,
            directory=self.location,
            schema=schema,
            storage=options_of(self.location),
            table=self._route.table,
        )
        given = rows.select(*map(quoted, schema.names))
        written = Driver(rows.sparkSession).map_in_arrow(given, write, _WRITTEN).collect()
        return [
            DataFile(one["name"], one["rows"], one["bytes"], one["statistics"], one["written_ms"]) for one in written
        ]

    def _commit_files(self, table: DeltaTable, step: Step, written: Sequence[DataFile], stamp: Stamp) -> None:
        actions = adding(written)
        if isinstance(step, RewriteRows):
            entries = self._files.at(step.old.version)
            actions = [removed(entries[path]) for path in step.old.files] + actions
        self._put(table, actions, {AppIds(self.owner, stamp.generation).applied: stamp.number or 0}, stamp)

    def evolve(self, session: SparkSession, path: Sequence[TableSchema], stamp: Stamp) -> None:
        """In one entry of the log: metadata and rows change together."""
        last = path[-1]
        if not self._is_plain() or needs_mapping(last.names):
            super().evolve(self._committing(session), path, stamp)
            return
        ids, old = AppIds(self.owner, stamp.generation), self._all_files()
        with self._lock:
            table = self._table
            if table is None:
                raise LakeError(f"the table at {self.location} is gone")
            if (table.transaction_version(ids.schema) or 0) >= (stamp.schema_version or 0):
                return
            schema = with_comments(lake_arrow(last), table).to_json()
            actions = [described(table, schema), *(allowing(table, [LOCAL_TIME]) if has_local_time(last) else [])]
        if not is_only_metadata_change(path):
            rows = self.read_files(session, old).select(*projected(path))
            written = self._write(rows, lake_arrow(last))
            with self._lock:
                entries = self._files.at(old.version)
                actions += [removed(entries[one]) for one in old.files] + adding(written)
        with self._lock:
            table = self._table
            if table is None or table.version() != old.version:
                raise ConcurrentModification(f"the table at {self.location} is not at version {old.version} any more")
            self._put(table, actions, {ids.schema: stamp.schema_version or 0}, stamp)
            self._forget()

    def allow(self, session: Callable[[], SparkSession], feature: str) -> None:
        if self._is_plain():
            self._put_metadata({}, [feature])
        else:
            super().allow(session, feature)

    def set_properties(self, session: Callable[[], SparkSession], properties: Mapping[str, str]) -> None:
        """Without Spark, unless a property may need a feature of Delta that Spark has to switch on."""
        asks = [name for name in properties if name.startswith(_ASKING) and name != _MARKS]
        if asks or not self._is_plain():
            super().set_properties(lambda: self._committing(session()), properties)
        else:
            self._put_metadata(properties, ["deletionVectors"] if properties.get(_MARKS) == "true" else [])

    def lay_out(self, session: SparkSession) -> None:
        self.set_properties(lambda: session, dict(self.layout.properties))

    def _put_metadata(self, properties: Mapping[str, str], features: Sequence[str]) -> None:
        table = self.opened()
        if table is None:
            raise LakeError(f"the table at {self.location} is gone")
        actions = allowing(table, features)
        if properties:
            actions.append(described(table, properties=properties))
        if actions:
            put_commit(self.location, table.version() + 1, actions, {}, "{}", "SET TBLPROPERTIES")

    def load(
        self, copy: TableCopy, mode: Mode, session: Callable[[], SparkSession], progress: Callable[[int], None]
    ) -> Loaded:
        by_spark = self.layout.partitions or needs_mapping(mode.schema(copy.schema).names) or not self._is_plain()
        return super().load(copy, mode, (lambda: self._committing(session())) if by_spark else session, progress)

    # What Spark commits

    def _is_plain(self) -> bool:
        """Can our own commits write the table, without Spark's?"""
        with self._lock:
            table = self._table if self._table is not None else self.refresh()
            features = features_of(table) if table is not None else None
        return features is None or features.takes_files or features.takes_marks

    def _committing(self, session: SparkSession) -> SparkSession:
        """The session, set up to put its commits if absent. TableStoppedError if that cannot be done."""
        if commits_if_absent(session, spark_path(self.location)):
            return session
        table = self._route.table
        raise TableStoppedError(
            f"table {table}: with partitions, column mapping, constraints, clustering, row tracking or a change data "
            "feed Spark has to commit, and this Spark session does not notice other writers in an object store",
            remedy="Let Lakefeed build the session, or keep that table in a directory (a pipeline of its own with "
            "another lake.path), or do without these features.",
            table=str(table),
        )

    # Maintenance

    def pack(self, session: SparkSession, options: MaintenanceOptions, key: Sequence[str], share: float | None) -> None:
        """Exchange files without changing a row, group after group, one commit each."""
        if not self._is_plain():
            super().pack(self._committing(session), options, key, share)
            return
        folds = share if share is not None else 1.0 if options.insists else options.marked_share
        while True:
            with self._lock:
                self.refresh()
            old = self._all_files()
            with self._lock:
                entries = dict(self._files.at(old.version))
            group = packable(entries, options.file_bytes, folds)
            if not group:
                return
            size = sum(entries[path]["size"] for path in group)
            rows = self.read_files(session, Replaceable(old.version, tuple(group)))
            count = max(1, round(size / options.file_bytes))
            if key:
                rows = rows.repartitionByRange(count, *map(quoted, key)).sortWithinPartitions(*map(quoted, key))
            else:
                rows = rows.repartition(count) if count > 1 else rows.coalesce(1)
            written = self._write(rows)
            actions = [removed(entries[path], changes_rows=False) for path in group]
            for one in adding(written):
                one["add"]["dataChange"] = False
                actions.append(one)
            with self._lock:
                table = self.refresh()
                if table is None or table.version() != old.version:
                    raise ConcurrentModification(
                        f"the table at {self.location} is not at version {old.version} any more"
                    )
                put_commit(self.location, old.version + 1, actions, {}, "{}", "OPTIMIZE")
            if len(group) == len(written):  # packing makes no fewer files any more
                return


_MARKS = "delta.enableDeletionVectors"
_ASKING = ("delta.enable", "delta.constraints.", "delta.columnMapping.", "delta.feature.", "delta.min")


def packable(entries: Mapping[str, Mapping[str, Any]], file_bytes: int, share: float) -> list[str]:
    """Files for one exchange: those below half the wanted size, and those with more marked rows than ``share``."""

    def marked(entry: Mapping[str, Any]) -> float:
        vector, rows = entry.get("deletionVector"), row_count(dict(entry))
        return vector["cardinality"] / rows if vector and rows else 0.0

    folded = [path for path, entry in entries.items() if marked(entry) > share]
    small = [path for path, entry in entries.items() if entry["size"] < file_bytes // 2 and path not in folded]
    small = small if len(small) > 1 or folded else []
    chosen, size = list[str](), 0
    for path in [*folded, *sorted(small, key=lambda one: (entries[one]["size"], one))]:
        if chosen and size + entries[path]["size"] > _PACKED_FILES * file_bytes:
            break
        chosen.append(path)
        size += entries[path]["size"]
    return chosen if folded or len(chosen) > 1 else []


def plain_schema(schema: pa.Schema) -> pa.Schema:
    """The schema for Parquet files: nullable, with the plain Arrow types for texts, bytes and lists."""

    def plain(kind: pa.DataType) -> pa.DataType:
        if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
            return pa.string()
        if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind):
            return pa.binary()
        if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_list_view(kind):
            return pa.list_(plain(kind.value_type))
        return kind

    return pa.schema([pa.field(one.name, plain(one.type)) for one in schema])


@dataclass(frozen=True, slots=True)
class _Rows:
    """The batches of a Spark task as a chunk, so that ``write_chunk`` can write them."""

    batches: Iterable[pa.RecordBatch]
    schema: pa.Schema
    table: TableId
    high: Any = None

    @contextmanager
    def open(self) -> Iterator[Self]:
        yield self

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        for batch in self.batches:
            columns = [batch.column(one.name).cast(one.type) for one in self.schema]
            yield pa.RecordBatch.from_arrays(columns, schema=self.schema)


def write_partition(
    batches: Iterable[pa.RecordBatch], directory: str, schema: pa.Schema, storage: Mapping[str, str], table: TableId
) -> Iterator[pa.RecordBatch]:
    """In a Spark task: write the batches to one file, and report it; without rows, neither."""
    give_options(directory, storage)
    file = write_chunk(_Rows(batches, schema, table), directory, schema).file
    if file is not None:
        yield pa.RecordBatch.from_pylist(
            [
                {
                    "name": file.name,
                    "rows": file.rows,
                    "bytes": file.bytes,
                    "statistics": file.statistics,
                    "written_ms": file.written_ms,
                }
            ]
        )
