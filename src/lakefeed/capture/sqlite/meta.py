# ruff: noqa: S608 (names in SQL are quoted by database.quoted; values are bound)
"""The pipeline's own memory inside the source: who the database is, what is captured, how far it is confirmed."""

from __future__ import annotations

import json
import sqlite3
import uuid
from dataclasses import dataclass
from typing import Any

from lakefeed.capture.sqlite.captured import Captured, State
from lakefeed.capture.sqlite.names import CANDIDATE, MARK, NOW, OLD_ROW, Names
from lakefeed.change.change_set import RecopyNeeded, TableBlocked, TableDropped, TableNotice
from lakefeed.change.position import SqliteSequence
from lakefeed.change.table import TableId, TableSchema
from lakefeed.errors import SourceSetupError

FORMAT = 1
_TABLE = "table/"
_HIGH_ROWID = 1000


@dataclass(frozen=True, slots=True)
class Meta:
    """``verified`` is the sequence up to which the triggers are known to have been right for the tables' shape."""

    identity: str
    schema_version: int
    confirmed: SqliteSequence
    verified: int
    tables: tuple[Captured, ...]

    def captured(self, table: TableId) -> Captured | None:
        """The capture of ``table`` that is in force, if there is one."""
        return next((one for one in self.tables if one.table == table and one.state is not State.DROPPED), None)

    def is_right(self, schema_version: int, *, before_images: bool) -> bool:
        """Whether the triggers were made for this very schema, and log what is asked for."""
        there = [one for one in self.tables if one.state is not State.DROPPED]
        return self.schema_version == schema_version and all(one.before_images == before_images for one in there)


def load_meta(connection: sqlite3.Connection, names: Names) -> Meta | None:
    """None if nothing was ever prepared for this pipeline."""
    if not _exists(connection, names.meta_name):
        return None
    if not _exists(connection, names.log_name):
        raise SourceSetupError(
            f"the change log {names.log_name} is gone although its meta table is there",
            remedy="Run `lakefeed uninstall`, which removes the rest, and let the pipeline snapshot anew.",
        )
    values = dict(connection.execute(f"SELECT key, value FROM {names.meta}").fetchall())
    if values["format"] != FORMAT:
        raise SourceSetupError(
            f"{names.meta_name} has format {values['format']}, this Lakefeed reads {FORMAT}",
            remedy="Use the version of Lakefeed that made it, or run its `lakefeed uninstall` first.",
        )
    tables = [Captured.from_json(json.loads(values[key])) for key in values if key.startswith(_TABLE)]
    return Meta(
        identity=values["identity"],
        schema_version=values["schema_version"],
        confirmed=SqliteSequence.parse(values["confirmed"]),
        verified=values["verified"],
        tables=tuple(sorted(tables, key=lambda one: one.number)),
    )


def create_meta(connection: sqlite3.Connection, names: Names) -> None:
    """The empty log and meta, with a first row in the log, so that there is a position from the start."""
    for statement in names.create():
        connection.execute(statement)
    add_mark(connection, names)
    first = read_head(connection, names)
    values = {"format": FORMAT, "identity": str(uuid.uuid4()), "next_number": 1}
    put(connection, names, {**values, "confirmed": first.text(), "verified": first.sequence, "schema_version": 0})


def put(connection: sqlite3.Connection, names: Names, values: dict[str, Any]) -> None:
    connection.executemany(f"INSERT OR REPLACE INTO {names.meta} VALUES (?, ?)", list(values.items()))


def put_table(connection: sqlite3.Connection, names: Names, captured: Captured) -> None:
    put(connection, names, {f"{_TABLE}{captured.number}": json.dumps(captured.to_json())})


def forget_table(connection: sqlite3.Connection, names: Names, number: int) -> None:
    connection.execute(f"DELETE FROM {names.meta} WHERE key = ?", (f"{_TABLE}{number}",))


def next_number(connection: sqlite3.Connection, names: Names) -> int:
    """A number for a captured table; every call gives another."""
    number = int(connection.execute(f"SELECT value FROM {names.meta} WHERE key = 'next_number'").fetchone()[0])
    put(connection, names, {"next_number": number + 1})
    return number


def put_verified(connection: sqlite3.Connection, names: Names) -> None:
    """From here on the triggers are right: call at the end of a transaction that made them so."""
    version = schema_version(connection)
    connection.execute(f"DELETE FROM {names.vacuum}")
    connection.execute(f"INSERT INTO {names.vacuum} (rowid) VALUES ({_HIGH_ROWID})")
    put(connection, names, {"schema_version": version, "verified": read_head(connection, names).sequence})


def was_vacuumed(connection: sqlite3.Connection, names: Names) -> bool:
    """Whether VACUUM ran since ``put_verified``: it renumbers the rows of tables without key and index."""
    row = connection.execute(f"SELECT rowid FROM {names.vacuum}").fetchone()
    return row is None or int(row[0]) != _HIGH_ROWID


def schema_version(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA main.schema_version").fetchone()[0])


def read_head(connection: sqlite3.Connection, names: Names) -> SqliteSequence:
    """The newest place in the log. A commit boundary, because SQLite shows committed transactions only."""
    row = connection.execute(
        f"SELECT seq, ts FROM {names.log} WHERE op NOT IN ({CANDIDATE}, {OLD_ROW}) ORDER BY seq DESC LIMIT 1"
    ).fetchone()
    if row is None:
        raise SourceSetupError(
            f"the change log {names.log_name} is empty, which it never is by itself",
            remedy="Run `lakefeed uninstall` and let the pipeline snapshot anew.",
        )
    return SqliteSequence(*row)


def add_mark(
    connection: sqlite3.Connection,
    names: Names,
    *,
    schema: TableSchema | None = None,
    notice: TableNotice | None = None,
) -> None:
    """Write an announcement into the log: it is delivered once its place is read, again if that is not confirmed."""
    content = {"schema": schema and schema.to_json(), "notice": notice and _notice_json(notice)}
    text = json.dumps(content) if schema or notice else None
    connection.execute(f"INSERT INTO {names.log} (op, ts, c0) SELECT {MARK}, {NOW}, ?", (text,))


def read_marks(
    connection: sqlite3.Connection, names: Names, after: int, upto: int
) -> tuple[tuple[TableSchema, ...], tuple[TableNotice, ...]]:
    """Schemas (the last of each table) and notices announced in (after, upto]."""
    rows = connection.execute(
        f"SELECT c0 FROM {names.log} WHERE seq > ? AND seq <= ? AND op = {MARK} AND c0 IS NOT NULL ORDER BY seq",
        (after, upto),
    ).fetchall()
    contents = [json.loads(text) for (text,) in rows]
    schemas = [TableSchema.from_json(content["schema"]) for content in contents if content["schema"]]
    notices = [_notice(content["notice"]) for content in contents if content["notice"]]
    return tuple({schema.table: schema for schema in schemas}.values()), tuple(dict.fromkeys(notices))


def _notice_json(notice: TableNotice) -> dict[str, Any]:
    data: dict[str, Any] = {"kind": type(notice).__name__, "table": str(notice.table)}
    if isinstance(notice, RecopyNeeded | TableBlocked):
        data["reason"] = notice.reason
    if isinstance(notice, RecopyNeeded):
        data["columns"] = notice.columns
    if isinstance(notice, TableBlocked):
        data["remedy"] = notice.remedy
    return data


def _notice(data: dict[str, Any]) -> TableNotice:
    table = TableId.parse(data["table"])
    if data["kind"] == TableDropped.__name__:
        return TableDropped(table)
    if data["kind"] == RecopyNeeded.__name__:
        columns = data.get("columns")  # marks of an older version have none
        return RecopyNeeded(table, data["reason"], tuple(columns) if columns is not None else None)
    return TableBlocked(table, data["reason"], data["remedy"])


def _exists(connection: sqlite3.Connection, name: str) -> bool:
    found = connection.execute("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?", (name,)).fetchone()
    return found is not None
