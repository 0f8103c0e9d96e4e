"""Iceberg tables in a SQL catalog, in SQLite: written through JDBC to a disk and to a store, read by pyiceberg."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from lakefeed.testing.server.object_store import OPTIONS, Seaweed

pytestmark = [pytest.mark.spark, pytest.mark.slow]
DRIVER = "org.xerial:sqlite-jdbc:3.50.3.0"


def test_tables_of_a_sql_catalog_keep_the_same_promises_on_a_disk_and_in_a_store(tmp_path: Path) -> None:
    """In a process of its own: the driver has to be there before the JVM starts."""
    here = Path(__file__).parents[2]
    path = os.pathsep.join([str(here), *filter(None, [os.environ.get("PYTHONPATH")])])
    with Seaweed.start() as server:
        place = f"{server.bucket('lakefeed')}/lake"
        command = [sys.executable, "-m", "tests.lake.iceberg_jdbc", str(tmp_path), DRIVER]
        done = subprocess.run(
            [*command, place, json.dumps(server.options)], cwd=here, env={**os.environ, "PYTHONPATH": path},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    secret = OPTIONS["secret_access_key"]
    assert secret.encode() not in (tmp_path / "store.db").read_bytes()
    assert secret not in done.stdout + done.stderr
