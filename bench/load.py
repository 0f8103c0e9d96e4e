"""A writer in a process of its own: ``python -m bench.load DATABASE TICKS ROWS CHANGES SIZE RATE``.

Makes CHANGES changes in transactions of SIZE, RATE changes a second (0: as fast as it can), and leaves the times of its
commits in TICKS. ROWS is how many rows the table had. It ends early when the process that started it is gone.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from bench.workload import Mix, connected, transaction


@contextlib.contextmanager
def writing(
    database: Path, ticks: Path, *, rows: int, changes: int, size: int = 100, rate: int = 0
) -> Iterator[subprocess.Popen[bytes]]:
    """The writer's process, while the block runs."""
    numbers = [str(number) for number in (rows, changes, size, rate)]
    process = subprocess.Popen([sys.executable, "-m", "bench.load", str(database), str(ticks), *numbers])
    try:
        yield process
    finally:
        process.terminate()
        process.wait()


def write(database: Path, *, rows: int, changes: int, size: int, rate: int) -> list[float]:
    """The wall-clock time of each commit: transaction n wrote tick n, counted from 1."""
    parent = os.getppid()
    mix = Mix(rows)
    times: list[float] = []
    started = time.monotonic()
    with connected(database) as connection:
        connection.execute("PRAGMA cache_size = -131072")  # the writer is not what is measured: it shall be fast
        connection.execute("PRAGMA synchronous = NORMAL")
        while len(times) * size < changes and os.getppid() == parent:
            if rate:
                time.sleep(max(0.0, started + len(times) * size / rate - time.monotonic()))
            with transaction(connection):
                mix.change(connection, size, len(times) + 1)
            times.append(time.time())
    return times


def main(database: str, ticks: str, *numbers: str) -> None:
    rows, changes, size, rate = map(int, numbers)
    times = write(Path(database), rows=rows, changes=changes, size=size, rate=rate)
    Path(ticks).write_text(json.dumps(times))


if __name__ == "__main__":
    main(*sys.argv[1:])
