"""The cost of many tables grows with their number, and not with its square."""

from __future__ import annotations

import time
from typing import Any

import psycopg
import pytest
from tests.postgres.rows import changes, drain, opened

from lakefeed.capture.postgres.source import Postgres
from lakefeed.change.table import TableId

_TABLES = """
DO $$ BEGIN FOR i IN 1..{count} LOOP
  EXECUTE format('CREATE TABLE t%s (id int PRIMARY KEY, a text NOT NULL, b numeric(12,2), c timestamptz, d bool)', i);
END LOOP; END $$"""
_ROWS = """
DO $$ BEGIN FOR i IN 1..{count} LOOP
  EXECUTE format('INSERT INTO t%s VALUES (1, ''a'', 1.5, now(), true)', i);
END LOOP; END $$"""


@pytest.mark.parametrize("count", [200, pytest.param(1_000, marks=pytest.mark.slow)])
def test_many_tables_are_prepared_and_their_first_transaction_decoded_in_seconds(dsn: str, count: int) -> None:
    """On a quiet machine 1,000 tables take less than 5 s each (``python -m bench pg_tables``); once it was 33 s and
    33 s at 800."""
    with psycopg.connect(dsn, autocommit=True) as writer, opened(Postgres(dsn)) as capture:
        writer.execute(_TABLES.format(count=count).encode())
        tables = [TableId("public", f"t{number}") for number in range(1, count + 1)]
        began = time.monotonic()
        start: Any = capture.prepare(tables)
        prepared = time.monotonic() - began
        writer.execute(_ROWS.format(count=count).encode())
        began = time.monotonic()
        sets = drain(capture, start)
        decoded = time.monotonic() - began
        print(f"{count} tables: prepared in {prepared:.1f} s, first transaction decoded in {decoded:.1f} s")
        assert len(changes(sets)) == count
        assert prepared < 20
        assert decoded < 20
