"""Maintenance of a pipeline's lake tables from time to time, beside the syncs and never in their way.

It has its own thread and sessions. If a sync and maintenance meet in one table, the format accepts one of the two
commits: maintenance that loses is tried again the next time, a sync that loses is planned again at once. If syncs would
always come first, small packings get a turn of their own (``MaintenanceOptions.insists``).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from datetime import UTC, datetime

from lakefeed.change.table import TableId
from lakefeed.flow.table_state import Phase, TableState, TableStates
from lakefeed.journal.layout import Layout
from lakefeed.journal.pin import open_pins
from lakefeed.lake.base import TableFormat
from lakefeed.lake.maintenance import MaintenanceOptions, MaintenanceResult
from lakefeed.lake.spark.error import first_line, is_conflict

log = logging.getLogger(__name__)

_CHECK_SECONDS = 30.0
_ALL_VERSIONS = 2**31


def maintain_tables(
    states: TableStates,
    tables: TableFormat,
    options: MaintenanceOptions,
    over: Callable[[], bool] = lambda: False,
    *,
    but: Collection[TableId] = (),
) -> Mapping[TableId, MaintenanceResult]:
    """Maintain every live table once, one after the other. A table that fails does not stop the others.

    ``over`` is asked before each table; once it is true, the rest waits for the next time. While a reader has a pin,
    versions of tables that could be read when it was made stay, too. Those that are stored as one of ``but`` are left.
    """
    if pins := open_pins(states.root.below(Layout.pins)):
        hours = max((datetime.now(UTC) - pin.made_at).total_seconds() for pin in pins) / 3600
        kept = options.keep_hours + hours if options.keep_hours is not None else None
        options = replace(options, keep_hours=kept, keep_versions=_ALL_VERSIONS)
    found: dict[TableId, MaintenanceResult] = {}
    done = set(but)  # the parts of a union are stored as one
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

    In between it checks whether a table has very many files or versions: with a commit a second that is a matter of
    minutes, and every one of them makes the next commit slower. ``recorded`` says which change set a table's newest
    commit has, None if that is not known: a table that has had none since it was last in order is not checked.
    """

    def __init__(
        self,
        states: TableStates,
        tables: TableFormat,
        options: MaintenanceOptions,
        every_seconds: float,
        recorded: Callable[[TableState], int | None] = lambda _: None,
    ) -> None:
        self._states, self._tables, self._options = states, tables, options
        self._every = every_seconds
        self._recorded = recorded
        self._in_order: dict[TableId, list[int | None]] = {}  # by where it is stored: what its parts recorded then
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
            recorded: dict[TableId, list[int | None]] = {}
            stored: dict[TableId, TableId] = {}
            for state in self._states.in_phase(Phase.LIVE):
                stored[state.table] = state.route.stored
                recorded.setdefault(state.route.stored, []).append(self._recorded(state))
            idle = {
                one for one, numbers in recorded.items() if None not in numbers and self._in_order.get(one) == numbers
            }
            found = maintain_tables(self._states, self._tables, options, self._over.is_set, but=() if whole else idle)
            for table, result in found.items():
                if result.packed or result.removed:
                    log.info("maintenance of %s: %s", table, result)
                if table in stored and not (result.packed or result.removed or result.error):
                    self._in_order[stored[table]] = recorded[stored[table]]
