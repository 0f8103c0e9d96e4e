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
    connection: Connection, whole: TableChunk, source: SourceTable, chunk_rows: int
) -> tuple[tuple[TableChunk, ...], int]:
    """The chunks, and about how many rows they have together. A table without a key is one chunk."""
    name = f"{'ONLY ' if whole.only else ''}{sql_name(source.id)}"
    size, estimate = _size(connection, source)
    if size <= _COUNTED_BYTES or estimate <= 0:
        estimate = _count(connection, f"SELECT count(*) FROM {name}")
        bounds = _exact(connection, whole, name, chunk_rows) if estimate > chunk_rows else []
    else:
        bounds = _sampled(connection, whole, name, max(1, estimate // chunk_rows)) if estimate > chunk_rows else []
    if not whole.schema.key:
        bounds = []
    edges: list[Key | None] = [None, *bounds, None]
    return tuple(replace(whole, low=low, high=high) for low, high in pairwise(edges)), estimate


def _size(connection: Connection, source: SourceTable) -> tuple[int, int]:
    """Bytes and estimated rows, over all partitions."""
    query = (
        "SELECT coalesce(sum(pg_relation_size(t.relid)), 0)::int8, coalesce(sum(greatest(c.reltuples, 0)), 0)::int8"
        " FROM pg_partition_tree(%s::oid::regclass) t JOIN pg_class c ON c.oid = t.relid WHERE t.isleaf"
    )
    row = connection.execute(query, (source.oid,)).fetchone()
    return (int(row[0]), int(row[1])) if row is not None else (0, 0)


def _count(connection: Connection, query: str) -> int:
    row = connection.execute(query.encode()).fetchone()
    return int(row[0]) if row is not None else 0


def _exact(connection: Connection, whole: TableChunk, name: str, chunk_rows: int) -> list[Key]:
    """Every ``chunk_rows``-th key."""
    if not whole.schema.key:
        return []
    key, printed, ordered = _key_lists(whole)
    query = (
        f'SELECT {printed} FROM (SELECT {key}, row_number() OVER (ORDER BY {ordered}) AS "lakefeed place"'
        f' FROM {name}) numbered WHERE "lakefeed place" %% {chunk_rows} = 0 ORDER BY {ordered}'
    )
    return [tuple(row) for row in connection.execute(query.replace("%%", "%").encode())]


def _sampled(connection: Connection, whole: TableChunk, name: str, chunks: int) -> list[Key]:
    """About equal ranges, out of a sample of blocks."""
    if not whole.schema.key:
        return []
    _, printed, ordered = _key_lists(whole)
    percent = 100.0
    row = connection.execute(
        f"SELECT reltuples::float8 FROM pg_class WHERE oid = '{sql_literal(name)}'::regclass".encode()
    )
    total = float((row.fetchone() or (0.0,))[0])
    if total > 0:
        percent = min(100.0, max(0.01, 100.0 * chunks * _SAMPLED_PER_CHUNK * 4 / total))
    query = f"SELECT {printed} FROM {name} TABLESAMPLE SYSTEM ({percent}) REPEATABLE (1) ORDER BY {ordered}"
    keys = [tuple(row) for row in connection.execute(query.encode())]
    step = max(1, len(keys) // chunks)
    return list(dict.fromkeys(keys[step::step]))[: chunks - 1] if chunks > 1 else []


def sql_literal(name: str) -> str:
    return name.removeprefix("ONLY ").replace("'", "''")


def _key_lists(whole: TableChunk) -> tuple[str, str, str]:
    names = [quoted(name) for name in whole.schema.key]
    return ", ".join(names), ", ".join(f"{name}::text" for name in names), ", ".join(names)
