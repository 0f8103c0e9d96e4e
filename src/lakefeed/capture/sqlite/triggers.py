# ruff: noqa: S608 (names in SQL are quoted by database.quoted; values are bound)
"""The triggers of one captured table, as SQL.

Five facts of SQLite shape them.

1. A trigger that says NEW."a" makes SQLite refuse ALTER TABLE … DROP COLUMN a. So only key columns, which cannot be
   dropped, are named that way; the others are read back from the table, each by a scalar subquery, inside a scope
   that has a NULL of every name. When a column is dropped, its name falls through to that NULL. When it is renamed,
   SQLite itself rewrites the name in the subquery, and ``slot_names`` reads there what a slot's column is called now.
   (Measured for a row of six columns: this form costs the writer 6.2 µs, NEW. 3.9 µs, one look-up for all columns
   with UPDATE … FROM 11 µs. All triggers together: about 5 µs of CPU for an insert or update, 2 µs for a delete.)
2. The user's own triggers may fire before these. What is logged is therefore checked against the table as it is at
   that moment: no image of a row that is gone, no delete of a key that is there again.
3. REPLACE removes rows that conflict in another unique index, and fires no delete triggers (unless the writer has
   recursive_triggers on). Where there are such indexes, a BEFORE trigger logs the keys of conflicting rows as
   candidates; the AFTER trigger turns those that are gone into deletes, ahead of the new row. Candidates of an INSERT
   that was then ignored stay behind for a while; readers skip them, and the row's own trigger removes them. A row that
   is found through two indexes is a candidate twice and a delete once. Since such an index's columns have to be named
   with NEW., they can be dropped only after the index is dropped *and* the capture has noticed that. In a BEFORE
   trigger NEW. is not what will be stored: a rowid that is not given is -1 there, and a NULL that REPLACE makes the
   column's default is still NULL.
4. 'a' and 'A' may be one key by the column's collation, 1 and 1.0 by value: a key has changed if its bytes or its
   type have.
5. Fact 1 holds for OLD. as well, and in an AFTER trigger the old row is in the table no more. So where before images
   are asked for, a BEFORE trigger logs the row while it is there (OLD_ROW), and the AFTER trigger turns the newest one
   of that key into a before image, at the end of the log if something was logged in between (a cascade, a user's
   trigger, a row that REPLACE removed). One whose statement was then ignored stays behind; readers skip it.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass

from lakefeed.capture.sqlite.catalog import SourceTable, default_value
from lakefeed.capture.sqlite.database import quoted
from lakefeed.capture.sqlite.meta import CANDIDATE, EVENTS, NOW, OLD_ROW, Captured, Names
from lakefeed.change.batch import Operation

# Candidates that nobody has resolved may belong to a statement around this one (a user's trigger on the same table),
# so the newest few are left for it; older ones are of INSERTs that were ignored.
_CANDIDATES_KEPT = 16
_VICTIM = "_lakefeed_victim"  # an alias that no table of the user has
_FOUND = re.compile(r"/\*<\*/(.*?)/\*>\*/", re.DOTALL)
_FIXED_COLUMNS = 4  # of the log: seq, tab, op, ts
_SLOT = re.compile(r"""/\*(\d+)\*/(?:\(SELECT |NEW\.)"((?:[^"]|"")*)\"""")


@dataclass(frozen=True, slots=True)
class Installed:
    """A trigger that is there: on which table, with which text."""

    table: str
    sql: str


def read_triggers(connection: sqlite3.Connection, names: Names) -> dict[str, Installed]:
    """This pipeline's triggers, by name."""
    rows = connection.execute("SELECT name, tbl_name, sql FROM sqlite_master WHERE type = 'trigger'").fetchall()
    return {name: Installed(table, sql) for name, table, sql in rows if names.is_trigger(name)}


def triggers_of(triggers: Mapping[str, Installed], names: Names, number: int) -> dict[str, Installed]:
    """Those of one captured table, by event."""
    found = {event: triggers.get(names.trigger(number, event)) for event in EVENTS}
    return {event: installed for event, installed in found.items() if installed is not None}


def install(connection: sqlite3.Connection, names: Names, source: SourceTable, captured: Captured) -> None:
    """Make the table's triggers what they should be, and the log wide enough for them."""
    have = len(connection.execute(f"PRAGMA table_info({names.log})").fetchall()) - _FIXED_COLUMNS
    for slot in range(have, captured.next_slot):
        connection.execute(f"ALTER TABLE {names.log} ADD COLUMN c{slot}")
    remove(connection, names, captured.number)
    for statement in trigger_statements(names, source, captured).values():
        connection.execute(statement)


def remove(connection: sqlite3.Connection, names: Names, number: int) -> None:
    for event in EVENTS:
        connection.execute(f"DROP TRIGGER IF EXISTS {quoted(names.trigger(number, event))}")


def slot_names(trigger: str) -> dict[int, str]:
    """Slot → name of its column, as SQLite keeps the text of an AFTER INSERT trigger up to date."""
    return {int(slot): name.replace('""', '"') for slot, name in _SLOT.findall(trigger)}


def looked_for(trigger: str | None) -> list[str] | str | None:
    """What finds candidates in a BEFORE trigger, as SQLite keeps it up to date. What is logged of them is no part."""
    return _FOUND.findall(trigger or "") or trigger


def trigger_statements(names: Names, source: SourceTable, captured: Captured) -> dict[str, str]:
    """CREATE TRIGGER statements by event."""
    return _Writer(names, source, captured).statements()


class _Writer:
    def __init__(self, names: Names, source: SourceTable, captured: Captured) -> None:
        self._names = names
        self._source = source
        self._captured = captured
        self._table = quoted(source.name)
        # The rowid where there is one, else the key: what finds a row in the table, and never changes under ALTER.
        self._locator = (quoted(source.rowid),) if source.rowid else tuple(map(quoted, source.key))
        self._key = (quoted(source.rowid or ""),) if captured.rowid_key else tuple(map(quoted, source.key))
        self._key_slots = [f"c{slot}" for slot in captured.key_slots]
        self._slots = [f"c{slot}" for slot in captured.slots]
        self._old_key = [f"OLD.{name}" for name in self._key]
        self._mine = f"op = {CANDIDATE} AND tab = {captured.number}"

    def statements(self) -> dict[str, str]:
        old, resolve, no_victim = self._old_key, self._resolve(), self._no_victim()
        changed = " OR ".join(f"NOT ({_identical(f'OLD.{name}', f'NEW.{name}')})" for name in self._key)
        image = self._image(f"CASE WHEN {changed} THEN {int(Operation.INSERT)} ELSE {int(Operation.UPDATE)} END")
        ends = f"CASE WHEN {changed} THEN {self._gone(old)} ELSE {self._there('NEW')} END"
        # The key of a new row may be a rowid that SQLite has yet to choose. A row that is there may have this one.
        not_given = [f"NEW.{self._key[0]} = -1"] if self._source.key_is_rowid or self._captured.rowid_key else []
        bodies = {
            "ai": ("AFTER INSERT", [*resolve, self._image(str(int(Operation.INSERT)))]),
            "au": ("AFTER UPDATE", [*no_victim, *resolve, *self._before(ends), self._delete(f"({changed})"), image]),
            "ad": ("AFTER DELETE", [*self._before(self._gone(old)), self._delete("1"), *no_victim]),
            "bi": ("BEFORE INSERT", self._candidates(self._other_than("NEW", not_given))),
            "bu": ("BEFORE UPDATE", [*self._candidates(self._other_than("OLD", [])), *self._old_row()]),
            "bd": ("BEFORE DELETE", self._old_row()),
        }
        return {
            event: f"CREATE TRIGGER {quoted(self._names.trigger(self._captured.number, event))} {when} ON {self._table}"
            f" BEGIN\n{';'.join(body)};\nEND"
            for event, (when, body) in bodies.items()
            if body
        }

    def _insert(self, operation: str, slots: list[str], values: list[str], rest: str) -> str:
        """An INSERT into the log; ``rest`` is what follows the SELECT list."""
        columns = ", ".join(["tab", "op", "ts", *slots])
        listed = ", ".join([str(self._captured.number), operation, NOW, *values])
        return f"INSERT INTO {self._names.log} ({columns}) SELECT {listed} {rest}"

    def _image(self, operation: str) -> str:
        """Log the row as it is now, if it is still there."""
        rest = f"FROM {self._scope()} WHERE {self._there('NEW')}"
        return self._insert(operation, self._slots, self._values("NEW", self._here("NEW")), rest)

    def _here(self, row: str) -> str:
        """SQL: the table's row is the one that ``row`` (NEW, OLD or an alias) has the locator of."""
        return " AND ".join(f"{name} = {row}.{name}" for name in self._locator)

    def _there(self, row: str) -> str:
        return f"EXISTS (SELECT 1 FROM {self._table} WHERE {self._here(row)})"

    def _values(self, row: str, here: str) -> list[str]:
        """A row's values by slot: the key out of ``row``, the rest out of the table, which is fact 1."""
        values = []
        for column, slot in zip(self._captured.schema.columns, self._captured.slots, strict=True):
            name = quoted(column.name)
            if self._captured.rowid_key and column.name == self._captured.schema.key[0]:
                values.append(f"{row}.{self._key[0]}")
            elif column.name in self._source.key:
                values.append(f"/*{slot}*/{row}.{name}")
            else:
                values.append(f"/*{slot}*/(SELECT {name} FROM {self._table} WHERE {here})")
        return values

    def _scope(self) -> str:
        """A NULL of every name, for columns that are dropped under the trigger."""
        key = self._captured.schema.key[0] if self._captured.rowid_key else None
        names = [quoted(column.name) for column in self._captured.schema.columns if column.name != key]
        return f"(SELECT {', '.join(f'NULL AS {name}' for name in names)})"

    def _old_row(self) -> list[str]:
        """Log the row that is about to be changed."""
        if not self._captured.before_images:
            return []
        rest = f"FROM {self._scope()} WHERE {self._known(self._old_key)}"
        return [self._insert(str(OLD_ROW), self._slots, self._values("OLD", self._here("OLD")), rest)]

    def _before(self, condition: str) -> list[str]:
        """Make the old row a before image, at the end of the log, if its change is to be logged next.

        Mostly it is there already. A before image at the end is the one that was just made: its change follows.
        """
        if not self._captured.before_images:
            return []
        log, before = self._names.log, int(Operation.BEFORE)
        mine = f"op = {OLD_ROW} AND tab = {self._captured.number} AND {self._logged()}"
        last = f"(SELECT max(seq) FROM {log})"
        done = f"(SELECT op = {before} FROM {log} WHERE seq = {last})"
        newest = f"(SELECT seq FROM {log} WHERE {mine} ORDER BY seq DESC LIMIT 1)"
        further_back = f"seq = CASE WHEN NOT {done} AND {condition} THEN {newest} END"
        return [
            f"UPDATE {log} SET op = {before} WHERE seq = {last} AND {mine} AND {condition}",
            f"UPDATE {log} SET op = {before}, seq = {last} + 1 WHERE {further_back}",
        ]

    def _logged(self) -> str:
        """SQL: an entry of the log has the old row's key."""
        return " AND ".join(_identical(*pair) for pair in zip(self._key_slots, self._old_key, strict=True))

    def _no_victim(self) -> list[str]:
        """This row is told by its own trigger, and what was logged of it for an INSERT that was ignored is outdated."""
        if not self._source.conflicts:
            return []
        return [f"DELETE FROM {self._names.log} WHERE {self._mine} AND {self._logged()}"]

    def _delete(self, condition: str) -> str:
        rest = f"WHERE {condition} AND {self._known(self._old_key)} AND {self._gone(self._old_key)}"
        return self._insert(str(int(Operation.DELETE)), self._key_slots, self._old_key, rest)

    def _known(self, key: list[str]) -> str:
        """SQL: a whole key. Rows with a NULL in it are never delivered, so there is nothing to delete."""
        return " AND ".join(f"{value} IS NOT NULL" for value in key) if self._source.nullable_key else "1"

    def _gone(self, key: list[str]) -> str:
        """SQL: no row has this very key. The plain comparison lets SQLite use the index, the rest makes it exact."""
        same = " AND ".join(
            f"{name} = {value} AND {_identical(name, value)}" for name, value in zip(self._key, key, strict=True)
        )
        return f"NOT EXISTS (SELECT 1 FROM {self._table} WHERE {same})"

    def _other_than(self, itself: str, unless: list[str]) -> str:
        """SQL: a row of the table is not the very one of the statement, by its key."""
        return " OR ".join([*(f"NOT ({_identical(name, f'{itself}.{name}')})" for name in self._key), *unless])

    def _candidates(self, other: str) -> list[str]:
        """Log the keys of rows that conflict with the new one, and the rest of them where before images are wanted."""
        if not self._source.conflicts:
            return []
        log, statements = self._names.log, []
        declared = {column.name: column for column in self._source.columns}
        for index in self._source.conflicts:
            same = []
            for name, collation in index.columns:
                stored, column = f"NEW.{quoted(name)}", declared[name]
                if column.not_null and column.default is not None:  # which REPLACE puts where NULL is not allowed
                    stored = f"coalesce({stored}, {default_value(column.default)})"
                same.append(f"{quoted(name)} = {stored} COLLATE {quoted(collation)}")
            # The line break ends a comment that the condition may end with.
            conflict = " AND ".join([*same, f"({index.where}\n)"] if index.where else same)
            found = f"FROM {self._table} WHERE {conflict} AND ({other}) AND {self._known(list(self._key))}"
            if self._captured.before_images:
                names = ", ".join(f"{name} AS {name}" for name in dict.fromkeys((*self._locator, *self._key)))
                rest = f"FROM (SELECT {names} /*<*/{found}/*>*/) AS {_VICTIM}, {self._scope()}"
                values = self._values(_VICTIM, self._here(_VICTIM))
                statements.append(self._insert(str(CANDIDATE), self._slots, values, rest))
            else:
                statements.append(self._insert(str(CANDIDATE), self._key_slots, list(self._key), found))
        old = f"DELETE FROM {log} WHERE {self._mine} AND seq <= (SELECT max(seq) FROM {log}) - {_CANDIDATES_KEPT}"
        return [old, *statements]

    def _resolve(self) -> list[str]:
        """Turn candidates that are gone into deletes, one for each row, each behind its before image if that is wanted."""
        if not self._source.conflicts:
            return []
        log, before, delete = self._names.log, int(Operation.BEFORE), int(Operation.DELETE)
        victims = [f"{log}.{slot}" for slot in self._key_slots]
        gone = f"{self._mine} AND {self._gone(victims)}"
        if self._captured.before_images:
            # A row may be a candidate twice: the newest entry is right.
            newest = f"SELECT max(seq) FROM {log} WHERE {self._mine} GROUP BY {', '.join(self._key_slots)}"
            values = [
                f"{log}.{slot}" if slot in self._key_slots else f"CASE kind WHEN {before} THEN {log}.{slot} END"
                for slot in self._slots
            ]
            kinds = f"(SELECT {before} AS kind UNION ALL SELECT {delete})"
            pairs = f"FROM {log}, {kinds} WHERE {gone} ORDER BY {log}.seq, kind = {delete}"
            once = [
                f"DELETE FROM {log} WHERE {self._mine} AND seq NOT IN ({newest})",
                self._insert("kind", self._slots, values, pairs),
            ]
        else:
            # Mostly there are no candidates: this is evaluated for each one only, GROUP BY would cost every insert.
            same = " AND ".join(f"twin.{slot} IS {log}.{slot}" for slot in self._key_slots)
            twins = f"twin.op = {CANDIDATE} AND twin.tab = {self._captured.number} AND {same}"
            rest = f"FROM {log} WHERE {gone} AND {log}.seq = (SELECT max(twin.seq) FROM {log} AS twin WHERE {twins})"
            once = [self._insert(str(delete), self._key_slots, victims, rest)]
        return [*once, f"DELETE FROM {log} WHERE {gone}"]


def _identical(a: str, b: str) -> str:
    return f"{a} IS {b} COLLATE BINARY AND typeof({a}) = typeof({b})"
