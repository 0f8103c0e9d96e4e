# ruff: noqa: S608 (names in SQL are quoted)
"""Key ranges of about equal size for the copy of one table."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from lakefeed.capture.postgres.catalog import SourceTable, sql_name
from lakefeed.capture.postgres.database import Connection
from lakefeed.capture.postgres.names import quoted
from lakefeed.capture.postgres.snapshot import Key, TableChunk

_COUNTED_BYTES = 64 << 20
"""Tables up to this size are counted; of larger ones the catalog's estimate and a sample are good enough."""
_SAMPLED_BLOCKS = 50
"""For each chunk. Rows of one block are often neighbours by key, so a few blocks would give uneven chunks."""
_BLOCK_BYTES = 8192


def plan_chunks(
    connection: Connection,
    whole: TableChunk,
    source: SourceTable,
    chunk_rows: int,
    *,
    counted_bytes: int = _COUNTED_BYTES,
) -> tuple[tuple[TableChunk, ...], int]:
    """The chunks, and about how many rows they have together. A table without a key is one chunk."""
    name = f"{'ONLY ' if whole.only else ''}{sql_name(source.id)}"
    size, rows = _size(connection, source)
    is_small = size <= counted_bytes or rows <= 0
    if is_small:
        rows = _count(connection, f"SELECT count(*) FROM {name}")
    bounds: list[Key] = []
    if whole.schema.key and rows > chunk_rows:
        origin, step = f"{name} AS k", str(chunk_rows)
        if not is_small:
            chunks = -(-rows // chunk_rows)
            percent = min(100.0, 100.0 * chunks * _SAMPLED_BLOCKS * _BLOCK_BYTES / max(size, 1))
            origin += f" TABLESAMPLE SYSTEM ({percent:f}) REPEATABLE (1)"
            step = f"greatest(1, total / {chunks})"
        bounds = _bounds(connection, whole, origin, step)
    edges: list[Key | None] = [None, *bounds, None]
    return tuple(replace(whole, low=low, high=high) for low, high in pairwise(edges)), rows


def _size(connection: Connection, source: SourceTable) -> tuple[int, int]:
    """Bytes and estimated rows, over all partitions."""
    query = (
        "SELECT sum(pg_relation_size(c.oid))::int8, sum(greatest(c.reltuples, 0))::int8 FROM pg_class c"
        " WHERE c.relkind = 'r' AND (c.oid = %s OR c.oid IN (SELECT relid FROM pg_partition_tree(%s::oid::regclass)))"
    )
    row = connection.execute(query, (source.oid, source.oid)).fetchone()
    return (int(row[0] or 0), int(row[1] or 0)) if row is not None else (0, 0)


def _count(connection: Connection, query: str) -> int:
    row = connection.execute(query.encode()).fetchone()
    return int(row[0]) if row is not None else 0


def _bounds(connection: Connection, whole: TableChunk, origin: str, step: str) -> list[Key]:
    """Every ``step``-th key of ``origin`` but the last; ``step`` is SQL, in which ``total`` is the number of keys."""
    names = ", ".join(f"k.{quoted(one)}" for one in whole.schema.key)
    # Printed only at the very end: as text, keys would have another order.
    printed = ", ".join(f"n.{quoted(one)}::text" for one in whole.schema.key)
    place, total = "_lakefeed_place", "_lakefeed_total"  # names that no captured table may have
    numbered = (
        f"SELECT {names}, row_number() OVER (ORDER BY {names}) AS {place}, count(*) OVER () AS {total} FROM {origin}"
    )
    condition = f"n.{place} % ({step.replace('total', f'n.{total}')}) = 0 AND n.{place} < n.{total}"
    query = f"SELECT {printed} FROM ({numbered}) AS n WHERE {condition} ORDER BY n.{place}"
    return [tuple(row) for row in connection.execute(query.encode())]
