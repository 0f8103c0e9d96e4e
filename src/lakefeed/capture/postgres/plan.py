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
_SAMPLED_PER_CHUNK = 50


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
        bounds = (
            _exact(connection, whole, name, chunk_rows)
            if is_small
            else _sampled(connection, whole, name, rows, chunk_rows)
        )
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


def _exact(connection: Connection, whole: TableChunk, name: str, chunk_rows: int) -> list[Key]:
    """Every ``chunk_rows``-th key but the last."""
    names = [quoted(one) for one in whole.schema.key]
    printed = ", ".join(f"{one}::text" for one in names)
    place, total = "_lakefeed_place", "_lakefeed_total"  # names that no captured table may have
    numbered = (
        f"SELECT {', '.join(names)}, row_number() OVER (ORDER BY {', '.join(names)}) AS {place},"
        f" count(*) OVER () AS {total} FROM {name}"
    )
    query = (
        f"SELECT {printed} FROM ({numbered}) AS n"
        f" WHERE {place} % {chunk_rows} = 0 AND {place} < {total} ORDER BY {place}"
    )
    return [tuple(row) for row in connection.execute(query.encode())]


def _sampled(connection: Connection, whole: TableChunk, name: str, estimate: int, chunk_rows: int) -> list[Key]:
    """About equal ranges, out of a sample of blocks."""
    chunks = -(-estimate // chunk_rows)
    percent = min(100.0, 100.0 * chunks * _SAMPLED_PER_CHUNK / estimate)
    names = [quoted(one) for one in whole.schema.key]
    printed = ", ".join(f"s.{one}::text" for one in names)
    # By the columns of s: a bare name would mean the printed one, and text has another order.
    ordered = ", ".join(f"s.{one}" for one in names)
    query = f"SELECT {printed} FROM {name} AS s TABLESAMPLE SYSTEM ({percent:f}) REPEATABLE (1) ORDER BY {ordered}"
    keys = [tuple(row) for row in connection.execute(query.encode())]
    places = [place * len(keys) // chunks for place in range(1, chunks)]
    return list(dict.fromkeys(keys[place] for place in places)) if keys else []
