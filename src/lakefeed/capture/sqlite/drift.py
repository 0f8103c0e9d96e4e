# ruff: noqa: S608 (names in SQL are quoted by database.quoted; values are bound)
"""How the capture of a table starts, and how it adapts when the schema is no longer the one its triggers were made for.

``follow_schema`` acts only if PRAGMA schema_version or the source's option ``before_images`` has changed. For each
captured table it decides, from the text of its own triggers and from the catalog:

| found                                        | done: new triggers, and                                             |
|----------------------------------------------|---------------------------------------------------------------------|
| triggers and table are gone, or the triggers | TableDropped for the old name; triggers removed                     |
| are on a table of another name               |                                                                     |
| table exists, a trigger is missing           | RecopyNeeded: the table was re-created; TableBlocked if it cannot   |
|                                              | be captured as it is now                                            |
| another key                                  | RecopyNeeded                                                        |
| columns added, dropped, renamed              | new schema announced; what was logged without a new column gets its |
|                                              | default, rows that may have changed since are logged again          |
| a new unique index, and rows logged since    | RecopyNeeded: REPLACE may have removed rows unnoticed               |
| rowid as key, no index, and VACUUM ran       | RecopyNeeded if its rowids can be those that VACUUM assigned        |
| nothing, but the last column may have been   | RecopyNeeded if no row disproves it: the catalog reads the same     |
| dropped and added again in the same words    |                                                                     |

Announcements are marks in the log, so that they are delivered in order, and again until they are confirmed. Tables are
scanned before the write lock is taken; the result of a scan counts if the schema is still the same then."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace

import pyarrow as pa

from lakefeed.capture.fit import MisfitError
from lakefeed.capture.sqlite.database import quoted, transaction
from lakefeed.capture.sqlite.installation import NOW, Captured, Meta, OwnTables, State, Trigger
from lakefeed.capture.sqlite.table import SourceColumn, SourceTable, read_table, schema_version
from lakefeed.capture.sqlite.values import arrow_type, text_form, to_arrow
from lakefeed.change.batch import Operation
from lakefeed.change.change_set import RecopyNeeded, TableBlocked, TableDropped
from lakefeed.change.table import Column, TableSchema
from lakefeed.errors import TableStoppedError

WIDEST = 1990  # SQLite allows 2000 columns in a table, and the log has a few of its own
_DROP_AND_ADD = 2  # schema changes that dropping and adding a column takes
_ALWAYS = frozenset({"ai", "au", "ad"})
_Suspicions = dict[str | None, str]
_IMAGES = f"op IN ({Operation.INSERT}, {Operation.UPDATE})"


def capture_table(own: OwnTables, source: SourceTable) -> Captured:
    """Capture a table from scratch under a new number, whatever existed for it before. Needs a write transaction. What
    existing rows hold is not known yet. TableStoppedError if the table cannot be captured."""
    problem, remedy = None, "Leave the table out."
    if not source.key and source.rowid is None:
        problem = "has no key, and its columns hide every name of the rowid"
        remedy = f"Declare a primary key on {source.name}, or leave the table out."
    elif len(source.columns) > WIDEST:
        problem = f"has {len(source.columns)} columns; a change log can hold {WIDEST}"
    if problem is not None:
        raise TableStoppedError(f"table {source.id} {problem}", table=str(source.id), remedy=remedy)
    number, schema = own.next_number(), source.schema()
    columns = tuple(replace(column, id=f"{number}.{slot}") for slot, column in enumerate(schema.columns))
    schema, slots, images = replace(schema, columns=columns), tuple(range(len(columns))), own.names.before_images
    made = Captured(number, schema, slots, len(slots), not source.key, source.sql, before_images=images, scanned=False)
    own.install_triggers(source, made)
    own.put_table(made)
    return made


def follow_schema(own: OwnTables, verified: int) -> Meta | None:
    """Adapt every capture to the current schema. Returns what is captured now; None if nothing ever was. ``verified``
    is the caller's own figure, see Meta."""
    while True:
        with transaction(own.connection, "DEFERRED"):
            meta, version = own.load(), schema_version(own.connection)
            if meta is None or meta.is_right(version, own.names):
                return meta
            verified = max(verified, meta.verified)
            many = version - meta.schema_version >= _DROP_AND_ADD  # each schema change increments it
            suspicions = {one.number: _scan(own, one, verified, readded=many) for one in meta.in_force}
        with transaction(own.connection, "IMMEDIATE"):
            meta = own.load()
            if meta is None or schema_version(own.connection) != version:
                continue
            installed = own.triggers()
            for one in meta.tables:
                logged = f"SELECT 1 FROM {own.names.log} WHERE tab = {one.number} LIMIT 1"
                if one.state is not State.DROPPED:
                    after = (meta.confirmed.sequence, verified)
                    _follow(own, one, after, installed.get(one.number, {}), suspicions.get(one.number, {}))
                elif own.execute(logged).fetchone() is None:
                    own.forget_table(one.number)
            own.put_verified()


def _scan(own: OwnTables, old: Captured, verified: int, *, readded: bool) -> _Suspicions:
    """Reasons to copy a table again that its rows do not disprove, by the column concerned (None: all columns). Rows
    that were not written since ``verified`` are unchanged, so they are evidence."""
    source = read_table(own.connection, old.table.name)
    if source is None or old.rowid_key != (not source.key) or len(old.key_slots) != len(source.sql_key):
        return {}  # it will be captured from scratch anyway
    suspicions: _Suspicions = {}
    table, key = quoted(source.name), ", ".join(source.sql_key)
    logged = f"{own.names.log} WHERE seq > {verified} AND tab = {old.number}"
    untouched = f"({key}) NOT IN (SELECT {', '.join(old.key_slots)} FROM {logged} AND {_IMAGES})"
    if source.renumbered_by_vacuum and own.was_vacuumed():
        # VACUUM assigns the rowids 1, 2, 3 …; a higher one than the rows that exist, plus those deleted since, is
        # older.
        query = f"SELECT count(*), max({key}) FILTER (WHERE {untouched}) FROM {table}"
        rows, highest = own.execute(query).fetchone()
        (deleted,) = own.execute(f"SELECT count(*) FROM {logged} AND op = {Operation.DELETE}").fetchone()
        if highest is not None and highest <= rows + deleted:
            suspicions[None] = "VACUUM may have renumbered the rows of this table, which has no key"
    last = source.columns[-1]
    if readded and not last.generated and last.name not in source.key:
        # A new column has its default in every such row. One row with another value disproves it, usually the first.
        rows = f"SELECT 1 FROM {table} WHERE {untouched}"
        is_set = f"{rows} AND {quoted(last.name)} IS NOT ({last.default or 'NULL'})"
        disproved, any_row = (own.execute(f"{query} LIMIT 1").fetchone() is not None for query in (is_set, rows))
        if any_row and not disproved:
            suspicions[last.name] = f"the column {last.name} may have been dropped and added again"
    return suspicions


def _follow(
    own: OwnTables, old: Captured, after: tuple[int, int], installed: dict[str, Trigger], suspicions: _Suspicions
) -> None:
    """Adapt one capture, in a write transaction. ``after``: the confirmed and the verified sequence."""
    source, again = read_table(own.connection, old.table.name), None
    if source is None or any(trigger.table != source.name for trigger in installed.values()):
        own.remove_triggers(old.number)
        own.put_table(replace(old, state=State.DROPPED))
        own.mark(notice=TableDropped(old.table))
        return
    names = installed["ai"].slot_names if "ai" in installed else {}
    if not _ALWAYS.issubset(installed):
        again = "the table was re-created, or its triggers were removed"
    elif source.key != (() if old.rowid_key else tuple(names.get(old.slot_of[name]) for name in old.schema.key)):
        again = "its key changed"
    if again is not None:
        own.remove_triggers(old.number)
        own.forget_table(old.number)
        try:
            captured = capture_table(own, source)
        except TableStoppedError as error:
            own.put_table(replace(old, state=State.BLOCKED))
            own.mark(notice=TableBlocked(old.table, error.message, error.remedy))
            return
    else:
        reshaped, added, notice = _reshaped(old, source, names)
        wanted = own.wanted_triggers(source, reshaped)
        captured = replace(reshaped, before_images=own.names.before_images)
        if wanted != installed or captured.before_images != old.before_images:
            own.install_triggers(source, captured)
        if captured != old:
            own.put_table(captured)
        if added:
            _fill_in(own, source, captured, added, after)
        finds, found = wanted.get("bi"), installed.get("bi")
        rows = f"SELECT 1 FROM {own.names.log} WHERE seq > {after[1]} AND tab = {old.number} AND {_IMAGES} LIMIT 1"
        if finds and (not found or finds.candidates != found.candidates) and own.execute(rows).fetchone():
            again = "rows changed after a unique index was created, and REPLACE may have removed some unnoticed"
        else:
            again = next((reason for column, reason in suspicions.items() if column not in added), None)
    if again is not None:
        notice = RecopyNeeded(old.table, again)
    schema = None if captured.schema == old.schema else captured.schema
    if schema or notice:
        own.mark(schema=schema, notice=notice)


def _fill_in(
    own: OwnTables, source: SourceTable, captured: Captured, added: Sequence[str], after: tuple[int, int]
) -> None:
    """Give the ``added`` columns to what was logged without them. Entries from before the addition that are not
    confirmed yet get the column's default, as if it had been there. (``verified`` cannot tell them: it is about the
    triggers, and may be ahead of what has been read.) Rows that were written while the triggers did not know the column
    are logged again, as they are now."""
    log = own.names.log
    unconfirmed, since = (f"seq > {sequence} AND tab = {captured.number}" for sequence in after)
    defaults = {name: captured.schema.column(name).default for name in added}
    filled = {f"c{captured.slot_of[name]} = ?": value for name, value in defaults.items() if value is not None}
    if filled:
        images = f"({_IMAGES} OR op = {Operation.BEFORE})"
        update = f"UPDATE {log} SET {', '.join(filled)} WHERE {unconfirmed} AND {images}"
        own.execute(update, tuple(filled.values()))
    # The before image of a row that is logged again lacks a value that is no longer known.
    own.execute(f"DELETE FROM {log} WHERE {since} AND op = {Operation.BEFORE}")
    rowid = source.sql_key if captured.rowid_key else ()
    slots = ", ".join(f"c{slot}" for slot in captured.slots)
    values = ", ".join(f"t.{name}" for name in [*rowid, *(quoted(column.name) for column in source.columns)])
    pairs = zip(source.sql_key, captured.key_slots, strict=True)
    same = " AND ".join(f"t.{name} = k.{slot}" for name, slot in pairs)
    changed = f"SELECT DISTINCT {', '.join(captured.key_slots)} FROM {log} WHERE {since} AND {_IMAGES}"
    own.execute(
        f"INSERT INTO {log} (tab, op, ts, {slots})"
        f" SELECT {captured.number}, {Operation.UPDATE}, {NOW}, {values}"
        f" FROM ({changed}) AS k JOIN {quoted(source.name)} AS t ON {same}"
    )


def _reshaped(
    old: Captured, source: SourceTable, names: Mapping[int, str]
) -> tuple[Captured, list[str], RecopyNeeded | None]:
    """The same capture for the table as it is now, the new columns, and a notice if delivered rows may be stale.
    ``names``: the current name of each slot's column."""
    # Columns are only ever appended, so one that precedes a column it used to follow was dropped and added again.
    slot_by_name = {names.get(slot, name): slot for name, slot in old.slot_of.items()}
    before = dict(zip(old.slots, old.schema.columns, strict=True))
    slots, columns = (list(old.slots[:1]), list(old.schema.columns[:1])) if old.rowid_key else ([], [])
    added: list[str] = []
    stale: dict[str, str] = {}
    last, next_slot = -1, old.next_slot
    for column in source.columns:
        slot = slot_by_name.get(column.name)
        if slot is not None and old.slots.index(slot) > last:
            last = old.slots.index(slot)
            columns.append(replace(before[slot], name=column.name))
        else:
            slot, next_slot = next_slot, next_slot + 1
            made, reason = _added(column)
            columns.append(replace(made, id=f"{old.number}.{slot}"))
            added.append(column.name)
            stale |= {column.name: reason} if reason else {}
        slots.append(slot)
    schema = TableSchema(old.table, tuple(columns), source.key or old.schema.key)
    captured = replace(old, schema=schema, slots=tuple(slots), next_slot=next_slot, sql=source.sql)
    if not _explained(old, captured, added):
        return captured, added, RecopyNeeded(old.table, "its definition changed in a way that cannot be followed")
    return captured, added, RecopyNeeded(old.table, next(iter(stale.values())), tuple(stale)) if stale else None


def _added(column: SourceColumn) -> tuple[Column, str | None]:
    """A column that ALTER TABLE ADD created, with the value that existing rows have in it, or why that is unknown."""
    plain = Column(column.name, arrow_type(column.declared), not column.not_null, column.declared)
    if column.generated:
        return plain, f"the new column {column.name} is computed, so existing rows have values in it"
    if column.default is None:
        return plain, None
    with closing(sqlite3.connect(":memory:")) as scratch:  # SQLite itself computes the default
        scratch.execute("CREATE TABLE t (a)")
        scratch.execute("INSERT INTO t VALUES (1)")
        scratch.execute(f"ALTER TABLE t ADD COLUMN c {column.declared} DEFAULT {column.default}")
        (value,) = scratch.execute("SELECT c FROM t").fetchone()
    try:
        value = to_arrow([value], plain.type)[0].as_py()
    except MisfitError:
        return replace(plain, type=pa.string(), default=text_form(value)), None
    if isinstance(value, bytes):
        return plain, f"the new column {column.name} has a blob as its default, so existing rows have values in it"
    return replace(plain, default=value), None


def _explained(old: Captured, new: Captured, added: list[str]) -> bool:
    """Whether the CREATE statement changed only as the recognised ALTERs change it. Catches, for example, a last column
    that was dropped and added again under its old name."""
    before = {slot: name for name, slot in old.slot_of.items()}
    dropped = len(set(old.slots) - set(new.slots))
    renamed = any(before.get(slot, name) != name for name, slot in new.slot_of.items())
    if renamed or dropped > 1 or (dropped and added):
        return True  # the texts cannot be compared; slots and order have shown what happened
    if not dropped and not added:
        return old.sql == new.sql
    short, long = (new.sql, old.sql) if dropped else (old.sql, new.sql)
    # One piece was inserted: from where the two differ, the rest of the short text ends the long one.
    parted = (at for at, (one, other) in enumerate(zip(short, long, strict=False)) if one != other)
    return long.endswith(short[next(parted, min(len(short), len(long))) :])
