"""The copy of one table into Iceberg: Spark tasks write the files, one commit per group of chunks adds them.

  1 a transaction on the table is opened, the first time one that replaces whatever was there; it gives the column ids
  2 a group's chunks are read and written in parallel, each to a file of its own name, with those ids
  3 the transaction adds the files and records how many chunks the table has
  4 the last one records the applied number: from then on, and not before, the table counts as copied
A restart goes on after the last recorded chunk. Files of a group that was not committed belong to nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from lakefeed.change.position import highest
from lakefeed.errors import TableStoppedError
from lakefeed.failpoint import hit
from lakefeed.lake.base import Loaded, TableCopy
from lakefeed.lake.iceberg_java import JavaTable
from lakefeed.lake.iceberg_log import GENERATION, OWNER, SCHEMA_VERSION, Copied, IcebergLog, Record
from lakefeed.lake.iceberg_schema import schema_json, with_field_ids
from lakefeed.lake.loader import GROUP_CHUNKS, ChunkFile, attempt_chunk, written_chunks
from lakefeed.lake.shape import Shape
from lakefeed.lake.sparktype import lake_arrow

if TYPE_CHECKING:
    from pyspark import SparkContext


_VERSIONS = "write.metadata.previous-versions-max"
_SPARE_VERSIONS = 10
"""Of a table's metadata, for what others may commit to it while it is copied."""


class IcebergCopy:
    """One table's copy. ``properties`` are what the table is made with."""

    def __init__(self, log: IcebergLog, table: JavaTable, properties: Mapping[str, str]) -> None:
        self._log = log
        self._table = table
        self._properties = properties

    def load(
        self, copy: TableCopy, shape: Shape, context: Callable[[], SparkContext], progress: Callable[[int], None]
    ) -> Loaded:
        record = self._log.record(copy.generation)
        if record is None:
            self._refuse_foreign(copy)
        while record is None or record.applied is None:
            files = self._group(copy, shape, context, record)
            progress(sum(file.rows for file in files))
            hit("lake.during_load")
            record = self._log.record(copy.generation)
        return self._log.loaded(copy.generation)

    def _group(
        self, copy: TableCopy, shape: Shape, context: Callable[[], SparkContext], record: Record | None
    ) -> list[ChunkFile]:
        """Read, write and commit the next chunks."""
        own = shape.schema(copy.schema)
        addition = (
            self._table.appending()
            if record is not None
            else self._table.replacing(schema_json(own), self._made_with(copy))
        )
        stored = with_field_ids(lake_arrow(own), addition.schema)
        write = partial(attempt_chunk, directory=addition.directory, schema=stored, added=shape.copied(copy))
        start = record.copied.chunks if record is not None else 0
        files = written_chunks(copy.chunks[start : start + GROUP_CHUNKS], write, copy.table, context)
        after = self._after(copy, files, record.copied if record is not None else Copied())
        addition.commit(files, after.summary(_commit(copy, after, files)), self._settled(after))
        return files

    def _after(self, copy: TableCopy, files: Sequence[ChunkFile], before: Copied) -> Record:
        done = min(before.chunks + GROUP_CHUNKS, len(copy.chunks))
        high = before.high
        for file in files:
            high = highest(high, file.high)
        return Record(
            owner=self._log.owner,
            generation=copy.generation,
            applied=copy.base if done == len(copy.chunks) else None,
            schema_version=copy.schema.version,
            copied=Copied(chunks=done, rows=before.rows + sum(file.rows for file in files), high=high),
        )

    def _made_with(self, copy: TableCopy) -> dict[str, str]:
        key = ", ".join(copy.schema.key) or "none"
        return {
            **self._properties,
            _VERSIONS: str(self._kept_versions(copy)),
            OWNER: self._log.owner,
            GENERATION: str(copy.generation),
            SCHEMA_VERSION: str(copy.schema.version),
            "comment": f"Made of {copy.table}, kept by Lakefeed. Key: {key}.",
        }

    def _kept_versions(self, copy: TableCopy) -> int:
        """While the copy goes on: it may be made of the very table, whose metadata as it was is read to the end."""
        groups = -(-len(copy.chunks) // GROUP_CHUNKS)
        return max(int(self._properties[_VERSIONS]), groups + _SPARE_VERSIONS)

    def _settled(self, after: Record) -> dict[str, str]:
        """What the table is set to with the last chunks."""
        return {_VERSIONS: self._properties[_VERSIONS]} if after.applied is not None else {}

    def _refuse_foreign(self, copy: TableCopy) -> None:
        if self._log.is_foreign():
            raise TableStoppedError(
                f"table {copy.table}: there is a table at {self._log.location}, which this pipeline did not make",
                remedy="Choose another lake path, namespace or pipeline name, or remove that table.",
                table=str(copy.table),
            )


def _commit(copy: TableCopy, after: Record, files: Sequence[ChunkFile]) -> dict[str, Any]:
    return {
        "pipeline": after.owner.partition("/")[0],
        "table": str(copy.table),
        "generation": copy.generation,
        "change_sets": {"after": 0, "upto": copy.base},
        "schema_version": copy.schema.version,
        "position": copy.position.encode() if copy.position else None,
        "copy": {
            "chunks": after.copied.chunks,
            "rows": sum(file.rows for file in files),
            "high": after.copied.high.encode() if after.copied.high else None,
        },
    }
