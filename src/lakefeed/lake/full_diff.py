"""FullDiff: which rows of a lake table the source no longer has, found by comparing all keys on Spark.

For sources whose deletes leave no trace (polling). Steps, each of which a restart does not do again once it is done:
  1. read      Spark tasks read the source's keys (or whole rows) in chunks, each into a Parquet file of its own
  2. compare   a distributed anti-join with the lake table; with whole rows, also a join that compares their hashes
  3. refuse    nothing read at all, or more missing than allowed: a source that lost its rows looks the same
  4. publish   the difference, and only that, as Parquet files that appear by one rename

Correct while the source is written to, because what is published are suspects and not changes. Chunks are read over a
span of time, and the lake table at some moment of it: a key may be missing here because it was inserted after its
chunk was read, or because it moved into the lake meanwhile. The capture checks every suspect in the source, in one
consistent read that is in order with its own polls, before it delivers anything; see ``capture.poll.poller``.
Nothing but counts comes to the driver.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from lakefeed.change.batch import CHANGED, DELETED, FOUND
from lakefeed.change.table import TableId
from lakefeed.errors import LakefeedError
from lakefeed.lake.base import ChunkSource
from lakefeed.lake.location import filesystem, spark_path
from lakefeed.lake.spark.driver import in_tasks
from lakefeed.lake.spark.error import explained
from lakefeed.lake.spark.type import quoted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

GROUP_CHUNKS = 8
_HASH = "_lakefeed_hash"


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What is compared. ``number`` names the run: given again after an interruption, it goes on where it stopped.

    ``chunks`` have the columns of ``schema``: the key alone, or the key and all columns to compare. ``work`` is a
    directory that every Spark task reaches, ``findings`` the one where the capture finds this table's.
    """

    table: TableId
    number: int
    key: tuple[str, ...]
    schema: pa.Schema
    chunks: Sequence[ChunkSource]
    work: str
    findings: str
    max_deleted_share: float = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class FullDiffResult:
    """``refused`` says why nothing was published although rows are missing. ``published`` is None for no difference."""

    table: TableId
    source_rows: int
    lake_rows: int
    deleted: int
    changed: int
    seconds: float = 0.0
    refused: str | None = None
    published: str | None = None


def full_diff(lake: DataFrame, comparison: Comparison, progress: Callable[[int, int], None]) -> FullDiffResult:
    """Compare ``lake``, the table's current rows, with the source, in the session of ``lake``.

    Of whole rows those columns are compared that both sides have. ``progress``: chunks read, of how many.
    """
    from pyspark.sql import functions as F  # noqa: N812  # its usual name

    started, session = time.monotonic(), lake.sparkSession
    place = f"{comparison.work}/{comparison.number}"
    try:
        _read_source(session, comparison, place, progress)  # 1
        # What was read, in the types of the lake table: of the columns that it has.
        types = {field.name: field.dataType for field in lake.schema.fields}
        names = [name for name in comparison.schema.names if name in types]
        read = session.read.parquet(spark_path(place, as_glob=True))
        source = read.select([F.col(quoted(name)).cast(types[name]).alias(name) for name in names])
        suspects = _suspects(lake, source, comparison.key).cache()  # 2: counted, then written
        try:
            # By the files' own footers: Spark would start a job for it.
            files, root = filesystem(place)
            found = [info.path for info in files.get_file_info(fs.FileSelector(root))]
            footers = [pq.read_metadata(path, filesystem=files) for path in found if path.endswith(".parquet")]
            source_rows, lake_rows = sum(footer.num_rows for footer in footers), lake.count()
            counts = {row[FOUND]: int(row["count"]) for row in suspects.groupBy(FOUND).count().collect()}
            deleted, changed = counts.get(DELETED, 0), counts.get(CHANGED, 0)
            refused, published = None, None
            if deleted and source_rows == 0:  # 3
                refused = f"the source returned no rows of {comparison.table}, of which the lake has {lake_rows}"
            elif deleted > comparison.max_deleted_share * lake_rows:
                refused = (
                    f"{deleted} of {lake_rows} rows of {comparison.table} are missing in the source, more than the "
                    f"{comparison.max_deleted_share:.0%} that max_deleted_share allows"
                )
            elif deleted + changed:  # 4: Spark writes to a hidden directory, which is then renamed
                published = f"{comparison.findings}/{comparison.number}"
                hidden = f"{comparison.findings}/.{comparison.number}.tmp"
                target, path = filesystem(published)
                if target.get_file_info(path).type == fs.FileType.NotFound:  # else an earlier try came as far as this
                    suspects.write.mode("overwrite").parquet(spark_path(hidden))
                    target.move(filesystem(hidden)[1], path)
        finally:
            suspects.unpersist()
        files.delete_dir(root)  # what was refused is read again next time
    except Exception as error:
        raise explained(error, comparison.table) from error
    return FullDiffResult(
        table=comparison.table,
        source_rows=source_rows,
        lake_rows=lake_rows,
        deleted=deleted,
        changed=changed,
        seconds=time.monotonic() - started,
        refused=refused,
        published=published,
    )


def write_keys(item: tuple[int, ChunkSource], directory: str, schema: pa.Schema) -> int | LakefeedError:
    """One task: a chunk into its file. Our own errors come back as values: Spark would turn them into text."""
    number, chunk = item
    files, root = filesystem(directory)
    hidden = f"{root}/.{uuid.uuid4()}.tmp"  # a task may be tried twice at once; Spark does not read such names
    rows = 0
    try:
        with chunk.open() as reader, pq.ParquetWriter(hidden, schema, filesystem=files, compression="zstd") as out:
            for batch in reader:
                out.write_batch(pa.RecordBatch.from_arrays(batch.columns, schema=schema))
                rows += batch.num_rows
    except LakefeedError as error:
        return error
    files.move(hidden, f"{root}/{_file(number)}")
    return rows


def _read_source(
    session: SparkSession, comparison: Comparison, place: str, progress: Callable[[int, int], None]
) -> None:
    """Each chunk into a file of its own below ``place``, but those that are there already."""
    files, root = filesystem(place)
    files.create_dir(root, recursive=True)
    there = {info.base_name for info in files.get_file_info(fs.FileSelector(root))}
    total = len(comparison.chunks)
    left = [(number, chunk) for number, chunk in enumerate(comparison.chunks) if _file(number) not in there]
    progress(total - len(left), total)
    nullable = pa.schema([pa.field(field.name, field.type) for field in comparison.schema])
    write = partial(write_keys, directory=place, schema=nullable)
    for start in range(0, len(left), GROUP_CHUNKS):
        group = left[start : start + GROUP_CHUNKS]
        for result in in_tasks(session, write, group):
            if isinstance(result, LakefeedError):
                raise result
        progress(total - len(left) + start + len(group), total)


def _suspects(lake: DataFrame, source: DataFrame, key: Sequence[str]) -> DataFrame:
    """The keys of rows that the source does not have any more, or has with other values."""
    from pyspark.sql import functions as F  # noqa: N812

    compared = [name for name in source.columns if name not in key]

    def hashed(rows: DataFrame) -> DataFrame:
        """The key, and one number for all that is compared: it is all that travels through the cluster."""
        columns = [F.col(quoted(name)) for name in key]
        if compared:
            values = [F.col(quoted(name)) for name in compared]
            # The hash passes over NULLs, so that (NULL, 'x') and ('x', NULL) would be the same: where they are goes in.
            columns.append(F.xxhash64(*values, *[value.isNull() for value in values]).alias(_HASH))
        return rows.select(*columns)

    mine, theirs = hashed(lake).alias("l"), hashed(source).alias("s")
    pairs = [F.col(f"l.{quoted(name)}") == F.col(f"s.{quoted(name)}") for name in key]
    same = reduce(lambda one, other: one & other, pairs)
    keys = [F.col(f"l.{quoted(name)}").alias(name) for name in key]
    gone = mine.join(theirs, same, "left_anti").select(*keys, F.lit(DELETED).alias(FOUND))
    if not compared:
        return gone
    keys = [F.col(f"s.{quoted(name)}").alias(name) for name in key]
    equal = same & F.col(f"l.{_HASH}").eqNullSafe(F.col(f"s.{_HASH}"))
    other = theirs.join(mine, equal, "left_anti").select(*keys, F.lit(CHANGED).alias(FOUND))
    return gone.unionByName(other)


def _file(number: int) -> str:
    return f"chunk-{number:06d}.parquet"
