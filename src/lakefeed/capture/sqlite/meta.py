# ruff: noqa: S608 (names in SQL are quoted by database.quoted; values are bound)
"""What one pipeline has inside the source: its objects and their names, and what its meta table remembers.

    _lakefeed_<pipeline>_log          the change log, all tables in one order
    _lakefeed_<pipeline>_pending      index over its few unresolved candidates (see triggers)
    _lakefeed_<pipeline>_meta         key → value: identity, format, confirmed sequence, captured tables
    _lakefeed_<pipeline>_vacuum       one row with a high rowid and no key: VACUUM renumbers it, which shows that it ran
    _lakefeed_<pipeline>_<n>_<event>  the triggers of captured table number n

Two pipelines can live in one database. No name can belong to two of them: a trigger's name ends in number and event,
so that pipelines ``a`` and ``a_1`` stay apart.
"""

from __future__ import annotations

import json
import re
import sqlite3
import uuid
from dataclasses import asdict, dataclass, replace
from enum import Enum
from functools import lru_cache
from typing import Any

from lakefeed.capture.log import Announced
from lakefeed.capture.sqlite.database import quoted
from lakefeed.change.change_set import RecopyNeeded, TableBlocked, TableDropped, TableNotice
from lakefeed.change.position import SqliteSequence
from lakefeed.change.table import TableId, TableSchema
from lakefeed.errors import SourceSetupError

EVENTS = ("bi", "bu", "bd", "ai", "au", "ad")
"""before insert, before update, before delete, after insert, after update, after delete"""

CANDIDATE = 0
"""Operation in the log: the key of a row that REPLACE may be about to remove. Never delivered."""
OLD_ROW = 7
"""Operation in the log: a row that is about to be changed. Its change makes it a before image; never delivered else."""
MARK = 9
"""Operation in the log: a schema or notice to announce here, as JSON in c0, or just a position (NULL)."""

NOW = "CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)"
"""Milliseconds since 1970 in SQL that every supported SQLite knows."""

FORMAT = 1
_TABLE = "table/"
_HIGH_ROWID = 1000
_NOTICES = {notice.__name__: notice for notice in (TableDropped, RecopyNeeded, TableBlocked)}


@dataclass(frozen=True, slots=True)
class Names:
    """``log``, ``meta``, ``vacuum`` and ``pending`` are quoted, to be used as SQL."""

    pipeline: str

    @property
    def log_name(self) -> str:
        return f"_lakefeed_{self.pipeline}_log"

    @property
    def meta_name(self) -> str:
        return f"_lakefeed_{self.pipeline}_meta"

    @property
    def vacuum_name(self) -> str:
        return f"_lakefeed_{self.pipeline}_vacuum"

    @property
    def log(self) -> str:
        return quoted(self.log_name)

    @property
    def meta(self) -> str:
        return quoted(self.meta_name)

    @property
    def vacuum(self) -> str:
        return quoted(self.vacuum_name)

    @property
    def pending(self) -> str:
        return quoted(f"_lakefeed_{self.pipeline}_pending")

    def trigger(self, number: int, event: str) -> str:
        return f"_lakefeed_{self.pipeline}_{number}_{event}"

    def is_trigger(self, name: str) -> bool:
        return re.fullmatch(rf"_lakefeed_{re.escape(self.pipeline)}_\d+_({'|'.join(EVENTS)})", name) is not None


class State(Enum):
    LIVE = "live"
    BLOCKED = "blocked"
    """No rows are delivered until the table is prepared again."""
    DROPPED = "dropped"
    """The table is gone; what was logged before is still delivered."""


@dataclass(frozen=True, slots=True)
class Captured:
    """One captured table. ``number`` marks its rows in the log and is never used twice.

    ``slots`` are the log columns (c0, c1 …) of ``schema.columns``, in the same order. A slot belongs to one column
    for good, through renames, which is why it is also the column's stable id. ``sql`` is the CREATE statement as it
    was when the triggers were last checked. ``before_images``: the triggers log rows as they were, too. ``scanned``:
    the rows that were there before the triggers are known to fit ``schema``.
    """

    number: int
    schema: TableSchema
    slots: tuple[int, ...]
    next_slot: int
    rowid_key: bool
    sql: str
    state: State = State.LIVE
    before_images: bool = False
    scanned: bool = True

    @property
    def table(self) -> TableId:
        return self.schema.table

    @property
    def name(self) -> str:
        return self.schema.table.name

    @property
    def slot_of(self) -> dict[str, int]:
        return dict(zip(self.schema.names, self.slots, strict=True))

    @property
    def key_slots(self) -> tuple[int, ...]:
        return tuple(self.slot_of[name] for name in self.schema.key)

    def with_state(self, state: State) -> Captured:
        return replace(self, state=state)

    def to_json(self) -> dict[str, Any]:
        plain = {name: getattr(self, name) for name in self.__slots__}
        return {**plain, "schema": self.schema.to_json(), "state": self.state.value}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Captured:
        schema, state = TableSchema.from_json(data["schema"]), State(data["state"])
        return cls(**{**data, "schema": schema, "slots": tuple(data["slots"]), "state": state})


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

    def is_live(self, table: TableId) -> bool:
        captured = self.captured(table)
        return captured is not None and captured.state is State.LIVE

    def is_right(self, schema_version: int, *, before_images: bool) -> bool:
        """Whether the triggers were made for this very schema, and log what is asked for."""
        there = [one for one in self.tables if one.state is not State.DROPPED]
        return self.schema_version == schema_version and all(one.before_images == before_images for one in there)


def load_meta(connection: sqlite3.Connection, names: Names) -> Meta | None:
    """None if nothing was ever prepared for this pipeline."""
    query = "SELECT name FROM sqlite_master WHERE type = 'table' AND name IN (?, ?)"
    there = {name for (name,) in connection.execute(query, (names.meta_name, names.log_name))}
    if names.meta_name not in there:
        return None
    if names.log_name not in there:
        raise SourceSetupError(
            f"the change log {names.log_name} is gone although its meta table is there",
            remedy="Run `lakefeed uninstall`, then `lakefeed sync`, which copies every table again.",
        )
    values = dict(connection.execute(f"SELECT key, value FROM {names.meta}").fetchall())
    if values["format"] != FORMAT:
        raise SourceSetupError(
            f"{names.meta_name} has format {values['format']}, this Lakefeed reads {FORMAT}",
            remedy="Use the version of Lakefeed that made it, or run its `lakefeed uninstall` first.",
        )
    tables = [_captured(values[key]) for key in values if key.startswith(_TABLE)]
    return Meta(
        identity=values["identity"],
        schema_version=values["schema_version"],
        confirmed=SqliteSequence.parse(values["confirmed"]),
        verified=values["verified"],
        tables=tuple(sorted(tables, key=lambda one: one.number)),
    )


@lru_cache(maxsize=2048)
def _captured(text: str) -> Captured:
    return Captured.from_json(json.loads(text))


def create_meta(connection: sqlite3.Connection, names: Names) -> None:
    """The empty log and meta, with a first row in the log, so that there is a position from the start.

    The log's columns have no type, so that values are kept exactly as they are. There is no AUTOINCREMENT, which
    would leave sqlite_sequence behind for ever; instead the newest row is never pruned, so that numbers only grow.
    """
    connection.execute(f"CREATE TABLE {names.meta} (key TEXT PRIMARY KEY, value) WITHOUT ROWID")
    connection.execute(f"CREATE TABLE {names.log} (seq INTEGER PRIMARY KEY, tab INTEGER, op INTEGER, ts INTEGER, c0)")
    connection.execute(f"CREATE INDEX {names.pending} ON {names.log} (tab) WHERE op = {CANDIDATE}")
    connection.execute(f"CREATE TABLE {names.vacuum} (x)")
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
    """The newest position in the log. A commit boundary, because SQLite shows committed transactions only."""
    row = connection.execute(
        f"SELECT seq, ts FROM {names.log} WHERE op NOT IN ({CANDIDATE}, {OLD_ROW}) ORDER BY seq DESC LIMIT 1"
    ).fetchone()
    if row is None:
        raise SourceSetupError(
            f"the change log {names.log_name} is empty, which it never is by itself",
            remedy="Run `lakefeed uninstall`, then `lakefeed sync`, which copies every table again.",
        )
    return SqliteSequence(*row)


def add_mark(
    connection: sqlite3.Connection,
    names: Names,
    *,
    schema: TableSchema | None = None,
    notice: TableNotice | None = None,
) -> None:
    """Write an announcement into the log: it is delivered when it is read, and again if that is not confirmed."""
    text = None
    if schema or notice:
        data = notice and {"kind": type(notice).__name__, **asdict(notice), "table": str(notice.table)}
        text = json.dumps({"schema": schema and schema.to_json(), "notice": data})
    connection.execute(f"INSERT INTO {names.log} (op, ts, c0) SELECT {MARK}, {NOW}, ?", (text,))


def read_marks(connection: sqlite3.Connection, names: Names, after: int, upto: int) -> Announced | None:
    """Schemas (the last of each table) and notices announced in (after, upto]; None if there is no mark at all."""
    rows = connection.execute(
        f"SELECT c0 FROM {names.log} WHERE seq > ? AND seq <= ? AND op = {MARK} ORDER BY seq", (after, upto)
    ).fetchall()
    if not rows:
        return None
    schemas: dict[TableId, TableSchema] = {}
    notices: dict[TableNotice, None] = {}
    for content in (json.loads(text) for (text,) in rows if text is not None):
        if content["schema"]:
            schema = TableSchema.from_json(content["schema"])
            schemas[schema.table] = schema
        if content["notice"]:
            data = {**content["notice"], "table": TableId.parse(content["notice"]["table"])}
            if data.get("columns") is not None:  # marks of an older version have none
                data["columns"] = tuple(data["columns"])
            notices[_NOTICES[data.pop("kind")](**data)] = None
    return Announced(tuple(schemas.values()), tuple(notices))
