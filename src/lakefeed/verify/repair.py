"""Repair one lake table: find the rows that differ, have them read again, and check whether they are equal then.

  1 compare   the table, beside whoever runs the pipeline (``verify.live``)
  2 ask       the process with the lease to read these rows from the source and write them through the journal
              (``flow.reread.repair``); bounded
  3 wait      until the lake table itself has that change set; bounded
  4 compare   those rows again
If no process runs the pipeline, the caller runs it meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from lakefeed.errors import LakefeedError, StateError
from lakefeed.flow.reread.repair import RepairAnswer, answer, ask
from lakefeed.journal.journal import Journal
from lakefeed.verify.compare import Comparison, Progress
from lakefeed.verify.live import LiveTable, MovedOnError, NotComparedError

_WAIT_SECONDS = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Repaired:
    """``found`` is the comparison before. ``left`` rows still differ; None if nothing was repaired or compared."""

    found: Comparison
    answer: RepairAnswer | None = None
    left: int | None = None
    seconds: float = 0.0

    @property
    def is_equal(self) -> bool:
        """Whether every row is now what the source has, as far as it was compared."""
        return self.found.equal or (self.left == 0 and self.is_repairable)

    @property
    def is_repairable(self) -> bool:
        """Whether only rows differed, and the key of each of them is known."""
        return self.found.only_rows and len(self.found.keys) >= self.found.differing


def repair_table(
    table: LiveTable, progress: Progress, told: Callable[[str], None], found: Comparison | None = None
) -> Repaired:
    """Steps 1 to 4. ``found`` is a comparison made just before; ``told`` gets lines for people."""
    started = time.monotonic()
    found = found if found is not None else table.compare(progress)  # 1
    if not found.keys:
        return Repaired(found=found, seconds=time.monotonic() - started)
    told(f"{table.record.table}: {len(found.keys):,} rows are read again from the source")
    head = Journal.read(table.state).head
    name = ask(table.state, table.record.source, found.keys, head)  # 2
    until = time.monotonic() + _WAIT_SECONDS
    while (done := answer(table.state, name)) is None:
        if time.monotonic() > until:
            raise StateError(
                f"the repair of {table.record.table} was not carried out within {_WAIT_SECONDS:.0f} s",
                remedy="See `lakefeed status`; the request stays, and is carried out when the pipeline goes on.",
            )
        time.sleep(0.1)
    if done.error is not None:
        raise LakefeedError(f"the repair of {table.record.table} failed: {done.error}", remedy=done.remedy)
    if not done.change_sets:
        return Repaired(found=found, answer=done, left=done.moved, seconds=time.monotonic() - started)
    lake_table, last = table.tables.table(table.record.route), max(done.change_sets)
    while (applied := lake_table.applied(table.record.generation)) is None or applied.number < last:  # 3
        if time.monotonic() > until:
            raise StateError(
                f"lake table {table.record.table} did not get change set {last} within {_WAIT_SECONDS:.0f} s",
                remedy="See `lakefeed status`.",
            )
        time.sleep(0.2)
    try:
        left, _ = table.compare_keys(found.keys)  # 4
    except (NotComparedError, MovedOnError) as error:
        told(f"{table.record.table}: the repaired rows were not compared again: {error}")
        return Repaired(found=found, answer=done, seconds=time.monotonic() - started)
    return Repaired(found=found, answer=done, left=left, seconds=time.monotonic() - started)
