"""Iceberg's Java library, called in Spark's JVM: for what SQL cannot do, or not in one commit.

Everything here works on metadata and costs milliseconds, but ``Marking.write``. Nothing here retries: errors of the
library pass through as they are.
"""

from __future__ import annotations

import json
import struct
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from lakefeed.lake.iceberg.catalog import HANDED_OVER
from lakefeed.lake.iceberg.library import require_properties
from lakefeed.lake.iceberg.schema import Add, Alteration, Describe, Drop, Move, Rename, Widen
from lakefeed.lake.layout import Layout
from lakefeed.lake.loader import DataFile
from lakefeed.lake.location import spark_path
from lakefeed.lake.maintenance import MarkedFile
from lakefeed.lake.route import Part
from lakefeed.lake.spark.error import ConcurrentModification
from lakefeed.lake.vector import decoded, encoded
from lakefeed.lake.window import KeyBounds

if TYPE_CHECKING:
    from pyroaring import BitMap
    from pyspark.sql import DataFrame, SparkSession

_BRANCH = "lakefeed-publishing"
_LINEAGE = ("_row_id", "_last_updated_sequence_number")
_PUFFIN = b"PFA1"
_FEW_FILES = 1_000
_POSITION_FIELD = 2147483645  # the id that the table specification gives to a row's position


class JavaCatalog:
    """One catalog, opened at its first use. Threads may use different tables of it at the same time.

    ``hadoop`` are settings for Hadoop's file systems, beside those of the Spark context.
    """

    def __init__(
        self,
        name: str,
        properties: Mapping[str, str],
        spark: Callable[[], SparkSession],
        hadoop: Mapping[str, str] | None = None,
    ) -> None:
        self._name = name
        self._properties = properties
        self._spark = spark
        self._hadoop = dict(hadoop or {})
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
                if self._hadoop:
                    hadoop = jvm.org.apache.hadoop.conf.Configuration(hadoop)
                    for name, value in self._hadoop.items():
                        hadoop.set(name, value)
                found = _iceberg(jvm, "CatalogUtil").buildIcebergCatalog(self._name, properties, hadoop)
                self._opened = (jvm, found)
            return self._opened


class JavaTable:
    """One table of a catalog: see ``library.TableLibrary``."""

    takes_files = True
    versions_per_group = 1
    can_rewrite = True

    def __init__(self, catalog: JavaCatalog, namespace: Sequence[str], name: str) -> None:
        self._catalog = catalog
        self._namespace = tuple(namespace)
        self._name = name

    def making(self, schema: Mapping[str, Any], properties: Mapping[str, str], layout: Layout) -> Creation:
        """Begin a new table. Readers see it when the addition commits."""
        jvm, catalog = self._catalog.open()
        namespace = self._identifier(jvm).namespace()
        if not catalog.namespaceExists(namespace):
            catalog.createNamespace(namespace)
        made = _iceberg(jvm, "SchemaParser").fromJson(json.dumps(schema))
        builder = catalog.buildTable(self._identifier(jvm), made).withProperties(_java_map(jvm, properties))
        if layout.partitions:
            spec = _iceberg(jvm, "PartitionSpec").builderFor(made)
            for one in layout.partitions:
                given = (one.column,) if one.number is None else (one.column, one.number)
                spec = getattr(spec, one.kind.removesuffix("s") if one.number is None else one.kind)(*given)
            builder = builder.withPartitionSpec(spec.build())
        if layout.cluster_by:
            order = _iceberg(jvm, "SortOrder").builderFor(made)
            for name in layout.cluster_by:
                order = order.asc(name)
            builder = builder.withSortOrder(order.build())
        return Creation(jvm, builder.createTransaction())

    def replacing(
        self,
        columns: Sequence[Alteration],
        properties: Mapping[str, str | None],
        layout: Layout,
        part: Part | None = None,
    ) -> Addition:
        """Begin to replace all rows, or those of a ``part``, and alter the columns, in one commit.

        The table keeps its id, other properties, snapshots and tags, and the ids and comments of columns that stay. It
        keeps its partition fields and sort order, too, unless ``layout`` has others.
        """
        jvm, catalog = self._catalog.open()

        def change(transaction: Any) -> None:
            _set(transaction.updateProperties(), properties)
            for alteration in columns:
                update = transaction.updateSchema()
                _alter(jvm, update, alteration)
                update.commit()
            if layout.partition_by is not None:
                _repartition(jvm, transaction, layout)
            if layout.cluster_by is not None:
                _sort_by(jvm, transaction, layout.cluster_by)

        expressions = _iceberg(jvm, "expressions.Expressions")
        replaced = expressions.equal(part.column, part.value) if part is not None else expressions.alwaysTrue()
        return Addition(jvm, catalog.loadTable(self._identifier(jvm)), change, replaced)

    def lay_out(self, layout: Layout) -> None:
        """Set the layout's properties and sort order. They hold for what is written later."""
        jvm, catalog = self._catalog.open()
        transaction = catalog.loadTable(self._identifier(jvm)).newTransaction()
        if layout.properties:
            _set(transaction.updateProperties(), dict(layout.properties))
        if layout.cluster_by is not None:
            _sort_by(jvm, transaction, layout.cluster_by)
        transaction.commitTransaction()

    def appending(self) -> Addition:
        """Begin to add files to the table as it is."""
        jvm, catalog = self._catalog.open()
        return Addition(jvm, catalog.loadTable(self._identifier(jvm)))

    def publish(self, snapshot: int) -> None:
        """Make a staged snapshot the current one; ConcurrentModification if its parent is not the current one.

        Iceberg moves ``main`` forward only to a branch, so this commit creates one and removes it again.
        """
        from pyspark.errors import IllegalArgumentException

        jvm, catalog = self._catalog.open()
        change = catalog.loadTable(self._identifier(jvm)).manageSnapshots()
        try:
            change = change.createBranch(_BRANCH, snapshot).fastForwardBranch("main", _BRANCH)
            change.removeBranch(_BRANCH).commit()
        except IllegalArgumentException as error:  # Iceberg has no class of its own for this
            raise ConcurrentModification(str(error)) from error

    def alter(
        self, alterations: Sequence[Alteration], properties: Mapping[str, str], expected: Mapping[str, str]
    ) -> None:
        jvm, catalog = self._catalog.open()
        table = catalog.loadTable(self._identifier(jvm))
        require_properties({name: table.properties().get(name) for name in expected}, expected)
        transaction = table.newTransaction()
        for alteration in alterations:
            update = transaction.updateSchema()
            _alter(jvm, update, alteration)
            update.commit()
        _set(transaction.updateProperties(), properties)
        transaction.commitTransaction()

    def stage_nothing(self, summary: Mapping[str, str]) -> None:
        """Stage a snapshot that changes no rows and only records ``summary``."""
        jvm, catalog = self._catalog.open()
        append = catalog.loadTable(self._identifier(jvm)).newAppend().stageOnly()
        for key, value in summary.items():
            append.set(key, value)
        append.commit()

    def marking(self) -> Marking:
        """Begin to mark rows and to add others, in one snapshot on the current one."""
        jvm, catalog = self._catalog.open()
        return Marking(jvm, catalog.loadTable(self._identifier(jvm)))

    def marked_files(self) -> list[MarkedFile]:
        """The data files that have a deletion vector."""
        jvm, catalog = self._catalog.open()
        planned, found = catalog.loadTable(self._identifier(jvm)).newScan().planFiles(), []
        try:
            for task in _each(planned):
                marked = sum(int(deletes.recordCount()) for deletes in task.deletes())
                if marked:
                    file = task.file()
                    found.append(MarkedFile(int(file.fileSizeInBytes()), marked / int(file.recordCount())))
        finally:
            planned.close()
        return found

    def _identifier(self, jvm: Any) -> Any:
        namespace = _iceberg(jvm, "catalog.Namespace").of(_java_strings(jvm, self._namespace))
        return _iceberg(jvm, "catalog.TableIdentifier").of(namespace, self._name)


class Creation:
    """A new table and its first files, in one commit: see ``library.Addition``."""

    def __init__(self, jvm: Any, transaction: Any, replaced: Any = None) -> None:
        self._jvm = jvm
        self._transaction = transaction
        self._replaced = replaced
        self._table = transaction.table()

    @property
    def schema(self) -> dict[str, Any]:
        """The table's columns with their ids, as Iceberg's JSON."""
        described: dict[str, Any] = json.loads(_iceberg(self._jvm, "SchemaParser").toJson(self._table.schema()))
        return described

    @property
    def directory(self) -> str:
        """Where the table's data files go: a local path, or a URI."""
        location = str(self._table.location()).rstrip("/")
        if location.startswith("file:"):
            location = "/" + location.removeprefix("file:").lstrip("/")
        return f"{location}/data"

    def commit(
        self,
        files: Sequence[DataFile],
        summary: Mapping[str, str],
        properties: Mapping[str, str | None],
        is_expected: Callable[[], bool],
    ) -> None:
        self._add(self._transaction, files, summary, properties)
        if not is_expected():
            raise _gone_on()
        self._transaction.commitTransaction()

    def _add(
        self,
        transaction: Any,
        files: Sequence[DataFile],
        summary: Mapping[str, str],
        properties: Mapping[str, str | None],
    ) -> None:
        """Into a transaction.

        A file belongs to the partition that it names. A file that names none is added under an unpartitioned spec, even
        if the table's owner has added partition fields since: Iceberg keeps the spec of each file.
        """
        table = transaction.table()
        if properties:  # first: only the first change of a transaction removes old metadata files
            _set(transaction.updateProperties(), properties)
        is_partitioned = any(file.partition for file in files)
        unpartitioned = next((one for one in table.specs().values() if one.isUnpartitioned()), None)
        spec = table.spec() if is_partitioned else unpartitioned
        if spec is None and files:  # somebody has removed the unpartitioned spec, which no file used
            update = transaction.updateSpec()
            for field in table.spec().fields():
                update.removeField(field.name())
            update.addNonDefaultSpec().commit()
            spec = next(one for one in table.specs().values() if one.isUnpartitioned())
        if self._replaced is not None:
            append = transaction.newOverwrite()
            append.overwriteByRowFilter(self._replaced)
            add = append.addFile
        else:
            append = transaction.newAppend()
            add = append.appendFile
        for file in files:
            # With the bounds of its columns, from its footer: readers and merges skip files by them.
            path = f"{self.directory}/{file.name}"
            path = path if "://" in path else spark_path(path)
            config = _iceberg(self._jvm, "MetricsConfig").forTable(table)
            file_metrics = _iceberg(self._jvm, "parquet.ParquetUtil").fileMetrics
            metrics = file_metrics(table.io().newInputFile(path), config)
            builder = _iceberg(self._jvm, "DataFiles").builder(spec).withPath(path).withFormat("PARQUET")
            if file.partition:
                values = self._jvm.java.util.ArrayList()
                for value in file.partition:
                    values.add(value)
                builder = builder.withPartitionValues(values)
            add(builder.withFileSizeInBytes(file.bytes).withMetrics(metrics).build())
        for key, value in summary.items():
            append.set(key, value)
        append.commit()


class Addition(Creation):
    """Adds files to a table that is there, in one commit, with what it records: see ``library.Addition``.

    ``change`` alters the table in the same commit. ``replaced`` is Iceberg's expression for the rows to delete; None
    deletes none.
    """

    def __init__(
        self, jvm: Any, table: Any, change: Callable[[Any], None] = lambda _: None, replaced: Any = None
    ) -> None:
        transaction = table.newTransaction()  # never committed: it gives new columns their ids
        change(transaction)
        super().__init__(jvm, transaction, replaced)
        self._there = table
        self._change = change

    def commit(
        self,
        files: Sequence[DataFile],
        summary: Mapping[str, str],
        properties: Mapping[str, str | None],
        is_expected: Callable[[], bool],
    ) -> None:
        """By a compare-and-swap on the table as ``is_expected`` has found it; CommitFailedException of Iceberg's else.

        Others may have committed while the files were written. Iceberg's own transaction would try again on whatever
        the table has become, also after ``is_expected``.
        """
        self._there.refresh()
        operations = self._there.operations()
        base = operations.current()
        if not is_expected():  # it reads the table as it is now, or as it was later than ``base``: then the swap fails
            raise _gone_on()
        transaction = _iceberg(self._jvm, "Transactions").newTransaction(self._there.name(), operations)
        self._change(transaction)
        found = json.loads(_iceberg(self._jvm, "SchemaParser").toJson(transaction.table().schema()))["fields"]
        if gone := [one["name"] for one in self.schema["fields"] if one not in found]:
            raise ConcurrentModification(f"somebody has changed the column {gone[0]}, which is being copied")
        self._add(transaction, files, summary, properties)
        operations.commit(base, transaction.table().operations().current())


def _gone_on() -> ConcurrentModification:
    return ConcurrentModification("another process has gone on with the copy")


class Marking:
    """One snapshot that adds data files and marks rows of others as deleted, by deletion vectors.

    Spark writes the data files as for Iceberg's own rewriting of files: it hands them over and does not commit them.
    """

    def __init__(self, jvm: Any, table: Any) -> None:
        self._jvm = jvm
        self._table = table
        self._spec = table.spec()
        self._here = _calling_thread(jvm, table)

    def snapshot(self, *, fresh: bool = False) -> int | None:
        """The table's current snapshot: now (``fresh``), or when this object last read the table."""
        if fresh:
            self._table.refresh()
        current = self._table.currentSnapshot()
        return int(current.snapshotId()) if current is not None else None

    def is_touched(self, bounds: KeyBounds) -> bool:
        """May any file have a row between the bounds? By the manifests."""
        expressions = _iceberg(self._jvm, "expressions.Expressions")
        low = expressions.greaterThanOrEqual(bounds.column, _comparable(bounds.low))
        high = expressions.lessThanOrEqual(bounds.column, _comparable(bounds.high))
        # ``and`` is a keyword in Python.
        planned = self._scan().filter(getattr(expressions, "and")(low, high)).planFiles()
        try:
            return bool(planned.iterator().hasNext())
        finally:
            planned.close()

    def write(self, rows: DataFrame) -> list[Any]:
        """Write the rows as data files of the table. No commit names them yet."""
        group = uuid.uuid4().hex
        cache, written = _iceberg(self._jvm, "spark.SparkTableCache").get(), []
        coordinator = _iceberg(self._jvm, "spark.FileRewriteCoordinator").get()
        cache.add(group, self._table)
        try:
            # NULL: the commit assigns each row's id and sequence number.
            lineage = (f"CAST(NULL AS BIGINT) AS {name}" for name in _LINEAGE)
            writer = rows.selectExpr("*", *lineage).writeTo(f"{HANDED_OVER}.`{group}`")
            writer.option("use-table-distribution-and-ordering", "false").append()
            written = list(_each(coordinator.fetchNewFiles(self._table, group)))
        finally:
            cache.remove(group)
            coordinator.clearRewrite(self._table, group)
        return written

    def discard(self, files: Iterable[Any]) -> None:
        """Remove files that no commit will name. Nobody else would."""
        for file in files:
            self._table.io().deleteFile(str(file.location()))

    def vectors(self) -> dict[str, DeletionVector]:
        """The deletion vectors of the table, by data file. UnknownDeletesError if rows were deleted by other means."""
        found: dict[str, DeletionVector] = {}
        to_json = _iceberg(self._jvm, "ContentFileParser").toJson
        planned = self._scan().planFiles()
        try:
            for task in _each(planned):
                for deletes in task.deletes():
                    described = json.loads(to_json(deletes, self._spec))
                    if described.get("file-format", "").upper() != "PUFFIN":
                        raise UnknownDeletesError(f"{described['file-path']} is no deletion vector")
                    found[described["referenced-data-file"]] = DeletionVector(described)
        finally:
            planned.close()
        return found

    def read(self, vectors: Iterable[DeletionVector]) -> list[BitMap]:
        """The rows that each vector marks."""
        found, contents = [], dict[str, bytes]()
        for vector in vectors:
            place = str(vector.described["file-path"])
            if place not in contents:
                stream = self._table.io().newInputFile(place).newStream()
                try:
                    contents[place] = bytes(stream.readAllBytes())
                finally:
                    stream.close()
            start = vector.described["content-offset"]
            found.append(decoded(contents[place][start : start + vector.described["content-size-in-bytes"]], place))
        return found

    def put_vectors(self, marks: Mapping[str, BitMap]) -> dict[str, DeletionVector]:
        """Write the vectors of some data files into one file."""
        if not marks:
            return {}
        place = self._table.locationProvider().newDataLocation(f"{uuid.uuid4()}-deletes.puffin")
        content, blobs = puffin_of(marks)
        stream = self._table.io().newOutputFile(place).create()
        try:
            stream.write(content)
        finally:
            stream.close()
        return {
            file: DeletionVector(
                {
                    "spec-id": self._spec.specId(),
                    "content": "POSITION_DELETES",
                    "file-path": place,
                    "file-format": "PUFFIN",
                    "partition": {},
                    "file-size-in-bytes": len(content),
                    "record-count": len(marks[file]),
                    "referenced-data-file": file,
                    "content-offset": offset,
                    "content-size-in-bytes": size,
                },
                marks[file],
            )
            for file, (offset, size) in blobs.items()
        }

    def commit(
        self,
        files: Iterable[Any],
        added: Iterable[DeletionVector],
        removed: Iterable[DeletionVector],
        summary: Mapping[str, str],
    ) -> int:
        """Commit one snapshot on the one that was last read, by a compare-and-swap. Returns its id.

        ``added`` vectors replace ``removed`` ones. Iceberg's own commits retry on whatever the table has become; this
        one raises Iceberg's CommitFailedException instead.
        """
        mapper = _iceberg(self._jvm, "util.JsonUtil").mapper()
        from_json = _iceberg(self._jvm, "ContentFileParser").fromJson
        operations = self._table.operations()
        base = operations.current()
        made = _iceberg(self._jvm, "Transactions").newTransaction(self._table.name(), operations)
        delta = made.newRowDelta()
        if self._here is not None:
            delta.scanManifestsWith(self._here)
        if (current := base.currentSnapshot()) is not None:
            delta.validateFromSnapshot(current.snapshotId())  # else older vectors of the same files are conflicts
        for file in files:
            delta.addRows(file)
        for vector in added:
            delta.addDeletes(from_json(mapper.readTree(json.dumps(vector.described)), self._spec))
        for vector in removed:
            delta.removeDeletes(from_json(mapper.readTree(json.dumps(vector.described)), self._spec))
        for key, value in summary.items():
            delta.set(key, value)
        delta.commit()  # into the transaction: it writes manifests, but no metadata file
        new = made.table().operations().current()
        operations.commit(base, new)
        return int(new.currentSnapshot().snapshotId())

    def _scan(self) -> Any:
        scan = self._table.newScan()
        return scan.planWith(self._here) if self._here is not None else scan


@dataclass(frozen=True, slots=True)
class DeletionVector:
    """The deletion vector of one data file, as Iceberg's JSON; the rows it marks, or None until they are read."""

    described: Mapping[str, Any]
    rows: BitMap | None = None


class UnknownDeletesError(Exception):
    """The table has rows that were deleted by other means than deletion vectors."""


def puffin_of(marks: Mapping[str, BitMap]) -> tuple[bytes, dict[str, tuple[int, int]]]:
    """A Puffin file with the deletion vectors of data files, and the offset and length of each in it."""
    content, places = bytearray(_PUFFIN), dict[str, tuple[int, int]]()
    blobs = []
    for file, rows in marks.items():
        vector = encoded(rows)
        places[file] = (len(content), len(vector))
        blobs.append(
            {
                "type": "deletion-vector-v1",
                "fields": [_POSITION_FIELD],
                "snapshot-id": -1,  # in the specification: "the commit's"
                "sequence-number": -1,
                "offset": len(content),
                "length": len(vector),
                "properties": {"referenced-data-file": file, "cardinality": str(len(rows))},
            }
        )
        content += vector
    footer = json.dumps({"blobs": blobs, "properties": {"created-by": "lakefeed"}}).encode()
    content += _PUFFIN + footer + struct.pack("<II", len(footer), 0) + _PUFFIN
    return bytes(content), places


def _sort_by(jvm: Any, transaction: Any, columns: Sequence[str]) -> None:
    """With the long form of ``asc``: the short one belongs to an interface that Py4J does not see."""
    order, first = transaction.replaceSortOrder(), _iceberg(jvm, "NullOrder").NULLS_FIRST
    for name in columns:
        order = order.asc(_iceberg(jvm, "expressions.Expressions").ref(name), first)
    order.commit()


def _repartition(jvm: Any, transaction: Any, layout: Layout) -> None:
    """Replace the table's partition fields by those of a layout, unless they are the same."""
    table = transaction.table()
    columns = table.schema()
    there = [(str(columns.findColumnName(field.sourceId())), str(field.transform())) for field in table.spec().fields()]
    wanted = [
        (one.column, one.kind.removesuffix("s") if one.number is None else f"{one.kind}[{one.number}]")
        for one in layout.partitions
    ]
    if there == wanted:
        return
    update, expressions = transaction.updateSpec(), _iceberg(jvm, "expressions.Expressions")
    for field in table.spec().fields():
        update = update.removeField(field.name())
    for one in layout.partitions:
        if one.kind == "identity":
            update = update.addField(one.column)
        elif one.number is None:
            update = update.addField(getattr(expressions, one.kind.removesuffix("s"))(one.column))
        else:
            update = update.addField(getattr(expressions, one.kind)(one.column, one.number))
    update.commit()


@lru_cache(maxsize=100)
def _iceberg(jvm: Any, name: str) -> Any:
    """A class of Iceberg. By its whole name: with dots, Py4J searches all jars for every package on the way.

    Cached, because the JVM searches every class loader for the name each time.
    """
    return getattr(jvm, f"org.apache.iceberg.{name}")


def _calling_thread(jvm: Any, table: Any) -> Any:
    """An executor that runs everything in the thread that calls, for a table of few files on a local disk; else None.

    Iceberg reads and writes manifests in threads of a pool, and asks every ten milliseconds whether they have ended: it
    does so six times for a commit, whose own work takes less than that.
    """
    current = table.currentSnapshot()
    files = int(current.summary().get("total-data-files") or 0) if current is not None else 0
    if files > _FEW_FILES or not str(table.location()).startswith(("/", "file:")):
        return None
    return _iceberg(jvm, "relocated.com.google.common.util.concurrent.MoreExecutors").newDirectExecutorService()


def _each(planned: Any) -> Iterator[Any]:
    """The items of a Java iterable. Py4J's own iteration ends with an error: pyspark examines it by dozens of calls."""
    iterator = planned.iterator()
    while iterator.hasNext():
        yield iterator.next()


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
    elif isinstance(alteration, Describe):
        update.updateColumnDoc(alteration.name, alteration.text)
    elif isinstance(alteration, Add):
        # With ``null`` as the parent: with the name alone, Iceberg takes dots in it for a path.
        kind = _java_type(jvm, alteration.type)
        if alteration.default is None:
            update.addColumn(None, alteration.name, kind)
        else:
            value = alteration.default
            given = jvm.java.math.BigDecimal(str(value)) if isinstance(value, Decimal) else value
            literal = _iceberg(jvm, "expressions.Expressions").lit(given)
            update.addColumn(None, alteration.name, kind, literal.to(kind))


def _java_type(jvm: Any, described: Any) -> Any:
    """A type of Iceberg's JSON as a Java object: parsed as the only column of a schema."""
    column = {"id": 1, "name": "c", "required": False, "type": described}
    parsed = _iceberg(jvm, "SchemaParser").fromJson(json.dumps({"type": "struct", "fields": [column]}))
    return parsed.findType("c")


def _comparable(value: Any) -> Any:
    """Dates and times as text, which Iceberg converts to the column's type."""
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
