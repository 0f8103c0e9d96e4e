"""The copy of one table into Delta: Spark tasks write the files, one commit per group of chunks adds them.

  1 a group's chunks are read and written in parallel, each to a file of its own name
  2 one commit adds the files and records how many chunks the table has; the first also replaces what was there
  3 the last commit records the applied number: from then on, and not before, the table counts as copied
A restart goes on after the last recorded chunk. Files of a group that was not committed belong to nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from lakefeed.change.position import highest
from lakefeed.errors import TableStoppedError
from lakefeed.failpoint import hit
from lakefeed.lake.base import Loaded, TableCopy
from lakefeed.lake.delta_log import AppIds, DeltaLog, Group
from lakefeed.lake.iceberg_metadata import is_iceberg
from lakefeed.lake.loader import GROUP_CHUNKS, ChunkFile, attempt_chunk, written_chunks
from lakefeed.lake.shape import Shape
from lakefeed.lake.sparktype import lake_arrow

if TYPE_CHECKING:
    from pyspark import SparkContext


def load_table(
    copy: TableCopy,
    shape: Shape,
    log: DeltaLog,
    ids: AppIds,
    *,
    context: Callable[[], SparkContext],
    progress: Callable[[int], None],
) -> Loaded:
    """Copy ``copy`` into the table whose log is ``log``; ``context`` is asked for only if there is much to read."""
    done = log.chunks_done(ids)
    if done is None:
        _refuse_foreign(copy, log, ids)
    total = len(copy.chunks)
    stored = lake_arrow(shape.schema(copy.schema))
    write = partial(attempt_chunk, directory=log.path, schema=stored, added=shape.copied(copy))
    while done is None or done < total:
        start = done or 0
        files = written_chunks(copy.chunks[start : start + GROUP_CHUNKS], write, copy.table, context)
        log.commit(_group(copy, ids, stored, files, done))
        done = min(start + GROUP_CHUNKS, total)
        progress(sum(file.rows for file in files))
        hit("lake.during_load")
    return log.loaded(copy.generation)


def _refuse_foreign(copy: TableCopy, log: DeltaLog, ids: AppIds) -> None:
    """A table of the other format is foreign, whoever made it: each format would clean up the other's files."""
    kind = "an Iceberg" if is_iceberg(log.path) else "a Delta" if log.is_foreign(ids) else None
    if kind is not None:
        raise TableStoppedError(
            f"table {copy.table}: there is {kind} table at {log.path} that this pipeline did not make",
            remedy="Choose another lake path or pipeline name, or remove that table.",
            table=str(copy.table),
        )


def _group(copy: TableCopy, ids: AppIds, stored: pa.Schema, files: Sequence[ChunkFile], after: int | None) -> Group:
    done = min((after or 0) + GROUP_CHUNKS, len(copy.chunks))
    transactions = {ids.copy: done}
    if after is None:
        transactions |= {ids.owner: copy.generation, ids.schema: copy.schema.version}
    if done == len(copy.chunks):
        transactions[ids.applied] = copy.base
    key = ", ".join(copy.schema.key) or "none"
    return Group(
        ids=ids,
        after=after,
        files=files,
        schema=stored,
        transactions=transactions,
        metadata=_metadata(copy, ids, files, done),
        description=f"Made of {copy.table}, kept by Lakefeed. Key: {key}.",
    )


def _metadata(copy: TableCopy, ids: AppIds, files: Sequence[ChunkFile], done: int) -> dict[str, Any]:
    high = None
    for file in files:
        high = highest(high, file.high)
    return {
        "pipeline": ids.owner.split("/")[1],
        "table": str(copy.table),
        "generation": copy.generation,
        "change_sets": {"after": 0, "upto": copy.base},
        "schema_version": copy.schema.version,
        "position": copy.position.encode() if copy.position else None,
        "copy": {
            "chunks": done,
            "rows": sum(file.rows for file in files),
            "high": high.encode() if high else None,
        },
    }
