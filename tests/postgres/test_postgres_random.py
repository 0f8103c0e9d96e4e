"""T19: random values of many types, inserted, updated and copied, against what PostgreSQL prints."""

from __future__ import annotations

import time
from decimal import Decimal
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from psycopg.types.json import Jsonb
from tests.postgres.rows import changes, copied, drain, opened

from lakefeed.capture.postgres.source import Postgres
from lakefeed.change.table import TableId

T = TableId("public", "t")
BUDGET_SECONDS = 10.0

TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=30)
SPECIAL = [Decimal("NaN"), Decimal("Infinity"), Decimal("-Infinity")]
COLUMNS: dict[str, st.SearchStrategy[Any]] = {
    "bool": st.booleans(),
    "int2": st.integers(-(2**15), 2**15 - 1),
    "int8": st.integers(-(2**63), 2**63 - 1),
    "float4": st.floats(width=32),
    "float8": st.floats(),
    "numeric(20,5)": st.decimals(-(10**14), 10**14, places=5, allow_nan=False),
    "numeric": st.decimals(allow_nan=False, allow_infinity=False) | st.sampled_from(SPECIAL),
    "text": TEXT,
    "char(5)": TEXT.map(lambda text: text[:5]),
    "bytea": st.binary(max_size=40),
    "date": st.dates(),
    "timestamp": st.datetimes(),
    "timestamptz": st.datetimes(),
    "text[]": st.lists(st.none() | TEXT, max_size=4),
    "float8[]": st.lists(st.floats(), max_size=4),
    "jsonb": st.recursive(
        st.none() | st.booleans() | st.integers() | TEXT, lambda inner: st.lists(inner, max_size=3), max_leaves=5
    ).map(Jsonb),
}
ROW = st.tuples(*(st.none() | strategy for strategy in COLUMNS.values()))
NAMES = [f"c{place}" for place in range(len(COLUMNS))]


@pytest.mark.timeout(120)
def test_random_values_arrive_as_postgresql_has_them(dsn: str) -> None:
    began = time.monotonic()
    tried = 0
    with psycopg.connect(dsn, autocommit=True) as writer, opened(Postgres(dsn)) as capture:
        writer.execute("SET timezone = 'UTC'")
        columns = ", ".join(f"{name} {kind}" for name, kind in zip(NAMES, COLUMNS, strict=True))
        writer.execute(f"CREATE TABLE t (id int PRIMARY KEY, {columns})".encode())
        position: Any = capture.prepare([T])
        marks = ", ".join(f"%s::{kind}" for kind in COLUMNS)
        assign = ", ".join(f"{name} = %s::{kind}" for name, kind in zip(NAMES, COLUMNS, strict=True))
        # Every column as text by its output function: what the lake's values are compared with, through the same cast.
        listed = ", ".join(f"CASE WHEN {name} IS NULL THEN NULL ELSE format('%%s', {name}) END" for name in NAMES)

        @settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck), database=None)
        @given(ROW, ROW)
        def check(first: tuple[Any, ...], second: tuple[Any, ...]) -> None:
            nonlocal position, tried
            if tried >= 10 and time.monotonic() - began > BUDGET_SECONDS:
                return
            tried += 1
            writer.execute("TRUNCATE t")
            writer.execute(f"INSERT INTO t VALUES (1, {marks})".encode(), first)
            inserted = writer.execute(f"SELECT {listed.replace('%%', '%')} FROM t".encode()).fetchone()
            writer.execute(f"UPDATE t SET {assign}".encode(), second)
            updated = writer.execute(f"SELECT {listed.replace('%%', '%')} FROM t".encode()).fetchone()
            sets = drain(capture, position)
            position = sets[-1].end
            capture.confirm(position)
            _, insert, update = changes(sets)
            (copy,) = copied(capture, T)
            assert as_printed(writer, insert) == inserted
            assert as_printed(writer, update) == updated == as_printed(writer, copy)

        check()
    assert tried >= 10


def as_printed(writer: Any, row: dict[str, Any]) -> tuple[Any, ...]:
    """Values of the lake given back to PostgreSQL, which prints them."""
    listed = ", ".join(
        f"CASE WHEN v{place} IS NULL THEN NULL ELSE format('%%s', v{place}) END" for place in range(len(NAMES))
    )
    values = ", ".join(f"%s::{kind} AS v{place}" for place, kind in enumerate(COLUMNS))
    found: tuple[Any, ...] = writer.execute(
        f"SELECT {listed} FROM (SELECT {values}) s".encode(), [row[n] for n in NAMES]
    ).fetchone()
    return found
