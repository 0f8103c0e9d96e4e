"""The copy of one table into Iceberg: Spark tasks write the files, one commit per group of chunks adds them.

  1 open an addition to the table, which gives the column ids; the first one replaces all rows, and keeps what the
    table's owner has set (see ``TableLibrary.replacing``)
  2 tasks read a group's chunks in parallel and write each to a file of its own, with those ids
  3 one commit adds the files, or on Spark Connect their rows, and records how many chunks the table has
  4 the last one records the applied number: only from then on does the table count as copied
A restart continues after the last recorded chunk. Files of a group that was not committed are not part of the table.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa

from lakefeed.change.position import Position, highest
from lakefeed.change.table import TableId, TableSchema
from lakefeed.errors import LakeError, TableStoppedError
from lakefeed.failpoint import hit
from lakefeed.lake.base import ChunkSource, Loaded, TableCopy, TableVersion
from lakefeed.lake.iceberg.catalog import Metadata
from lakefeed.lake.iceberg.record import DESCRIBED, OWNER, VERSIONS, VERSIONS_AFTER, Copied, Record
from lakefeed.lake.iceberg.schema import Add, Describe, current_schema, replacements, schema_json, with_field_ids
from lakefeed.lake.loader import GROUP_CHUNKS, attempt_chunk, written_chunks
from lakefeed.lake.location import file_io
from lakefeed.lake.mode.base import CurrentRows, Mode
from lakefeed.lake.spark.type import lake_arrow
from lakefeed.storage.location import options_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lakefeed.lake.iceberg.store import IcebergStore

_SPARE_VERSIONS = 10
"""Room for the metadata versions that others commit during a copy."""


def load_table(
    store: IcebergStore,
    copy: TableCopy,
    mode: Mode,
    properties: Mapping[str, str],
    session: Callable[[], SparkSession],
    progress: Callable[[int], None],
) -> Loaded:
    """Copy ``copy`` into the table of ``store``. ``properties`` are those of a new table.

    TableStoppedError, before it writes anything, if it would drop a column that the owner's partitions, order or
    identifier use.
    """
    record = store.record(copy.generation)
    if record is None and store.is_foreign():
        raise TableStoppedError(
            f"table {copy.table}: there is a table at {store.location} that this pipeline did not make",
            remedy="Choose another lake path or namespace, or move that table away if nobody needs it there.",
            table=str(copy.table),
        )
    own, total = mode.schema(copy.schema), len(copy.chunks)
    while record is None or record.applied is None:
        metadata = store.metadata()
        begun_on = _generation(store, metadata)
        found = metadata["properties"] if metadata is not None else properties
        # How many metadata versions the table keeps after the copy: its owner's choice, or ours.
        versions = found.get(VERSIONS_AFTER, found.get(VERSIONS, properties[VERSIONS]))
        if record is not None:
            addition = store.library.appending()  # 1
        else:
            # During the copy keep all: it may read the rows of this same table, by its metadata from before.
            groups = -(-total // GROUP_CHUNKS)
            kept = max(int(versions), groups * store.library.versions_per_group + _SPARE_VERSIONS)
            recorded: dict[str, str] = {
                VERSIONS: str(kept),
                VERSIONS_AFTER: versions,
                OWNER: store.whole_owner,
                store.generation_key: str(copy.generation),
                store.version_key: str(copy.schema.version),
            }
            if copy.comments.columns:
                recorded[DESCRIBED] = json.dumps(sorted(copy.comments.columns))
            if metadata is None:
                made_with = {**properties, **recorded, "comment": copy.description}
                described = schema_json(own, copy.comments.columns)
                addition = store.library.making(described, made_with, store.layout)  # 1
            else:
                columns = replacements(current_schema(metadata), schema_json(own, copy.comments.columns))
                if store.part is not None:  # the other parts keep their columns
                    columns = [one for one in columns if isinstance(one, Add | Describe)]
                if copy.comments.table:
                    recorded["comment"] = copy.comments.table
                store.refuse_used(columns)
                recorded |= dict(store.layout.properties)
                addition = store.library.replacing(columns, recorded, store.layout, store.part)  # 1
        before = record.copied if record is not None else Copied()
        stored = with_field_ids(lake_arrow(own), addition.schema)
        write = partial(
            attempt_chunk,
            directory=addition.directory,
            schema=stored,
            added=mode.copied(copy),
            storage=options_of(addition.directory),
        )
        start = before.chunks
        written = written_chunks(copy.group(start, GROUP_CHUNKS), write, copy.table, session)  # 2
        if copy.wrote is not None:
            copy.wrote(written)
        rows, done, high = sum(one.rows for one in written), min(start + GROUP_CHUNKS, total), before.high
        for one in written:
            high = highest(high, one.high)
        is_last = done == total
        after = Record(
            owner=store.owner,
            generation=copy.generation,
            applied=copy.base if is_last else None,  # 4
            schema_version=copy.schema.version,
            copied=Copied(chunks=done, rows=before.rows + rows, high=high),
        )
        metadata = {
            **copy.metadata(store.owner.partition("/")[0]),
            "copy": {"chunks": done, "rows": rows, "high": high.encode() if high else None},
        }
        settled = {VERSIONS: versions, VERSIONS_AFTER: None} if is_last else {}
        with store.turn if store.part is not None else nullcontext():
            files = [one.file for one in written if one.file]
            is_expected = partial(_is_at, store, copy.generation, record, begun_on)
            addition.commit(files, store.summary(after, metadata), settled, is_expected)  # 3
        progress(rows)
        hit("lake.during_load")
        record = store.record(copy.generation)
    return Loaded(rows=record.copied.rows, high=record.copied.high)


def _is_at(store: IcebergStore, generation: int, record: Record | None, begun_on: str | None) -> bool:
    """Before the first group there is no record: then the table must be of the generation that it had."""
    if record is not None:
        return store.record(generation) == record
    return store.record(generation) is None and _generation(store, store.metadata()) == begun_on


def _generation(store: IcebergStore, metadata: Metadata | None) -> str | None:
    """The generation that a table's properties name; None if there is no table, or its copy has not begun."""
    found: str | None = (metadata or {}).get("properties", {}).get(store.generation_key)
    return found


@dataclass(frozen=True, slots=True)
class SnapshotChunk:
    """A data file of an Iceberg table as a chunk, to copy one lake table into another. Picklable.

    It gives the current rows of the file in one snapshot, under the columns of ``schema``. It reads with pyiceberg,
    which applies deletes, renames and defaults.
    """

    schema: TableSchema
    metadata_file: str
    snapshot: int
    data_file: str
    current: CurrentRows
    high: Position | None

    @property
    def table(self) -> TableId:
        return self.schema.table

    @contextmanager
    def open(self) -> Iterator[Self]:
        yield self

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        from pyiceberg.io.pyarrow import ArrowScan

        table, scan = _scanned(self.metadata_file, self.snapshot)
        tasks = [task for task in scan.plan_files() if task.file.file_path == self.data_file]
        wanted = self.schema.arrow
        rows = ArrowScan(table.metadata, table.io, scan.projection(), scan.row_filter)
        for batch in rows.to_record_batches(tasks):
            own = self.current.of(batch)
            columns = [own.column(field.name).cast(field.type) for field in wanted]
            yield pa.RecordBatch.from_arrays(columns, schema=wanted)


def chunks_of(
    metadata_file: str | None, state: TableVersion, schema: TableSchema, current: CurrentRows
) -> tuple[ChunkSource, ...]:
    """The files of a state as chunks. LakeError if a file is gone, or pyiceberg is not installed."""
    if metadata_file is None:
        raise LakeError(f"there is no Iceberg table of {schema.table} any more")
    try:
        _, scan = _scanned(metadata_file, state.version)
        files = [task.file.file_path for task in scan.plan_files()]
    except ImportError as error:
        raise LakeError(
            f"to read the rows of {schema.table} Lakefeed needs pyiceberg, which is not installed ({error})",
            remedy="pip install 'lakefeed[iceberg]'",
        ) from error
    except (OSError, ValueError) as error:
        raise LakeError(f"the files of {schema.table} at change set {state.number} are gone: {error}") from error
    return tuple(SnapshotChunk(schema, metadata_file, state.version, file, current, state.position) for file in files)


def _scanned(metadata_file: str, snapshot: int) -> tuple[Any, Any]:
    from pyiceberg.table import StaticTable

    table = StaticTable.from_metadata(metadata_file, file_io(metadata_file))
    return table, table.scan(snapshot_id=snapshot)
