"""Upkeep of a pipeline's lake tables, now and then, beside the syncs and never in their way.

It has a thread of its own and sessions of its own. Where a sync and an upkeep meet in one table, the format lets one
of the two commits in: an upkeep that loses is tried again the next time, a sync that loses is planned again at once.
Where syncs would always come first, small packings take a turn of their own (``UpkeepOptions.insists``).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping

from lakefeed.change.table import TableId
from lakefeed.flow.seed import Phase, SeedStore
from lakefeed.lake.base import TableFormat
from lakefeed.lake.outcome import first_line, is_conflict
from lakefeed.lake.upkeep import UpkeepOptions, UpkeepResult

log = logging.getLogger(__name__)

_LOOK_SECONDS = 30.0


def keep_up(
    seeds: SeedStore, tables: TableFormat, options: UpkeepOptions, over: Callable[[], bool] = lambda: False
) -> Mapping[TableId, UpkeepResult]:
    """Every live table once, one after the other. A table that fails does not hold up the others.

    ``over`` is asked before each table; once it is true, the rest waits for the next time.
    """
    found: dict[TableId, UpkeepResult] = {}
    for record in seeds.in_phase(Phase.LIVE):
        if over():
            break
        try:
            key = record.schema.key if record.schema is not None else ()
            found[record.table] = tables.table(record.route).upkeep(options, key)
        except Exception as error:  # noqa: BLE001  # upkeep is never worth stopping a pipeline for
            text = first_line(error)
            level = logging.INFO if is_conflict(error) else logging.WARNING
            log.log(level, "upkeep of %s did not succeed and is tried again later: %s", record.table, text)
            found[record.table] = UpkeepResult(error=text)
    return found


class UpkeepThread:
    """``keep_up`` every so many seconds until ``stop``, which waits for the table under way.

    In between it looks whether a table has got very many files or versions: with a commit a second that is a matter of
    minutes, and every one of them makes the next commit slower.
    """

    def __init__(self, seeds: SeedStore, tables: TableFormat, options: UpkeepOptions, every_seconds: float) -> None:
        self._seeds, self._tables, self._options = seeds, tables, options
        self._every = every_seconds
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lakefeed-upkeep", daemon=True)

    def start(self) -> None:
        if self._every > 0:
            self._thread.start()

    def stop(self) -> None:
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        next_whole = time.monotonic() + self._every
        while not self._over.wait(min(self._every, _LOOK_SECONDS)):
            whole = time.monotonic() >= next_whole
            if whole:
                next_whole = time.monotonic() + self._every
            options = self._options if whole else self._options.in_between()
            for table, result in keep_up(self._seeds, self._tables, options, self._over.is_set).items():
                if result.packed or result.removed:
                    log.info("upkeep of %s: %s", table, result)
