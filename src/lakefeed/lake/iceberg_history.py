"""The versions of an Iceberg table, by its metadata: see ``history``.

A version is a snapshot, and ``snapshot-log`` has those that were the table's content, in their order. Everything is in
a snapshot's summary (see ``iceberg_log``). An expired snapshot is out of the metadata before its files go, so that one
that is there can be read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from lakefeed.change.table import TableId
from lakefeed.errors import LakeError
from lakefeed.lake.history import LogCommit, noted
from lakefeed.lake.iceberg_catalog import IcebergCatalog
from lakefeed.lake.iceberg_log import COMMIT, Record
from lakefeed.lake.location import spark_path
from lakefeed.lake.session import checked_session
from lakefeed.lake.sparktype import quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class IcebergHistory:
    """See ``history.TableHistory``."""

    keeps_more = "a longer maintenance.keep_hours keeps more snapshots from now on."

    def __init__(self, catalog: IcebergCatalog, table: TableId) -> None:
        self._catalog = catalog
        self._table = table
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
        return [_commit(number, snapshots[number]) for number in shown if number in snapshots]

    def check(self, version: int) -> None:
        metadata = self._reader.current() or {}
        if all(one["snapshot-id"] != version for one in metadata.get("snapshots", ())):
            raise LakeError(
                f"table {self._table} was at that place in snapshot {version}, which has been expired",
                remedy="Ask for a later place; " + self.keeps_more,
            )

    def read(self, spark: SparkSession, version: int) -> DataFrame:
        """In the given session for tables at paths; in a child of it, which has the catalog, for all others."""
        session = checked_session(spark, formats=("iceberg",))
        if self._catalog.kind == "hadoop":
            reader = session.read.format("iceberg").option("versionAsOf", str(version))
            return reader.load(spark_path(self._catalog.location(self._table)))
        child = session.newSession()
        for name, value in self._catalog.settings().items():
            child.conf.set(name, value)
        namespace, name = self._catalog.place(self._table)
        full = ".".join(map(quoted, (self._catalog.name, *namespace, name)))
        return child.sql(f"SELECT * FROM {full} VERSION AS OF {version}")  # noqa: S608  # quoted names


def _commit(number: int, summary: Mapping[str, str]) -> LogCommit:
    note, record = noted(summary.get(COMMIT)), Record.of(summary)
    if note is None or record is None:
        return LogCommit(version=number)
    # Every snapshot knows the copy that it stands on, so that it does not matter which of them are expired.
    high = record.copied.high
    copy: dict[str, Any] = {"high": high.encode() if high is not None else None}
    return LogCommit(version=number, metadata={**note, "copy": copy}, applied=record.applied)
