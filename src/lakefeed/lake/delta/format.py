"""Delta Lake tables: what a user writes (``Delta``) and the table format it binds to (``DeltaFormat``).

Neither pyspark nor deltalake is imported before it is used, so that a status or an idle sync costs nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from lakefeed.change.table import TableId
from lakefeed.lake.delta.history import DeltaHistory, DeltaRows
from lakefeed.lake.delta.store import SESSION, DeltaOptions, DeltaStore
from lakefeed.lake.formats import FORMATS
from lakefeed.lake.location import lake_root, table_path
from lakefeed.lake.mode import Mirror, Mode, checked_mode
from lakefeed.lake.reader import StoredRows
from lakefeed.lake.route import Route, Routes, Rule
from lakefeed.lake.schema.decision import Decisions, decisions_file
from lakefeed.lake.schema.policy import Evolution
from lakefeed.lake.spark.session import Sessions, checked_session
from lakefeed.lake.table import SparkTable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Delta:
    """``Delta(spark, "lake/shop")``: tables at ``<path>/<schema>/<table>``.

    ``spark`` is a session, or a function that gives one and is called when Spark is first needed. ``mode`` is that of
    all tables, ``rules`` give some another or a second one; ``evolution`` is what they do when the source's schema
    changes. With ``deletion_vectors`` merges mark rows as deleted instead of rewriting their files; off by default,
    because some readers cannot read them. ``storage_options`` are deltalake's, for object stores.
    """

    def __init__(
        self,
        spark: SparkSession | Callable[[], SparkSession],
        path: str | Path,
        *,
        mode: Mode | str = Mirror(),  # noqa: B008  # immutable
        rules: Sequence[Rule] = (),
        evolution: Evolution | None = None,
        deletion_vectors: bool = False,
        storage_options: Mapping[str, str] | None = None,
    ) -> None:
        self._spark = spark
        self._root = lake_root(path)
        self._routes = Routes(checked_mode(mode), rules, evolution or Evolution())
        self._options = DeltaOptions(
            storage=dict(storage_options or {}),
            properties={"delta.enableDeletionVectors": "true" if deletion_vectors else "false"},
        )

    @property
    def path(self) -> str:
        return self._root

    def history(self, table: TableId) -> DeltaHistory:
        """The versions of one of its tables. No Spark until one is read."""
        return DeltaHistory(table_path(self._root, table), table, self._options.storage)

    def rows(self, table: TableId) -> StoredRows | None:
        """The rows of one of its tables by a reader that is not Spark; None if there is no such table."""
        path = table_path(self._root, table)
        return DeltaRows(path, self._options.storage) if FORMATS["delta"].is_at(path) else None

    def bind(self, pipeline: str) -> DeltaFormat:
        """SparkSetupError for a session of the user's that cannot work: now, and not at the first merge."""
        spark = self._spark
        if not callable(spark):
            checked_session(spark)

        def session() -> SparkSession:
            return checked_session(spark() if callable(spark) else spark)

        return DeltaFormat(pipeline, Sessions(session, SESSION), self._root, self._routes, self._options)


class DeltaFormat:
    """The lake of one pipeline: see ``lake.base.TableFormat``."""

    def __init__(self, pipeline: str, sessions: Sessions, root: str, routes: Routes, options: DeltaOptions) -> None:
        self._pipeline = pipeline
        self._sessions = sessions
        self._root = root
        self._routes = routes
        self._options = options
        self._lock = threading.Lock()
        self._tables: dict[Route, SparkTable] = {}

    def routes(self, source: TableId) -> tuple[Route, ...]:
        return self._routes.of(source)

    @property
    def columns(self) -> Callable[[TableId], tuple[str, ...]] | None:
        return self._routes.columns if self._routes.leaves_out else None

    def table(self, route: Route) -> SparkTable:
        with self._lock:
            if route not in self._tables:
                store = DeltaStore(table_path(self._root, route.table), self._pipeline, route, self._options)
                decisions = Decisions(
                    self._routes.policy(route), decisions_file(self._root, self._pipeline, route.table)
                )
                self._tables[route] = SparkTable(self._pipeline, route, store, self._sessions, decisions)
            return self._tables[route]
