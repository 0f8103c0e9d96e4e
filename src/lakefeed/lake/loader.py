"""The work of one snapshot task: read a chunk's Arrow batches, write one Parquet file of the lake table.

Runs in a Spark task (or in this process for a single chunk), so everything it takes and gives pickles. Each attempt
writes a file of its own name: if a task fails or runs again, no commit names what the first attempt has left, so that
is not part of the table.
"""

from __future__ import annotations

import dataclasses
import json
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import fs

from lakefeed.change.batch import replaced_values
from lakefeed.change.position import Position
from lakefeed.change.table import TableId
from lakefeed.errors import DecodeError, LakefeedError
from lakefeed.lake.base import ChunkSource
from lakefeed.lake.location import filesystem
from lakefeed.lake.spark.driver import in_tasks
from lakefeed.lake.spark.error import explained
from lakefeed.lake.window import ORDERED_ALIKE
from lakefeed.storage.location import give_options

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

GROUP_CHUNKS = 8
"""Chunks per commit. An interruption costs at most one group, a commit costs milliseconds."""

ROW_GROUP_ROWS = 128 * 1024
INDEXED_COLUMNS = 32
"""The columns with statistics: Delta's default."""

_PREFIX = 32
_LAST_CHAR = "\U0010ffff"
_SAMPLE_ROWS = 8192
_REPEATS = 4
"""A column whose values come so many times on average gets a dictionary. For others a dictionary costs two fifths of
the writing time, as measured, and makes the file larger."""


@dataclass(frozen=True, slots=True)
class DataFile:
    """One written file of a table. ``name`` is its path below the directory; ``statistics`` are Delta's, as JSON.

    ``partition`` has the partition values of all its rows, as the chunk gave them.
    """

    name: str
    rows: int
    bytes: int
    statistics: str
    written_ms: int
    partition: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ChunkFile:
    """The file that a task wrote, and the bracket in which it read the chunk. A chunk without rows makes no file.

    ``replaced``: how many values ``out_of_range`` has replaced, by the source's column.
    """

    file: DataFile | None
    high: Position
    low: Position | None = None
    replaced: Mapping[str, int] = dataclasses.field(default_factory=dict)

    @property
    def rows(self) -> int:
        return self.file.rows if self.file is not None else 0


def write_chunk(
    chunk: ChunkSource, directory: str, schema: pa.Schema, added: Mapping[str, Any] = MappingProxyType({})
) -> ChunkFile:
    """Read ``chunk`` once and write its rows below ``directory``.

    ``schema`` is the lake table's. ``added`` has the value, for all rows, of each column that the chunk lacks.
    """
    files, root = filesystem(directory)
    name = f"part-{uuid.uuid4()}.zstd.parquet"
    with chunk.open() as reader:
        replaced = Counter[str]()
        groups = _row_groups(reader, schema, added, replaced)
        first = next(groups, None)
        if first is None:
            return ChunkFile(None, reader.high, getattr(reader, "low", None))
        if isinstance(files, fs.LocalFileSystem):  # a store has no directories, only objects that stand for them
            files.create_dir(root, recursive=True)
        sample = first.slice(0, _SAMPLE_ROWS)
        repetitive = [  # for these columns a dictionary pays
            name
            for name, values in zip(sample.column_names, sample.columns, strict=True)
            if not pa.types.is_nested(values.type)
            and pc.count_distinct(values, mode="all").as_py() * _REPEATS <= sample.num_rows
        ]
        footers: list[Any] = []
        # Without the Arrow schema in the footer: it would give readers other types than the table's.
        with pq.ParquetWriter(
            f"{root}/{name}", schema, filesystem=files, compression="zstd", compression_level=1,
            use_dictionary=repetitive,  # type: ignore[arg-type]  # a list is fine; the stubs do not know
            store_schema=False, metadata_collector=footers,
        ) as writer:  # fmt: skip
            writer.write_table(first, row_group_size=first.num_rows)
            for group in groups:
                writer.write_table(group, row_group_size=group.num_rows)
        footer = footers[0]
        size = files.get_file_info(f"{root}/{name}").size
        statistics = file_statistics(footer, schema)
        partition = getattr(chunk, "partition", ())
        file = DataFile(name, footer.num_rows, size, statistics, int(time.time() * 1000), partition)
        return ChunkFile(file, reader.high, getattr(reader, "low", None), dict(replaced))


def attempt_chunk(
    chunk: ChunkSource,
    directory: str,
    schema: pa.Schema,
    added: Mapping[str, Any] = MappingProxyType({}),
    storage: Mapping[str, str] = MappingProxyType({}),
) -> ChunkFile | LakefeedError:
    """As ``write_chunk``, but returns our own errors as values: Spark would turn them into text.

    ``storage`` has the options of ``directory``'s object store, which a task's process does not know yet.
    """
    give_options(directory, storage)
    try:
        return write_chunk(chunk, directory, schema, added)
    except LakefeedError as error:
        return error


def written_chunks(
    chunks: Sequence[ChunkSource],
    write: Callable[[ChunkSource], ChunkFile | LakefeedError],
    table: TableId,
    session: Callable[[], SparkSession],
) -> list[ChunkFile]:
    """Write the chunks of one group by ``write``, in parallel. Calls ``session`` only for several chunks."""
    try:
        # Write a single chunk here: that is faster than a worker, and needs no JVM.
        results = [write(chunk) for chunk in chunks] if len(chunks) < 2 else in_tasks(session(), write, chunks)
    except Exception as error:
        raise explained(error, table) from error
    for result in results:
        if isinstance(result, LakefeedError):
            raise result
    return [result for result in results if isinstance(result, ChunkFile)]


def _row_groups(
    batches: Iterable[pa.RecordBatch], schema: pa.Schema, added: Mapping[str, Any], replaced: Counter[str]
) -> Iterator[pa.Table]:
    """Batches of any size as tables of about ROW_GROUP_ROWS: small row groups make files big and slow. ``replaced``
    gets the counts in the batches' metadata.

    The stored schema has the same columns, all nullable, and the ``added`` ones behind them.
    """
    waiting: list[pa.RecordBatch] = []
    rows = 0
    for batch in batches:
        own = batch.num_columns
        if batch.num_rows == 0:
            continue
        if (
            batch.schema.names != schema.names[:own]
            or batch.schema.types != schema.types[:own]
            or len(schema) != own + len(added)
        ):
            raise DecodeError(f"a chunk has the columns {batch.schema}, the table {schema}")
        if batch.schema.metadata:
            replaced.update(replaced_values(batch.schema))
        more = [pa.repeat(pa.scalar(added[field.name], field.type), batch.num_rows) for field in list(schema)[own:]]
        waiting.append(pa.RecordBatch.from_arrays([*batch.columns, *more], schema=schema))
        rows += batch.num_rows
        if rows >= ROW_GROUP_ROWS:
            yield pa.Table.from_batches(waiting, schema)
            waiting, rows = [], 0
    if waiting:
        yield pa.Table.from_batches(waiting, schema)


def file_statistics(metadata: Any, schema: pa.Schema) -> str:
    """A Parquet footer as Delta's statistics of one file, as JSON: by them readers and merges skip files.

    Leaves out what could mislead: floats (a footer ignores NaN, Spark orders it last), decimals (JSON numbers lose
    digits), and values without a text form. Without a bound, readers just read the file. ``metadata`` is pyarrow's
    FileMetaData.
    """
    low: dict[str, Any] = {}
    high: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    for index, field in enumerate(schema):
        if index >= INDEXED_COLUMNS or pa.types.is_nested(field.type):
            break  # behind a nested column the footer numbers its columns differently from the schema
        groups = [metadata.row_group(group).column(index).statistics for group in range(metadata.num_row_groups)]
        if any(group is None for group in groups):
            continue
        if all(group.has_null_count for group in groups):
            nulls[field.name] = sum(group.null_count for group in groups)
        bounded = [group for group in groups if group.has_min_max]
        silent = any(not group.has_min_max and group.num_values for group in groups)
        if not bounded or silent or not any(is_kind(field.type) for is_kind in ORDERED_ALIKE):
            continue
        try:
            found = [min(group.min for group in bounded), max(group.max for group in bounded)]
        except (OverflowError, ValueError):
            continue  # Python cannot represent this date
        for end, value in enumerate(found):
            if isinstance(value, datetime):
                found[end] = value.isoformat(timespec="microseconds").replace("+00:00", "Z")
            elif isinstance(value, date):
                found[end] = value.isoformat()
            elif isinstance(value, str) and len(value) > _PREFIX:  # a shorter text below, or above
                found[end] = value[:_PREFIX] + (_LAST_CHAR if end else "")
                if end and value[_PREFIX] == _LAST_CHAR:
                    found = []  # no short text is above this one
                    break
        if found:
            low[field.name], high[field.name] = found
    return json.dumps(
        {"numRecords": metadata.num_rows, "minValues": low, "maxValues": high, "nullCount": nulls}, ensure_ascii=False
    )
