"""The copy of a table that a rule makes: turns chunks of the source into chunks of the lake table's rows.

If only names differ, the copy reads each chunk under the other names (``RenamedChunk``). If Spark evaluates the rule, a
group of chunks takes three steps, which a restart does again:
  1 Spark tasks read the source's chunks, each into a staged file
  2 Spark evaluates condition and expressions, into staged files with the lake table's columns
  3 these files are the chunks for the copy, which writes the table's own files and commits them
"""

from __future__ import annotations

import json
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from lakefeed.change.position import Position, highest
from lakefeed.change.table import TableId
from lakefeed.lake.base import ChunkSource
from lakefeed.lake.loader import ChunkFile, attempt_chunk, written_chunks
from lakefeed.lake.location import filesystem, spark_path
from lakefeed.lake.rule.changes import EARLY, LEFT_OUT, REPLACED
from lakefeed.lake.rule.resolve import Resolved
from lakefeed.lake.spark.error import explained
from lakefeed.lake.spark.type import lake_arrow
from lakefeed.storage.location import options_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


_PART = "_lakefeed_part_"
_PARQUET = {
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
}


@dataclass(frozen=True, slots=True)
class RenamedChunk:
    """A chunk under other column names. Picklable; its own reader."""

    chunk: ChunkSource
    names: tuple[str, ...]

    @property
    def table(self) -> TableId:
        return self.chunk.table

    @contextmanager
    def open(self) -> Iterator[_RenamedRows]:
        with self.chunk.open() as reader:
            yield _RenamedRows(reader, self.names)


@dataclass(frozen=True, slots=True)
class _RenamedRows:
    reader: Any
    names: tuple[str, ...]

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        for batch in self.reader:
            yield batch.rename_columns(list(self.names)).replace_schema_metadata(batch.schema.metadata)

    @property
    def high(self) -> Position:
        high: Position = self.reader.high
        return high


@dataclass(frozen=True, slots=True)
class StagedChunk:
    """Staged files as a chunk: rows under the lake table's own columns, all in one ``partition``. Picklable; its own
    reader."""

    table: TableId
    files: tuple[str, ...]
    schema: pa.Schema
    high: Position | None
    partition: tuple[str, ...] = ()

    @contextmanager
    def open(self) -> Iterator[Self]:
        yield self

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        for path in self.files:
            files, place = filesystem(path)
            with pq.ParquetFile(place, filesystem=files) as file:
                for batch in file.iter_batches():
                    columns = [batch.column(one.name).cast(one.type) for one in self.schema]
                    yield pa.RecordBatch.from_arrays(columns, schema=self.schema)


class StagedGroups:
    """Call it with a group of the source's chunks to get chunks of the lake table's rows: see the module.

    ``directory`` belongs to this table alone, and every Spark task reaches it. ``count`` gets the number of values that
    the rule has changed. ``parts``: see ``TableStore.parts``.
    """

    def __init__(
        self,
        ruled: Resolved,
        directory: str,
        session: Callable[[], SparkSession],
        count: Callable[[Mapping[str, int]], None],
        parts: Sequence[str] = (),
    ) -> None:
        self._parts = tuple(parts)
        self._ruled = ruled
        self._directory = directory
        self._session = session
        self._count = count

    def __call__(self, chunks: Sequence[ChunkSource]) -> list[ChunkSource]:
        table, place = self._ruled.source.table, f"{self._directory}/{uuid.uuid4().hex}"
        self.clear()  # the files of the group before, or of a process that died
        given = lake_arrow(self._ruled.source)
        write = partial(attempt_chunk, directory=f"{place}/source", schema=given, storage=options_of(place))
        written = written_chunks(chunks, write, table, self._session)  # 1
        high: Position | None = None
        for one in written:
            high = highest(high, one.high)
        staged = [f"{place}/source/{one.file.name}" for one in written if one.file is not None]
        made: list[_Written] = []
        if staged:
            made = write_ruled(self._session(), self._ruled, staged, f"{place}/lake", self._parts)  # 2
        self._count(touched_by_copy(self._ruled, written, sum(one.rows for one in made)))
        schema = lake_arrow(self._ruled.schema)
        chunks = [StagedChunk(table, (one.path,), schema, high, one.partition) for one in made]
        return [*chunks] or [StagedChunk(table, (), schema, high)]  # 3: at least one, for the position of the rows

    def clear(self) -> None:
        files, root = filesystem(self._directory)
        if files.get_file_info(root).type is fs.FileType.Directory:
            files.delete_dir(root)


@dataclass(frozen=True, slots=True)
class _Written:
    path: str
    rows: int
    partition: tuple[str, ...]


def write_ruled(
    session: SparkSession, ruled: Resolved, staged: Sequence[str], place: str, parts: Sequence[str] = ()
) -> list[_Written]:
    """Turn Parquet files with rows of the source into files with rows of the lake table; with ``parts``, one for each
    partition."""
    from pyspark.sql import functions as F  # noqa: N812
    from pyspark.sql.pandas.types import from_arrow_schema

    columns = from_arrow_schema(lake_arrow(ruled.source), prefer_timestamp_ntz=True)
    for name, value in _PARQUET.items():
        session.conf.set(name, value)
    names = [f"{_PART}{index}" for index in range(len(parts))]
    try:
        read = session.read.schema(columns).parquet(*(spark_path(one, as_glob=True) for one in staged))
        rows = ruled_rows(read, ruled)
        if parts:
            values = {name: F.expr(sql).cast("string") for name, sql in zip(names, parts, strict=True)}
            rows = rows.withColumns(values).repartition(*names)
        rows.write.option("compression", "zstd").partitionBy(*names).parquet(spark_path(place))
    except Exception as error:
        raise explained(error, ruled.table) from error
    files, root = filesystem(place)
    found = files.get_file_info(fs.FileSelector(root, allow_not_found=True, recursive=True))
    written = []
    for path in sorted(info.path for info in found if info.base_name.endswith(".parquet")):
        below = path.removeprefix(root).strip("/")
        folders = below.split("/")[:-1]
        partition = tuple(unquote(folder.partition("=")[2]) for folder in folders)
        written.append(_Written(f"{place}/{below}", pq.read_metadata(path, filesystem=files).num_rows, partition))
    return written


def ruled_rows(rows: DataFrame, ruled: Resolved) -> DataFrame:
    """Whole rows of the source as rows of the lake table."""
    from pyspark.sql import functions as F  # noqa: N812

    kept = rows.where(F.coalesce(F.expr(ruled.where), F.lit(False))) if ruled.where is not None else rows
    return kept.select(*(F.expr(one.value).alias(one.column.name) for one in ruled.columns))


def touched_by_copy(ruled: Resolved, written: Sequence[ChunkFile], left: int) -> Counter[str]:
    """How many values each rule has changed, and how many rows the condition has left out. By the files' statistics."""
    rows, nulls = sum(one.rows for one in written), Counter[str]()
    for one in written:
        if one.file is not None:
            nulls.update(json.loads(one.file.statistics)["nullCount"])
    found = Counter({LEFT_OUT: rows - left} if ruled.where is not None else {})
    for made in ruled.columns:
        if made.rule is not None:
            found[made.rule] = rows - (nulls[made.inputs[0]] if made.inputs else 0)
    return found + touched_by_source(written, {})


def touched_by_source(written: Sequence[ChunkFile], columns: Mapping[str, str]) -> Counter[str]:
    """How many copied values ``out_of_range`` has replaced, and how many capture has masked: in ``columns``, the lake's
    names with the source's."""
    found = Counter[str]()
    for one in written:
        found.update({f"{REPLACED} {name}": count for name, count in one.replaced.items()})
        if one.file is not None:
            nulls = json.loads(one.file.statistics)["nullCount"]
            found.update({f"{EARLY} {name}": one.rows - nulls.get(lake, 0) for lake, name in columns.items()})
    return found


def ruled_batches(
    session: Callable[[], SparkSession], ruled: Resolved, rows: Iterator[pa.RecordBatch], directory: Path
) -> Iterator[pa.RecordBatch]:
    """Whole rows of the source as rows of the lake table, for a comparison. Goes through files, to bound memory."""
    given, made = lake_arrow(ruled.source), lake_arrow(ruled.schema)
    clear, place = directory / "clear.parquet", directory / "made"
    with pq.ParquetWriter(clear, given, compression="zstd", store_schema=False) as writer:
        for batch in rows:
            writer.write_batch(batch.cast(given))
    written = write_ruled(session(), ruled, [str(clear)], str(place))
    clear.unlink()
    yield from StagedChunk(ruled.source.table, tuple(one.path for one in written), made, None)
