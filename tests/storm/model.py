"""SqlModel: what one session knows of its tables, and the kinds of action that every SQL database has.

A kind of a profile is a line of ``statements``, a line of ``retypes``, or a method. Where it has nothing to work on,
the model inserts rows instead, or makes a table. The model changes only in ``done``, once the statements succeeded.
"""

from __future__ import annotations

import random
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from tests.storm.database import Action, Model
from tests.storm.profile import Profile

COMMON = {
    "insert": ("any", "{insertion}"),
    "update": ("any", "{change}"),
    "delete": ("any", "DELETE FROM {t} WHERE id = {i}"),
    "update_key": ("any", "UPDATE {t} SET id = 1000000 + {n} * 1000 + {shared} WHERE id = {i}"),
    "transaction": ("any", "BEGIN; {insertion}; {change}; {change}; {change}; COMMIT"),
    "rolled_back": ("any", "BEGIN; {insertion}; {change}; {change}; ROLLBACK"),
    "savepoint": ("any", ("BEGIN; {change}; SAVEPOINT a; {change}; {insertion}; ROLLBACK TO a; {change}; SAVEPOINT b; "
                  "{change}; RELEASE SAVEPOINT b; COMMIT")),
}  # fmt: skip
"""Statements that read the same everywhere; see ``SqlModel.statements``."""


class NothingFitsError(Exception):
    """No table of the session is as the kind of action needs it."""


@dataclass(slots=True)
class Column:
    """``type`` is a key of the model's ``values``. ``written`` is False for generated columns, and those that keep
    their default."""

    name: str
    type: str
    not_null: bool = False
    written: bool = True


@dataclass(slots=True)
class Table:
    """``next``: the next id to be inserted. ``keyed``: id alone is the key. ``parts``: of a partitioned table."""

    name: str
    columns: list[Column] = field(default_factory=list)
    next: int = 1
    keyed: bool = True
    parts: list[str] | None = None
    strikes: int = 0
    settled: bool = False

    @property
    def written(self) -> list[Column]:
        return [column for column in self.columns if column.written]

    def fits(self, need: str) -> bool:
        return {
            "any": True,
            "column": bool(self.written),
            "plain": self.parts is None,
            "keyed": self.parts is None and self.keyed,
            "copied": self.parts is None and self.written == self.columns,
            "partitioned": self.parts is not None,
            "parts": bool(self.parts),
        }[need]


class SqlModel(Model):
    """``types``: SQL type → the value of row {g}, an integer expression; one expression serves copies, inserts and
    updates. ``values``: the same, with types that only an ALTER gives. ``retypes``: kind → type → the new type, and its
    expression where the database has one. ``statements``: kind → the tables that it is for, and its statements,
    separated by "; "; see ``_stated`` for the words in braces."""

    types: ClassVar[Mapping[str, str]]
    values: ClassVar[Mapping[str, str]]
    retypes: ClassVar[Mapping[str, Mapping[str, tuple[str, str]]]] = {}
    statements: ClassVar[Mapping[str, tuple[str, str]]]
    cascade: ClassVar[str] = " CASCADE"
    key_type: ClassVar[str] = "bigint"
    longest_seconds: ClassVar[int] = 16
    default_types: ClassVar[tuple[str, str]]
    """The types for whole numbers and for text of columns with a default."""

    def __init__(self, number: int, profile: Profile) -> None:
        self._session = f"s{number}"
        self._profile = profile
        self._only_settled = False
        self._tables: dict[str, Table] = {}
        self._count = 0
        self._chance = random.Random(0)

    @classmethod
    def has(cls, kind: str) -> bool:
        return kind in cls.statements or kind in cls.retypes or hasattr(cls, kind)

    def action(self, kind: str, chance: random.Random) -> Action:
        self._chance = chance
        self._only_settled = kind in self._profile.on_settled
        self._count += 1
        for choice in (kind, "insert", "create_table", "update_shared"):
            try:
                if choice in self.statements:
                    return self._stated(choice)
                found: Action = self._retyped(choice) if choice in self.retypes else getattr(self, choice)()
                return found
            except NothingFitsError:
                self._only_settled = False
        raise AssertionError("the shared tables always fit")

    def settle(self) -> None:
        for table in self._tables.values():
            table.settled = True

    def forget(self, table: str) -> None:
        """The second time: one failure may be a timeout or a deadlock of the application's own."""
        known = self._tables.get(table)
        if known is not None:
            known.strikes += 1
            if known.strikes >= 2:
                del self._tables[table]

    # What a database says in its own way

    @abstractmethod
    def _series(self, names: str, values: str, table: str, first: int, last: int) -> str:
        """INSERT one row for each number g from ``first`` to ``last``."""

    @abstractmethod
    def _on_conflict(self, column: str) -> str:
        """What makes an insertion an upsert of this column."""

    @abstractmethod
    def _retype(self, column: Column, new: str, using: str) -> str:
        """What ALTER TABLE says to change a type."""

    # What the kinds choose from

    def _stated(self, kind: str) -> Action:
        """{t}: a table; {i}: an id of it; {n}: a number that nobody has had; {c}: a column of it, with a {value};
        {part}: a partition; {shared}: a key of the shared tables; {s}: the session; {change}, {insertion}: whole
        statements."""
        need, templates = self.statements[kind]
        words = {"s": self._session, "n": self._count, "shared": self._chance.randrange(400)}
        words["seconds"] = self._chance.randrange(2, self.longest_seconds)
        if need == "none":
            return Action([template.format(**words) for template in templates.split("; ")])
        table = self._table(need)
        words |= {"t": table.name, "i": self._id(table)}
        if need == "column":
            column = self._chance.choice(table.written)
            words |= {"c": column.name, "value": self._value(column, "17")}
        if need == "parts" and table.parts:
            words["part"] = self._chance.choice(table.parts)
        made = {"{change}": self._change, "{insertion}": self._insertion}
        statements = [made[text](table) if text in made else text.format(**words) for text in templates.split("; ")]
        unkeyed = kind == "drop_key"
        return Action(statements, table.name, done=lambda: setattr(table, "keyed", table.keyed and not unkeyed))

    def _candidates(self) -> list[Table]:
        return [table for table in self._tables.values() if table.settled or not self._only_settled]

    def _table(self, need: str = "any") -> Table:
        found = [table for table in self._candidates() if table.fits(need)]
        if not found:
            raise NothingFitsError
        return self._chance.choice(found)

    def _column(self, fits: Callable[[Column], bool] = lambda column: True) -> tuple[Table, Column]:
        found = [(table, column) for table in self._candidates() for column in table.written if fits(column)]
        if not found:
            raise NothingFitsError
        return self._chance.choice(found)

    def _new_column(self, kind: str | None = None) -> Column:
        self._count += 1
        return Column(f"c{self._count}", kind if kind is not None else self._chance.choice(list(self.types)))

    def _definition(self, column: Column) -> str:
        return f"{column.name} {column.type.replace('{s}', self._session)}"

    def _value(self, column: Column, g: str) -> str:
        expression = self.values[column.type].replace("{g}", g).replace("{s}", self._session)
        return expression if column.not_null else f"CASE WHEN {g} % 11 <> 3 THEN {expression} END"

    def _id(self, table: Table) -> int:
        return self._chance.randrange(max(1, table.next - 40), table.next + 2)

    def _insertion(self, table: Table, rows: int = 5) -> str:
        names = ", ".join(["id", *(column.name for column in table.written)])
        values = ", ".join(["g", *(self._value(column, "g") for column in table.written)])
        first = table.next
        table.next += rows  # ids are given out once, whatever becomes of the statement
        return self._series(names, values, table.name, first, first + rows - 1)

    def _change(self, table: Table) -> str:
        """An UPDATE of one column in a few rows, which leaves the others' large values alone; sometimes a DELETE."""
        if not table.written or self._chance.random() < 0.2:
            return f"DELETE FROM {table.name} WHERE id = {self._id(table)}"
        column = self._chance.choice(table.written)
        low, g = self._id(table), self._chance.randrange(1, 1_000_000)
        value = self._value(column, self._chance.choice([f"({g} + id)", str(g)]))
        return f"UPDATE {table.name} SET {column.name} = {value} WHERE id BETWEEN {low} AND {low + 5}"

    def _alter(self, table: Table, what: str, done: Callable[[], object]) -> Action:
        return Action([f"ALTER TABLE {table.name} {what}"], table.name, done=done)

    # Rows

    def bulk_insert(self) -> Action:
        table = self._table()
        return Action([self._insertion(table, 3000)], table.name)

    def upsert(self) -> Action:
        table = self._table("keyed")
        table.next = max(1, table.next - 3)
        names = [column.name for column in table.written[:1]] or ["id"]
        return Action([self._insertion(table, 6) + self._on_conflict(names[0])], table.name)

    # Tables

    def _new(self, head: str = "TABLE", key: str = "PRIMARY KEY", tail: str = "") -> tuple[Table, str]:
        if len(self._tables) >= self._profile.tables_per_session:
            raise NothingFitsError
        table = Table(f"{self._session}_t{self._count}", keyed=bool(key))
        table.columns = [self._new_column() for _ in range(self._chance.randrange(1, 7))]
        columns = "".join(f", {self._definition(column)}" for column in table.columns)
        return table, f"CREATE {head} {table.name} (id {self.key_type} {key}{columns}){tail}"

    def _created(self, table: Table, *statements: str) -> Action:
        statements = (*statements, self._insertion(table, self._chance.choice([1, 20, 200])))
        if self._chance.random() < 0.3:
            statements = ("BEGIN", *statements, "COMMIT")
        return Action(statements, table.name, done=lambda: self._tables.update({table.name: table}))

    def create_table(self) -> Action:
        return self._created(*self._new())

    def create_keyless(self) -> Action:
        return self._created(*self._new(key=""))

    def drop_table(self) -> Action:
        table = self._table()
        drop = f"DROP TABLE {table.name}{self.cascade}"
        return Action([drop], table.name, done=lambda: self._tables.pop(table.name, None))

    def recreate_table(self) -> Action:
        old = self._table("plain")
        table = Table(old.name, [self._new_column(), self._new_column()])
        columns = ", ".join(map(self._definition, table.columns))
        create = f"CREATE TABLE {table.name} (id {self.key_type} PRIMARY KEY, {columns})"
        return self._created(table, f"DROP TABLE {table.name}{self.cascade}", create)

    def rename_table(self, need: str = "plain") -> Action:
        table = self._table(need)
        name = f"{self._session}_r{self._count}"

        def done() -> None:
            self._tables.pop(table.name, None)
            table.name, table.settled = name, False
            self._tables[name] = table

        return self._alter(table, f"RENAME TO {name}", done)

    def rename_partitioned(self) -> Action:
        """PostgreSQL's stream goes on with the old name: the rename does not reach what it remembers of partitions."""
        return self.rename_table("partitioned")

    # Columns

    def _add(self, column: Column, definition: str = "", *after: str, one_string: bool = False) -> Action:
        table = self._table()
        add = f"ALTER TABLE {table.name} ADD COLUMN {self._definition(column)} {definition}"
        statements = [add, *(text.replace("{t}", table.name) for text in after)]
        if one_string:  # both are in the log before anybody can ask the catalog
            statements = ["; ".join(statements)]
        return Action(statements, table.name, done=lambda: table.columns.append(column))

    def add_column(self) -> Action:
        return self._add(self._new_column())

    def add_column_and_update(self) -> Action:
        column = self._new_column()
        update = f"UPDATE {{t}} SET {column.name} = {self._value(column, 'id')} WHERE id % 3 = 0"
        return self._add(column, "", update, one_string=True)

    def add_column_default(self) -> Action:
        number, text = self.default_types
        column = self._new_column(self._chance.choice([number, text]))
        column.not_null = self._chance.random() < 0.5
        default = "5" if column.type == number else "'it''s'"
        return self._add(column, f"DEFAULT {default}{' NOT NULL' if column.not_null else ''}")

    def drop_column(self) -> Action:
        table, column = self._column()
        return self._alter(table, f"DROP COLUMN {column.name}", lambda: table.columns.remove(column))

    def rename_column(self) -> Action:
        table, column = self._column()
        name = f"n{self._count}"
        return self._alter(table, f"RENAME COLUMN {column.name} TO {name}", lambda: setattr(column, "name", name))

    def _retyped(self, kind: str) -> Action:
        choices = self.retypes[kind]
        table, column = self._column(lambda column: column.type in choices)
        new, using = choices[column.type]
        return self._alter(table, self._retype(column, new, using), lambda: setattr(column, "type", new))
