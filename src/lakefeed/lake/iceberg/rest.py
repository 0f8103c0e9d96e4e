"""A table of a REST catalog on Spark Connect, where there is no JVM: Spark writes rows, the catalog commits metadata.

Format version 3, as everywhere. pyiceberg (0.12) reads it and asks a REST catalog for commits of it, but writes no
manifests of it. So it writes none: the server's Spark makes every snapshot, *staged*, and what makes one the table's
content is a commit of metadata alone, with requirements that the catalog checks in the same step:

  1 Spark writes rows as a staged snapshot, whose summary has the record
  2 one commit: ``main`` is that snapshot, and the table has these properties, if ``main`` still is what the snapshot
    was made on
A client that is killed leaves at most a staged snapshot behind, also if the server goes on with its statement: only 2
changes what readers see, and no server does that by itself.
"""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import date
from decimal import Decimal
from itertools import count
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from pyarrow import fs

from lakefeed.errors import CommitFailedError, TableStoppedError
from lakefeed.lake.iceberg.catalog import CatalogMetadata
from lakefeed.lake.iceberg.library import require_properties, staging
from lakefeed.lake.iceberg.record import ATTEMPT, GENERATION, VERSIONS, VERSIONS_AFTER
from lakefeed.lake.iceberg.schema import Add, Alteration, Describe, Drop, Move, Rename, Widen
from lakefeed.lake.layout import Layout, Partition
from lakefeed.lake.loader import DataFile
from lakefeed.lake.location import filesystem, spark_path
from lakefeed.lake.maintenance import MarkedFile
from lakefeed.lake.route import Part
from lakefeed.lake.spark.error import ConcurrentModification
from lakefeed.lake.spark.type import quoted
from lakefeed.lake.window import KeyBounds

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_FIRST_FIELD = 1000
"""The table specification's first id of a partition field."""
_Json = dict[str, Any]
_LAST_ADDED = -1
"""In a commit: the schema, partition fields or sort order that the same commit adds."""


class RestTable:
    """See ``library.TableLibrary``. ``name`` is the table's parts in Spark SQL, the catalog first. ``directory`` is one
    that the server's tasks reach, of this table alone: files of a copy lie there until Spark has read them."""

    takes_files = False
    versions_per_group = 2  # the staged snapshot, and its publication
    can_rewrite = False

    def __init__(
        self, reader: CatalogMetadata, name: Sequence[str], spark: Callable[[], SparkSession], directory: str
    ) -> None:
        self.reader = reader
        self.sql_name = ".".join(map(quoted, name))
        self.directory = directory
        self._identifier = tuple(name[1:])
        self._spark = spark
        self._session: SparkSession | None = None
        self._turn = threading.Lock()

    def making(self, schema: Mapping[str, Any], properties: Mapping[str, str], layout: Layout) -> RestAddition:
        """A commit of its own: until the first rows come, readers see a table without any."""
        from pyiceberg.partitioning import PartitionSpec
        from pyiceberg.schema import Schema
        from pyiceberg.table.sorting import SortOrder

        withheld = {key: value for key, value in properties.items() if key.startswith(GENERATION)}
        catalog = self.reader.catalog()
        catalog.create_namespace_if_not_exists(self._identifier[:-1])
        columns = Schema.model_validate(schema)
        catalog.create_table(
            self._identifier,
            columns,
            partition_spec=PartitionSpec.model_validate(_partition_spec(columns, layout.partitions)),
            sort_order=SortOrder.model_validate(_sort_order(columns, layout.cluster_by or ())),
            properties={key: value for key, value in properties.items() if key not in withheld},
        )
        return RestAddition(self, withheld, replaces=False)  # of another's rows, should there be some meanwhile

    def replacing(
        self,
        columns: Sequence[Alteration],
        properties: Mapping[str, str | None],
        layout: Layout,
        part: Part | None = None,
    ) -> RestAddition:
        """Other columns and another layout are a commit of their own, before: Spark writes what the table has. Until
        the first rows come, readers see the old rows under them. How long metadata files stay is in it, too: the copy
        may read one of them, and each commit could remove it."""
        table = self.reader.table()
        schema, updates, requirements = _altered(table.metadata, columns)
        if layout.partition_by is not None:
            others, also = _respecified(table, schema, layout.partitions)
            updates, requirements = updates + others, requirements + also
        if layout.cluster_by is not None:
            updates += _sorted_by(table, schema, layout.cluster_by)
        updates += _set({name: properties[name] for name in (VERSIONS, VERSIONS_AFTER) if name in properties})
        if updates:
            self.commit(table, requirements, updates)
        return RestAddition(self, properties, replaces=True, part=part)

    def appending(self) -> RestAddition:
        return RestAddition(self, {}, replaces=False)

    def publish(self, snapshot: int) -> None:
        table = self.reader.table()
        staged = table.snapshot_by_id(snapshot)
        if staged is None:
            raise ConcurrentModification(f"the staged snapshot {snapshot} has been expired")
        self.show(table, staged, {})

    def show(self, table: Any, staged: Any, properties: Mapping[str, str | None]) -> None:
        """Make a staged snapshot of pyiceberg's the table's content, in one commit with properties."""
        main = table.metadata.refs.get("main")
        kept = (
            main.model_dump(mode="json", by_alias=True, exclude_none=True) if main is not None else {"type": "branch"}
        )
        shown = {"action": "set-snapshot-ref", "ref-name": "main", **kept, "snapshot-id": staged.snapshot_id}
        # Without a parent, the requirement is that there is no such branch yet.
        unmoved = {"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": staged.parent_snapshot_id}
        self.commit(table, [unmoved], [*_set(properties), shown])

    def alter(
        self, alterations: Sequence[Alteration], properties: Mapping[str, str], expected: Mapping[str, str]
    ) -> None:
        """The requirement on ``main`` stands for ``expected``: a generation begins with a snapshot."""
        table = self.reader.table()
        require_properties(table.properties, expected)
        _, updates, requirements = _altered(table.metadata, alterations)
        main = table.metadata.refs.get("main")
        at = {"ref": "main", "snapshot-id": main.snapshot_id if main is not None else None}
        self.commit(table, [{"type": "assert-ref-snapshot-id", **at}, *requirements], [*updates, *_set(properties)])

    def lay_out(self, layout: Layout) -> None:
        table = self.reader.table()
        updates = _set(dict(layout.properties))
        if layout.cluster_by is not None:
            updates += _sorted_by(table, table.schema(), layout.cluster_by)
        self.commit(table, [], updates)

    def stage_nothing(self, summary: Mapping[str, str]) -> None:
        with self.session() as session, staging(session, summary):
            session.table(self.sql_name).where("false").writeTo(self.sql_name).append()

    def marking(self) -> _Scan:
        return _Scan(self.reader.table())

    def marked_files(self) -> list[MarkedFile]:
        found = []
        for task in self.reader.table().scan().plan_files():
            marked = sum(deletes.record_count for deletes in task.delete_files)
            if marked:
                found.append(MarkedFile(task.file.file_size_in_bytes, marked / task.file.record_count))
        return found

    def commit(self, table: Any, requirements: Sequence[_Json], updates: Sequence[_Json]) -> None:
        """One commit, in the words of the REST catalogs' specification. It is asked for once: an answer that is lost
        says nothing about the outcome."""
        from pyiceberg.exceptions import CommitFailedException
        from pyiceberg.table import CommitTableRequest

        same = {"type": "assert-table-uuid", "uuid": str(table.metadata.table_uuid)}
        place = {"namespace": list(self._identifier[:-1]), "name": self._identifier[-1]}
        given = {"identifier": place, "requirements": [same, *requirements], "updates": list(updates)}
        request = CommitTableRequest.model_validate(given)
        try:
            self.reader.catalog().commit_table(table, request.requirements, request.updates)
        except CommitFailedException as error:
            raise ConcurrentModification(str(error)) from error

    @contextmanager
    def session(self) -> Iterator[SparkSession]:
        """A session of the table's own, for one thread at a time: its settings say what is staged. The same until an
        error: then the server may still go on with a statement, under those settings."""
        with self._turn:
            session, self._session = self._session or self._spark(), None
            yield session
            self._session = session


class RestAddition:
    """See ``library.Addition``. The files lie beside the table, and Spark makes a staged snapshot of their rows.

    1 stage  2 is what the table records what it is to be?  3 publish, if the table still is what 1 was made on
    """

    def __init__(
        self, table: RestTable, properties: Mapping[str, str | None], *, replaces: bool, part: Part | None = None
    ) -> None:
        self._table = table
        self._properties = dict(properties)
        self._replaces = replaces
        self._part = part
        found = table.reader.table()
        self.schema: dict[str, Any] = json.loads(found.schema().model_dump_json())
        _clear(table.directory)  # what a process that died has left
        self.directory = f"{table.directory}/{uuid.uuid4().hex}"

    def commit(
        self,
        files: Sequence[DataFile],
        summary: Mapping[str, str],
        properties: Mapping[str, str | None],
        is_expected: Callable[[], bool],
    ) -> None:
        with self._table.session() as session, staging(session, summary) as attempt:
            self._write(self._rows(session, files))  # 1
        table = self._table.reader.table()
        staged = next((one for one in table.metadata.snapshots if (one.summary or {}).get(ATTEMPT) == attempt), None)
        if staged is None:
            raise CommitFailedError(f"Spark wrote no staged snapshot into {self._table.sql_name}")
        if not is_expected():  # 2
            raise ConcurrentModification("another process has gone on with the copy")
        self._table.show(table, staged, {**self._properties, **properties})  # 3
        _clear(self._table.directory)

    def _rows(self, session: SparkSession, files: Sequence[DataFile]) -> DataFrame:
        """Of the files, with all columns of the table: those that the files do not have are NULL."""
        from pyspark.sql import functions as F  # noqa: N812

        columns = session.table(self._table.sql_name)
        if not files:
            return columns.where("false")
        rows = session.read.parquet(*(spark_path(f"{self.directory}/{one.name}", as_glob=True) for one in files))
        there = set(rows.columns)
        if gone := sorted(there - set(columns.columns)):
            raise ConcurrentModification(f"the table no longer has the column {gone[0]}, which is being copied")
        return rows.select(
            *(
                (F.col(quoted(one.name)) if one.name in there else F.lit(None)).cast(one.dataType).alias(one.name)
                for one in columns.schema.fields
            )
        )

    def _write(self, rows: DataFrame) -> None:
        from pyspark.sql import functions as F  # noqa: N812

        writer = rows.writeTo(self._table.sql_name)
        if not self._replaces:
            writer.append()
        elif self._part is not None:
            writer.overwrite(F.col(quoted(self._part.column)) == self._part.value)
        else:
            writer.overwrite(F.lit(True))


class _Scan:
    """See ``library.Touch``: by pyiceberg, which reads the manifests of the files that may match."""

    def __init__(self, table: Any) -> None:
        self._table = table

    def is_touched(self, bounds: KeyBounds) -> bool:
        from pyiceberg import expressions

        of: Any = expressions
        low, high = (one.isoformat() if isinstance(one, date) else one for one in (bounds.low, bounds.high))
        within = of.And(of.GreaterThanOrEqual(bounds.column, low), of.LessThanOrEqual(bounds.column, high))
        return any(True for _ in self._table.scan(row_filter=within).plan_files())


def _set(properties: Mapping[str, str | None]) -> list[_Json]:
    """The updates that set properties, and remove those that are None."""
    given = {key: value for key, value in properties.items() if value is not None}
    gone = [key for key, value in properties.items() if value is None]
    updates: list[_Json] = [{"action": "set-properties", "updates": given}] if given else []
    return [*updates, {"action": "remove-properties", "removals": gone}] if gone else updates


def _altered(metadata: Any, alterations: Sequence[Alteration]) -> tuple[Any, list[_Json], list[_Json]]:
    """A table's columns after the alterations, the updates of a commit that bring them about, and what must hold of the
    table for it; no updates for no alterations."""
    from pyiceberg.schema import Schema

    if not alterations:
        return metadata.schema(), [], []
    current = json.loads(metadata.schema().model_dump_json())
    made = {
        "type": "struct",
        "schema-id": 1 + max(one.schema_id for one in metadata.schemas),
        "identifier-field-ids": current.get("identifier-field-ids", []),
        "fields": altered_fields(current["fields"], metadata.last_column_id, alterations),
    }
    schema = Schema.model_validate(made)
    # What the table had once is taken again: a catalog refuses to add it.
    there = next((one.schema_id for one in metadata.schemas if one == schema), None)
    updates: list[_Json] = [{"action": "add-schema", "schema": made}] if there is None else []
    updates.append({"action": "set-current-schema", "schema-id": _LAST_ADDED if there is None else there})
    requirements: list[_Json] = [
        {"type": "assert-current-schema-id", "current-schema-id": metadata.current_schema_id},
        {"type": "assert-last-assigned-field-id", "last-assigned-field-id": metadata.last_column_id},
    ]
    return schema, updates, requirements


def altered_fields(
    fields: Sequence[Mapping[str, Any]], last_id: int, alterations: Sequence[Alteration]
) -> list[dict[str, Any]]:
    """Columns as Iceberg's JSON, after the alterations; new ones have ids from ``last_id`` on. One that is there is not
    added: another part of a union was first. TableStoppedError for one that is not there."""
    found, ids = [dict(field) for field in fields], count(last_id + 1)

    def index(name: str) -> int:
        place = next((number for number, field in enumerate(found) if field["name"] == name), None)
        if place is None:
            raise TableStoppedError(
                f"somebody changed the lake table: it has no column '{name}' any more",
                remedy="Undo that, or remove the lake table and start the pipeline again, which copies it again.",
            )
        return place

    for one in alterations:
        if isinstance(one, Drop):
            del found[index(one.name)]
        elif isinstance(one, Rename):
            found[index(one.old)]["name"] = one.new
        elif isinstance(one, Widen):
            name, depth = one.name, 0
            while all(field["name"] != name for field in found):  # the elements of a list
                name, depth = name.removesuffix(".element"), depth + 1
            field = found[index(name)]
            field["type"] = _widened(field["type"], depth, one.type)
        elif isinstance(one, Move):
            moved = found.pop(index(one.name))
            found.insert(0 if one.after is None else index(one.after) + 1, moved)
        elif isinstance(one, Describe):
            found[index(one.name)]["doc"] = one.text
        elif isinstance(one, Add) and not any(field["name"].lower() == one.name.lower() for field in found):
            found.append(_added(one, ids))
    return found


def _widened(described: Any, depth: int, kind: str) -> Any:
    return {**described, "element": _widened(described["element"], depth - 1, kind)} if depth else kind


def _numbered(described: Any, ids: Iterator[int]) -> Any:
    """A type with ids of its own for the elements of lists."""
    if not isinstance(described, Mapping):
        return described
    return {**described, "element-id": next(ids), "element": _numbered(described["element"], ids)}


def _added(one: Add, ids: Iterator[int]) -> dict[str, Any]:
    field: dict[str, Any] = {"id": next(ids), "name": one.name, "required": False}
    field["type"] = _numbered(one.type, ids)
    if (value := one.default) is not None:
        # A single value as the table specification has it in JSON.
        value = str(value) if isinstance(value, Decimal) else value.hex() if isinstance(value, bytes) else value
        field |= {"initial-default": value, "write-default": value}
    return field


def _partition_spec(
    columns: Any,
    partitions: Sequence[Partition],
    last_id: int = _FIRST_FIELD - 1,
    known: Mapping[tuple[int, str], int] = MappingProxyType({}),
) -> _Json:
    """``known`` are the ids of fields that the table has had, by column and transform: each keeps its id for ever."""
    ids, fields = count(last_id + 1), []
    for one in partitions:
        source, transform = columns.find_field(one.column).field_id, _transform(one)
        number = known.get((source, transform))
        number = next(ids) if number is None else number
        fields.append({"source-id": source, "field-id": number, "transform": transform, "name": _field_name(one)})
    return {"spec-id": 0, "fields": fields}


def _transform(one: Partition) -> str:
    return one.kind.removesuffix("s") if one.number is None else f"{one.kind}[{one.number}]"


def _field_name(one: Partition) -> str:
    """As Iceberg's own builder calls it."""
    if one.kind == "identity":
        return one.column
    return f"{one.column}_{'trunc' if one.kind == 'truncate' else one.kind.removesuffix('s')}"


def _respecified(table: Any, columns: Any, partitions: Sequence[Partition]) -> tuple[list[_Json], list[_Json]]:
    """The updates that give a table these partition fields, and what must hold of the table for it; none if it has
    them."""
    metadata = table.metadata
    wanted = [(columns.find_field(one.column).field_id, _transform(one), _field_name(one)) for one in partitions]
    specs = {
        one.spec_id: [(field.source_id, str(field.transform), field.name) for field in one.fields]
        for one in metadata.partition_specs
    }
    if specs[metadata.default_spec_id] == wanted:
        return [], []
    last_id = metadata.last_partition_id or _FIRST_FIELD - 1
    requirements: list[_Json] = [
        {"type": "assert-default-spec-id", "default-spec-id": metadata.default_spec_id},
        {"type": "assert-last-assigned-partition-id", "last-assigned-partition-id": last_id},
    ]
    there = next((number for number, fields in specs.items() if fields == wanted), None)
    if there is not None:
        return [{"action": "set-default-spec", "spec-id": there}], requirements
    every = [field for one in metadata.partition_specs for field in one.fields]
    spec = _partition_spec(
        columns, partitions, last_id, {(one.source_id, str(one.transform)): one.field_id for one in every}
    )
    updates: list[_Json] = [
        {"action": "add-spec", "spec": {**spec, "spec-id": 1 + max(specs)}},
        {"action": "set-default-spec", "spec-id": _LAST_ADDED},
    ]
    return updates, requirements


def _sort_order(columns: Any, names: Sequence[str], number: int = 1) -> _Json:
    fields = [
        {
            "source-id": columns.find_field(name).field_id,
            "transform": "identity",
            "direction": "asc",
            "null-order": "nulls-first",
        }
        for name in names
    ]
    return {"order-id": number if fields else 0, "fields": fields}


def _sorted_by(table: Any, columns: Any, names: Sequence[str]) -> list[_Json]:
    """The updates that have a table sorted by these columns."""
    from pyiceberg.table.sorting import SortOrder

    orders = {order.order_id: order.fields for order in table.metadata.sort_orders}
    order = _sort_order(columns, names, 1 + max(orders))
    fields = SortOrder.model_validate(order).fields
    there = next((number for number, known in orders.items() if known == fields), None)
    if there is not None:
        return [{"action": "set-default-sort-order", "sort-order-id": there}]
    return [
        {"action": "add-sort-order", "sort-order": order},
        {"action": "set-default-sort-order", "sort-order-id": _LAST_ADDED},
    ]


def _clear(directory: str) -> None:
    files, root = filesystem(directory)
    if files.get_file_info(root).type is fs.FileType.Directory:
        files.delete_dir(root)
