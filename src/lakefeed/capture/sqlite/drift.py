# ruff: noqa: S608 (names in SQL are quoted by database.quoted; values are bound)
"""Schema drift: what the capture does when the source's schema is not the one its triggers were made for.

``follow_schema`` runs in one write transaction, and only after PRAGMA schema_version or the source's option
``before_images`` has changed. For each captured table it decides, from the text of its own triggers and from the
catalog:

| found                                        | done                                                                |
|----------------------------------------------|---------------------------------------------------------------------|
| triggers and table are gone                  | TableDropped                                                        |
| triggers are on a table of another name      | TableDropped for the old name; triggers removed                     |
| table is there, a trigger is missing         | new triggers, RecopyNeeded: the table was re-created;               |
|                                              | TableBlocked if it cannot be captured as it is now                  |
| another key                                  | new triggers, RecopyNeeded                                          |
| columns added, dropped, renamed              | new triggers, new schema announced; what was logged without a new   |
|                                              | column gets its default, and rows that may have been changed since  |
|                                              | the addition are logged again                                       |
| a unique index more, and rows logged since   | new triggers, RecopyNeeded: REPLACE may have removed rows unseen    |
| rowid as key, no index, and VACUUM ran       | RecopyNeeded if its rowids can be those that VACUUM gave            |

| nothing, but the last column may have been   | RecopyNeeded if no row disproves it: the catalog reads the same     |
| dropped and added again in the same words    |                                                                     |
| before images are wanted now, or no longer   | new triggers                                                        |

Announcements are marks in the log, so that they are delivered in order, and again if they were not confirmed.
"""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass, replace

from lakefeed.capture.sqlite.catalog import SourceTable, read_table
from lakefeed.capture.sqlite.database import quoted
from lakefeed.capture.sqlite.meta import (
    NOW,
    Captured,
    Meta,
    Names,
    State,
    add_mark,
    forget_table,
    next_number,
    put_table,
    put_verified,
    schema_version,
    was_vacuumed,
)
from lakefeed.capture.sqlite.shape import Reshaped, new_capture, reshape
from lakefeed.capture.sqlite.triggers import (
    Installed,
    install,
    looked_for,
    read_triggers,
    remove,
    slot_names,
    trigger_statements,
    triggers_of,
)
from lakefeed.change.batch import Operation
from lakefeed.change.change_set import RecopyNeeded, TableBlocked, TableDropped
from lakefeed.errors import TableStoppedError

_DROP_AND_ADD = 2  # schema changes
_ALWAYS = frozenset({"ai", "au", "ad"})
_IMAGES = f"({int(Operation.INSERT)}, {int(Operation.UPDATE)})"


def follow_schema(
    connection: sqlite3.Connection, names: Names, meta: Meta, verified: int, *, before_images: bool
) -> None:
    """Bring every capture in line with the schema as it is. ``verified``: see Meta."""
    triggers = read_triggers(connection, names)
    since = _Since(meta.confirmed.sequence, verified, schema_version(connection) - meta.schema_version)
    for captured in meta.tables:
        if captured.state is not State.DROPPED:
            one = _Table(connection, names, captured, since)
            one.follow(triggers_of(triggers, names, captured.number), before_images=before_images)
        elif not _has_rows(connection, names, captured.number):
            forget_table(connection, names, captured.number)
    put_verified(connection, names)


def recapture(connection: sqlite3.Connection, names: Names, source: SourceTable, *, before_images: bool) -> Captured:
    """Capture a table from scratch under a new number, whatever was there for it before."""
    captured = new_capture(source, next_number(connection, names), before_images=before_images)
    install(connection, names, source, captured)
    put_table(connection, names, captured)
    return captured


def _has_rows(connection: sqlite3.Connection, names: Names, number: int) -> bool:
    return connection.execute(f"SELECT 1 FROM {names.log} WHERE tab = ? LIMIT 1", (number,)).fetchone() is not None


@dataclass(frozen=True, slots=True)
class _Since:
    """From where in the log something may be: unread, or logged by triggers that were not right any more.

    ``steps``: schema changes since ``verified``, each counts one.
    """

    confirmed: int
    verified: int
    steps: int


class _Table:
    """One captured table and the log since then."""

    def __init__(self, connection: sqlite3.Connection, names: Names, captured: Captured, since: _Since) -> None:
        self._connection = connection
        self._names = names
        self._old = captured
        self._steps = since.steps
        self._unconfirmed = f"seq > {since.confirmed} AND tab = {captured.number}"
        self._since = f"seq > {since.verified} AND tab = {captured.number}"

    def follow(self, installed: dict[str, Installed], *, before_images: bool) -> None:
        source = read_table(self._connection, self._old.name)
        if source is None or any(trigger.table != source.name for trigger in installed.values()):
            self._dropped()
        elif not _ALWAYS.issubset(installed):
            reason = "the table was re-created, or its triggers were removed"
            self._from_scratch(source, reason, before_images=before_images)
        elif self._key_changed(source, installed):
            self._from_scratch(source, "its key changed", before_images=before_images)
        else:
            self._altered(source, installed, before_images=before_images)

    def _dropped(self) -> None:
        remove(self._connection, self._names, self._old.number)
        put_table(self._connection, self._names, self._old.with_state(State.DROPPED))
        add_mark(self._connection, self._names, notice=TableDropped(self._old.table))

    def _from_scratch(self, source: SourceTable, reason: str, *, before_images: bool) -> None:
        remove(self._connection, self._names, self._old.number)
        forget_table(self._connection, self._names, self._old.number)
        try:
            captured = recapture(self._connection, self._names, source, before_images=before_images)
        except TableStoppedError as error:
            put_table(self._connection, self._names, self._old.with_state(State.BLOCKED))
            notice = TableBlocked(self._old.table, error.message, error.remedy)
            add_mark(self._connection, self._names, notice=notice)
            return
        self._announce(captured, reason)

    def _key_changed(self, source: SourceTable, installed: dict[str, Installed]) -> bool:
        if self._old.rowid_key or not source.key:
            return self._old.rowid_key != (not source.key)
        current = slot_names(installed["ai"].sql)
        return tuple(current.get(slot) for slot in self._old.key_slots) != source.key

    def _altered(self, source: SourceTable, installed: dict[str, Installed], *, before_images: bool) -> None:
        new = reshape(self._old, source, slot_names(installed["ai"].sql))
        wanted = trigger_statements(self._names, source, new.captured)
        have = {event: trigger.sql for event, trigger in installed.items()}
        captured = replace(new.captured, before_images=before_images)
        if wanted != have or captured.before_images != self._old.before_images:
            install(self._connection, self._names, source, captured)
        if captured != self._old:
            put_table(self._connection, self._names, captured)
        self._fill_in(new)
        self._log_again(source, new)
        missed = self._missed(source, wanted, have) or self._readded(source, new)
        if missed is not None:
            self._announce(captured, missed)
        else:
            self._announce(captured, new.reason, new.doubted)

    def _missed(self, source: SourceTable, wanted: dict[str, str], have: dict[str, str]) -> str | None:
        """Why changes may have gone unseen since ``verified``, if they may."""
        finds, found = looked_for(wanted.get("bi")), looked_for(have.get("bi"))
        if finds is not None and finds != found and self._count(f"op IN {_IMAGES}"):
            return "rows changed after a unique index was made, and REPLACE may have removed some unseen"
        if source.renumbered_by_vacuum and was_vacuumed(self._connection, self._names) and self._dense(source):
            return "VACUUM may have renumbered the rows of this table, which has no key"
        return None

    def _readded(self, source: SourceTable, new: Reshaped) -> str | None:
        last = source.columns[-1].name
        if self._steps >= _DROP_AND_ADD and last not in new.added and self._may_be_readded(source):
            return f"the column {last} may have been dropped and added again"
        return None

    def _announce(self, captured: Captured, reason: str | None, columns: tuple[str, ...] | None = None) -> None:
        schema = None if captured.schema == self._old.schema else captured.schema
        notice = RecopyNeeded(captured.table, reason, columns) if reason else None
        if schema or notice:
            add_mark(self._connection, self._names, schema=schema, notice=notice)

    def _fill_in(self, new: Reshaped) -> None:
        """What was logged before a column was added and is not confirmed yet is read as if the column had been there.

        ``verified`` says nothing of that: it is about the triggers, and may be ahead of what has been read.
        """
        slot_of = new.captured.slot_of
        defaults = {name: new.captured.schema.column(name).default for name in new.added}
        filled = {f"c{slot_of[name]}": default for name, default in defaults.items() if default is not None}
        if filled:
            listed = ", ".join(f"{slot} = ?" for slot in filled)
            images = f"op IN ({int(Operation.INSERT)}, {int(Operation.UPDATE)}, {int(Operation.BEFORE)})"
            self._connection.execute(
                f"UPDATE {self._names.log} SET {listed} WHERE {self._unconfirmed} AND {images}", tuple(filled.values())
            )

    def _log_again(self, source: SourceTable, new: Reshaped) -> None:
        """Rows that were logged while the triggers did not know the added columns: their images as they are now."""
        if not new.added:
            return
        # An old row among them lacks a value that nobody can tell any more.
        self._connection.execute(f"DELETE FROM {self._names.log} WHERE {self._since} AND op = {int(Operation.BEFORE)}")
        captured = new.captured
        slots = ", ".join(f"c{slot}" for slot in captured.slots)
        rowid = source.rowid or ""
        key = [rowid] if captured.rowid_key else source.key
        own = [rowid] if captured.rowid_key else []
        values = ", ".join(f"t.{quoted(name)}" for name in [*own, *(column.name for column in source.columns)])
        keys = [f"c{slot}" for slot in captured.key_slots]
        same = " AND ".join(f"t.{quoted(name)} = k.{slot}" for name, slot in zip(key, keys, strict=True))
        changed = f"SELECT DISTINCT {', '.join(keys)} FROM {self._names.log} WHERE {self._since} AND op IN {_IMAGES}"
        self._connection.execute(
            f"INSERT INTO {self._names.log} (tab, op, ts, {slots})"
            f" SELECT {captured.number}, {int(Operation.UPDATE)}, {NOW}, {values}"
            f" FROM ({changed}) AS k JOIN {quoted(source.name)} AS t ON {same}"
        )

    def _count(self, condition: str) -> int:
        query = f"SELECT count(*) FROM {self._names.log} WHERE {self._since} AND {condition}"
        return int(self._connection.execute(query).fetchone()[0])

    def _may_be_readded(self, source: SourceTable) -> bool:
        """Whether the last column can be a new one of the same name.

        Then every row that was not written since has the default in it. A row that has not disproves it; most often
        the first one does.
        """
        last = source.columns[-1]
        if last.generated or last.name in source.key:
            return False
        key = ", ".join(quoted(name) for name in source.key or (source.rowid or "",))
        logged = ", ".join(f"c{slot}" for slot in self._old.key_slots)
        written = f"SELECT {logged} FROM {self._names.log} WHERE {self._since} AND op IN {_IMAGES}"
        untouched = f"SELECT 1 FROM {quoted(source.name)} WHERE ({key}) NOT IN ({written})"
        set_here = f"{untouched} AND {quoted(last.name)} IS NOT ({last.default or 'NULL'})"
        disproved, any_row = (
            self._connection.execute(f"{query} LIMIT 1").fetchone() is not None for query in (set_here, untouched)
        )
        return any_row and not disproved

    def _dense(self, source: SourceTable) -> bool:
        """Whether the rowids can be the 1, 2, 3 … that VACUUM gives, apart from what happened after it."""
        rowid, table = quoted(source.rowid or ""), quoted(source.name)
        logged = f"SELECT c{self._old.key_slots[0]} FROM {self._names.log} WHERE {self._since} AND op IN {_IMAGES}"
        rows, highest = self._connection.execute(
            f"SELECT count(*), max({rowid}) FILTER (WHERE {rowid} NOT IN ({logged})) FROM {table}"
        ).fetchone()
        return highest is not None and highest <= rows + self._count(f"op = {int(Operation.DELETE)}")
