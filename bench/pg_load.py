"""A writer to PostgreSQL in a process of its own: ``python -m bench.pg_load DSN TICKS ROWS SECONDS SIZE RATE``.

Makes RATE changes a second in transactions of SIZE (60 % updates, 30 % inserts, 10 % deletes) for so long, and leaves
the times of its commits in TICKS. ROWS is how many rows the table had. It ends early when the process that started it
is gone.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg

TABLE = "account"
_COLUMNS = "id bigint PRIMARY KEY, owner text, balance bigint, score double precision, note text, tick bigint"


def create(dsn: str, rows: int) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(f"CREATE TABLE {TABLE} ({_COLUMNS})".encode())
        connection.execute(
            f"INSERT INTO {TABLE} SELECT g, 'owner ' || g % 100003, g, g / 7.0, 'note of row ' || g, 0 "
            f"FROM generate_series(1, {rows}) g".encode()
        )


@contextlib.contextmanager
def writing(dsn: str, ticks: Path, *, rows: int, seconds: int, size: int, rate: int) -> Iterator[None]:
    """The writer's process, while the block runs."""
    numbers = [str(number) for number in (rows, seconds, size, rate)]
    process = subprocess.Popen([sys.executable, "-m", "bench.pg_load", dsn, str(ticks), *numbers])
    try:
        yield
    finally:
        process.terminate()
        process.wait()


def write(dsn: str, *, rows: int, seconds: int, size: int, rate: int) -> list[float]:
    """The wall-clock time of each commit: transaction n wrote tick n, counted from 1."""
    parent, chance, times = os.getppid(), random.Random(1), list[float]()
    updates, inserts, deletes = size * 6 // 10, size * 3 // 10, size // 10
    last, gone = rows, 0
    with psycopg.connect(dsn, autocommit=True) as connection:
        started = time.monotonic()
        while len(times) * size < seconds * rate and os.getppid() == parent:
            time.sleep(max(0.0, started + len(times) * size / rate - time.monotonic()))
            tick = len(times) + 1
            with connection.transaction():
                updated = [chance.randrange(rows // 2, rows) for _ in range(updates)]
                connection.execute(
                    f"UPDATE {TABLE} SET balance = balance + 1, tick = %s WHERE id = ANY(%s)".encode(), (tick, updated)
                )
                connection.execute(
                    f"INSERT INTO {TABLE} SELECT g, 'owner ' || g, 1, g / 3.0, 'new', %s "
                    "FROM generate_series(%s::bigint, %s::bigint) g".encode(),
                    (tick, last + 1, last + inserts),
                )
                connection.execute(f"DELETE FROM {TABLE} WHERE id > %s AND id <= %s".encode(), (gone, gone + deletes))
            times.append(time.time())
            last, gone = last + inserts, gone + deletes
    return times


def main(dsn: str, ticks: str, *numbers: str) -> None:
    rows, seconds, size, rate = map(int, numbers)
    times = write(dsn, rows=rows, seconds=seconds, size=size, rate=rate)
    Path(ticks).write_text(json.dumps(times))


if __name__ == "__main__":
    main(*sys.argv[1:])
