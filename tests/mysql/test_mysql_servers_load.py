"""sysbench's oltp_read_write beside a pipeline: copied and followed live, then every table equals its source.

The rows are read by PyMySQL on one side and by deltalake or pyiceberg on the other; nothing of Lakefeed reads them.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.mysql.conftest import new_database

from lakefeed.capture.mysql.source import Mysql
from lakefeed.change.table import TableId
from lakefeed.flow.pipeline import Pipeline
from lakefeed.lake.delta import Delta
from lakefeed.lake.iceberg import Iceberg
from lakefeed.testing.server.fetch import installation
from lakefeed.testing.server.mysql import Flavour, MysqlServer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TABLES, ROWS, SECONDS = 3, 5_000, 20


@contextmanager
def sysbench(server: MysqlServer, database: str, *what: str) -> Iterator[subprocess.Popen[str]]:
    """oltp_read_write with its Debian package, which is fetched as the servers are."""
    place = installation("sysbench", debian=("bookworm", ("sysbench",)))
    scripts = place / "usr/share/sysbench"
    plugins = place / "usr/lib/x86_64-linux-gnu/libmariadb3/plugin"
    options = {
        "mysql-host": "127.0.0.1", "mysql-port": server.port, "mysql-user": "root", "mysql-db": database,
        "tables": TABLES, "table-size": ROWS, "threads": 2, "time": SECONDS, "mysql-ssl": "off",
    }  # fmt: skip
    given = [f"--{name}={value}" for name, value in options.items()]
    command = [str(place / "usr/bin/sysbench"), str(scripts / "oltp_read_write.lua"), *given, *what]
    environment = {**os.environ, "LUA_PATH": f"{scripts}/?.lua", "MARIADB_PLUGIN_DIR": str(plugins)}
    with subprocess.Popen(
        command, cwd=scripts, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as process:
        yield process
        said, _ = process.communicate(timeout=10 * SECONDS)
        assert process.returncode == 0, said


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.parametrize(("flavour", "fmt"), [("mysql", "delta"), ("mariadb", "delta"), ("mysql", "iceberg")])
def test_sysbench_through_copy_and_live_leaves_every_table_equal(
    flavour: Flavour, fmt: str, servers: Callable[[Flavour], MysqlServer], spark: SparkSession, tmp_path: Path
) -> None:
    server = servers(flavour)
    with new_database(server) as database:
        with sysbench(server, database, "prepare"):
            pass
        lake = (Delta if fmt == "delta" else Iceberg)(spark, tmp_path / "lake")
        source = Mysql(server.dsn, kind=flavour, tables=[f"{database}.*"], state=tmp_path / "state")
        with Pipeline(source, lake, name="load") as pipeline:
            with sysbench(server, database, "run") as load:
                while load.poll() is None:
                    pipeline.sync_once()
            pipeline.sync_once()
        for number in range(1, TABLES + 1):
            table = TableId(database, f"sbtest{number}")
            with server.connect() as connection, connection.cursor() as cursor:
                cursor.execute(f"SELECT id, k, c, pad FROM {table} ORDER BY id")
                expected = [tuple(row) for row in cursor.fetchall()]
            assert len(expected) == ROWS
            assert _lake_rows(fmt, tmp_path / "lake", table) == expected


def _lake_rows(fmt: str, lake: Path, table: TableId) -> list[tuple[Any, ...]]:
    place = lake / table.schema / table.name
    if fmt == "delta":
        from deltalake import DeltaTable

        rows = DeltaTable(str(place)).to_pyarrow_table()
    else:
        from pyiceberg.table import StaticTable

        newest = max((place / "metadata").glob("*.metadata.json"), key=lambda file: file.stat().st_mtime)
        rows = StaticTable.from_metadata(str(newest)).scan().to_arrow()
    return [tuple(row.values()) for row in rows.select(["id", "k", "c", "pad"]).sort_by("id").to_pylist()]
