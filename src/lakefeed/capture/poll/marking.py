"""From a row to its mark, and from Arrow key values to those that a mark can keep."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakefeed.capture.dialect import key_value
from lakefeed.capture.poll.followed import Followed
from lakefeed.capture.poll.rule import NullPolicy
from lakefeed.capture.poll.stamp import Instants, StampError, instants, ordered, stored
from lakefeed.change.watermark import Mark
from lakefeed.errors import TableStoppedError


class Marking:
    """The times of rows, and the marks that they leave."""

    def __init__(self, followed: Followed) -> None:
        self._followed = followed

    def times(self, rows: pa.RecordBatch, *, expect_order: bool = True) -> Instants:
        """When each row changed last, in microseconds. TableStoppedError if the database's order is not the time's."""
        chosen = self._stored(rows)
        try:
            found = instants(chosen)
        except StampError as error:
            raise self._stopped(f"a value that says when a row changed cannot be read: {error}") from error
        times: Instants = pc.fill_null(found, 0).to_numpy(zero_copy_only=False).astype(np.int64)
        if expect_order and not ordered(times):
            raise self._stopped(
                f"the values of {self._followed.updated_at} are not written in one form, so that their order as stored "
                "is not the order of time"
            )
        return times

    @property
    def key(self) -> tuple[str, ...]:
        return self._followed.key

    def updated(self, rows: pa.RecordBatch) -> Any:
        return instants(rows.column(self._followed.updated_at))

    def created(self, rows: pa.RecordBatch) -> Any | None:
        name = self._followed.created_at
        if name is None:
            return None
        try:
            return instants(rows.column(name))
        except StampError as error:
            raise self._stopped(f"a value of {name} is no time: {error}") from error

    def mark(self, rows: pa.RecordBatch, place: int, before: Mark) -> Mark:
        """The mark of the row at ``place``, when ``rows`` are what follows ``before``."""
        row = rows.slice(place, 1)
        kind = self._followed.column(self._followed.updated_at).type
        value = self._stored(row)[0].as_py()
        key = tuple(key_value(row.column(name)[0].as_py()) for name in self._followed.key)
        instant = int(self.times(row)[0])
        ties = int(np.count_nonzero(self.times(rows.slice(0, place + 1)) == instant))
        passed = before.place if before.instant_us == instant else 0
        return Mark(instant, key, before.era, passed + ties, stored(kind, value))

    def _stored(self, rows: pa.RecordBatch) -> Any:
        """The value that orders each row: of the update, or of the soft delete if that is later."""
        followed = self._followed
        updated: Any = rows.column(followed.updated_at)
        if followed.rule.null_updated_at is NullPolicy.CREATED_AT and followed.created_at is not None:
            updated = pc.coalesce(updated, rows.column(followed.created_at).cast(updated.type))
        if followed.soft_time is None:
            return updated
        deleted: Any = rows.column(followed.soft_time).cast(updated.type)
        later = pc.fill_null(pc.greater(deleted, updated), pc.and_(pc.is_null(updated), pc.is_valid(deleted)))
        return pc.if_else(later, deleted, updated)

    def _stopped(self, problem: str) -> TableStoppedError:
        table = self._followed.id
        return TableStoppedError(
            f"{table}: {problem}", table=str(table), remedy="Correct the values in the source, then sync again."
        )
