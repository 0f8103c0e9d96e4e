"""The copy of one table into Delta: Spark tasks write the files, one commit per group of chunks adds them.

  1 tasks read a group's chunks in parallel and write each to a file of its own
  2 one commit adds the files and records how many chunks the table has; the first also replaces what was there
  3 the last commit records the applied number: only from then on does the table count as copied
A restart continues after the last recorded chunk. Files of a group that was not committed are not part of the table.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

import pyarrow as pa
import pyarrow.parquet as pq

from lakefeed.change.position import Position, decode_position, highest
from lakefeed.change.table import Comments, TableId, TableSchema
from lakefeed.errors import CommitFailedError, TableStoppedError
from lakefeed.failpoint import hit
from lakefeed.lake.base import Loaded, TableCopy
from lakefeed.lake.delta.feature import features_of
from lakefeed.lake.delta.history import AppIds
from lakefeed.lake.delta.owner import overwriting, refuse_loss
from lakefeed.lake.formats import other_format_at
from lakefeed.lake.loader import GROUP_CHUNKS, DataFile, attempt_chunk, written_chunks
from lakefeed.lake.location import delta_uri, filesystem, spark_path
from lakefeed.lake.mode.base import CurrentRows, Mode
from lakefeed.lake.route import Part
from lakefeed.lake.spark.driver import Driver
from lakefeed.lake.spark.error import explained
from lakefeed.lake.spark.type import lake_arrow, quoted, text_literal, text_literal_quoted
from lakefeed.storage.location import options_of

if TYPE_CHECKING:
    from deltalake import DeltaTable, Schema
    from pyspark.sql import SparkSession

    from lakefeed.lake.delta.store import DeltaStore

_CONFLICT_TRIES = 5
_HOSTILE = " ,;{}()\n\t="
_OWNER = "lakefeed.owner"

LOCAL_TIME = "timestampNtz"
"""Delta's feature for timestamps without a zone."""

COLUMN_MAPPING = {"delta.columnMapping.mode": "name"}
"""The property under which Delta allows any column name: the files then have other names for the columns."""


def load_table(
    store: DeltaStore,
    copy: TableCopy,
    mode: Mode,
    session: Callable[[], SparkSession],
    progress: Callable[[int], None],
) -> Loaded:
    """Copy ``copy`` into the table of ``store``. Calls ``session`` only if the copy needs Spark.

    A table that is copied again keeps its id, properties, protocol and comments: they are its owner's, and streaming
    readers depend on them. Where only Spark can write the table (partitions, column mapping, constraints, clustering),
    Spark makes the commits, one for each number that they record. If the table would lose something of its owner's, the
    copy stops before it reads a row.
    """
    total, stored = len(copy.chunks), lake_arrow(mode.schema(copy.schema))
    done = _begun(store, copy, stored, session)
    write = partial(
        attempt_chunk,
        directory=store.location,
        schema=stored,
        added=mode.copied(copy),
        storage=options_of(store.location),
    )
    while done is None or done < total:
        start = done or 0
        written = written_chunks(copy.group(start, GROUP_CHUNKS), write, copy.table, session)  # 1
        if copy.wrote is not None:
            copy.wrote(written)
        rows = sum(one.rows for one in written)
        after = min(start + GROUP_CHUNKS, total)
        high = None
        for one in written:
            high = highest(high, one.high)
        metadata = {
            **copy.metadata(store.pipeline),
            "copy": {"chunks": after, "rows": rows, "high": high.encode() if high else None},
        }
        files = [one.file for one in written if one.file]
        if "://" not in store.location:
            away = [one.name for one in files if not Path(store.location, one.name).is_file()]
            if away:
                raise TableStoppedError(
                    f"table {copy.table}: Spark's workers wrote {away[0]} to {store.location}, and it is not there for "
                    "this process: they have another directory under this path",
                    remedy="Set lake.path to a directory that this process and all workers share, or to an object "
                    "store.",
                    table=str(copy.table),
                )
        _commit_group(store, copy, stored, files, (done, after), metadata, session)  # 2, 3
        done = after
        progress(rows)
        hit("lake.during_load")
    _finish(store, copy, session)
    return _loaded(store, copy)


def _begun(store: DeltaStore, copy: TableCopy, stored: pa.Schema, session: Callable[[], SparkSession]) -> int | None:
    """The chunks that the table has of this copy; None if the copy has not begun, and the table can take it.

    TableStoppedError if a table is there that this pipeline or this format did not make, or if the copy would lose what
    the table's owner has set.
    """
    ids = AppIds(store.owner, copy.generation)
    with store.writing() as table:
        begun = table is not None and table.transaction_version(ids.owner) == copy.generation
        done: int | None = table.transaction_version(ids.copy) if table is not None and begun else None
        whole = f"lakefeed/{store.pipeline}/{store.part.table}" if store.part is not None else store.owner
        is_foreign = (
            table is not None
            and table.transaction_version(ids.owner) is None
            and table.metadata().configuration.get(_OWNER) != whole
        )
    # A table of another format is foreign, whoever made it: each format removes files that it does not know.
    kind = other_format_at(store.location, "delta") or ("Delta" if is_foreign else None)
    article = "an" if kind is not None and kind[0] in "AEIOU" else "a"
    if done is None and kind is not None:
        raise TableStoppedError(
            f"table {copy.table}: there is {article} {kind} table at {store.location} that this pipeline did not make",
            remedy="Choose another lake path, or move that table away if nobody needs it there.",
            table=str(copy.table),
        )
    if done is None:
        with _explaining(copy.table):
            _make_for_spark(store, stored, copy, session)
    with store.writing() as table:
        if done is None and table is not None and store.part is None and not features_of(table).keeps_life:
            from pyspark.sql.pandas.types import from_arrow_schema

            nothing = session().createDataFrame([], from_arrow_schema(stored, prefer_timestamp_ntz=True))
            refuse_loss(session(), store.location, table, nothing, copy.table)
    return done


def _finish(store: DeltaStore, copy: TableCopy, session: Callable[[], SparkSession]) -> None:
    """Record the applied number where Spark made the commits; then set the source's comment and the properties."""
    ids = AppIds(store.owner, copy.generation)
    with store.writing() as table:
        is_recorded = table is not None and table.transaction_version(ids.applied) is not None
    if not is_recorded:
        metadata = copy.metadata(store.pipeline)
        with _explaining(copy.table):
            for app_id, version in ((ids.schema, copy.schema.version), (ids.applied, copy.base)):
                _record_by_spark(store, session(), app_id, version, metadata)
    with store.writing() as table:
        if table is not None and copy.comments.table and table.metadata().description != copy.comments.table:
            if features_of(table).keeps_life:
                table.alter.set_table_description(copy.comments.table)
            else:
                place = f"delta.{quoted(spark_path(store.location))}"
                session().sql(f"COMMENT ON TABLE {place} IS {text_literal_quoted(copy.comments.table)}")
    with store.writing() as table:
        wanted = {name: value for name, value in store.options.properties.items() if value == "true"}
        settings = table.metadata().configuration if table is not None else {}
        lacks = {
            name: value
            for name, value in {**wanted, **dict(store.options.layout.properties)}.items()
            if settings.get(name, "").lower() != value.lower()
        }
    if lacks:
        store.set_properties(session, lacks)


def needs_mapping(names: Iterable[str]) -> bool:
    """Does Delta refuse one of these column names without column mapping?"""
    return any(char in _HOSTILE for name in names for char in name)


def listed_properties(properties: Mapping[str, str]) -> str:
    """The list after TBLPROPERTIES."""
    return ", ".join(
        f"{text_literal_quoted(name)} = {text_literal_quoted(value)}" for name, value in properties.items()
    )


def _make_for_spark(store: DeltaStore, stored: pa.Schema, copy: TableCopy, session: Callable[[], SparkSession]) -> None:
    """If the table needs partitions or column mapping, let Spark create it without rows; an existing one gets column
    mapping, and a part's columns.

    A commit of its own. A restart finds it done: a property names the owner before the first transaction does.
    """
    layout = store.options.layout
    names = [one.name for one in layout.partitions]
    mapping = COLUMN_MAPPING if needs_mapping(stored.names) else {}
    with store.writing() as table:
        is_there = table is not None
        is_mapped = table is not None and features_of(table).has_mapped_columns
    place = quoted(spark_path(store.location))
    if is_there:
        if mapping and not is_mapped:
            session().sql(f"ALTER TABLE delta.{place} SET TBLPROPERTIES ({listed_properties(mapping)})")
        if store.part is not None:
            _add_columns(Driver(session()).child(), store.location, stored)
        return
    if not mapping and not names:
        return
    from pyspark.sql.pandas.types import from_arrow_schema

    columns = from_arrow_schema(stored, prefer_timestamp_ntz=True)
    said = {name: f" COMMENT {text_literal_quoted(text)}" for name, text in copy.comments.columns.items()}
    listed = ", ".join(
        f"{quoted(one.name)} {one.dataType.simpleString()}{said.get(one.name, '')}" for one in columns.fields
    )
    by = f"PARTITIONED BY ({', '.join(map(quoted, names))})" if names else ""
    owner = f"lakefeed/{store.pipeline}/{store.part.table}" if store.part is not None else store.owner
    properties = {**store.options.properties, **mapping, **dict(layout.properties), _OWNER: owner}
    session().sql(
        f"CREATE TABLE delta.{place} ({listed}) USING delta {by} COMMENT {text_literal_quoted(copy.description)} "
        f"TBLPROPERTIES ({listed_properties(properties)})"
    )


def _add_columns(session: SparkSession, location: str, stored: pa.Schema) -> None:
    """Add the columns of a part that the table lacks. A commit of its own, harmless to repeat."""
    from pyspark.sql.pandas.types import from_arrow_schema

    place, columns = spark_path(location), from_arrow_schema(stored, prefer_timestamp_ntz=True)
    there = {name.lower() for name in session.read.format("delta").load(place).columns}
    new = [one for one in columns.fields if one.name.lower() not in there]
    if any("timestamp_ntz" in one.dataType.simpleString() for one in new):
        allowed = "'delta.feature.timestampNtz' = 'supported'"
        session.sql(f"ALTER TABLE delta.{quoted(place)} SET TBLPROPERTIES ({allowed})")
    if new:
        listed = ", ".join(f"{quoted(one.name)} {one.dataType.simpleString()}" for one in new)
        session.sql(f"ALTER TABLE delta.{quoted(place)} ADD COLUMNS ({listed})")


def part_condition(part: Part) -> str:
    """The Spark SQL condition for the rows of a part."""
    return f"{quoted(part.column)} = {text_literal(part.value)}"


def _commit_group(
    store: DeltaStore,
    copy: TableCopy,
    stored: pa.Schema,
    files: list[DataFile],
    chunks: tuple[int | None, int],
    metadata: dict[str, Any],
    session: Callable[[], SparkSession],
) -> None:
    """Add a group's files in one commit. ``chunks``: how many the table has before and after.

    The first commit (None before) also replaces what was in the table.
    """
    from deltalake.exceptions import CommitFailedError as Refused
    from deltalake.transaction import AddAction, CommitProperties, Transaction, create_table_with_add_actions

    before, after = chunks
    ids = AppIds(store.owner, copy.generation)
    transactions = {ids.copy: after}
    if before is None:
        transactions |= {ids.owner: copy.generation, ids.schema: copy.schema.version}
    if after == len(copy.chunks):
        transactions[ids.applied] = copy.base
    properties = CommitProperties(
        custom_metadata={"userMetadata": json.dumps(metadata)},
        app_transactions=[Transaction(app, version) for app, version in transactions.items()],
        # If deltalake retried the first commit, it would remove the files of the version that it began with, and leave
        # those that a compaction has made of them meanwhile.
        max_commit_retries=0,
    )
    schema = with_comments(stored, None, copy.comments)
    actions: list[Any] = [AddAction(one.name, one.bytes, {}, one.written_ms, True, one.statistics) for one in files]
    for left in reversed(range(_CONFLICT_TRIES)):
        with store.writing() as table:
            if before is not None and (table is None or table.transaction_version(ids.copy) != before):
                raise CommitFailedError(f"another process copies this table to {store.location}, or has removed it")
            keeps = table is not None and features_of(table).keeps_life
            keeps = keeps and not (before is None and store.options.layout.partitions)  # only Spark can set these
            if table is not None and not keeps:
                with _explaining(copy.table):
                    _write_by_spark(store, session(), copy, stored, files, chunks, metadata, table)
                system, root = filesystem(store.location)
                for one in files:  # Spark has written their rows to files of its own
                    system.delete_file(f"{root}/{one.name}")
                return
            if keeps and table is not None and before is None:
                schema = with_comments(stored, table, copy.comments)
                named = table.protocol().reader_features or ()
                if "timestamp_ntz" in schema.to_json() and LOCAL_TIME not in named:
                    store.allow(session, LOCAL_TIME)
                    table.update_incremental()
            try:
                if table is not None:
                    mode: Literal["append", "overwrite"] = "append" if before is not None else "overwrite"
                    table.create_write_transaction(actions, mode, schema, commit_properties=properties)
                else:
                    create_table_with_add_actions(
                        delta_uri(store.location), schema, actions, mode="error", description=copy.description,
                        configuration=dict.fromkeys(store.options.properties, "false"),
                        storage_options=dict(store.options.storage) or None, commit_properties=properties,
                    )  # fmt: skip
                return
            except Refused:  # somebody else has committed meanwhile
                if not left:
                    raise


def _write_by_spark(
    store: DeltaStore,
    session: SparkSession,
    copy: TableCopy,
    stored: pa.Schema,
    files: list[DataFile],
    chunks: tuple[int | None, int],
    metadata: dict[str, Any],
    table: DeltaTable,
) -> None:
    """As ``_commit_group``, for a table whose files only Spark can write: Spark writes the rows of ``files`` again.

    The table records the new generation before its old rows go, so that nobody takes new rows for old ones.
    """
    from pyspark.sql import functions as F  # noqa: N812
    from pyspark.sql.pandas.types import from_arrow_schema

    before, after = chunks
    ids, place = AppIds(store.owner, copy.generation), spark_path(store.location)
    columns = from_arrow_schema(stored, prefer_timestamp_ntz=True)
    paths = [spark_path(f"{store.location}/{one.name}", as_glob=True) for one in files]
    rows = session.read.schema(columns).parquet(*paths) if paths else session.createDataFrame([], columns)
    there = session.read.format("delta").load(place).schema
    comments = {field.name: field.metadata["comment"] for field in there if "comment" in field.metadata}
    comments |= copy.comments.columns
    rows = rows.select(
        [
            F.col(quoted(name)).alias(name, metadata={"comment": comments[name]} if name in comments else {})
            for name in rows.columns
        ]
    )
    if before is not None:
        writer = rows.write.format("delta").mode("append")
    elif store.part is not None:
        # Replaces the old rows of this part alone.
        names = there.names
        lacking = {name: F.lit(None).cast(there[name].dataType) for name in names if name not in rows.columns}
        rows = rows.withColumns(lacking).select(*map(quoted, names))
        writer = rows.write.format("delta").mode("overwrite").option("replaceWhere", part_condition(store.part))
        _record_by_spark(store, session, ids.owner, copy.generation, copy.metadata(store.pipeline))
    else:
        partitions = [one.name for one in store.options.layout.partitions]
        writer = overwriting(session, store.location, table, rows, copy.table, partitions or None)
        _record_by_spark(store, session, ids.owner, copy.generation, copy.metadata(store.pipeline))
    writer.options(**_recording(ids.copy, after, metadata)).save(place)


@contextmanager
def _explaining(table: TableId) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        raise explained(error, table) from error


def _record_by_spark(
    store: DeltaStore, session: SparkSession, app_id: str, version: int, metadata: Mapping[str, Any]
) -> None:
    """Record one number in a commit that changes no rows. If the table has recorded it, Delta skips the commit."""
    nothing = session.read.format("delta").load(spark_path(store.location)).limit(0)
    writer = nothing.write.format("delta").mode("append").options(**_recording(app_id, version, metadata))
    writer.save(spark_path(store.location))


def _recording(app_id: str, version: int, metadata: Mapping[str, Any]) -> dict[str, str]:
    return {"txnAppId": app_id, "txnVersion": str(version), "userMetadata": json.dumps(metadata)}


def with_comments(stored: pa.Schema, table: DeltaTable | None, given: Comments | None = None) -> Schema:
    """The columns ``stored`` with comments: ``given``, the source's; else those of the table's columns by that name."""
    from deltalake import Schema

    comments = {
        field["name"]: field["metadata"]["comment"]
        for field in (json.loads(table.schema().to_json())["fields"] if table is not None else ())
        if "comment" in field.get("metadata", {})
    }
    comments |= given.columns if given is not None else {}
    made = json.loads(Schema.from_arrow(stored).to_json())
    for field in made["fields"]:
        if field["name"] in comments:
            field["metadata"] = {**field.get("metadata", {}), "comment": comments[field["name"]]}
    return Schema.from_json(json.dumps(made))


def _loaded(store: DeltaStore, copy: TableCopy) -> Loaded:
    """The sum of what the commits of this copy record."""
    generation = copy.generation
    with store.writing() as table:
        history = table.history() if table is not None else []
    rows, high = 0, None
    for commit in history:
        metadata = json.loads(commit.get("userMetadata") or "{}")
        if not isinstance(metadata, dict) or metadata.get("table") != str(copy.table):
            continue  # another part of the union, maybe under the same generation number
        if metadata.get("generation") == generation and "copy" in metadata:
            rows += metadata["copy"]["rows"]
            text = metadata["copy"]["high"]
            high = highest(high, decode_position(text) if text else None)
    return Loaded(rows=rows, high=high)


@dataclass(frozen=True, slots=True)
class FileChunk:
    """A Parquet file of a lake table as a chunk, to copy one lake table into another. Picklable.

    It gives the file's current rows under the columns of ``schema``. ``high`` is the same for all chunks of a copy.
    """

    schema: TableSchema
    path: str
    current: CurrentRows
    high: Position | None

    @property
    def table(self) -> TableId:
        return self.schema.table

    @contextmanager
    def open(self) -> Iterator[Self]:
        yield self

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        """A column that is newer than the file reads as NULL, as in the table itself."""
        files, place = filesystem(self.path)
        wanted = self.schema.arrow
        with pq.ParquetFile(place, filesystem=files) as file:
            for batch in file.iter_batches():
                rows = self.current.of(batch)
                columns = [
                    rows.column(field.name).cast(field.type) if field.name in rows.schema.names
                    else pa.nulls(rows.num_rows, field.type)
                    for field in wanted
                ]  # fmt: skip
                yield pa.RecordBatch.from_arrays(columns, schema=wanted)
