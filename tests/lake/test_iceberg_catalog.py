"""Iceberg tables in a SQL catalog, in SQLite: written through JDBC, looked at through pyiceberg."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.spark
DRIVER = "org.xerial:sqlite-jdbc:3.50.3.0"


def test_tables_of_a_sql_catalog_keep_the_same_promises(tmp_path: Path) -> None:
    """In a process of its own: the driver has to be there before the JVM starts."""
    here = Path(__file__).parents[2]
    command = [sys.executable, "-m", "tests.lake.iceberg_jdbc", str(tmp_path), DRIVER]
    done = subprocess.run(
        command, cwd=here, env={**os.environ, "PYTHONPATH": str(here)}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
