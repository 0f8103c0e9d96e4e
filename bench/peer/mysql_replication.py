"""mysql-replication as a peer: installed into the scratch directory, never into the project; a process of its own.

As a script: FLAVOUR PORT FILE TABLE CHANGES → changes seen, and seconds from the first event to the last.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

VERSION = "1.0.17"
_FETCH_SECONDS = 300


@dataclass(frozen=True, slots=True)
class MysqlReplication:
    place: Path

    def drain(self, flavour: str, port: int, *, file: str, table: str, changes: int) -> float:
        """Seconds from its first event to its last, every row decoded and dropped."""
        command = [sys.executable, __file__, flavour, str(port), file, table, str(changes)]
        environment = {**os.environ, "PYTHONPATH": str(self.place)}
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
        assert done.returncode == 0, done.stderr[-3000:]
        seen, seconds = done.stdout.split()[-2:]
        assert int(seen) == changes, f"mysql-replication saw {seen} changes"
        return float(seconds)


def fetch(place: Path) -> MysqlReplication | str:
    """mysql-replication, or why it cannot be had."""
    installer = ["uv", "pip"] if shutil.which("uv") else [sys.executable, "-m", "pip"]
    command = [*installer, "install", "--quiet", "--target", str(place), f"mysql-replication=={VERSION}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_FETCH_SECONDS)
    except subprocess.TimeoutExpired:
        return f"installing it took longer than {_FETCH_SECONDS} s"
    return MysqlReplication(place) if done.returncode == 0 else f"installing it failed: {done.stderr[-200:].strip()}"


def main(flavour: str, port: str, file: str, table: str, changes: str) -> None:
    from pymysqlreplication import BinLogStreamReader  # type: ignore[import-not-found]
    from pymysqlreplication.row_event import (  # type: ignore[import-not-found]
        DeleteRowsEvent,
        UpdateRowsEvent,
        WriteRowsEvent,
    )

    stream = BinLogStreamReader(
        connection_settings={"host": "127.0.0.1", "port": int(port), "user": "root", "passwd": ""},
        server_id=4712,
        log_file=file,
        log_pos=4,
        resume_stream=True,
        is_mariadb=flavour == "mariadb",
        only_events=[WriteRowsEvent, UpdateRowsEvent, DeleteRowsEvent],
        only_tables=[table],
    )
    seen, first = 0, 0.0
    for event in stream:
        first = first or time.perf_counter()
        seen += len(event.rows)
        if seen >= int(changes):
            break
    print(seen, f"{time.perf_counter() - first:.3f}")


if __name__ == "__main__":
    main(*sys.argv[1:])
