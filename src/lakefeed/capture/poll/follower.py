"""Follower: one table, from poll to poll. Its state belongs to one thread at a time, which need not be the same one."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from lakefeed.capture.dialect import Dialect, Horizon, Session
from lakefeed.capture.fit import MisfitError
from lakefeed.capture.poll.event import Events
from lakefeed.capture.poll.findings import FindingsDirectory, looked_up
from lakefeed.capture.poll.followed import Followed
from lakefeed.capture.poll.query import Queries
from lakefeed.capture.poll.reading import Cursor, count_without_time, read_changes, went_back
from lakefeed.capture.poll.rule import NullPolicy
from lakefeed.capture.poll.window import without
from lakefeed.change.change_set import RecopyNeeded, TableNotice
from lakefeed.change.table import TableId
from lakefeed.change.watermark import Mark
from lakefeed.errors import TableStoppedError

log = logging.getLogger(__name__)

_COUNT_SECONDS = 60.0
"""How often rows without a time are counted: it may need a scan."""


@dataclass(frozen=True, slots=True)
class Step:
    """What one poll of one table came to, and where the table stands behind it."""

    mark: Mark
    found: Mark | None
    events: tuple[Events, ...] = ()
    notices: tuple[TableNotice, ...] = ()
    misfit: str | None = None


class Follower:
    """``mark`` and ``found`` are what the position says of the table: the rows, and the findings, delivered so far."""

    def __init__(self, connector: Dialect, followed: Followed, findings: Path | None) -> None:
        self._connector = connector
        self._findings = FindingsDirectory(findings, followed.id) if findings is not None else None
        self._counted_at: float | None = None
        self._without_time = 0
        self.followed = followed
        self.cursor = Cursor()
        self.found: Mark | None = None

    @property
    def id(self) -> TableId:
        return self.followed.id

    def seek(self, mark: Mark, found: Mark | None) -> None:
        """Go on from a position. What was delivered after it and is not settled yet is delivered again."""
        self.cursor, self.found = Cursor(mark), found

    def poll(self, session: Session, horizon: Horizon) -> Step:
        """Read once, and move on."""
        self.refuse_timeless(session)
        if went_back(horizon, self.cursor.mark):
            return self._new_era(horizon)
        try:
            reading = read_changes(self._connector, session, self.followed, self.cursor, horizon)
            suspects = self._look_up(session, horizon) if not reading.is_full else ()
        except MisfitError as error:
            return self._step(misfit=error.column)
        fresh = reading.cursor.fresh
        for events in suspects:
            fresh = without(fresh, events.rows, self.followed.key)
        self.cursor = replace(reading.cursor, fresh=fresh)
        own = (reading.events,) if reading.events is not None else ()
        return self._step(events=(*own, *suspects))

    def refuse_timeless(self, session: Session) -> None:
        """Count the rows that no poll would find, now and then; TableStoppedError if the rule does not allow them."""
        if not self._may_be_timeless() or not self._is_time_to_count():
            return
        count = count_without_time(self._connector, session, self.followed)
        self._counted_at = time.monotonic()
        known, self._without_time = self._without_time, count
        if count and self.followed.rule.null_updated_at is not NullPolicy.IGNORE:
            raise self._timeless(count)
        if count and count != known:
            log.warning("%s: %d rows have no %s; their changes are not seen", self.id, count, self.followed.updated_at)

    def is_filled(self, session: Session, column: str) -> bool:
        """Whether a row that has been delivered has a value in ``column``."""
        schema = pa.schema([pa.field("n", pa.int64())])
        query = Queries(self._connector, self.followed).filled(column, self.cursor.mark)
        return any(batch.num_rows for batch in session.read(query, schema))

    def forget(self, confirmed: Mark) -> None:
        """The findings up to ``confirmed`` are durable elsewhere."""
        if self._findings is not None:
            self._findings.forget(confirmed)

    def _step(self, **found: Any) -> Step:
        return Step(self.cursor.mark, self.found, **found)

    def _look_up(self, session: Session, horizon: Horizon) -> tuple[Events, ...]:
        found = self._findings.next(self.found) if self._findings is not None else None
        if found is None:
            return ()
        events = looked_up(self._connector, session, self.followed, found.keys, horizon.now_us)
        self.found = found.mark
        return tuple(events)

    def _new_era(self, horizon: Horizon) -> Step:
        """The source's clock went back: rows that are written now lie behind the mark. All are read again."""
        was = self.cursor.mark
        self.cursor = Cursor(Mark.start(was.era + 1))
        seconds = (was.instant_us - horizon.now_us) / 1e6
        reason = f"the source's clock went back by {seconds:.0f} s or more, so that rows may lie behind the watermark"
        return self._step(notices=(RecopyNeeded(self.id, reason),))

    def _may_be_timeless(self) -> bool:
        key_nullable = any(self.followed.table.schema.column(name).nullable for name in self.followed.key)
        return self.followed.nullable_stamp or key_nullable

    def _is_time_to_count(self) -> bool:
        return self._counted_at is None or time.monotonic() - self._counted_at > _COUNT_SECONDS

    def _timeless(self, count: int) -> TableStoppedError:
        followed = self.followed
        names = ", ".join((followed.updated_at, *followed.key))
        return TableStoppedError(
            f"{followed.id}: {count} rows have NULL in {names}, and would never be seen",
            table=str(followed.id),
            remedy=f"Give them values, or set null_updated_at to created_at or ignore in the rule of {followed.id}.",
        )
