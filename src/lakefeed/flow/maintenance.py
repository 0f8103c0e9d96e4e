"""Maintenance of a pipeline's lake tables from time to time, beside the syncs and never in their way.

It has its own thread and sessions. If a sync and maintenance meet in one table, the format accepts one of the two
commits: maintenance that loses is tried again the next time, a sync that loses is planned again at once. If syncs would
always come first, small packings get a turn of their own (``MaintenanceOptions.insists``).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime

from lakefeed.change.table import TableId
from lakefeed.flow.table_state import Phase, TableStates
from lakefeed.journal.layout import Layout
from lakefeed.journal.pin import open_pins
from lakefeed.lake.base import TableFormat
from lakefeed.lake.maintenance import MaintenanceOptions, MaintenanceResult
from lakefeed.lake.spark.error import first_line, is_conflict

log = logging.getLogger(__name__)

_CHECK_SECONDS = 30.0
_ALL_VERSIONS = 2**31


def maintain_tables(
    states: TableStates, tables: TableFormat, options: MaintenanceOptions, over: Callable[[], bool] = lambda: False
) -> Mapping[TableId, MaintenanceResult]:
    """Maintain every live table once, one after the other. A table that fails does not stop the others.

    ``over`` is checked before each table; once it is true, the rest is left to the next time. While a reader has a pin,
    table versions that could be read when it was made stay, too.
    """
    if pins := open_pins(states.root.below(Layout.pins)):
        hours = max((datetime.now(UTC) - pin.made_at).total_seconds() for pin in pins) / 3600
        kept = options.keep_hours + hours if options.keep_hours is not None else None
        options = replace(options, keep_hours=kept, keep_versions=_ALL_VERSIONS)
    found: dict[TableId, MaintenanceResult] = {}
    done: set[TableId] = set()  # the parts of a union are stored as one
    for state in states.in_phase(Phase.LIVE):
        if over():
            break
        if state.route.stored in done:
            continue
        done.add(state.route.stored)
        try:
            key = state.schema.key if state.schema is not None else ()
            found[state.table] = tables.table(state.route).maintain(options, key)
        except Exception as error:  # noqa: BLE001  # maintenance must never stop a pipeline
            text = first_line(error)
            level = logging.INFO if is_conflict(error) else logging.WARNING
            log.log(level, "maintenance of %s did not succeed and is tried again later: %s", state.table, text)
            found[state.table] = MaintenanceResult(error=text)
    return found


class MaintenanceThread:
    """Runs ``maintain_tables`` at this interval until ``stop``.

    In between it checks whether a table has very many files or versions: at one commit per second that takes only
    minutes, and each of them slows down the next commit.
    """

    def __init__(
        self, states: TableStates, tables: TableFormat, options: MaintenanceOptions, every_seconds: float
    ) -> None:
        self._states, self._tables, self._options = states, tables, options
        self._every = every_seconds
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lakefeed-maintenance", daemon=True)

    def start(self) -> None:
        if self._every > 0:
            self._thread.start()

    def stop(self, seconds: float | None = None) -> bool:
        """End after the current table. Waits for that up to ``seconds``; returns whether it has ended."""
        self._over.set()
        if self._thread.is_alive():
            self._thread.join(seconds)
        return not self._thread.is_alive()

    def _run(self) -> None:
        next_whole = time.monotonic() + self._every
        while not self._over.wait(min(self._every, _CHECK_SECONDS)):
            whole = time.monotonic() >= next_whole
            if whole:
                next_whole = time.monotonic() + self._every
            options = self._options if whole else self._options.in_between()
            for table, result in maintain_tables(self._states, self._tables, options, self._over.is_set).items():
                if result.packed or result.removed:
                    log.info("maintenance of %s: %s", table, result)
