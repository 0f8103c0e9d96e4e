"""Comparisons beside a pipeline that this process runs: each lake table at an interval, the oldest result first.

One table at a time, at the rate in the options, in a thread of its own. Results are kept with the state, for ``status``
and the dashboard. Nothing that goes wrong here stops the pipeline.
"""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import replace
from types import TracebackType

from lakefeed.change.table import TableId
from lakefeed.flow.report.verified import load_verified
from lakefeed.flow.table_state import Phase, TableStates
from lakefeed.verify.pipeline import PipelineVerification

log = logging.getLogger(__name__)

_CHECK_SECONDS, _AGAIN_SECONDS = 1.0, 300.0
_STOP_SECONDS = 5.0


class BackgroundVerification:
    """Runs during a ``with`` block. At its end, a running comparison ends at its next step."""

    def __init__(self, work: PipelineVerification, every_seconds: float) -> None:
        self._over = threading.Event()
        self._work = replace(work, over=self._over.is_set)
        self._every = every_seconds
        self._tried: dict[TableId, float] = {}
        self._thread = threading.Thread(target=self._run, name="lakefeed-verify", daemon=True)

    def __enter__(self) -> BackgroundVerification:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join(_STOP_SECONDS)

    def due(self) -> TableId | None:
        """The live table whose last comparison, or last try, is the oldest and old enough. A new table is due after it
        has been live for that long: its copy was read from the source."""
        known = load_verified(self._work.state)
        live = TableStates(self._work.state).in_phase(Phase.LIVE)
        now, found = time.time(), list[tuple[float, TableId]]()
        for state in live:
            verified = known.get(state.table)
            due_at = max(verified.at if verified else 0.0, state.generation / 1000) + self._every
            due_at = max(due_at, self._tried.get(state.table, 0.0) + min(self._every, _AGAIN_SECONDS))
            if due_at <= now:
                found.append((due_at, state.table))
        return min(found, default=(0.0, None))[1]

    def _run(self) -> None:
        while not self._over.wait(_CHECK_SECONDS):
            try:
                table = self.due()
                if table is None or not self._work.is_run:
                    continue
                self._tried[table] = time.time()
                found = self._work.run(lambda _table: lambda _side, _rows: None, live=True, tables=[str(table)])
                for _, one in found.tables:
                    if not one.equal and not self._over.is_set():
                        log.warning("%s is not equal to its source: %s", one.table, one.differences[0])
            except Exception as error:  # noqa: BLE001  # a comparison must never stop a pipeline
                if not self._over.is_set():
                    log.warning("a comparison failed and is made again: %s", error)
