# ruff: noqa: S608 (names in SQL are quoted by database.quoted; values are bound)
"""Schema drift: what the capture does when the source's schema is not the one its triggers were made for.

``follow_schema`` acts only after PRAGMA schema_version or the source's option ``before_images`` has changed. For each
captured table it decides, from the text of its own triggers and from the catalog:

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

Announcements are marks in the log, so that they are delivered in order, and again if they were not confirmed. Tables
are scanned before the write lock is taken; what the scan has shown counts if the schema is the same then.
"""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass, replace

from lakefeed.capture.sqlite.catalog import SourceTable, read_table
from lakefeed.capture.sqlite.database import quoted, transaction
from lakefeed.capture.sqlite.meta import (
    NOW,
    Captured,
    Meta,
    Names,
    State,
    add_mark,
    forget_table,
    load_meta,
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
_IMAGES = f"op IN ({int(Operation.INSERT)}, {int(Operation.UPDATE)})"


def follow_schema(connection: sqlite3.Connection, names: Names, verified: int, *, before_images: bool) -> Meta | None:
    """Bring every capture in line with the schema as it is. Returns what is captured now; None if nothing ever was.

    ``verified`` is what the caller knows of it, see Meta.
    """
    while True:
        with transaction(connection, "DEFERRED"):
            meta, version = load_meta(connection, names), schema_version(connection)
            if meta is None or meta.is_right(version, before_images=before_images):
                return meta
            verified = max(verified, meta.verified)
            steps = version - meta.schema_version  # each schema change counts one
            scanned = {
                one.number: _scan(connection, names, one, verified, readded=steps >= _DROP_AND_ADD)
                for one in meta.tables
                if one.state is not State.DROPPED
            }
        with transaction(connection, "IMMEDIATE"):
            meta = load_meta(connection, names)
            if meta is None or schema_version(connection) != version:
                continue
            triggers = read_triggers(connection, names)
            for captured in meta.tables:
                if captured.state is not State.DROPPED:
                    one = _Table(connection, names, captured, meta.confirmed.sequence, verified)
                    found = triggers_of(triggers, names, captured.number)
                    one.follow(found, scanned.get(captured.number, _Scanned()), before_images=before_images)
                else:
                    rows = f"SELECT 1 FROM {names.log} WHERE tab = ? LIMIT 1"
                    if connection.execute(rows, (captured.number,)).fetchone() is None:
                        forget_table(connection, names, captured.number)
            put_verified(connection, names)


def recapture(connection: sqlite3.Connection, names: Names, source: SourceTable, *, before_images: bool) -> Captured:
    """Capture a table from scratch under a new number, whatever was there for it before. In a write transaction."""
    captured = new_capture(source, next_number(connection, names), before_images=before_images)
    install(connection, names, source, captured)
    put_table(connection, names, captured)
    return captured


@dataclass(frozen=True, slots=True)
class _Scanned:
    """What the rows of a table allow: that its last column is a new one of the same name, that VACUUM numbered them."""

    readded: bool = False
    renumbered: bool = False


def _scan(connection: sqlite3.Connection, names: Names, old: Captured, verified: int, *, readded: bool) -> _Scanned:
    """Rows that were not written since ``verified`` are what they were: they tell what happened to the table."""
    source = read_table(connection, old.name)
    if source is None or old.rowid_key != (not source.key) or len(old.key_slots) != len(source.key or (source.rowid,)):
        return _Scanned()  # it is captured from scratch anyway
    table, rowid = quoted(source.name), quoted(source.rowid or "")
    logged = f"{names.log} WHERE seq > {verified} AND tab = {old.number}"
    written = f"SELECT {', '.join(f'c{slot}' for slot in old.key_slots)} FROM {logged} AND {_IMAGES}"
    last = source.columns[-1]
    if readded and not last.generated and last.name not in source.key:
        # A new column has its default in every such row. A row that has not disproves it; mostly the first one does.
        key = ", ".join(quoted(name) for name in source.key or (source.rowid or "",))
        untouched = f"SELECT 1 FROM {table} WHERE ({key}) NOT IN ({written})"
        set_here = f"{untouched} AND {quoted(last.name)} IS NOT ({last.default or 'NULL'})"
        disproved, any_row = (
            connection.execute(f"{query} LIMIT 1").fetchone() is not None for query in (set_here, untouched)
        )
        readded = any_row and not disproved
    else:
        readded = False
    renumbered = False
    if source.renumbered_by_vacuum and was_vacuumed(connection, names):
        # VACUUM gives the rowids 1, 2, 3 …; what is not below the number of rows, with those deleted since, is older.
        rows, highest = connection.execute(
            f"SELECT count(*), max({rowid}) FILTER (WHERE {rowid} NOT IN ({written})) FROM {table}"
        ).fetchone()
        deleted = f"SELECT count(*) FROM {logged} AND op = {int(Operation.DELETE)}"
        renumbered = highest is not None and highest <= rows + connection.execute(deleted).fetchone()[0]
    return _Scanned(readded, renumbered)


class _Table:
    """One captured table, in a write transaction, with what was logged of it: all that is not confirmed, and what was
    logged by triggers that may not have been right any more (after ``verified``)."""

    def __init__(
        self, connection: sqlite3.Connection, names: Names, captured: Captured, confirmed: int, verified: int
    ) -> None:
        self._connection = connection
        self._names = names
        self._old = captured
        self._unconfirmed = f"seq > {confirmed} AND tab = {captured.number}"
        self._since = f"seq > {verified} AND tab = {captured.number}"

    def follow(self, installed: dict[str, Installed], scanned: _Scanned, *, before_images: bool) -> None:
        old = self._old
        source = read_table(self._connection, old.name)
        if source is None or any(trigger.table != source.name for trigger in installed.values()):
            remove(self._connection, self._names, old.number)
            put_table(self._connection, self._names, old.with_state(State.DROPPED))
            add_mark(self._connection, self._names, notice=TableDropped(old.table))
            return
        if not _ALWAYS.issubset(installed):
            reason = "the table was re-created, or its triggers were removed"
            self._from_scratch(source, reason, before_images=before_images)
            return
        current = slot_names(installed["ai"].sql)
        key = () if old.rowid_key else tuple(current.get(slot) for slot in old.key_slots)
        if key != source.key:
            self._from_scratch(source, "its key changed", before_images=before_images)
            return
        new = reshape(old, source, current)
        wanted = trigger_statements(self._names, source, new.captured)
        have = {event: trigger.sql for event, trigger in installed.items()}
        captured = replace(new.captured, before_images=before_images)
        if wanted != have or captured.before_images != old.before_images:
            install(self._connection, self._names, source, captured)
        if captured != old:
            put_table(self._connection, self._names, captured)
        if new.added:
            self._fill_in(source, new)
        finds, found = looked_for(wanted.get("bi")), looked_for(have.get("bi"))
        rows = f"SELECT 1 FROM {self._names.log} WHERE {self._since} AND {_IMAGES} LIMIT 1"
        last = source.columns[-1].name
        if finds is not None and finds != found and self._connection.execute(rows).fetchone():
            reason = "rows changed after a unique index was made, and REPLACE may have removed some unseen"
            self._announce(captured, reason)
        elif scanned.renumbered:
            self._announce(captured, "VACUUM may have renumbered the rows of this table, which has no key")
        elif scanned.readded and last not in new.added:
            self._announce(captured, f"the column {last} may have been dropped and added again")
        else:
            self._announce(captured, new.reason, new.doubted)

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

    def _announce(self, captured: Captured, reason: str | None, columns: tuple[str, ...] | None = None) -> None:
        schema = None if captured.schema == self._old.schema else captured.schema
        notice = RecopyNeeded(captured.table, reason, columns) if reason else None
        if schema or notice:
            add_mark(self._connection, self._names, schema=schema, notice=notice)

    def _fill_in(self, source: SourceTable, new: Reshaped) -> None:
        """Give the added columns to what was logged without them.

        What was logged before the addition and is not confirmed yet is read as if the column had been there, with its
        default. (``verified`` says nothing of that: it is about the triggers, and may be ahead of what has been read.)
        Rows that were written while the triggers did not know the column are logged again, as they are now.
        """
        captured, log = new.captured, self._names.log
        defaults = {name: captured.schema.column(name).default for name in new.added}
        filled = {f"c{captured.slot_of[name]}": value for name, value in defaults.items() if value is not None}
        if filled:
            listed = ", ".join(f"{slot} = ?" for slot in filled)
            images = f"op IN ({int(Operation.INSERT)}, {int(Operation.UPDATE)}, {int(Operation.BEFORE)})"
            update = f"UPDATE {log} SET {listed} WHERE {self._unconfirmed} AND {images}"
            self._connection.execute(update, tuple(filled.values()))
        # An old row among those that are logged again lacks a value that nobody knows any more.
        self._connection.execute(f"DELETE FROM {log} WHERE {self._since} AND op = {int(Operation.BEFORE)}")
        own = [source.rowid or ""] if captured.rowid_key else []
        slots = ", ".join(f"c{slot}" for slot in captured.slots)
        values = ", ".join(f"t.{quoted(name)}" for name in [*own, *(column.name for column in source.columns)])
        keys = [f"c{slot}" for slot in captured.key_slots]
        same = " AND ".join(f"t.{quoted(name)} = k.{slot}" for name, slot in zip(own or source.key, keys, strict=True))
        changed = f"SELECT DISTINCT {', '.join(keys)} FROM {log} WHERE {self._since} AND {_IMAGES}"
        self._connection.execute(
            f"INSERT INTO {log} (tab, op, ts, {slots})"
            f" SELECT {captured.number}, {int(Operation.UPDATE)}, {NOW}, {values}"
            f" FROM ({changed}) AS k JOIN {quoted(source.name)} AS t ON {same}"
        )
