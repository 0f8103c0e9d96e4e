# ruff: noqa: S608 (names in SQL are quoted by database.quoted; values are bound)
"""What SQLite's catalog says about a table: columns, key, unique indexes, and the resulting schema. Read-only."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa

from lakefeed.capture.dialect import Refusal
from lakefeed.capture.sqlite.database import quoted, transaction
from lakefeed.capture.sqlite.values import arrow_type, is_untyped, misfits
from lakefeed.change.table import Column, TableId, TableSchema

SCHEMA = "main"
_REFUSED_KINDS = {
    "view": "it is a view; capture the tables under it",
    "virtual": "it is a virtual table, and SQLite allows no triggers on those",
    "shadow": "it is the storage of a virtual table",
}
_ROWID_NAMES = ("rowid", "_rowid_", "oid")
_EXPRESSION = -2  # the column number of an expression in PRAGMA index_xinfo
_NAME = re.compile(r""""((?:[^"]|"")*)"|`([^`]*)`|\[([^\]]*)\]|([^\W\d]\w*)""")
_CONSTANTS = frozenset({"NULL", "TRUE", "FALSE", "CURRENT_TIME", "CURRENT_DATE", "CURRENT_TIMESTAMP"})
_TOKEN = re.compile(r"""'(?:[^']|'')*'|"(?:[^"]|"")*"|`[^`]*`|\[[^\]]*\]|--[^\n]*|/\*.*?\*/|[()]|.""", re.DOTALL)


class SourceColumn(NamedTuple):
    """``default`` is the SQL text of the DEFAULT clause. ``not_null``: declared so, or implied by the kind of key."""

    name: str
    declared: str
    not_null: bool
    default: str | None
    generated: bool


class UniqueIndex(NamedTuple):
    """Columns with their collations; ``where`` is the condition of a partial index."""

    columns: tuple[tuple[str, str], ...]
    where: str | None


@dataclass(frozen=True, slots=True)
class SourceTable:
    """A table as it is now. ``key`` is the declared key in key order, empty if there is none. ``rowid`` is a name by
    which the rowid can be reached (the key column itself if that is an alias of it); None if there is no rowid, or all
    of its names are taken. ``conflicts`` are the unique indexes through which REPLACE can remove rows other than the
    one with the same key; ``opaque`` names those that cannot be followed, because they index an expression.
    ``renumbered_by_vacuum``: it has neither a key nor any index."""

    name: str
    sql: str
    columns: tuple[SourceColumn, ...]
    key: tuple[str, ...]
    rowid: str | None
    key_is_rowid: bool
    conflicts: tuple[UniqueIndex, ...]
    opaque: tuple[str, ...]
    renumbered_by_vacuum: bool

    @property
    def id(self) -> TableId:
        return TableId(SCHEMA, self.name)

    @property
    def sql_key(self) -> tuple[str, ...]:
        """The columns, quoted, that find a row by its key: the declared key, else the rowid."""
        return tuple(map(quoted, self.key or (self.rowid or "",)))

    @property
    def nullable_key(self) -> bool:
        return any(column.name in self.key and not column.not_null for column in self.columns)

    @property
    def rowid_column(self) -> str:
        """The name of the rowid in the lake: ``_rowid``, with underscores appended if the table has such a column."""
        name, taken = "_rowid", {column.name.lower() for column in self.columns}
        while name in taken:
            name += "_"
        return name

    def schema(self) -> TableSchema:
        """The table's columns, without stable ids; preceded by the rowid if that is the key."""
        columns = [] if self.key else [Column(self.rowid_column, pa.int64(), nullable=False, source_type="INTEGER")]
        columns += [Column(one.name, arrow_type(one.declared), not one.not_null, one.declared) for one in self.columns]
        return TableSchema(self.id, tuple(columns), self.key or (self.rowid_column,))


def null_in(names: Iterable[str]) -> str:
    """SQL that is true if one of these columns is NULL."""
    return " OR ".join(f"{quoted(name)} IS NULL" for name in names)


def schema_version(connection: sqlite3.Connection) -> int:
    """A number that changes with the schema."""
    return int(connection.execute("PRAGMA main.schema_version").fetchone()[0])


def all_tables(connection: sqlite3.Connection) -> dict[TableId, Refusal | None]:
    """Everything in the catalog that can be selected from, with why it is never captured; None if it can be."""
    rows = connection.execute("SELECT name, type FROM pragma_table_list WHERE schema = 'main'").fetchall()
    return {TableId(SCHEMA, name): _refusal(name, kind) for name, kind in rows}


def _refusal(name: str, kind: str) -> Refusal | None:
    for prefix, owner in (("_lakefeed_", "Lakefeed"), ("sqlite_", "SQLite")):
        if name.lower().startswith(prefix):
            return Refusal(f"it belongs to {owner} itself")
    return None if kind == "table" else Refusal(_REFUSED_KINDS[kind])


def read_table(connection: sqlite3.Connection, name: str) -> SourceTable | None:
    """The table ``name`` (exactly as the catalog spells it), or None if there is no such table to capture. Reads one
    state of the catalog: a concurrent DROP or ALTER is seen as a whole, or not at all."""
    with nullcontext() if connection.in_transaction else transaction(connection, "DEFERRED"):
        return _read_table(connection, name)


def _read_table(connection: sqlite3.Connection, name: str) -> SourceTable | None:
    create = "SELECT sql FROM sqlite_master WHERE type = ? AND name = ?"
    made = connection.execute(create, ("table", name)).fetchone()  # this starts the read transaction; a pragma does not
    query = "SELECT type, wr FROM pragma_table_list WHERE schema = 'main' AND name = ?"
    listed = connection.execute(query, (name,)).fetchone()
    if made is None or listed is None or _refusal(name, listed[0]) is not None:
        return None
    (sql,) = made
    info = connection.execute(f"PRAGMA main.table_xinfo({quoted(name)})").fetchall()
    visible = [row for row in info if row[6] != 1]
    key = tuple(row[1] for row in sorted(visible, key=lambda row: int(row[5])) if row[5])
    indexes = connection.execute(f"PRAGMA main.index_list({quoted(name)})").fetchall()
    key_is_rowid = len(key) == 1 and not listed[1] and not any(row[3] == "pk" for row in indexes)
    # SQLite allows NULL in the declared key of a rowid table, unless it is declared NOT NULL or is the rowid.
    strict = key if key_is_rowid or listed[1] else ()
    columns = tuple(
        SourceColumn(row[1], row[2], bool(row[3]) or row[1] in strict, row[4], row[6] in (2, 3)) for row in visible
    )
    taken = {column.name.lower() for column in columns}
    free = None if listed[1] else next((word for word in _ROWID_NAMES if word not in taken), None)
    declared = {column.name: column.declared for column in columns}
    conflicts, opaque = [], []
    for _, index, unique, origin, partial in (row[:5] for row in sorted(indexes, key=lambda row: str(row[1]))):
        parts = [row for row in connection.execute(f"PRAGMA main.index_xinfo({quoted(index)})") if row[5]]
        if unique and any(row[1] == _EXPRESSION for row in parts):
            opaque.append(index)
        elif unique and (origin != "pk" or any(row[4] != "BINARY" or is_untyped(declared[row[2]]) for row in parts)):
            # The key's own index matters only if different values can be equal in it ('a' and 'A', 1 and 1.0).
            where, depth = None, 0
            if partial:
                (text,) = connection.execute(create, ("index", index)).fetchone()
                for token in _TOKEN.finditer(text):  # the condition follows the column list, and WHERE
                    depth += {"(": 1, ")": -1}.get(token[0], 0)
                    if token[0] == ")" and depth == 0:
                        where = re.sub(r"^\s*WHERE\b", "", text[token.end() :], flags=re.IGNORECASE).strip()
                        break
            conflicts.append(UniqueIndex(tuple((row[2], row[4]) for row in parts), where))
    rowid, vacuum = key[0] if key_is_rowid else free, not key and not indexes
    return SourceTable(name, sql, columns, key, rowid, key_is_rowid, tuple(conflicts), tuple(opaque), vacuum)


def default_value(default: str) -> str:
    """The SQL text of a DEFAULT clause as an expression. Only in a DEFAULT clause a bare name is a string."""
    name = _NAME.fullmatch(default)
    if name is None or default.upper() in _CONSTANTS:
        return f"({default}\n)"
    text = next(part for part in name.groups() if part is not None)
    return "'" + text.replace('""', '"').replace("'", "''") + "'"


def mixed_columns(connection: sqlite3.Connection, name: str) -> frozenset[str]:
    """Columns of the table with values that do not fit their declared type. One pass, in a read transaction."""
    with transaction(connection, "DEFERRED"):
        source = read_table(connection, name)
        columns = source.columns if source is not None else ()
        tests = misfits((column.name, arrow_type(column.declared), quoted(column.name)) for column in columns)
        if not tests:
            return frozenset()
        listed = ", ".join(f"max({test})" for test in tests.values())
        row = connection.execute(f"SELECT {listed} FROM {quoted(name)}").fetchone()
    return frozenset(column for column, found in zip(tests, row, strict=True) if found)
