# ruff: noqa: S608 (names in SQL are quoted by database.quoted; values are bound)
"""The triggers of one captured table, as SQL.

Five facts of SQLite shape them.

1. A trigger that names NEW."a" makes SQLite refuse ALTER TABLE … DROP COLUMN a. So only key columns, which cannot be
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
from collections.abc import Iterable
from typing import NamedTuple

from lakefeed.capture.sqlite.database import quoted
from lakefeed.capture.sqlite.meta import CANDIDATE, EVENTS, NOW, OLD_ROW, Captured, Names, OwnTables
from lakefeed.capture.sqlite.table import SourceTable, default_value
from lakefeed.change.batch import Operation

# Candidates that nobody has resolved may belong to a statement around this one (a user's trigger on the same table),
# so the newest few are left for it; older ones are of INSERTs that were ignored.
_CANDIDATES_KEPT = 16
_VICTIM = "_lakefeed_victim"  # an alias that no table of the user has
_FOUND = re.compile(r"/\*<\*/(.*?)/\*>\*/", re.DOTALL)
_FIXED_COLUMNS = 4  # of the log: seq, tab, op, ts
_SLOT = re.compile(r"""/\*(\d+)\*/(?:\(SELECT |NEW\.)"((?:[^"]|"")*)\"""")
_INSERT, _UPDATE, _DELETE, _BEFORE = (
    str(int(one)) for one in (Operation.INSERT, Operation.UPDATE, Operation.DELETE, Operation.BEFORE)
)


class Installed(NamedTuple):
    """A trigger that is there: its name, on which table, with which text."""

    name: str
    table: str
    sql: str


def read_triggers(own: OwnTables) -> dict[int, dict[str, Installed]]:
    """This pipeline's triggers, by number of the captured table and event."""
    found: dict[int, dict[str, Installed]] = {}
    for row in own.execute("SELECT name, tbl_name, sql FROM sqlite_master WHERE type = 'trigger'").fetchall():
        if (split := own.names.split_trigger(row[0])) is not None:
            found.setdefault(split[0], {})[split[1]] = Installed(*row)
    return found


def install(own: OwnTables, source: SourceTable, captured: Captured) -> None:
    """Make the table's triggers what they should be, and the log wide enough for them."""
    have = len(own.execute(f"PRAGMA table_info({own.names.log})").fetchall()) - _FIXED_COLUMNS
    for slot in range(have, captured.next_slot):
        own.execute(f"ALTER TABLE {own.names.log} ADD COLUMN c{slot}")
    remove(own, captured.number)
    for statement in trigger_statements(own.names, source, captured).values():
        own.execute(statement)


def remove(own: OwnTables, number: int) -> None:
    for event in EVENTS:
        own.execute(f"DROP TRIGGER IF EXISTS {quoted(own.names.trigger(number, event))}")


def slot_names(trigger: str) -> dict[int, str]:
    """Slot → name of its column, as SQLite keeps the text of an AFTER INSERT trigger up to date."""
    return {int(slot): name.replace('""', '"') for slot, name in _SLOT.findall(trigger)}


def candidate_queries(trigger: str | None) -> list[str] | str | None:
    """What finds candidates in a BEFORE trigger, as SQLite keeps it up to date. What is logged of them is no part."""
    return _FOUND.findall(trigger or "") or trigger


def trigger_statements(names: Names, source: SourceTable, captured: Captured) -> dict[str, str]:
    """CREATE TRIGGER statements by event."""
    sql = _Sql(names, source, captured)
    old, resolve, no_victim = sql.old_key, list[str](), list[str]()
    before_insert, before_update = list[str](), list[str]()
    if source.conflicts:
        resolve = sql.resolve()
        # A row's own trigger logs it, and what was logged of it for an INSERT that was ignored is outdated.
        no_victim = [f"DELETE FROM {names.log} WHERE {sql.candidate} AND {sql.logged}"]
        # The key of a new row may be a rowid that SQLite has yet to choose. A row that is there may have this one.
        not_given = [f"NEW.{sql.key[0]} = -1"] if source.key_is_rowid or captured.rowid_key else []
        before_insert, before_update = sql.candidates("NEW", not_given), sql.candidates("OLD", [])
    changed = " OR ".join(f"NOT ({_identical(f'OLD.{name}', f'NEW.{name}')})" for name in sql.key)
    image = sql.image(f"CASE WHEN {changed} THEN {_INSERT} ELSE {_UPDATE} END")
    before_of_update, before_of_delete, old_row = list[str](), list[str](), list[str]()
    if captured.before_images:
        old_row = [sql.insert(OLD_ROW, sql.slots, sql.values("OLD"), f"FROM {sql.nulls} WHERE {sql.known(old)}")]
        before_of_update = sql.before(f"CASE WHEN {changed} THEN {sql.gone(old)} ELSE {sql.there('NEW')} END")
        before_of_delete = sql.before(sql.gone(old))
    bodies = {
        "ai": ("AFTER INSERT", [*resolve, sql.image(_INSERT)]),
        "au": ("AFTER UPDATE", [*no_victim, *resolve, *before_of_update, sql.delete(f"({changed})"), image]),
        "ad": ("AFTER DELETE", [*before_of_delete, sql.delete("1"), *no_victim]),
        "bi": ("BEFORE INSERT", before_insert),
        "bu": ("BEFORE UPDATE", [*before_update, *old_row]),
        "bd": ("BEFORE DELETE", old_row),
    }
    return {
        event: f"CREATE TRIGGER {quoted(names.trigger(captured.number, event))} {when} ON {sql.table}"
        f" BEGIN\n{';'.join(body)};\nEND"
        for event, (when, body) in bodies.items()
        if body
    }


class _Sql:
    """The pieces that the triggers of one table are made of."""

    def __init__(self, names: Names, source: SourceTable, captured: Captured) -> None:
        self._log, self._source, self._captured = names.log, source, captured
        self.table, self.key = quoted(source.name), source.sql_key
        # The rowid where there is one, else the key: what finds a row in the table, and never changes under ALTER.
        self._locator = (quoted(source.rowid),) if source.rowid else self.key
        self._key_slots = captured.key_slots
        self.slots = [f"c{slot}" for slot in captured.slots]
        self.old_key = [f"OLD.{name}" for name in self.key]
        self.candidate = f"op = {CANDIDATE} AND tab = {captured.number}"
        # An entry of the log has the old row's key.
        self.logged = " AND ".join(_identical(*pair) for pair in zip(self._key_slots, self.old_key, strict=True))
        # A NULL of every name, for columns that are dropped under the trigger.
        self.nulls = f"(SELECT {', '.join(f'NULL AS {quoted(column.name)}' for column in source.columns)})"

    def insert(self, operation: str | int, slots: list[str], values: list[str], rest: str) -> str:
        """An INSERT into the log; ``rest`` is what follows the SELECT list."""
        columns = ", ".join(["tab", "op", "ts", *slots])
        listed = ", ".join([str(self._captured.number), str(operation), NOW, *values])
        return f"INSERT INTO {self._log} ({columns}) SELECT {listed} {rest}"

    def image(self, operation: str) -> str:
        """Log the row as it is now, if it is still there."""
        return self.insert(operation, self.slots, self.values("NEW"), f"FROM {self.nulls} WHERE {self.there('NEW')}")

    def _here(self, row: str) -> str:
        """The table's row is the one that ``row`` (NEW, OLD or an alias) has the locator of."""
        return " AND ".join(f"{name} = {row}.{name}" for name in self._locator)

    def there(self, row: str) -> str:
        return f"EXISTS (SELECT 1 FROM {self.table} WHERE {self._here(row)})"

    def values(self, row: str) -> list[str]:
        """A row's values by slot: the key out of ``row``, the rest out of the table, which is fact 1."""
        values = []
        for column, slot in zip(self._captured.schema.columns, self._captured.slots, strict=True):
            name = quoted(column.name)
            if self._captured.rowid_key and column.name == self._captured.schema.key[0]:
                values.append(f"{row}.{self.key[0]}")
            elif column.name in self._source.key:
                values.append(f"/*{slot}*/{row}.{name}")
            else:
                values.append(f"/*{slot}*/(SELECT {name} FROM {self.table} WHERE {self._here(row)})")
        return values

    def before(self, condition: str) -> list[str]:
        """Make the old row a before image, at the end of the log, if its change is to be logged next.

        Mostly it is there already. A before image at the end is the one that was just made: its change follows.
        """
        log, mine = self._log, f"op = {OLD_ROW} AND tab = {self._captured.number} AND {self.logged}"
        last = f"(SELECT max(seq) FROM {log})"
        done = f"(SELECT op = {_BEFORE} FROM {log} WHERE seq = {last})"
        newest = f"(SELECT seq FROM {log} WHERE {mine} ORDER BY seq DESC LIMIT 1)"
        further_back = f"seq = CASE WHEN NOT {done} AND {condition} THEN {newest} END"
        return [
            f"UPDATE {log} SET op = {_BEFORE} WHERE seq = {last} AND {mine} AND {condition}",
            f"UPDATE {log} SET op = {_BEFORE}, seq = {last} + 1 WHERE {further_back}",
        ]

    def delete(self, condition: str) -> str:
        rest = f"WHERE {condition} AND {self.known(self.old_key)} AND {self.gone(self.old_key)}"
        return self.insert(_DELETE, self._key_slots, self.old_key, rest)

    def known(self, key: Iterable[str]) -> str:
        """A whole key. Rows with a NULL in it are never delivered, so there is nothing to delete."""
        return " AND ".join(f"{value} IS NOT NULL" for value in key) if self._source.nullable_key else "1"

    def gone(self, key: list[str]) -> str:
        """No row has this very key. The plain comparison lets SQLite use the index, the rest makes it exact."""
        pairs = zip(self.key, key, strict=True)
        same = " AND ".join(f"{name} = {value} AND {_identical(name, value)}" for name, value in pairs)
        return f"NOT EXISTS (SELECT 1 FROM {self.table} WHERE {same})"

    def candidates(self, itself: str, unless: list[str]) -> list[str]:
        """Log the keys of rows that conflict with the new one, and the rest of them where before images are wanted.

        ``itself``: NEW or OLD, whose very key is that of no other row, ``unless`` something else holds.
        """
        other = " OR ".join([*(f"NOT ({_identical(name, f'{itself}.{name}')})" for name in self.key), *unless])
        old = f"{self.candidate} AND seq <= (SELECT max(seq) FROM {self._log}) - {_CANDIDATES_KEPT}"
        statements = [f"DELETE FROM {self._log} WHERE {old}"]
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
            found = f"FROM {self.table} WHERE {conflict} AND ({other}) AND {self.known(self.key)}"
            if self._captured.before_images:
                names = ", ".join(f"{name} AS {name}" for name in dict.fromkeys((*self._locator, *self.key)))
                rest = f"FROM (SELECT {names} /*<*/{found}/*>*/) AS {_VICTIM}, {self.nulls}"
                statements.append(self.insert(CANDIDATE, self.slots, self.values(_VICTIM), rest))
            else:
                statements.append(self.insert(CANDIDATE, self._key_slots, list(self.key), found))
        return statements

    def resolve(self) -> list[str]:
        """Turn candidates that are gone into deletes, one for each row, behind its before image if that is wanted."""
        log = self._log
        victims = [f"{log}.{slot}" for slot in self._key_slots]
        gone = f"{self.candidate} AND {self.gone(victims)}"
        if self._captured.before_images:
            # A row may be a candidate twice: the newest entry is right.
            newest = f"SELECT max(seq) FROM {log} WHERE {self.candidate} GROUP BY {', '.join(self._key_slots)}"
            values = [
                f"{log}.{slot}" if slot in self._key_slots else f"CASE kind WHEN {_BEFORE} THEN {log}.{slot} END"
                for slot in self.slots
            ]
            kinds = f"(SELECT {_BEFORE} AS kind UNION ALL SELECT {_DELETE})"
            pairs = f"FROM {log}, {kinds} WHERE {gone} ORDER BY {log}.seq, kind = {_DELETE}"
            once = [
                f"DELETE FROM {log} WHERE {self.candidate} AND seq NOT IN ({newest})",
                self.insert("kind", self.slots, values, pairs),
            ]
        else:
            # Mostly there are no candidates: this is evaluated for each one only, GROUP BY would cost every insert.
            same = " AND ".join(f"twin.{slot} IS {log}.{slot}" for slot in self._key_slots)
            twins = f"twin.op = {CANDIDATE} AND twin.tab = {self._captured.number} AND {same}"
            rest = f"FROM {log} WHERE {gone} AND {log}.seq = (SELECT max(twin.seq) FROM {log} AS twin WHERE {twins})"
            once = [self.insert(_DELETE, self._key_slots, victims, rest)]
        return [*once, f"DELETE FROM {log} WHERE {gone}"]


def _identical(a: str, b: str) -> str:
    return f"{a} IS {b} COLLATE BINARY AND typeof({a}) = typeof({b})"
