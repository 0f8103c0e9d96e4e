"""SQLite's types and its own kinds of action; those that every database has are ``SqlModel``'s."""

from __future__ import annotations

from dataclasses import replace

from tests.storm.database import Action
from tests.storm.model import COMMON, Column, SqlModel, Table

TYPES = {
    "INTEGER": "{g} * 7 - 1000",
    "BIGINT": "{g} * 1000000007",
    "REAL": "{g} / 7.0",
    "TEXT": "'t' || {g} || ' ü \U0001f40b ''\" \\'",
    "VARCHAR(20)": "printf('%05d', {g} % 20000)",
    "BLOB": "CAST('b' || {g} || char(0) AS BLOB)",
    "NUMERIC": "{g} / 3.0",
    "DECIMAL(10,2)": "round({g} / 3.0, 2)",
    "BOOLEAN": "{g} % 2",
    "DATE": "date('1999-12-31', ({g} % 20000) || ' days')",
    "DATETIME": "strftime('%Y-%m-%d %H:%M:%f', 1e9 + {g} % 90000 * 3600.25, 'unixepoch')",
    "TEXT /* large */": "{g} || hex(zeroblob(2000))",
    # Without a type a column takes every value as it is.
    "": "CASE {g} % 5 WHEN 0 THEN {g} WHEN 1 THEN {g} / 7.0 WHEN 2 THEN CAST('b' || {g} AS BLOB) ELSE 'x' || {g} END",
}

STATEMENTS = {
    **COMMON,
    "insert_shared": ("none", ("INSERT INTO shared_account VALUES ({shared}, 1.5, 'x') ON CONFLICT DO NOTHING; "
                      "INSERT INTO shared_event (what) VALUES ('{s} {n}')")),
    "update_shared": ("none", "UPDATE shared_account SET balance = balance + 1, note = note || 1 WHERE id = {shared}"),
    "delete_shared": ("none", ("DELETE FROM shared_account WHERE id = {shared}; "
                      "DELETE FROM shared_event WHERE id % 400 = {shared}")),
    "truncate": ("any", "DELETE FROM {t}"),
    # Triggers of the application: into another captured table, and into the very same.
    "trigger": ("any", ("CREATE TRIGGER {s}_tr{n} AFTER UPDATE ON {t} "
                "BEGIN INSERT INTO shared_event (what) VALUES ('{t}' || new.id);END")),
    "trigger_on_itself": ("keyed", ("CREATE TRIGGER {s}_tr{n} AFTER INSERT ON {t} WHEN new.id % 7 = 0 "
                          "BEGIN DELETE FROM {t} WHERE id = new.id - 3;END")),
    "analyze": ("any", "ANALYZE {t}"),
    "reindex": ("any", "REINDEX {t}"),
    "vacuum": ("none", "VACUUM"),
    "checkpoint": ("none", "PRAGMA wal_checkpoint(TRUNCATE)"),
    "long_reader": ("any", "BEGIN; SELECT count(*) FROM {t}; SELECT sleep({seconds}); COMMIT"),
    "long_transaction": ("any", "BEGIN IMMEDIATE; {change}; SELECT sleep({seconds}); {insertion}; COMMIT"),
}  # fmt: skip


class SqliteModel(SqlModel):
    types = values = TYPES
    statements = STATEMENTS
    default_types = ("INTEGER", "TEXT")
    cascade, key_type = "", "INTEGER"
    longest_seconds = 5  # there is one writer at a time

    def _series(self, names: str, values: str, table: str, first: int, last: int) -> str:
        numbers = f"WITH RECURSIVE s(g) AS (VALUES ({first}) UNION ALL SELECT g + 1 FROM s WHERE g < {last})"
        return f"INSERT INTO {table} ({names}) {numbers} SELECT {values} FROM s WHERE true"

    def _on_conflict(self, column: str) -> str:
        return f" ON CONFLICT (id) DO UPDATE SET {column} = excluded.{column}"

    def _retype(self, column: Column, new: str, using: str) -> str:
        raise NotImplementedError("SQLite has no statement for that; rebuild_table does what it needs")

    def replace(self) -> Action:
        table = self._table("keyed")
        table.next = max(1, table.next - 3)
        return Action([self._insertion(table, 6).replace("INSERT", "INSERT OR REPLACE", 1)], table.name)

    def odd_value(self) -> Action:
        """A value that the declared type does not fit: the column becomes text."""
        table, column = self._column(lambda column: column.type in ("INTEGER", "REAL", "BOOLEAN", "DECIMAL(10,2)"))
        odd = self._chance.choice(["'odd'", "1.5e300" if column.type == "INTEGER" else "'1 2'"])
        return Action([f"UPDATE {table.name} SET {column.name} = {odd} WHERE id = {self._id(table)}"], table.name)

    def create_without_rowid(self) -> Action:
        return self._created(*self._new(tail=" WITHOUT ROWID"))

    def create_generated(self) -> Action:
        table, create = self._new()
        column = replace(self._new_column("INTEGER"), written=False)
        table.columns.append(column)
        return self._created(table, f"{create[:-1]}, {column.name} INTEGER AS (id * 2) STORED)")

    def add_generated(self) -> Action:
        column = replace(self._new_column("INTEGER"), written=False)
        return self._add(column, "GENERATED ALWAYS AS (id * 3) VIRTUAL")

    def add_column_and_update(self) -> Action:
        column = self._new_column()
        action = self._add(column, "", f"UPDATE {{t}} SET {column.name} = {self._value(column, 'id')} WHERE id % 3 = 0")
        return replace(action, statements=["BEGIN", *action.statements, "COMMIT"])

    def unique_index(self) -> Action:
        """Where rows have equal values, SQLite refuses it; that says nothing about the table."""
        table, column = self._column()
        return Action([f"CREATE UNIQUE INDEX {self._session}_ix{self._count} ON {table.name} ({column.name})"])

    # What SQLite's documentation has instead of other ALTERs: a new table takes the rows and the name of the old one.

    def _rebuilt(self, table: Table, new: Table, rows: str, key: str = "PRIMARY KEY", tail: str = "") -> Action:
        columns = "".join(f", {self._definition(column)}" for column in new.columns)
        names = ", ".join(["id", *(column.name for column in new.columns)])
        statements = [
            "BEGIN",
            f"CREATE TABLE {self._session}_new (id INTEGER {key}{columns}{tail})",
            f"INSERT INTO {self._session}_new ({names}) SELECT {names} FROM {table.name} {rows}",
            f"DROP TABLE {table.name}",
            f"ALTER TABLE {self._session}_new RENAME TO {table.name}",
            "COMMIT",
        ]
        return Action(statements, table.name, done=lambda: self._tables.update({table.name: new}))

    def rebuild_table(self) -> Action:
        """Another type for one of its columns."""
        table = self._table("copied")
        columns = [replace(column) for column in table.columns]
        if columns:
            self._chance.choice(columns).type = self._chance.choice(["TEXT", ""])
        return self._rebuilt(table, replace(table, columns=columns), "")

    def swap_tables(self) -> Action:
        table = self._table("copied")
        return self._rebuilt(table, replace(table, columns=[*map(replace, table.columns)]), "LIMIT 10")

    def change_key(self) -> Action:
        """The key gets a second column."""
        table = self._table("copied")
        whole = [replace(column, not_null=True) for column in table.columns if column.type == "INTEGER"][:1]
        columns = [*(replace(column) for column in table.columns if column.name not in {one.name for one in whole})]
        if not whole:
            return self.rebuild_table()
        new = replace(table, columns=[*columns, *whole], keyed=False)
        condition = f"WHERE {whole[0].name} IS NOT NULL"
        return self._rebuilt(table, new, condition, "NOT NULL", f", PRIMARY KEY (id, {whole[0].name})")
