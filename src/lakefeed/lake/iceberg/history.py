"""The versions of an Iceberg table, by its metadata: see ``lake.history``.

A version is a snapshot. ``snapshot-log`` lists, in order, those that were the current one. A snapshot's summary has all
that Lakefeed records (see ``store``). An expired snapshot leaves the metadata before its files go, so every snapshot in
the metadata is readable.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from lakefeed.change.table import TableId
from lakefeed.errors import LakeError
from lakefeed.lake.history import LogCommit, noted
from lakefeed.lake.iceberg.catalog import HadoopMetadata, IcebergCatalog
from lakefeed.lake.iceberg.record import COMMIT, OWNER, Record, summary_of
from lakefeed.lake.location import spark_options, spark_path
from lakefeed.lake.spark.driver import Driver
from lakefeed.lake.spark.session import checked_session
from lakefeed.lake.spark.type import quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class IcebergHistory:
    """Contract: ``lake.history.TableHistory``."""

    keeps_more = "a longer maintenance.keep_hours keeps more snapshots from now on."

    def __init__(self, catalog: IcebergCatalog, table: TableId, part: TableId | None = None) -> None:
        self._catalog = catalog
        self._table = table
        self._part = part if part != table else None
        self._reader = catalog.reader(table)

    def commits(self) -> list[LogCommit]:
        metadata = self._reader.current()
        if metadata is None:
            raise LakeError(
                f"there is no Iceberg table of {self._table}: {self._catalog.location(self._table)}",
                remedy="Correct the lake's path, its catalog, or the table's name.",
            )
        snapshots = {one["snapshot-id"]: one["summary"] for one in metadata.get("snapshots", ())}
        shown = [entry["snapshot-id"] for entry in metadata.get("snapshot-log", ())]
        found: list[LogCommit] = []
        for number in shown:
            if number not in snapshots:
                continue
            summary = snapshots[number]
            if self._part is not None:
                own = f"{summary.get(OWNER, '').partition('/')[0]}/{self._part}"
                summary = summary_of(summary, own) or {}
            note, record = noted(summary.get(COMMIT)), Record.of(summary)
            if note is None or record is None:
                found.append(LogCommit(version=number))
                continue
            # Every snapshot records the copy that it builds on, so it does not matter which ones have expired.
            high = record.copied.high
            copy = {"high": high.encode() if high is not None else None}
            found.append(LogCommit(version=number, metadata={**note, "copy": copy}, applied=record.applied))
        return found

    def check(self, version: int) -> None:
        metadata = self._reader.current() or {}
        if all(one["snapshot-id"] != version for one in metadata.get("snapshots", ())):
            raise LakeError(
                f"table {self._table} was at that position in snapshot {version}, which has expired",
                remedy="Ask for a later position; " + self.keeps_more,
            )

    def read(self, spark: SparkSession, version: int) -> DataFrame:
        """In the given session for tables at paths; for all others in a child of it that has the catalog."""
        session = checked_session(spark, formats=("iceberg",))
        if self._catalog.kind == "hadoop":
            reader = session.read.format("iceberg").option("versionAsOf", str(version))
            return reader.load(spark_path(self._catalog.location(self._table)))
        child = Driver(session).child()
        for name, value in {**self._catalog.settings(), **spark_options(self._catalog.root)}.items():
            child.conf.set(name, value)
        namespace, name = self._catalog.identifier(self._table)
        full = ".".join(map(quoted, (self._catalog.name, *namespace, name)))
        return child.sql(f"SELECT * FROM {full} VERSION AS OF {version}")  # noqa: S608  # quoted names


class IcebergRows:
    """Contract: ``reader.StoredRows``. Reads with pyiceberg, file by file, to keep memory small.

    ``table`` is pyiceberg's.
    """

    def __init__(self, table: Any) -> None:
        from pyiceberg.io.pyarrow import schema_to_pyarrow

        self._table = table
        columns: pa.Schema = schema_to_pyarrow(table.schema(), include_field_ids=False)
        self.schema: pa.Schema = pa.schema([pa.field(field.name, _short(field.type)) for field in columns])

    @property
    def estimate(self) -> int | None:
        snapshot = self._table.current_snapshot()
        rows = snapshot.summary.get("total-records") if snapshot is not None and snapshot.summary else None
        return int(rows) if rows is not None else None

    def batches(self) -> Iterator[pa.RecordBatch]:
        from pyiceberg.io.pyarrow import ArrowScan

        scan = self._table.scan()
        rows = ArrowScan(self._table.metadata, self._table.io, scan.projection(), scan.row_filter)
        for task in scan.plan_files():
            for batch in rows.to_record_batches([task]):
                yield batch.select(self.schema.names).cast(self.schema)


def rows_of(path: str) -> IcebergRows:
    """The rows of a table of a Hadoop catalog, by its path."""
    return IcebergRows(HadoopMetadata(path).table())


def _short(kind: Any) -> Any:
    """The plain Arrow type for one of pyiceberg's types with 64-bit offsets."""
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(_short(kind.value_type))
    return {pa.large_string(): pa.string(), pa.large_binary(): pa.binary()}.get(kind, kind)
