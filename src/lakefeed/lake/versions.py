"""Versions: events of keys, in order of seq, as the versions of rows that they open and close. Spark expressions only.

An event is a change, or a version that the table has. Four passes over each key's events, all of them windows of one
partitioning and one order, so that rows are shuffled and sorted once:

  1 a column that a change did not carry gets the value of before
  2 which events *mark* the beginning of something: a version, or the time when the row did not exist
  3 when each mark takes effect: never before the one before it
  4 where the next one begins
Between two marks lies a *run*: the event that opens a version, then those written into it. Its last event has the
version's values.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from lakefeed.change.batch import OP, SEQ, TIME, Operation
from lakefeed.change.segment import Window
from lakefeed.lake.mode import Temporal
from lakefeed.lake.projection import CARRIED, incomplete_columns
from lakefeed.lake.shape import UNKNOWN_TIME
from lakefeed.lake.sparktype import quoted
from lakefeed.lake.upsert import refusal

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, WindowSpec

STORED = "_lakefeed_stored"
"""Is it a version that the table has?"""

_ALIVE = "_lakefeed_alive"  # does the row exist after this event?
_MARK = "_lakefeed_mark"  # does the event begin something?
_AT = "_lakefeed_at"  # since when what the last mark began is in effect
_RUN = "_lakefeed_run"  # the event that was the last mark: its seq, _ALIVE and STORED
_ENDS = "_lakefeed_ends"  # when the next event's run begins
_LAST = "_lakefeed_last"  # is it the last event of its run?


@dataclass(frozen=True, slots=True)
class Versions:
    """How the events of one window become versions. ``tracked`` are the columns whose changes open one."""

    window: Window
    mode: Temporal
    tracked: tuple[str, ...]

    def of_changes(self, changes: DataFrame) -> DataFrame:
        """Changes, truncates among them made deletes, as events."""
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
            *(F.lit(True).alias(flag) for flag in self._flags().values()),
            F.lit(True).alias(STORED),
            alive.alias(_ALIVE),
        )

    def rows(self, events: DataFrame, *, unchanged: bool = False) -> DataFrame:
        """New versions, and versions of the table that change (``STORED``), as rows of the table.

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
        from pyspark.sql import functions as F  # noqa: N812

        order = self._order()
        so_far = self._so_far()
        mark = F.col(_MARK)
        time = F.coalesce(F.col(TIME), F.expr(UNKNOWN_TIME))
        began = F.struct(F.col(SEQ), F.col(_ALIVE), F.col(STORED))
        marked = self._filled(events).withColumn(_MARK, self._marks())
        in_effect = marked.select(
            "*",
            F.max(F.when(mark, time)).over(so_far).alias(_AT),
            F.last(F.when(mark, began), ignorenulls=True).over(so_far).alias(_RUN),
        )
        return in_effect.select(
            "*",
            F.lead(F.col(_AT)).over(order).alias(_ENDS),
            F.coalesce(F.lead(mark).over(order), F.lit(True)).alias(_LAST),
        )

    def _filled(self, events: DataFrame) -> DataFrame:
        """The events with all columns. A row that was not there has no value from before: that stops the table."""
        from pyspark.sql import functions as F  # noqa: N812

        flags = self._flags()
        if not flags:
            return events
        must_be_whole = F.col(OP).isin(int(Operation.INSERT), int(Operation.READ)) | ~self._was_there()
        filled = {}
        for name, flag in flags.items():
            sent = F.when(F.col(flag) & F.col(_ALIVE), F.struct(F.col(quoted(name)).alias("v")))
            newest = F.last(sent, ignorenulls=True).over(self._so_far()).getField("v")
            refused = F.col(_ALIVE) & ~F.col(flag) & must_be_whole
            filled[name] = F.when(refused, F.expr(refusal(self.window, name))).otherwise(newest)
        return events.withColumns(filled)

    def _marks(self) -> Column:
        from pyspark.sql import functions as F  # noqa: N812

        was_there, alive = self._was_there(), F.col(_ALIVE)
        same: Column = F.lit(True)
        if self.tracked:
            values = F.struct(*(F.col(quoted(name)) for name in self.tracked))
            same = values.eqNullSafe(F.lag(values).over(self._order()))
        return F.col(STORED) | F.when(alive, ~was_there | ~same).otherwise(was_there)

    def _was_there(self) -> Column:
        from pyspark.sql import functions as F  # noqa: N812

        return F.coalesce(F.lag(F.col(_ALIVE)).over(self._order()), F.lit(False))

    def _order(self) -> WindowSpec:
        from pyspark.sql import Window as Over
        from pyspark.sql import functions as F  # noqa: N812

        return Over.partitionBy(*(F.col(quoted(name)) for name in self.window.target.key)).orderBy(SEQ)

    def _so_far(self) -> WindowSpec:
        from pyspark.sql import Window as Over

        return self._order().rowsBetween(Over.unboundedPreceding, Over.currentRow)

    def _own_columns(self) -> list[Column]:
        from pyspark.sql import functions as F  # noqa: N812

        return [F.col(quoted(name)) for name in self.window.target.names]

    def _flags(self) -> dict[str, str]:
        return {name: CARRIED + str(index) for index, name in enumerate(incomplete_columns(self.window))}
