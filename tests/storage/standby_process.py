"""A process that runs a pipeline as a standby: SQLite → journal at an address → a lake that is one file.

The lake is the one of ``testing.memory_lake``, kept in a file that is replaced as a whole under a lock: as real tables
do, it takes a change set once, whoever brings it.
"""

from __future__ import annotations

import fcntl
import json
import pickle
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from lakefeed.capture.sqlite.source import Sqlite
from lakefeed.change.segment import Window
from lakefeed.errors import CommitFailedError, HangError
from lakefeed.failpoint import arm_from_environment, hit
from lakefeed.flow import watchdog
from lakefeed.flow.options import PipelineOptions
from lakefeed.flow.pipeline import Pipeline
from lakefeed.flow.report.listener import Listener
from lakefeed.journal.options import JournalOptions
from lakefeed.lake.base import Applied, Loaded, TableCopy
from lakefeed.lake.route import Route
from lakefeed.testing.memory_lake import MemoryLake, MemoryLakeTable


class FileLake(MemoryLake):
    """``path`` is a directory; the tables are in one file there."""

    def bind(self, pipeline: str) -> FileLake:
        return self

    def table(self, route: Route) -> FileLakeTable:
        return FileLakeTable(self, route)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """The tables as they are now; what is done to them is there for everybody afterwards."""
        file = Path(self.path, "tables")
        with Path(self.path, "lock").open("a") as turn:
            fcntl.flock(turn, fcntl.LOCK_EX)
            if file.exists():
                self.tables = pickle.loads(file.read_bytes())
            yield
            fresh = file.with_name("tables.new")
            fresh.write_bytes(pickle.dumps(self.tables))
            fresh.replace(file)


class FileLakeTable(MemoryLakeTable):
    _lake: FileLake

    def applied(self, generation: int) -> Applied | None:
        with self._lake.alone():
            return super().applied(generation)

    def load(self, copy: TableCopy, progress: Callable[[int], None]) -> Loaded:
        with self._lake.alone():
            return super().load(copy, progress)

    def apply(self, window: Window, generation: int) -> Applied:
        hit("lake.after_marks")  # here one hangs without the lock that the tables share
        with self._lake.alone():
            found = self._lake.tables[self.route.table]
            if found.number > window.after and found.number < window.upto:
                raise CommitFailedError("the table is not where the window begins")
            return super().apply(window, generation)


class Saying(Listener):
    """One line for each thing that the tests wait for."""

    def standing_by(self, error: Exception) -> None:
        print("standing by", flush=True)

    def captured(self, commit: object) -> None:
        print("captured", flush=True)

    def retrying(self, error: Exception, seconds: float) -> None:
        print(f"retrying {type(error).__name__}", flush=True)


def main(database: str, lake: str, journal: str, options: str) -> None:
    """Failpoints of the environment are armed. A process whose pipeline hangs stays, so that what hung comes back."""
    arm_from_environment()
    watchdog._QUIET_SECONDS = 0.2
    seconds = PipelineOptions(
        interval_seconds=0.05,
        journal=JournalOptions(lease_seconds=3, keep_seconds=0, keep_change_sets=8),
        maintenance_seconds=0,
        hang_seconds=8.0,  # a change set is followed by a pause of two
    )
    pipeline = Pipeline(
        Sqlite(database),
        FileLake(lake),
        name="shop",
        options=seconds,
        listener=Saying(),
        journal=journal,
        storage_options=json.loads(options),
    )
    signal.signal(signal.SIGTERM, lambda *_: pipeline.stop())
    with pipeline:
        try:
            pipeline.run(standby=True)
        except HangError as error:
            print(f"hung: {error.message}", flush=True)
            for thread in [one for one in threading.enumerate() if one.name in ("lakefeed-capture", "lakefeed-lake")]:
                thread.join()
            print("came back", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
