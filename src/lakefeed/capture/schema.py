"""DeliveredSchemas: what tables were last delivered as, what a change of shape means, and when a finding is due.

The same for every log source. A shape is stated twice: by the log, right before a row of it, and by the catalog, beside
the log and ahead of it. What the catalog shows waits until the stream has passed the moment of that reading: rows from
before it come first, and if they report the change themselves, nothing is left to report.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar

from lakefeed.capture.log import Announced, SchemaFacts
from lakefeed.change.change_set import RecopyNeeded, TableBlocked, TableDropped, TableNotice
from lakefeed.change.position import Position
from lakefeed.change.schema_change import AddColumn, diff
from lakefeed.change.table import TableId, TableSchema

P = TypeVar("P", bound=Position)

CREATED_AGAIN = "the table was dropped and created again"


@dataclass(frozen=True, slots=True)
class Delivered:
    """What a table was last delivered as. ``life`` is another one after DROP and CREATE (an oid, a table id)."""

    life: int
    schema: TableSchema


@dataclass(frozen=True, slots=True)
class Stated:
    """A table as the log or the catalog states it now.

    ``refusal``: why it cannot be captured any more, and the statement that repairs it. ``stale_reason``: why any row
    that was delivered before may hold something else now. ``not_known``: of columns, by id, why nobody can tell without
    reading them what existing rows hold there; a column that is not named has its default, or NULL. ``altered``: of
    columns that were delivered before, by id, why existing rows may hold other values there now. A schema without a
    fingerprint has the one that was known before.
    """

    life: int
    schema: TableSchema
    refusal: tuple[str, str] | None = None
    stale_reason: str | None = None
    not_known: Mapping[str, str] = field(default_factory=dict)
    altered: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Due(Generic[P]):
    """``reported``: where the change set ended that had the notice; None if it was not handed out yet."""

    at: P
    notice: TableNotice
    reported: P | None = None


@dataclass(frozen=True, slots=True)
class _Observed(Generic[P]):
    at: P
    before: Delivered
    stated: Stated


class DeliveredSchemas(SchemaFacts[P]):
    """The SchemaFacts of a log that does not announce every change. Outlives reconnects. Any thread."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._known: dict[TableId, Delivered] = {}
        self._settled: dict[TableId, Delivered] = {}
        self._due: dict[TableId, _Due[P]] = {}
        self._reported: dict[TableId, _Due[P]] = {}
        self._observed: dict[TableId, _Observed[P]] = {}

    def known(self, table: TableId) -> Delivered | None:
        return self._known.get(table)

    def learn(self, table: TableId, life: int, schema: TableSchema) -> None:
        """A table as it is when it is prepared or copied, or was delivered by an earlier process: what is stated next
        is compared with this."""
        with self._lock:
            self._known[table] = self._settled[table] = Delivered(life, schema)

    def deliver(self, life: int, schema: TableSchema) -> None:
        """The stream delivers a table with this schema from now on."""
        with self._lock:
            self._known[schema.table] = Delivered(life, schema)

    def begin(self, table: TableId) -> None:
        """It is copied from now on: nothing of before is to be reported about it."""
        with self._lock:
            for found in (self._due, self._reported, self._observed):
                found.pop(table, None)

    def change(self, stated: Stated) -> tuple[TableSchema, Announced]:
        """Take in a table as it is stated. Returns the schema to deliver it with, and what to report beside it."""
        with self._lock:
            table = stated.schema.table
            before = self._known.get(table)
            renamed: list[TableId] = []
            if before is None or before.life != stated.life:
                renamed = [name for name, one in self._known.items() if one.life == stated.life]
            for name in renamed:
                del self._known[name]
            dropped: tuple[TableNotice, ...] = tuple(map(TableDropped, renamed))
            if before is None:
                self._known[table] = Delivered(stated.life, stated.schema)
                return stated.schema, Announced(notices=dropped)
            schema = _with_known_defaults(before.schema, stated.schema)
            self._known[table] = Delivered(stated.life, schema)
            if before.life != stated.life:
                return schema, Announced((schema,), (*dropped, RecopyNeeded(table, CREATED_AGAIN)))
            if before.schema.same_shape(schema) and stated.refusal is None:
                return schema, Announced(notices=dropped)
            notice = _judge(before.schema, schema, stated)
            return schema, Announced((schema,), (*dropped, *((notice,) if notice is not None else ())))

    def later(self, at: P, notice: TableDropped | RecopyNeeded) -> None:
        """Report ``notice`` once the stream has reached ``at``."""
        with self._lock:
            self._due[notice.table] = _Due(at, notice)

    def is_due_later(self, table: TableId) -> bool:
        return table in self._due

    def observe(self, stated: Iterable[Stated], now: Callable[[], P]) -> None:
        """All captured tables as the catalog states them. ``now`` is a position behind that reading."""
        with self._lock:
            earlier, self._observed, at = self._observed, {}, None
            for one in stated:
                table = one.schema.table
                before = self._known.get(table)
                if before is None or table in self._due:
                    continue
                same_life = one.refusal is None and before.life == one.life
                if same_life and before.schema.same_shape(_with_known_defaults(before.schema, one.schema)):
                    continue
                old = earlier.get(table)
                if old is None or (old.before, old.stated) != (before, one):
                    at = at or now()
                    old = _Observed(at, before, one)
                self._observed[table] = old

    def is_captured(self, table: TableId) -> bool:
        return table in self._known

    def due(self, reached: P) -> Sequence[Announced]:
        if not (self._due or self._observed):
            return ()
        found = []
        with self._lock:
            for table, due in list(self._due.items()):
                if reached >= due.at:
                    self._reported[table] = replace(self._due.pop(table), reported=None)
                    if isinstance(due.notice, TableDropped):
                        self._known.pop(table, None)
                    found.append(Announced(notices=(due.notice,)))
            for table, observed in list(self._observed.items()):
                if reached >= observed.at:
                    del self._observed[table]
                    if self._known.get(table) == observed.before:  # else a row has reported it meanwhile
                        _, announced = self.change(observed.stated)
                        if any(isinstance(notice, TableBlocked) for notice in announced.notices):
                            del self._known[table]  # it is not delivered any more: nothing is compared with it
                        found.append(announced)
        return found

    def delivered(self, position: P) -> None:
        with self._lock:
            self._settled = dict(self._known)
            self._reported = {
                table: replace(one, reported=one.reported or position) for table, one in self._reported.items()
            }

    def rewind(self, position: P) -> None:
        """What was not handed out before must be reported again.

        Also what was handed out at ``position`` itself: a change set of notices alone moves no position, so that nobody
        can tell whether it became durable.
        """
        with self._lock:
            self._known = dict(self._settled)
            again = {
                table: one for table, one in self._reported.items() if one.reported is None or one.reported >= position
            }
            self._due, self._reported = {**again, **self._due}, {}


def _with_known_defaults(before: TableSchema, after: TableSchema) -> TableSchema:
    """``after`` with the defaults of columns that are known already: what rows from before the column read as was
    settled when it was added; a catalog forgets it when the table is rewritten."""
    was = {column.id: column.default for column in before.columns}
    columns = tuple(replace(one, default=was[one.id]) if one.id in was else one for one in after.columns)
    return replace(after, columns=columns, fingerprint=after.fingerprint or before.fingerprint)


def _judge(before: TableSchema, after: TableSchema, stated: Stated) -> RecopyNeeded | TableBlocked | None:
    """What has to be reported beside the new schema; None if the lake can follow it as it is."""
    if stated.refusal is not None:
        return TableBlocked(after.table, *stated.refusal)
    reasons: list[tuple[str, str | None]] = []  # and in which column; None for the key
    was = {column.id: column for column in before.columns}
    renamed = {column.name: was[column.id].name for column in after.columns if column.id in was}
    if tuple(renamed.get(name) for name in after.key) != before.key:
        reasons.append((f"its key changed from ({', '.join(before.key)}) to ({', '.join(after.key)})", None))
    for column in after.columns:
        old = was.get(column.id)
        if old is None:
            continue
        # Existing values may print otherwise now. A longer varchar does not rewrite anything.
        bases = {text.partition("(")[0] for text in (old.source_type, column.source_type)}
        if old.type != column.type or len(bases) > 1:
            reason = f"the type of {column.name} changed from {old.source_type} to {column.source_type}"
            if old.source_type == column.source_type:
                reason = f"source.text_columns says otherwise than before about {column.name}"
            reasons.append((reason, column.name))
        elif (altered := stated.altered.get(column.id or "")) is not None:
            reasons.append((altered, column.name))
    added = [change.column for change in diff(before, after) if isinstance(change, AddColumn)]
    unknown = {**stated.altered, **stated.not_known}
    unread = [(unknown.get(one.id or ""), one.name) for one in added if one.default is None]
    reasons += [(reason, name) for reason, name in unread if reason is not None]
    if stated.stale_reason is not None:  # any row may differ
        return RecopyNeeded(after.table, reasons[0][0] if reasons else stated.stale_reason)
    if not reasons:
        return None
    return RecopyNeeded(after.table, reasons[0][0], tuple(column for _, column in reasons if column is not None))
