"""Iceberg's own Java library, through the JVM that Spark runs in: what SQL cannot say, or not in one commit.

Everything here works on metadata and costs milliseconds. Nothing is retried by us; what goes wrong is raised as it is.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from lakefeed.lake.iceberg.schema import Add, Alteration, Drop, Move, Rename, Widen
from lakefeed.lake.loader import DataFile
from lakefeed.lake.location import spark_path
from lakefeed.lake.spark.error import ConcurrentModification
from lakefeed.lake.window import KeyBounds

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_BRANCH = "lakefeed-publishing"


class JavaCatalog:
    """One catalog, opened when it is first needed. Tables of different threads do not disturb each other."""

    def __init__(self, name: str, properties: Mapping[str, str], spark: Callable[[], SparkSession]) -> None:
        self._name = name
        self._properties = properties
        self._spark = spark
        self._lock = threading.Lock()
        self._opened: tuple[Any, Any] | None = None

    def open(self) -> tuple[Any, Any]:
        """The JVM and the catalog in it."""
        with self._lock:
            if self._opened is None:
                context = self._spark().sparkContext
                jvm: Any = context._jvm
                properties = _java_map(jvm, self._properties)
                hadoop = context._jsc.hadoopConfiguration()
                found = _iceberg(jvm, "CatalogUtil").buildIcebergCatalog(self._name, properties, hadoop)
                self._opened = (jvm, found)
            return self._opened


class JavaTable:
    """One table of a catalog."""

    def __init__(self, catalog: JavaCatalog, namespace: Sequence[str], name: str) -> None:
        self._catalog = catalog
        self._namespace = tuple(namespace)
        self._name = name

    def making(self, schema: Mapping[str, Any], properties: Mapping[str, str]) -> Addition:
        """Make the table: nothing is seen of it before files are added."""
        jvm, catalog = self._catalog.open()
        namespace = self._identifier(jvm).namespace()
        if not catalog.namespaceExists(namespace):
            catalog.createNamespace(namespace)
        made = _iceberg(jvm, "SchemaParser").fromJson(json.dumps(schema))
        builder = catalog.buildTable(self._identifier(jvm), made).withProperties(_java_map(jvm, properties))
        return Addition(jvm, builder.createTransaction())

    def replacing(self, columns: Sequence[Alteration], properties: Mapping[str, str | None]) -> Addition:
        """Put other rows in the place of all that are there, under other columns, in one commit.

        Everything else stays as it is: id, other properties, partition fields, sort order, snapshots, tags, and of the
        columns that stay their ids and comments.
        """
        jvm, catalog = self._catalog.open()
        transaction = catalog.loadTable(self._identifier(jvm)).newTransaction()
        _set(transaction.updateProperties(), properties)
        for alteration in columns:
            update = transaction.updateSchema()
            _alter(jvm, update, alteration)
            update.commit()
        return Addition(jvm, transaction, replaces=True)

    def appending(self) -> Addition:
        """Add to the table as it is."""
        jvm, catalog = self._catalog.open()
        return Addition(jvm, catalog.loadTable(self._identifier(jvm)).newTransaction())

    def publish(self, snapshot: int) -> None:
        """Make a staged snapshot the table's content; ConcurrentModification if it was not made on what that is now.

        The branch is there for the time of this one commit: Iceberg moves ``main`` forward only to a branch.
        """
        from pyspark.errors import IllegalArgumentException

        jvm, catalog = self._catalog.open()
        change = catalog.loadTable(self._identifier(jvm)).manageSnapshots()
        try:
            change = change.createBranch(_BRANCH, snapshot).fastForwardBranch("main", _BRANCH)
            change.removeBranch(_BRANCH).commit()
        except IllegalArgumentException as error:  # Iceberg has no class for it
            raise ConcurrentModification(str(error)) from error

    def alter(self, alterations: Sequence[Alteration], properties: Mapping[str, str]) -> None:
        """Change columns and properties in one commit. Each alteration sees the ones before it."""
        jvm, catalog = self._catalog.open()
        transaction = catalog.loadTable(self._identifier(jvm)).newTransaction()
        for alteration in alterations:
            update = transaction.updateSchema()
            _alter(jvm, update, alteration)
            update.commit()
        _set(transaction.updateProperties(), properties)
        transaction.commitTransaction()

    def stage_nothing(self, summary: Mapping[str, str]) -> None:
        """A staged snapshot that changes nothing and records something."""
        jvm, catalog = self._catalog.open()
        append = catalog.loadTable(self._identifier(jvm)).newAppend().stageOnly()
        for key, value in summary.items():
            append.set(key, value)
        append.commit()

    def is_touched(self, bounds: KeyBounds) -> bool:
        """May any file have a row between the bounds? By the manifests."""
        jvm, catalog = self._catalog.open()
        expressions = _iceberg(jvm, "expressions.Expressions")
        low = expressions.greaterThanOrEqual(bounds.column, _comparable(bounds.low))
        high = expressions.lessThanOrEqual(bounds.column, _comparable(bounds.high))
        # ``and`` is a word of Python's own.
        scan = catalog.loadTable(self._identifier(jvm)).newScan().filter(getattr(expressions, "and")(low, high))
        planned = scan.planFiles()
        try:
            return bool(planned.iterator().hasNext())
        finally:
            planned.close()

    def _identifier(self, jvm: Any) -> Any:
        namespace = _iceberg(jvm, "catalog.Namespace").of(_java_strings(jvm, self._namespace))
        return _iceberg(jvm, "catalog.TableIdentifier").of(namespace, self._name)


class Addition:
    """Files that are to become part of a table, in one commit with what it records."""

    def __init__(self, jvm: Any, transaction: Any, *, replaces: bool = False) -> None:
        self._jvm = jvm
        self._transaction = transaction
        self._replaces = replaces
        self._table = transaction.table()

    @property
    def schema(self) -> dict[str, Any]:
        """The table's columns with their ids, as Iceberg's JSON."""
        described: dict[str, Any] = json.loads(_iceberg(self._jvm, "SchemaParser").toJson(self._table.schema()))
        return described

    @property
    def directory(self) -> str:
        """Where its files belong: a local path, or an address."""
        location = str(self._table.location()).rstrip("/")
        if location.startswith("file:"):
            location = "/" + location.removeprefix("file:").lstrip("/")
        return f"{location}/data"

    def commit(
        self, files: Sequence[DataFile], summary: Mapping[str, str], properties: Mapping[str, str | None]
    ) -> None:
        """``summary`` is the snapshot's, ``properties`` are the table's from here on; one that is None goes.

        The files are of no partition, as the first ones of the table were, also where its owner has given it partition
        fields since: Iceberg knows of each file which fields it was written by.
        """
        if properties:  # first: only the first change of a transaction lets older metadata go
            _set(self._transaction.updateProperties(), properties)
        spec = next((one for one in self._table.specs().values() if one.isUnpartitioned()), None)
        if spec is None:  # somebody has removed what no file used
            update = self._transaction.updateSpec()
            for field in self._table.spec().fields():
                update.removeField(field.name())
            update.addNonDefaultSpec().commit()
            spec = next(one for one in self._table.specs().values() if one.isUnpartitioned())
        if self._replaces:
            append = self._transaction.newOverwrite()
            append.overwriteByRowFilter(_iceberg(self._jvm, "expressions.Expressions").alwaysTrue())
            add = append.addFile
        else:
            append = self._transaction.newAppend()
            add = append.appendFile
        for file in files:
            # With the bounds of its columns, from its footer: they are what lets readers and merges leave files out.
            path = spark_path(f"{self.directory}/{file.name}")
            config = _iceberg(self._jvm, "MetricsConfig").forTable(self._table)
            file_metrics = _iceberg(self._jvm, "parquet.ParquetUtil").fileMetrics
            metrics = file_metrics(self._table.io().newInputFile(path), config)
            builder = _iceberg(self._jvm, "DataFiles").builder(spec).withPath(path).withFormat("PARQUET")
            add(builder.withFileSizeInBytes(file.bytes).withMetrics(metrics).build())
        for key, value in summary.items():
            append.set(key, value)
        append.commit()
        self._transaction.commitTransaction()


def _iceberg(jvm: Any, name: str) -> Any:
    """A class of Iceberg's. By its whole name: with dots, all jars are searched for every package on the way."""
    return getattr(jvm, f"org.apache.iceberg.{name}")


def _set(update: Any, properties: Mapping[str, str | None]) -> None:
    for key, value in properties.items():
        if value is None:
            update.remove(key)
        else:
            update.set(key, value)
    update.commit()


def _alter(jvm: Any, update: Any, alteration: Alteration) -> None:
    if isinstance(alteration, Drop):
        update.deleteColumn(alteration.name)
    elif isinstance(alteration, Rename):
        update.renameColumn(alteration.old, alteration.new)
    elif isinstance(alteration, Widen):
        update.updateColumn(alteration.name, _java_type(jvm, alteration.type))
    elif isinstance(alteration, Move):
        if alteration.after is None:
            update.moveFirst(alteration.name)
        else:
            update.moveAfter(alteration.name, alteration.after)
    elif isinstance(alteration, Add):
        # ``null`` as the parent: with one name only, dots in it would be taken for a path.
        kind = _java_type(jvm, alteration.type)
        if alteration.default is None:
            update.addColumn(None, alteration.name, kind)
        else:
            value = alteration.default
            given = jvm.java.math.BigDecimal(str(value)) if isinstance(value, Decimal) else value
            literal = _iceberg(jvm, "expressions.Expressions").lit(given)
            update.addColumn(None, alteration.name, kind, literal.to(kind))


def _java_type(jvm: Any, described: Any) -> Any:
    """A type of Iceberg's JSON, read as the one column of a schema."""
    column = {"id": 1, "name": "c", "required": False, "type": described}
    parsed = _iceberg(jvm, "SchemaParser").fromJson(json.dumps({"type": "struct", "fields": [column]}))
    return parsed.findType("c")


def _comparable(value: Any) -> Any:
    """Dates and times as text, which Iceberg turns into the column's type."""
    if isinstance(value, datetime):
        return value.isoformat(timespec="microseconds")
    return value.isoformat() if isinstance(value, date) else value


def _java_map(jvm: Any, values: Mapping[str, str]) -> Any:
    made = jvm.java.util.HashMap()
    for key, value in values.items():
        made.put(key, value)
    return made


def _java_strings(jvm: Any, values: Sequence[str]) -> Any:
    from pyspark import SparkContext

    gateway = SparkContext._gateway
    if gateway is None:
        raise RuntimeError("Spark's JVM is gone")
    made = gateway.new_array(jvm.java.lang.String, len(values))
    for index, value in enumerate(values):
        made[index] = value
    return made
