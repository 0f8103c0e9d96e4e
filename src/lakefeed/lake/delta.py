"""Delta Lake tables: what a user writes (``Delta``) and the table format it binds to (``DeltaFormat``).

Neither pyspark nor deltalake is imported before it is used, so that a status or an idle sync costs nothing.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lakefeed.change.position import Position
from lakefeed.change.segment import Window
from lakefeed.change.table import TableId
from lakefeed.errors import CommitUnknownError, LakeError, LakefeedError, TableStoppedError
from lakefeed.failpoint import hit
from lakefeed.lake.base import Applied, Loaded, Seed
from lakefeed.lake.delta_load import load_table
from lakefeed.lake.delta_log import AppIds, DeltaLog
from lakefeed.lake.evolve import evolve_table, refuse_unfollowed
from lakefeed.lake.job import run_job
from lakefeed.lake.location import lake_root, table_path
from lakefeed.lake.mirror import apply_mirror
from lakefeed.lake.mode import Mirror, Mode, checked_mode
from lakefeed.lake.outcome import explained
from lakefeed.lake.projection import steps
from lakefeed.lake.session import checked_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SETTINGS = {
    # The source of a merge is immutable files under a total order: reading it twice gives the same rows, so there
    # is no need to write it down first.
    "spark.databricks.delta.merge.materializeSource": "none",
}


class Delta:
    """``Delta(spark, "lake/shop")``: tables at ``<path>/<schema>/<table>``.

    ``spark`` is a session, or a function that gives one and is called when Spark is first needed. Deletion vectors are
    off by default: at this size they save nothing, and some readers cannot read them. ``storage_options`` are
    deltalake's, for object stores.
    """

    def __init__(
        self,
        spark: SparkSession | Callable[[], SparkSession],
        path: str | Path,
        *,
        mode: Mode | str = Mirror(),  # noqa: B008  # immutable
        deletion_vectors: bool = False,
        storage_options: Mapping[str, str] | None = None,
    ) -> None:
        self._spark = spark
        self._root = lake_root(path)
        self._mode = checked_mode(mode)
        self._storage_options = dict(storage_options or {})
        self._properties = {"delta.enableDeletionVectors": "true" if deletion_vectors else "false"}

    @property
    def path(self) -> str:
        return self._root

    @property
    def mode(self) -> Mode:
        return self._mode

    def bind(self, pipeline: str) -> DeltaFormat:
        return DeltaFormat(
            pipeline, self._session, self._root, storage_options=self._storage_options, properties=self._properties
        )

    def _session(self) -> SparkSession:
        return checked_session(self._spark() if callable(self._spark) else self._spark)


class DeltaFormat:
    """The TableFormat of Delta: see ``lake.base`` for the contract and ``delta_log`` for what commits record."""

    def __init__(
        self,
        pipeline: str,
        spark: Callable[[], SparkSession],
        root: str,
        *,
        storage_options: Mapping[str, str],
        properties: Mapping[str, str],
    ) -> None:
        self._pipeline = pipeline
        self._spark = spark
        self._root = root
        self._storage_options = storage_options
        self._properties = properties
        self._lock = threading.Lock()
        self._parent: SparkSession | None = None
        self._sessions: dict[TableId, SparkSession] = {}
        self._logs: dict[TableId, DeltaLog] = {}

    def location(self, table: TableId) -> str:
        return table_path(self._root, table)

    def applied(self, table: TableId, generation: int) -> Applied | None:
        return self._log(table).applied(self._ids(table, generation))

    def load(self, seed: Seed, progress: Callable[[int], None]) -> Loaded:
        return load_table(
            seed,
            self._log(seed.table),
            self._ids(seed.table, seed.generation),
            context=lambda: self._session(seed.table).sparkContext,
            progress=progress,
        )

    def apply(self, window: Window, generation: int) -> None:
        """1 evolve the schema, if it is older  2 merge. Each is one commit, skipped if the table already has it.

        A window without changes commits nothing: there is nothing in it that could be lost.
        """
        recorded = self.applied(window.table, generation)
        if recorded is None:
            raise LakeError(f"there is no table of generation {generation} at {self.location(window.table)}")
        if recorded.number >= window.upto:
            return
        if window.target.version > recorded.schema_version:
            self._evolve(window, generation, recorded.schema_version)
        if window.segments:
            self._merge(window, generation)

    def _evolve(self, window: Window, generation: int, version: int) -> None:
        path = steps(window.schemas, version, window.target.version)
        refuse_unfollowed(path)
        ids = self._ids(window.table, generation)
        version = window.target.version
        with (
            self._committing(window, generation, schema_version=version) as session,
            _stamped(session, ids.schema, version, self._metadata(window, generation)),
        ):
            evolve_table(session, path, self.location(window.table))

    def _merge(self, window: Window, generation: int) -> None:
        if not window.target.key:
            raise TableStoppedError(
                f"table {window.table} has no key, so its changes cannot be matched with the lake table's rows",
                remedy=f"Give {window.table} a primary key, or leave it out of the table patterns.",
                table=str(window.table),
            )
        ids = self._ids(window.table, generation)
        hit("lake.before_commit")
        with (
            self._committing(window, generation, number=window.upto) as session,
            _stamped(session, ids.applied, window.upto, self._metadata(window, generation)),
        ):
            run_job(
                session,
                f"lakefeed: {window.table} up to change set {window.upto}",
                lambda: apply_mirror(session, window, self.location(window.table)),
                failpoint="lake.during_commit",
            )
        hit("lake.after_commit")

    @contextmanager
    def _committing(
        self, window: Window, generation: int, *, number: int = 0, schema_version: int = 0
    ) -> Iterator[SparkSession]:
        """The table's session; an error inside is judged by what the table then says."""
        session = self._session(window.table)
        try:
            yield session
        except LakefeedError:
            raise
        except Exception as error:
            try:
                after = self.applied(window.table, generation)
            except Exception as unreadable:  # noqa: BLE001  # whatever it is, the outcome is unknown
                text = f"table {window.table}: a commit failed and the table cannot be read back: {unreadable}"
                raise CommitUnknownError(text) from error
            if after is not None and after.number >= number and after.schema_version >= schema_version:
                return  # the commit did happen; only its answer was lost
            raise explained(error, window.table) from error

    def _metadata(self, window: Window, generation: int) -> dict[str, Any]:
        return {
            "pipeline": self._pipeline,
            "table": str(window.table),
            "generation": generation,
            "change_sets": {"after": window.after, "upto": window.upto},
            "schema_version": window.target.version,
            "position": encoded(window.end),
        }

    def _ids(self, table: TableId, generation: int) -> AppIds:
        return AppIds(f"lakefeed/{self._pipeline}/{table}", generation)

    def _log(self, table: TableId) -> DeltaLog:
        with self._lock:
            if table not in self._logs:
                self._logs[table] = DeltaLog(
                    self.location(table), storage_options=self._storage_options, properties=self._properties
                )
            return self._logs[table]

    def _session(self, table: TableId) -> SparkSession:
        """A child session per table: settings such as the transaction's number never mix between tables."""
        with self._lock:
            if self._parent is None:
                self._parent = self._spark()
            if table not in self._sessions:
                session = self._parent.newSession()
                for name, value in _SETTINGS.items():
                    session.conf.set(name, value)
                self._sessions[table] = session
            return self._sessions[table]


def encoded(position: Position | None) -> str | None:
    return position.encode() if position is not None else None


@contextmanager
def _stamped(session: SparkSession, app_id: str, version: int, metadata: Mapping[str, Any]) -> Iterator[None]:
    """Commits inside record ``app_id`` → ``version`` and the metadata; one that is recorded already is left out."""
    settings = {
        "spark.databricks.delta.write.txnAppId": app_id,
        "spark.databricks.delta.write.txnVersion": str(version),
        "spark.databricks.delta.commitInfo.userMetadata": json.dumps(metadata),
    }
    for name, value in settings.items():
        session.conf.set(name, value)
    try:
        yield
    finally:
        for name in settings:
            session.conf.unset(name)
