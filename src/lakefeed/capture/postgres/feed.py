"""ChangeFeed: where change sets come from right now, catch-up windows while far behind or the replication stream."""

from __future__ import annotations

from collections import OrderedDict

from lakefeed.capture.postgres.assemble import Assembler, Batches, Resolved
from lakefeed.capture.postgres.catchup import CatchUp, Window
from lakefeed.capture.postgres.database import Connection, Database
from lakefeed.capture.postgres.names import Names
from lakefeed.capture.postgres.slot import read_slot
from lakefeed.capture.postgres.stream import ChangeStream, Limits
from lakefeed.capture.postgres.walsender import Walsender
from lakefeed.change.change_set import ChangeSet
from lakefeed.change.lsn import PostgresLsn
from lakefeed.change.table import TableId

_TIMES = 1000


class ChangeFeed:
    """Belongs to one thread at a time. One assembler goes through both ways, so that there is no gap between them."""

    def __init__(
        self,
        database: Database,
        names: Names,
        connection: Connection,
        assembler: Assembler,
        limits: Limits,
        window: Window,
    ) -> None:
        self._database = database
        self._names = names
        self._connection = connection
        self._assembler = assembler
        self._limits = limits
        self._stream: ChangeStream | None = None
        self._catch_up: CatchUp | None = CatchUp(
            database, connection, names, assembler, backlog=limits.catch_up_bytes, window=window
        )
        self._times: OrderedDict[int, float] = OrderedDict()

    @property
    def position(self) -> PostgresLsn:
        return self._assembler.position

    @property
    def reached(self) -> PostgresLsn:
        return self._assembler.reached

    @property
    def is_empty(self) -> bool:
        """Everything that was taken in has been handed out."""
        return self._assembler.is_empty

    def tell(self, found: Resolved) -> None:
        """Say something about a table with the next change set."""
        self._assembler.tell(found)

    def unblock(self, table: TableId) -> None:
        self._assembler.blocked.discard(table)

    def next(self, wait_seconds: float) -> ChangeSet:
        change_set = self._next(wait_seconds)
        if isinstance(change_set.batches, Batches) and change_set.batches.transactions.times:
            self._times[change_set.end.value] = change_set.batches.transactions.times[-1] / 1e6  # type: ignore[attr-defined]
            if len(self._times) > _TIMES:
                self._times.popitem(last=False)
        return change_set

    def time_of(self, position: PostgresLsn) -> float | None:
        """When the last transaction up to a position that was handed out was committed, by the source's clock."""
        return self._times.get(position.value)

    def confirm(self, position: PostgresLsn) -> bool:
        """Tell the server through the stream. False if there is none right now."""
        if self._stream is None:
            return False
        self._stream.walsender.confirm(position)
        return True

    def close(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.close()

    def _next(self, wait_seconds: float) -> ChangeSet:
        if self._catch_up is not None:
            change_set = self._catch_up.next()
            if change_set is not None:
                return change_set
            self._catch_up = None
        if self._stream is None:
            slot = read_slot(self._connection, self._names.slot)
            confirmed = slot.confirmed if slot is not None else PostgresLsn(0)
            walsender = Walsender(self._database, self._names, self.position, confirmed)
            self._stream = ChangeStream(walsender, self._assembler, self._connection, self._limits)
        return self._stream.next(wait_seconds)
