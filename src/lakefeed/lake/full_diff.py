"""FullDiff: finds rows of a lake table that the source no longer has, by comparing all keys on Spark.

For sources whose deletes leave no trace (polling). A restart skips the steps that are done:
  1. read      Spark tasks read the source's keys (or whole rows) in chunks, each into a Parquet file of its own
  2. compare   an anti-join with the lake table; with whole rows, also a join that compares their hashes
  3. refuse    if nothing was read at all, or more rows are missing than allowed: the source may have lost its rows
  4. publish   the difference alone, as Parquet files that appear by one rename

It is correct while applications write to the source, because it publishes findings to check, not changes. Tasks read
the chunks over a span of time, and the lake table at some moment of it. So a key may seem missing because somebody
inserted its row after its chunk was read. The capture checks every finding in the source before it delivers a change,
in one consistent read that is in order with its own polls: see ``capture.poll.poller``. Only counts come to the driver.
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
    """What to compare. ``number`` names the run: give it again after an interruption, and the run goes on.

    ``chunks`` have the columns of ``schema``: the key alone, or the key and all columns to compare. ``work`` is a
    directory that every Spark task reaches; the capture reads this table's ``findings``.
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
    """``refused`` says why the run published nothing although rows are missing. ``published`` is the directory with the
    findings; None if there are none, or the run refused."""

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

    Of whole rows it compares the columns that both sides have. ``progress`` gets the chunks read, and their total.
    """
    from pyspark.sql import functions as F  # noqa: N812  # its usual name

    started, session = time.monotonic(), lake.sparkSession
    place = f"{comparison.work}/{comparison.number}"
    try:
        _read_source(session, comparison, place, progress)  # 1
        # The rows that were read, with the lake table's columns and types.
        types = {field.name: field.dataType for field in lake.schema.fields}
        names = [name for name in comparison.schema.names if name in types]
        read = session.read.parquet(spark_path(place, as_glob=True))
        source = read.select([F.col(quoted(name)).cast(types[name]).alias(name) for name in names])
        suspects = _suspects(lake, source, comparison.key).cache()  # 2: counted, then written
        try:
            # By the files' footers: Spark would need a job.
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
            elif deleted + changed:  # 4: Spark writes to a hidden directory, and a rename publishes it
                published = f"{comparison.findings}/{comparison.number}"
                hidden = f"{comparison.findings}/.{comparison.number}.tmp"
                target, path = filesystem(published)
                if target.get_file_info(path).type == fs.FileType.NotFound:  # else an interrupted run has done it
                    suspects.write.mode("overwrite").parquet(spark_path(hidden))
                    target.move(filesystem(hidden)[1], path)
        finally:
            suspects.unpersist()
        files.delete_dir(root)  # after a refusal, the next run reads again
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
    """One task: write a chunk into its file. Returns our own errors as values: Spark would turn them into text."""
    number, chunk = item
    files, root = filesystem(directory)
    hidden = f"{root}/.{uuid.uuid4()}.tmp"  # Spark may run a task twice at once, and does not read such names
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
    """Write each chunk into a file of its own below ``place``, unless that exists already."""
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
    """The keys of rows that the source does not have any more, or has with other values (FOUND says which)."""
    from pyspark.sql import functions as F  # noqa: N812

    compared = [name for name in source.columns if name not in key]

    def hashed(rows: DataFrame) -> DataFrame:
        """The key, and one number for all compared values: Spark shuffles nothing else."""
        columns = [F.col(quoted(name)) for name in key]
        if compared:
            values = [F.col(quoted(name)) for name in compared]
            # The hash ignores NULLs, so (NULL, 'x') and ('x', NULL) would be equal: hash which values are NULL, too.
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
