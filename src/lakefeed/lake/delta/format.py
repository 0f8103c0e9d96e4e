"""Delta Lake tables: what a user writes (``Delta``) and the table format it binds to (``DeltaFormat``).

This module imports pyspark and deltalake only when it uses them, so a status or an idle sync does not load them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lakefeed.change.table import TableId, TableSchema
from lakefeed.lake.delta.history import DeltaHistory, DeltaRows
from lakefeed.lake.delta.log import NewestEntry
from lakefeed.lake.delta.remote import StoreDelta
from lakefeed.lake.delta.store import SESSION, DeltaOptions, DeltaStore
from lakefeed.lake.formats import FORMATS
from lakefeed.lake.location import lake_root, spark_options, table_path
from lakefeed.lake.mode import Mirror, Mode, checked_mode
from lakefeed.lake.reader import StoredRows
from lakefeed.lake.route import Route, RoutedFormat, Routes, Rule
from lakefeed.lake.rule.record import TableRule, rule_file
from lakefeed.lake.rule.rows import RowRule
from lakefeed.lake.schema.decision import Decisions, decisions_file
from lakefeed.lake.schema.policy import Evolution
from lakefeed.lake.spark.driver import POOL
from lakefeed.lake.spark.progress import job_progress
from lakefeed.lake.spark.session import Sessions, checked_session
from lakefeed.lake.table import SparkTable
from lakefeed.storage.location import give_options, storage_at

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Delta:
    """``Delta(spark, "lake/shop")``: tables at ``<path>/<schema>/<table>``.

    ``spark`` is a session, or a function that makes one; Lakefeed calls it when it first needs Spark. ``mode`` holds
    for all tables; ``rules`` give some tables another or a second one. ``evolution`` says what tables do when the
    source's schema changes. ``out_of_range`` (stop, null, clamp or text) says what Lakefeed does with values that the
    lake's types cannot hold; None: the source's own default. ``deletion_vectors`` makes windows mark rows as deleted
    instead of rewriting files: for all tables (True), or for those that match a pattern of ``schema.table`` or
    ``table``. It is off by default, because some readers cannot read such tables (docs/modes.md). ``storage_options``
    are for the object store: docs/object-stores.md. ``naming`` says how columns are named, ``salt`` goes into the
    hashes of masks.
    """

    def __init__(
        self,
        spark: SparkSession | Callable[[], SparkSession],
        path: str | Path,
        *,
        mode: Mode | str = Mirror(),  # noqa: B008  # immutable
        rules: Sequence[Rule] = (),
        evolution: Evolution | None = None,
        out_of_range: str | None = None,
        deletion_vectors: bool | Sequence[str] = False,
        storage_options: Mapping[str, str] | None = None,
        naming: str = "as_is",
        salt: str = "",
    ) -> None:
        self._spark = spark
        self._root = lake_root(path)
        storage = give_options(self._root, storage_options or {})
        self._routes = Routes(
            checked_mode(mode), rules, evolution or Evolution(), out_of_range, naming=naming, salt=salt
        )
        marked = ("*",) if deletion_vectors is True else (deletion_vectors or ())
        self._options = DeltaOptions(storage=storage, marked=tuple(map(Rule, marked)))

    @property
    def path(self) -> str:
        return self._root

    def history(self, table: TableId, stored: TableId | None = None) -> DeltaHistory:
        """The versions of one of its tables, maybe a part of ``stored``. Needs Spark only to read one."""
        return DeltaHistory(table_path(self._root, stored or table), table, self._options.storage)

    def rows(self, table: TableId) -> StoredRows | None:
        """The rows of one of its tables, read without Spark; None if there is no such table."""
        path = table_path(self._root, table)
        return DeltaRows(path, self._options.storage) if FORMATS["delta"].is_at(path) else None

    def rule(self, route: Route) -> RowRule:
        """The rule that makes the rows of one of its tables."""
        return replace(self._routes.rows(route), parts=self._routes.layout(route).functions)

    def bind(self, pipeline: str) -> DeltaFormat:
        """Checks the user's session now, and not at the first merge: SparkSetupError if Lakefeed cannot use it."""
        spark = self._spark
        if not callable(spark):
            checked_session(spark)

        def session() -> SparkSession:
            return checked_session(spark() if callable(spark) else spark)

        settings = {**SESSION, **spark_options(self._root), POOL: pipeline}
        return DeltaFormat(pipeline, Sessions(session, settings), self._root, self._routes, self._options)


class DeltaFormat(RoutedFormat):
    """The lake of one pipeline. Contract: ``lake.base.TableFormat``."""

    def __init__(self, pipeline: str, sessions: Sessions, root: str, routes: Routes, options: DeltaOptions) -> None:
        self._pipeline = pipeline
        self._sessions = sessions
        self._root = root
        self._routes = routes
        self._options = options
        self._lake = storage_at(root, options.storage)
        self._lock = threading.Lock()
        self._tables: dict[Route, SparkTable] = {}
        self._newest: dict[TableId, NewestEntry] = {}
        self._turns: dict[TableId, AbstractContextManager[Any]] = {}  # by stored table: its parts commit one at a time

    def unused(self, schemas: Iterable[TableSchema]) -> tuple[str, ...]:
        """Also names the patterns of ``deletion_vectors`` that match no lake table."""
        there = tuple(schemas)
        tables = {route.stored for schema in there for route in self.routes(schema.table)}
        vectors = [
            f"deletion_vectors in lake has '{rule.match}', which matches no table"
            for rule in self._options.marked
            if rule.match != "*" and not any(map(rule.matches, tables))
        ]
        return *super().unused(there), *vectors

    def scratch(self, path: str) -> DeltaFormat:
        self._sessions.require_local()
        options = DeltaOptions(marked=self._options.marked)
        return DeltaFormat(self._pipeline, self._sessions, path, Routes(Mirror()), options)

    def newest_commit(self, route: Route) -> str | None:
        """By the log's directory. In an object store that would be a request, as asking the table is."""
        if "://" in self._root:
            return None
        with self._lock:
            newest = self._newest.setdefault(route.stored, NewestEntry(table_path(self._root, route.stored)))
        return newest.ask()

    def progress(self) -> object:
        return job_progress(self._sessions.started, self._pipeline, self._sessions.reports)

    def table(self, route: Route) -> SparkTable:
        with self._lock:
            if route not in self._tables:
                layout = self._routes.layout(route)
                options = self._options.of_table(route.stored, layout)
                kind = StoreDelta if "://" in self._root else DeltaStore
                store = kind(table_path(self._root, route.stored), self._pipeline, route, options)
                decisions = Decisions(
                    self._routes.policy(route), decisions_file(self._lake, self._pipeline, route.table)
                )
                # Delta partitions by columns: a partition by a function is a column that the rule makes.
                rows = replace(self._routes.rows(route), parts=layout.functions)
                rule = TableRule(rows, route.table, rule_file(self._lake, self._pipeline, route.table))
                staging = table_path(f"{self._root}/_lakefeed/{self._pipeline}/staged", route.table)
                turn = self._turns.setdefault(route.stored, threading.RLock())
                self._tables[route] = SparkTable(
                    self._pipeline, route, store, self._sessions, decisions, rule, staging, turn
                )
            return self._tables[route]
