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
from lakefeed.lake.base import Loaded, Seed
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
        self, seed: Seed, shape: Shape, context: Callable[[], SparkContext], progress: Callable[[int], None]
    ) -> Loaded:
        record = self._log.record(seed.generation)
        if record is None:
            self._refuse_foreign(seed)
        while record is None or record.applied is None:
            files = self._group(seed, shape, context, record)
            progress(sum(file.rows for file in files))
            hit("lake.during_load")
            record = self._log.record(seed.generation)
        return self._log.loaded(seed.generation)

    def _group(
        self, seed: Seed, shape: Shape, context: Callable[[], SparkContext], record: Record | None
    ) -> list[ChunkFile]:
        """Read, write and commit the next chunks."""
        own = shape.schema(seed.schema)
        addition = (
            self._table.appending()
            if record is not None
            else self._table.replacing(schema_json(own), self._made_with(seed))
        )
        stored = with_field_ids(lake_arrow(own), addition.schema)
        write = partial(attempt_chunk, directory=addition.directory, schema=stored, added=shape.copied(seed))
        start = record.copied.chunks if record is not None else 0
        files = written_chunks(seed.chunks[start : start + GROUP_CHUNKS], write, seed.table, context)
        after = self._after(seed, files, record.copied if record is not None else Copied())
        addition.commit(files, after.summary(_commit(seed, after, files)), self._settled(after))
        return files

    def _after(self, seed: Seed, files: Sequence[ChunkFile], before: Copied) -> Record:
        done = min(before.chunks + GROUP_CHUNKS, len(seed.chunks))
        high = before.high
        for file in files:
            high = highest(high, file.high)
        return Record(
            owner=self._log.owner,
            generation=seed.generation,
            applied=seed.base if done == len(seed.chunks) else None,
            schema_version=seed.schema.version,
            copied=Copied(chunks=done, rows=before.rows + sum(file.rows for file in files), high=high),
        )

    def _made_with(self, seed: Seed) -> dict[str, str]:
        key = ", ".join(seed.schema.key) or "none"
        return {
            **self._properties,
            _VERSIONS: str(self._kept_versions(seed)),
            OWNER: self._log.owner,
            GENERATION: str(seed.generation),
            SCHEMA_VERSION: str(seed.schema.version),
            "comment": f"Made of {seed.table}, kept by Lakefeed. Key: {key}.",
        }

    def _kept_versions(self, seed: Seed) -> int:
        """While the copy goes on: it may be made of the very table, whose metadata as it was is read to the end."""
        groups = -(-len(seed.chunks) // GROUP_CHUNKS)
        return max(int(self._properties[_VERSIONS]), groups + _SPARE_VERSIONS)

    def _settled(self, after: Record) -> dict[str, str]:
        """What the table is set to with the last chunks."""
        return {_VERSIONS: self._properties[_VERSIONS]} if after.applied is not None else {}

    def _refuse_foreign(self, seed: Seed) -> None:
        if self._log.is_foreign():
            raise TableStoppedError(
                f"table {seed.table}: there is a table at {self._log.location}, which this pipeline did not make",
                remedy="Choose another lake path, namespace or pipeline name, or remove that table.",
                table=str(seed.table),
            )


def _commit(seed: Seed, after: Record, files: Sequence[ChunkFile]) -> dict[str, Any]:
    return {
        "pipeline": after.owner.partition("/")[0],
        "table": str(seed.table),
        "generation": seed.generation,
        "change_sets": {"after": 0, "upto": seed.base},
        "schema_version": seed.schema.version,
        "position": seed.position.encode() if seed.position else None,
        "seed": {
            "chunks": after.copied.chunks,
            "rows": sum(file.rows for file in files),
            "high": after.copied.high.encode() if after.copied.high else None,
        },
    }
