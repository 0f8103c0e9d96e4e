# ruff: noqa: S608 (names in SQL are quoted by database.quoted; values are bound)
"""The triggers of one captured table, as SQL.

Four facts of SQLite shape them.

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
   that was then ignored stay behind for a while; readers skip them. Since such an index's columns have to be named
   with NEW., they can be dropped only after the index is dropped *and* the capture has noticed that.
4. 'a' and 'A' may be one key by the column's collation, 1 and 1.0 by value: a key has changed if its bytes or its
   type have.
"""

from __future__ import annotations

import re

from lakefeed.capture.trigger.captured import Captured
from lakefeed.capture.trigger.catalog import SourceTable, UniqueIndex
from lakefeed.capture.trigger.database import quoted
from lakefeed.capture.trigger.names import CANDIDATE, NOW, Names
from lakefeed.change.batch import Operation

# Candidates that nobody has resolved may belong to a statement around this one (a user's trigger on the same table),
# so the newest few are left for it; older ones are of INSERTs that were ignored.
_CANDIDATES_KEPT = 16
_SLOT = re.compile(r"""/\*(\d+)\*/(?:\(SELECT |NEW\.)"((?:[^"]|"")*)\"""")


def slot_names(trigger: str) -> dict[int, str]:
    """Slot → name of its column, as SQLite keeps the text of an AFTER INSERT trigger up to date."""
    return {int(slot): name.replace('""', '"') for slot, name in _SLOT.findall(trigger)}


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
        self._mine = f"op = {CANDIDATE} AND tab = {captured.number}"

    def statements(self) -> dict[str, str]:
        resolve = self._resolve() if self._source.conflicts else []
        bodies = {
            "ai": ("AFTER INSERT", [*resolve, self._image(str(int(Operation.INSERT)))]),
            "au": ("AFTER UPDATE", [*resolve, *self._update()]),
            "ad": ("AFTER DELETE", [self._delete("1")]),
        }
        if self._source.conflicts:
            bodies["bi"] = ("BEFORE INSERT", self._candidates("NEW"))
            bodies["bu"] = ("BEFORE UPDATE", self._candidates("OLD"))
        return {event: self._create(event, when, body) for event, (when, body) in bodies.items()}

    def _create(self, event: str, when: str, body: list[str]) -> str:
        name = quoted(self._names.trigger(self._captured.number, event))
        return f"CREATE TRIGGER {name} {when} ON {self._table} BEGIN\n{';'.join(body)};\nEND"

    def _insert(self, operation: str, slots: list[str], values: list[str], rest: str) -> str:
        """An INSERT into the log; ``rest`` is what follows the SELECT list."""
        columns = ", ".join(["tab", "op", "ts", *slots])
        listed = ", ".join([str(self._captured.number), operation, NOW, *values])
        return f"INSERT INTO {self._names.log} ({columns}) SELECT {listed} {rest}"

    def _image(self, operation: str) -> str:
        """Log the row as it is now, if it is still there."""
        here = " AND ".join(f"{name} = NEW.{name}" for name in self._locator)
        slots, values, scope = [], [], []
        for column, slot in zip(self._captured.schema.columns, self._captured.slots, strict=True):
            name = quoted(column.name)
            slots.append(f"c{slot}")
            if self._captured.rowid_key and column.name == self._captured.schema.key[0]:
                values.append(f"NEW.{self._key[0]}")
                continue
            scope.append(f"NULL AS {name}")
            is_key = column.name in self._source.key
            values.append(
                f"/*{slot}*/NEW.{name}" if is_key else f"/*{slot}*/(SELECT {name} FROM {self._table} WHERE {here})"
            )
        there = f"EXISTS (SELECT 1 FROM {self._table} WHERE {here})"
        return self._insert(operation, slots, values, f"FROM (SELECT {', '.join(scope)}) WHERE {there}")

    def _update(self) -> list[str]:
        changed = " OR ".join(f"NOT ({_identical(f'OLD.{name}', f'NEW.{name}')})" for name in self._key)
        image = self._image(f"CASE WHEN {changed} THEN {int(Operation.INSERT)} ELSE {int(Operation.UPDATE)} END")
        return [self._delete(f"({changed})"), image]

    def _delete(self, condition: str) -> str:
        values = [f"OLD.{name}" for name in self._key]
        rest = f"WHERE {condition} AND {self._known(values)} AND {self._gone(values)}"
        return self._insert(str(int(Operation.DELETE)), self._key_slots, values, rest)

    def _known(self, key: list[str]) -> str:
        """SQL: a whole key. Rows with a NULL in it are never delivered, so there is nothing to delete."""
        return " AND ".join(f"{value} IS NOT NULL" for value in key) if self._source.nullable_key else "1"

    def _gone(self, key: list[str]) -> str:
        """SQL: no row has this very key. The plain comparison lets SQLite use the index, the rest makes it exact."""
        same = " AND ".join(
            f"{name} = {value} AND {_identical(name, value)}" for name, value in zip(self._key, key, strict=True)
        )
        return f"NOT EXISTS (SELECT 1 FROM {self._table} WHERE {same})"

    def _candidates(self, itself: str) -> list[str]:
        """Log the keys of rows that conflict with the new one; the row itself (by its key) is none."""
        other = " OR ".join(f"NOT ({_identical(name, f'{itself}.{name}')})" for name in self._key)
        log = self._names.log
        where = f"({other}) AND {self._known(list(self._key))}"
        found = [
            self._insert(
                str(CANDIDATE),
                self._key_slots,
                list(self._key),
                f"FROM {self._table} WHERE {_conflict(index)} AND {where}",
            )
            for index in self._source.conflicts
        ]
        old = f"DELETE FROM {log} WHERE {self._mine} AND seq <= (SELECT max(seq) FROM {log}) - {_CANDIDATES_KEPT}"
        return [old, *found]

    def _resolve(self) -> list[str]:
        log = self._names.log
        victims = [f"{log}.{slot}" for slot in self._key_slots]
        gone = self._gone(victims)
        rest = f"FROM {log} WHERE {self._mine} AND {gone}"
        return [self._insert(str(int(Operation.DELETE)), self._key_slots, victims, rest), f"DELETE {rest}"]


def _identical(a: str, b: str) -> str:
    return f"{a} IS {b} COLLATE BINARY AND typeof({a}) = typeof({b})"


def _conflict(index: UniqueIndex) -> str:
    same = [f"{quoted(name)} = NEW.{quoted(name)} COLLATE {quoted(collation)}" for name, collation in index.columns]
    # The line break ends a comment that the condition may end with.
    return " AND ".join([*same, f"({index.where}\n)"] if index.where else same)
