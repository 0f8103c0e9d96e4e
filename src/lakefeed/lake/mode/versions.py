"""Versions: turns the events of each key, in order of seq, into versions of rows. Spark expressions only.

An event is a change, or a version that the table has. Four passes over each key's events. All are window functions with
one partitioning and one order, so Spark shuffles and sorts the rows once:

  1 a column that a change did not carry gets the value from before
  2 which events *start* something: a version, or the time when the row does not exist
  3 when each start takes effect: never before the start before it
  4 where the next one begins
From one start to the next goes a *run*: the event that opens a version, then those that change it. Its last event has
the version's values.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lakefeed.change.batch import OP, SEQ, TIME, Operation
from lakefeed.change.segment import Window
from lakefeed.lake.mode.base import UNKNOWN_TIME, Interval
from lakefeed.lake.mode.upsert import refusal
from lakefeed.lake.spark.type import quoted
from lakefeed.lake.window import incomplete_columns

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

STORED = "_lakefeed_stored"
"""Is it a version that the table has?"""

_ALIVE = "_lakefeed_alive"  # does the row exist after this event?
_STARTS = "_lakefeed_starts"  # does the event start a run?
_AT = "_lakefeed_at"  # when the last start took effect
_RUN = "_lakefeed_run"  # the event that started the run: its seq, _ALIVE and STORED
_ENDS = "_lakefeed_ends"  # when the next event's run begins
_LAST = "_lakefeed_last"  # is it the last event of its run?


@dataclass(frozen=True, slots=True)
class Versions:
    """Turns the events of one window into versions. ``tracked`` are the columns whose changes open one."""

    window: Window
    mode: Interval
    tracked: tuple[str, ...]

    def of_changes(self, changes: DataFrame) -> DataFrame:
        """Changes as events. Truncates have become deletes before."""
        from pyspark.sql import functions as F  # noqa: N812

        alive = F.col(OP) != int(Operation.DELETE)
        return changes.select("*", F.lit(False).alias(STORED), alive.alias(_ALIVE))

    def of_table(self, stored: DataFrame) -> DataFrame:
        """Versions of the table as events: an open one exists since its opening, a closed one is gone since its end."""
        from pyspark.sql import functions as F  # noqa: N812

        alive = F.col(quoted(self.mode.is_current))
        since = F.when(alive, F.col(quoted(self.mode.valid_from))).otherwise(F.col(quoted(self.mode.valid_to)))
        return stored.select(
            *self._own_columns(),
            F.lit(int(Operation.READ)).cast("tinyint").alias(OP),
            F.col(SEQ),
            since.alias(TIME),
            *(F.lit(True).alias(flag) for flag in incomplete_columns(self.window).values()),
            F.lit(True).alias(STORED),
            alive.alias(_ALIVE),
        )

    def rows(self, events: DataFrame, *, unchanged: bool = False) -> DataFrame:
        """New versions, and the table's versions that change (``STORED``), as rows of the table.

        With ``unchanged`` also the current versions that stay as they are.
        """
        from pyspark.sql import functions as F  # noqa: N812

        untouched = F.col(STORED) & F.col(_ENDS).isNull()
        run = F.col(_RUN)
        versions = self._runs(events).where(F.col(_LAST) & run.getField(_ALIVE))
        versions = versions if unchanged else versions.where(~untouched)
        return versions.select(
            *self._own_columns(),
            F.col(_AT).alias(self.mode.valid_from),
            F.col(_ENDS).alias(self.mode.valid_to),
            F.col(_ENDS).isNull().alias(self.mode.is_current),
            run.getField(SEQ).alias(SEQ),
            run.getField(STORED).alias(STORED),
        )

    def _runs(self, events: DataFrame) -> DataFrame:
        """The four passes: see the module."""
        from pyspark.sql import Window as Over
        from pyspark.sql import functions as F  # noqa: N812

        order = Over.partitionBy(*(F.col(quoted(name)) for name in self.window.target.key)).orderBy(SEQ)
        so_far = order.rowsBetween(Over.unboundedPreceding, Over.currentRow)
        alive = F.col(_ALIVE)
        was_there = F.coalesce(F.lag(alive).over(order), F.lit(False))

        # 1 A row that did not exist has no value from before: that stops the table.
        must_be_whole = F.col(OP).isin(int(Operation.INSERT), int(Operation.READ)) | ~was_there
        filled = {}
        for name, flag in incomplete_columns(self.window).items():
            sent = F.when(F.col(flag) & alive, F.struct(F.col(quoted(name)).alias("v")))
            newest = F.last(sent, ignorenulls=True).over(so_far).getField("v")
            refused = alive & ~F.col(flag) & must_be_whole
            filled[name] = F.when(refused, F.expr(refusal(self.window, name))).otherwise(newest)
        whole = events.withColumns(filled) if filled else events

        same: Column = F.lit(True)
        if self.tracked:
            values = F.struct(*(F.col(quoted(name)) for name in self.tracked))
            same = values.eqNullSafe(F.lag(values).over(order))
        starting = F.col(STORED) | F.when(alive, ~was_there | ~same).otherwise(was_there)
        started = whole.withColumn(_STARTS, starting)  # 2

        starts = F.col(_STARTS)
        time = F.coalesce(F.col(TIME), F.expr(UNKNOWN_TIME))
        began = F.struct(F.col(SEQ), alive, F.col(STORED))
        in_effect = started.select(  # 3
            "*",
            F.max(F.when(starts, time)).over(so_far).alias(_AT),
            F.last(F.when(starts, began), ignorenulls=True).over(so_far).alias(_RUN),
        )
        return in_effect.select(  # 4
            "*",
            F.lead(F.col(_AT)).over(order).alias(_ENDS),
            F.coalesce(F.lead(starts).over(order), F.lit(True)).alias(_LAST),
        )

    def _own_columns(self) -> list[Column]:
        from pyspark.sql import functions as F  # noqa: N812

        return [F.col(quoted(name)) for name in self.window.target.names]
