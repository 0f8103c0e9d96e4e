"""A SQLite database under constant change, in a process of its own, and the pipeline that follows it, in another."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sqlite3
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.crash.process import PipelineDirectory, writing

Change = Callable[[sqlite3.Connection, random.Random, int], None]
"""So many statements, inside the caller's transaction."""


class SqliteShop(PipelineDirectory):
    """The directory of one test: database, configuration, lake. ``module`` is the writer: see ``write_until_told``."""

    def __init__(self, directory: Path, config: str, *, tables: str, module: str) -> None:
        super().__init__(directory, config)
        self.database = directory / "shop.db"
        self._module = module
        with contextlib.closing(sqlite3.connect(self.database)) as connection:
            connection.execute("PRAGMA journal_mode=WAL")
            connection.executescript(tables)

    def fill(self, change: Change, statements: int) -> None:
        """What is there before anything is captured."""
        with contextlib.closing(sqlite3.connect(self.database)) as connection, connection:
            change(connection, random.Random(0), statements)

    @contextlib.contextmanager
    def writer(self, seed: int) -> Iterator[None]:
        """A process that changes the database until the block ends (and at most for 25 minutes)."""
        with writing(["-m", self._module, str(self.database), str(seed), str(os.getpid())]):
            yield


def write_until_told(change: Change, most: int) -> None:
    """The writer process: transactions of fewer than ``most`` statements, some rolled back, until SIGTERM, orphaned, or
    25 minutes. Its arguments: database, seed, parent."""
    database, seed, parent = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    stopped: list[bool] = []
    signal.signal(signal.SIGTERM, lambda *_: stopped.append(True))
    chance = random.Random(seed)
    connection = sqlite3.connect(database, timeout=120, isolation_level=None)
    deadline = time.monotonic() + 1500
    while not stopped and time.monotonic() < deadline and os.getppid() == parent:
        connection.execute("BEGIN IMMEDIATE")
        change(connection, chance, chance.randrange(1, most))
        connection.execute("ROLLBACK" if chance.random() < 0.1 else "COMMIT")
        time.sleep(0.02)
    connection.close()
