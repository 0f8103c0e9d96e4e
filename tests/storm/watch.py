"""The watcher: at every moment, does the application wait for us, does the process live, do live tables stay fresh."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable
from typing import Any

from tests.storm.database import ConnectionLostError, Database, StatementError, Wait
from tests.storm.lake import read
from tests.storm.pipeline import Pipeline

WAIT_SECONDS = 2.0
_EVERY_SECONDS = 0.1

Report = Callable[[str, str], None]


class LockWatcher(threading.Thread):
    """Samples who waits for whom. A wait for us that lasts longer than two seconds is reported once."""

    def __init__(self, database: Database, report: Report) -> None:
        super().__init__(name="watcher", daemon=True)
        self._database = database
        self._report = report
        self._ended = threading.Event()
        self.longest = 0.0

    def run(self) -> None:
        since: dict[tuple[str, str], float] = {}
        reported: set[tuple[str, str]] = set()
        while not self._ended.wait(_EVERY_SECONDS):
            try:
                waits: list[Wait] = self._database.waits()
            except ConnectionLostError:
                waits = []
            now = time.monotonic()
            since = {(wait.session, wait.statement): since.get((wait.session, wait.statement), now) for wait in waits}
            reported &= since.keys()
            for wait in waits:
                key = (wait.session, wait.statement)
                waited = now - since[key]
                self.longest = max(self.longest, waited)
                if waited > WAIT_SECONDS and key not in reported:
                    reported.add(key)
                    self._report("application waits", f"{wait.session}: {wait.statement} | for {wait.blocker}")

    def end(self) -> None:
        self._ended.set()
        self.join()


class Heartbeat(threading.Thread):
    """Inserts a row every second and reports when the lake does not get it within the bound.

    The bound counts from the last start of the process or the server where that is later.
    """

    def __init__(
        self, database: Database, pipeline: Pipeline, lake_format: str, bound_seconds: float, report: Report
    ) -> None:
        super().__init__(name="heartbeat", daemon=True)
        self._database = database
        self._pipeline = pipeline
        self._format = lake_format
        self._bound = bound_seconds
        self._report = report
        self._ended = threading.Event()
        self._unseen: dict[int, float] = {}
        self.number = 0
        self.newest = 0
        """The newest heartbeat that is in the lake."""
        self.delays: list[float] = []

    def run(self) -> None:
        late = False
        while not self._ended.wait(1.0):
            self._beat()
            self._observe()
            now = time.monotonic()
            oldest = max(min(self._unseen.values(), default=now), self._pipeline.started_at)
            if now - oldest <= self._bound:
                late = False
            elif not late:
                late = True
                status = self._pipeline.status()
                self._report("not fresh", f"{len(self._unseen)} heartbeats not in the lake after {self._bound:.0f} s; "
                             f"status: {status.get('verdict')}, {status.get('reason')}")  # fmt: skip

    def _beat(self) -> None:
        started = time.monotonic()
        try:
            self._database.beat(self.number + 1)
        except ConnectionLostError:
            return
        except StatementError as error:
            if error.ours:
                self._report("application fails", f"heartbeat: {error}")
            self.number += 1  # it may be there: the next one has another number
            return
        self.number += 1
        self._unseen[self.number] = started

    def _observe(self) -> None:
        path = self._pipeline.lake / self._database.lake_folder() / "heartbeat"
        try:
            table = read(self._format, path, ["id"])
        except Exception as error:  # noqa: BLE001 a reader may meet a table that is being replaced; the next one counts
            print(f"heartbeat: {error}")
            return
        now = time.monotonic()
        there: set[Any] = set() if table is None else set(table["id"].to_pylist())
        self.newest = max(there, default=0)
        for number in self._unseen.keys() & there:
            self.delays.append(now - self._unseen.pop(number))

    def distribution(self) -> str:
        if len(self.delays) < 2:
            return "no heartbeat arrived"
        cuts = statistics.quantiles(self.delays, n=100, method="inclusive")
        return f"median {cuts[49]:.1f} s, 90 % {cuts[89]:.1f} s, 99 % {cuts[98]:.1f} s, most {max(self.delays):.1f} s"

    def end(self) -> None:
        self._ended.set()
        self.join()
