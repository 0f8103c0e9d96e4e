"""dlt as a peer: in an environment of its own, which LAKEFEED_BENCH_DLT names (the path of its Python).

python -m venv peer && peer/bin/pip install "dlt[filesystem,deltalake,parquet]" sqlalchemy psycopg2-binary connectorx
"""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

_SCRIPT = Path(__file__).with_name("dlt_copy.py")


@dataclass(frozen=True, slots=True)
class Dlt:
    python: str

    def copy(self, port: int, table: str, place: Path) -> float:
        """One table of a PostgreSQL into a new Delta table below ``place``. Seconds, as the script takes them."""
        return self._copy(f"postgresql://postgres:none@127.0.0.1:{port}/postgres", "public", table, place)

    def copy_sqlite(self, database: Path, table: str, place: Path) -> float:
        """The same for a SQLite file."""
        return self._copy(f"sqlite:///{database}", "", table, place)

    def _copy(self, address: str, schema: str, table: str, place: Path) -> float:
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        settings = {
            "DESTINATION__FILESYSTEM__BUCKET_URL": f"file://{place}",
            "HOME": str(place),
            "NORMALIZE__DATA_WRITER__DISABLE_COMPRESSION": "true",
            "RUNTIME__DLTHUB_TELEMETRY": "false",
            "RUNTIME__LOG_LEVEL": "ERROR",
        }
        command = [self.python, str(_SCRIPT), address, schema, table, str(place / "state")]
        done = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, **settings})
        return float(done.stdout.split()[-1])


def find() -> Dlt | str:
    """dlt, or why it is not measured."""
    python = os.environ.get("LAKEFEED_BENCH_DLT", "")
    if not python:
        return "LAKEFEED_BENCH_DLT does not name the Python of an environment that has it"
    done = subprocess.run([python, "-c", "import connectorx, deltalake, dlt"], capture_output=True)
    return Dlt(python) if done.returncode == 0 else "the environment of LAKEFEED_BENCH_DLT does not have it"
