"""Apache Iceberg tables: what a user writes (``Iceberg``) and the table format it binds to (``IcebergFormat``).

This module imports pyspark and pyiceberg only when it uses them, so a status or an idle sync does not load them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lakefeed.change.table import TableId
from lakefeed.errors import SparkSetupError
from lakefeed.lake.iceberg.catalog import WITHOUT_CONNECT, CatalogMetadata, IcebergCatalog, MetadataReader
from lakefeed.lake.iceberg.history import IcebergHistory, IcebergRows
from lakefeed.lake.iceberg.java import JavaCatalog, JavaTable
from lakefeed.lake.iceberg.library import TableLibrary
from lakefeed.lake.iceberg.rest import RestTable
from lakefeed.lake.iceberg.store import IcebergStore
from lakefeed.lake.location import lake_root, spark_options, table_path
from lakefeed.lake.mode import Mirror, Mode, checked_mode
from lakefeed.lake.reader import StoredRows
from lakefeed.lake.route import Route, RoutedFormat, Routes, Rule
from lakefeed.lake.rule.record import TableRule, rule_file
from lakefeed.lake.rule.rows import RowRule
from lakefeed.lake.schema.decision import Decisions, decisions_file
from lakefeed.lake.schema.policy import Evolution
from lakefeed.lake.spark.driver import POOL, Driver
from lakefeed.lake.spark.progress import job_progress
from lakefeed.lake.spark.session import Sessions, checked_session
from lakefeed.lake.table import SparkTable
from lakefeed.storage.base import Storage
from lakefeed.storage.location import give_options, storage_at

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Iceberg:
    """``Iceberg(spark, "lake/shop")``: tables at ``<path>/<schema>/<table>``.

    ``spark`` is a session, or a function that makes one; Lakefeed calls it when it first needs Spark. ``mode`` holds
    for all tables; ``rules`` give some tables another or a second one. ``evolution`` says what tables do when the
    source's schema changes. ``out_of_range`` is as for ``Delta``. ``catalog`` has Iceberg's catalog properties, with
    ``type`` and ``name``; without it, a Hadoop catalog has its warehouse at ``path``. In ``namespace``, ``{schema}`` is
    the source table's schema, and dots separate levels. ``naming`` says how columns are named, ``salt`` goes into the
    hashes of masks. ``storage_options`` are for the object store: docs/object-stores.md.
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
        catalog: Mapping[str, str] | None = None,
        namespace: str = "{schema}",
        naming: str = "as_is",
        salt: str = "",
        storage_options: Mapping[str, str] | None = None,
    ) -> None:
        self._spark = spark
        self._root = lake_root(path)
        self._storage = give_options(self._root, storage_options or {})
        self._routes = Routes(
            checked_mode(mode), rules, evolution or Evolution(), out_of_range, naming=naming, salt=salt
        )
        self._catalog = IcebergCatalog.of(catalog or {}, self._root, namespace)

    @property
    def path(self) -> str:
        return self._root

    def history(self, table: TableId, stored: TableId | None = None) -> IcebergHistory:
        """The versions of one of its tables, maybe a part of ``stored``. Needs Spark only to read one."""
        return IcebergHistory(self._catalog, stored or table, table)

    def rows(self, table: TableId) -> StoredRows | None:
        """The rows of one of its tables, read without Spark; None if there is no such table."""
        found = self._catalog.reader(table).table()
        return IcebergRows(found) if found is not None else None

    def rule(self, route: Route) -> RowRule:
        """The rule that makes the rows of one of its tables."""
        return self._routes.rows(route)

    def bind(self, pipeline: str) -> IcebergFormat:
        """Checks the user's session now, and not at the first merge: SparkSetupError if Lakefeed cannot use it."""
        spark = self._spark
        if not callable(spark):
            refuse_without_java(checked_session(spark, formats=("iceberg",)), self._catalog)

        def session() -> SparkSession:
            return checked_session(spark() if callable(spark) else spark, formats=("iceberg",))

        lake = storage_at(self._root, self._storage)
        return IcebergFormat(pipeline, session, self._catalog, self._routes, lake)


class IcebergFormat(RoutedFormat):
    """The lake of one pipeline. Contract: ``lake.base.TableFormat``."""

    def __init__(
        self, pipeline: str, spark: Callable[[], SparkSession], catalog: IcebergCatalog, routes: Routes, lake: Storage
    ) -> None:
        self._pipeline = pipeline
        self._lake = lake
        self._spark = spark
        self._catalog = catalog
        self._routes = routes
        hadoop = spark_options(catalog.root)
        self._sessions = Sessions(spark, {**catalog.settings(), **hadoop, POOL: pipeline})
        self._java = JavaCatalog(catalog.name, catalog.properties, self._sessions.child, hadoop)
        self._lock = threading.Lock()
        self._tables: dict[Route, SparkTable] = {}
        self._turns: dict[TableId, AbstractContextManager[Any]] = {}  # by stored table: its parts commit one at a time

    def scratch(self, path: str) -> IcebergFormat:
        """In a Hadoop catalog, whatever the lake's catalog is."""
        self._sessions.require_local()
        catalog = IcebergCatalog.of({"name": "lakefeed_scratch"}, path, "{schema}")
        return IcebergFormat(self._pipeline, self._spark, catalog, Routes(Mirror()), storage_at(path))

    def progress(self) -> object:
        return job_progress(self._sessions.started, self._pipeline, self._sessions.reports)

    def table(self, route: Route) -> SparkTable:
        with self._lock:
            if route not in self._tables:
                catalog, table = self._catalog, route.table
                namespace, name = catalog.identifier(route.stored)
                reader = catalog.reader(route.stored)
                turn = self._turns.setdefault(route.stored, threading.RLock())
                store = IcebergStore(
                    (catalog.name, *namespace, name),
                    reader,
                    f"{self._pipeline}/{table}",
                    catalog.location(route.stored),
                    partial(self._library, reader, route),
                    self._routes.layout(route),
                    route.part,
                    turn,
                )
                decisions = Decisions(self._routes.policy(route), decisions_file(self._lake, self._pipeline, table))
                rule = TableRule(self._routes.rows(route), table, rule_file(self._lake, self._pipeline, table))
                staging = table_path(f"{catalog.root}/_lakefeed/{self._pipeline}/staged", table)
                self._tables[route] = SparkTable(
                    self._pipeline, route, store, self._sessions, decisions, rule, staging, turn
                )
            return self._tables[route]

    def _library(self, reader: MetadataReader, route: Route) -> TableLibrary:
        """By the session that there is: a classic one has Iceberg's own."""
        catalog, session = self._catalog, self._sessions.parent()
        namespace, name = catalog.identifier(route.stored)
        if Driver(session).has_jvm:
            return JavaTable(self._java, namespace, name)
        refuse_without_java(session, catalog)
        if not isinstance(reader, CatalogMetadata):
            raise TypeError(f"a REST catalog is not read by {type(reader).__name__}")
        copied = table_path(f"{catalog.root}/_lakefeed/{self._pipeline}/copied", route.table)
        return RestTable(reader, (catalog.name, *namespace, name), self._sessions.child, copied)


def refuse_without_java(session: SparkSession, catalog: IcebergCatalog) -> None:
    """SparkSetupError for a session without a JVM and a catalog that needs one."""
    if not Driver(session).has_jvm and catalog.needs_java:
        raise SparkSetupError(catalog.on_connect, remedy=WITHOUT_CONNECT)
