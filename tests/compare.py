"""One source table and the lake table at a path, row by row: the lake by deltalake or pyiceberg, the source by SQL."""

from __future__ import annotations

from pathlib import Path

from lakefeed.capture.postgres.dialect import PostgresVerifyReader
from lakefeed.capture.sqlite.dialect import SqliteVerifyReader
from lakefeed.change.table import TableId
from lakefeed.lake.mode import Mirror, Mode
from lakefeed.verify.compare import Comparison, compare_at

MIRROR = Mirror()


def compare_sqlite_table(database: Path, table: TableId, lake_table: Path, mode: Mode = MIRROR) -> Comparison:
    return compare_at(table, SqliteVerifyReader(database, table), lake_table, mode)


def compare_postgres_table(dsn: str, table: TableId, lake_table: Path, mode: Mode = MIRROR) -> Comparison:
    return compare_at(table, PostgresVerifyReader(dsn, table), lake_table, mode)
