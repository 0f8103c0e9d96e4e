"""DeliveredSchemas: the schemas that tables were last delivered with, what a change means, and when to report it.

Every log source uses it. A schema is stated twice: by the log, right before a row with it, and by the catalog, beside
the log and ahead of it. What the catalog states waits until the stream has passed the moment of that reading: earlier
rows are delivered first, and if they report the change themselves, nothing remains to be reported."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from lakefeed.capture.log import Announced, P, SchemaFacts
from lakefeed.change.change_set import RecopyNeeded, TableBlocked, TableDropped, TableNotice
from lakefeed.change.schema_change import AddColumn, diff
from lakefeed.change.table import OutOfRange, TableId, TableSchema


@dataclass(frozen=True, slots=True)
class Stated:
    """A table as the log or the catalog states it, or as it was last delivered.

    ``life`` changes with DROP and CREATE (an oid, a table id). ``refusal``: why the table cannot be captured any more,
    and the statement that repairs it. ``stale_reason``: why any row delivered earlier may have changed since. By column
    id, ``not_known``: why only reading them tells what existing rows hold in this column (in a column without an entry
    they hold its default, or NULL); ``altered``: why existing rows may now hold other values in this column than were
    delivered. A schema without a fingerprint inherits the one known before."""

    life: int
    schema: TableSchema
    refusal: tuple[str, str] | None = None
    stale_reason: str | None = None
    not_known: Mapping[str, str] = field(default_factory=dict)
    altered: Mapping[str, str] = field(default_factory=dict)


class DeliveredSchemas(SchemaFacts[P]):
    """The SchemaFacts of a log that does not announce every change. Survives reconnects. Any thread may call it."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._known: dict[TableId, Stated] = {}
        self._settled: dict[TableId, Stated] = {}
        self._due: dict[TableId, tuple[P, TableNotice]] = {}  # with the position from which on it is due
        self._reported: dict[TableId, tuple[P, TableNotice, P | None]] = {}  # and the end of its change set, once known
        self._observed: dict[TableId, tuple[P, Stated, Stated]] = {}  # the delivered state, then the catalog's

    def known(self, table: TableId) -> Stated | None:
        return self._known.get(table)

    def learn(self, table: TableId, life: int, schema: TableSchema) -> None:
        """Compare later statements with this schema, which is being copied now or was delivered by another process."""
        with self._lock:
            self._known[table] = self._settled[table] = Stated(life, schema)

    def deliver(self, life: int, schema: TableSchema) -> None:
        """From now on the stream delivers a table with this schema."""
        with self._lock:
            self._known[schema.table] = Stated(life, schema)

    def begin(self, table: TableId) -> None:
        """A copy of the table starts: drop everything that was still to be reported about it."""
        with self._lock:
            for found in (self._due, self._reported, self._observed):
                found.pop(table, None)

    def change(self, stated: Stated) -> tuple[TableSchema, Announced]:
        """Take in a statement. Returns the schema to deliver the table with, and what to report along with it."""
        with self._lock:
            table, schema = stated.schema.table, stated.schema
            before = self._known.get(table)
            notices: list[TableNotice] = []
            if before is None or before.life != stated.life:
                for name in [name for name, one in self._known.items() if one.life == stated.life]:
                    del self._known[name]  # the same table under its old name
                    notices.append(TableDropped(name))
            if before is not None:
                schema = _with_known_defaults(before.schema, schema)
            self._known[table] = Stated(stated.life, schema)
            if before is None or not _differs(before, stated):
                return schema, Announced(notices=tuple(notices))
            notice = _judge(before, schema, stated)
            return schema, Announced((schema,), (*notices, *([notice] if notice is not None else [])))

    def later(self, at: P, notice: TableDropped | RecopyNeeded) -> None:
        """Report ``notice`` once the stream has reached ``at``."""
        with self._lock:
            self._due[notice.table] = (at, notice)

    def is_due_later(self, table: TableId) -> bool:
        return table in self._due

    def all_known(self) -> Mapping[TableId, Stated]:
        with self._lock:
            return dict(self._known)

    def observe(self, stated: Iterable[Stated], known: Mapping[TableId, Stated], now: Callable[[], P]) -> None:
        """Take in the catalog's statements about all captured tables. ``known`` is the result of ``all_known`` before
        that reading; ``now`` returns a position after it. Where rows have reported another schema since, the reading is
        out of date and is ignored.
        """
        with self._lock:
            earlier, self._observed, at = self._observed, {}, None
            for one in stated:
                table = one.schema.table
                before = self._known.get(table)
                if before is None or before != known.get(table) or table in self._due or not _differs(before, one):
                    continue
                old = earlier.get(table)
                if old is None or old[1:] != (before, one):
                    at = at or now()
                    old = (at, before, one)
                self._observed[table] = old

    def is_captured(self, table: TableId) -> bool:
        return table in self._known

    def due(self, reached: P) -> Sequence[Announced]:
        if not (self._due or self._observed):
            return ()
        found = []
        with self._lock:
            for table, (at, notice) in list(self._due.items()):
                if reached >= at:
                    del self._due[table]
                    self._reported[table] = (at, notice, None)
                    if isinstance(notice, TableDropped):
                        self._known.pop(table, None)
                    found.append(Announced(notices=(notice,)))
            for table, (at, before, stated) in list(self._observed.items()):
                if reached >= at:
                    del self._observed[table]
                    if self._known.get(table) == before:  # otherwise a row has reported it meanwhile
                        _, announced = self.change(stated)
                        if any(isinstance(notice, TableBlocked) for notice in announced.notices):
                            del self._known[table]  # no longer delivered, so nothing is to be compared with it
                        found.append(announced)
        return found

    def delivered(self, position: P) -> None:
        with self._lock:
            self._settled = dict(self._known)
            for table, (at, notice, end) in self._reported.items():
                self._reported[table] = (at, notice, end or position)

    def rewind(self, position: P) -> None:
        """Make everything due again that was not handed out before ``position``. That includes what was handed out at
        ``position`` itself: a change set with notices only does not move the position, so nobody can tell whether it
        became durable."""
        with self._lock:
            self._known = dict(self._settled)
            for table, (at, notice, end) in self._reported.items():
                if end is None or end >= position:
                    self._due.setdefault(table, (at, notice))
            self._reported = {}


def _with_known_defaults(before: TableSchema, after: TableSchema) -> TableSchema:
    """``after`` with the defaults of the columns known already. What older rows hold in a column was settled when the
    column was added; a catalog forgets it when the table is rewritten."""
    was = {column.id: column.default for column in before.columns}
    columns = tuple(replace(one, default=was[one.id]) if one.id in was else one for one in after.columns)
    return replace(after, columns=columns, fingerprint=after.fingerprint or before.fingerprint)


def _differs(before: Stated, now: Stated) -> bool:
    if now.refusal is not None or now.life != before.life:
        return True
    return not before.schema.same_shape(_with_known_defaults(before.schema, now.schema))


def _judge(delivered: Stated, after: TableSchema, stated: Stated) -> RecopyNeeded | TableBlocked | None:
    """What to report along with the new schema ``after``; None if the lake can adopt it without a notice."""
    before = delivered.schema
    if delivered.life != stated.life:
        return RecopyNeeded(after.table, "the table was dropped and created again")
    if stated.refusal is not None:
        return TableBlocked(after.table, *stated.refusal)
    reasons: list[tuple[str, str | None]] = []  # with the column concerned; None for the key
    was = {column.id: column for column in before.columns}
    kept = [(was[column.id], column) for column in after.columns if column.id in was]
    renamed = {column.name: old.name for old, column in kept}
    if tuple(renamed.get(name) for name in after.key) != before.key:
        reasons.append((f"its key changed from ({', '.join(before.key)}) to ({', '.join(after.key)})", None))
    for old, column in kept:
        # Existing values may print differently now. A longer varchar rewrites nothing.
        bases = {text.partition("(")[0] for text in (old.source_type, column.source_type)}
        if old.type != column.type or len(bases) > 1:
            reason = f"the type of {column.name} changed from {old.source_type} to {column.source_type}"
            if old.source_type == column.source_type:
                reason = f"the configuration gives {column.name} another type than before"
            reasons.append((reason, column.name))
        elif old.out_of_range not in (column.out_of_range, OutOfRange.STOP):
            # Under STOP no delivered row had a value that a rule applies to.
            reason = f"the configuration has another out_of_range for {column.name} than before"
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
