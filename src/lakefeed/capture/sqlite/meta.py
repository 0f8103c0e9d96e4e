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
from collections.abc import Collection
from dataclasses import asdict, dataclass, replace
from enum import Enum
from functools import lru_cache
from typing import Any

import pyarrow as pa

from lakefeed.capture.log import Announced
from lakefeed.capture.sqlite.database import quoted
from lakefeed.capture.sqlite.values import text_form
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
_START_AGAIN = "Run `lakefeed uninstall`, then `lakefeed sync`, which copies every table again."


class Names:
    """``log``, ``meta``, ``vacuum`` and ``pending`` are quoted, to be used as SQL."""

    def __init__(self, pipeline: str) -> None:
        self.pipeline = pipeline
        self.prefix = f"_lakefeed_{pipeline}_"
        self.log, self.meta, self.vacuum, self.pending = (
            quoted(self.prefix + name) for name in ("log", "meta", "vacuum", "pending")
        )

    def trigger(self, number: int, event: str) -> str:
        return f"{self.prefix}{number}_{event}"

    def split_trigger(self, name: str) -> tuple[int, str] | None:
        """Number and event of a trigger of this pipeline, None for any other."""
        found = re.fullmatch(rf"{re.escape(self.prefix)}(\d+)_({'|'.join(EVENTS)})", name)
        return None if found is None else (int(found[1]), found[2])


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
    def slot_of(self) -> dict[str, int]:
        return dict(zip(self.schema.names, self.slots, strict=True))

    @property
    def key_slots(self) -> list[str]:
        return [f"c{self.slot_of[name]}" for name in self.schema.key]

    def with_text(self, mixed: Collection[str]) -> Captured:
        """The capture with ``mixed`` columns as strings."""
        columns = tuple(
            replace(column, type=pa.string(), default=text_form(column.default)) if column.name in mixed else column
            for column in self.schema.columns
        )
        return replace(self, schema=replace(self.schema, columns=columns))

    def to_json(self) -> str:
        plain = {name: getattr(self, name) for name in self.__slots__}
        return json.dumps({**plain, "schema": self.schema.to_json(), "state": self.state.value})

    @classmethod
    @lru_cache(maxsize=2048)
    def from_json(cls, text: str) -> Captured:
        data = json.loads(text)
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

    @property
    def in_force(self) -> list[Captured]:
        return [one for one in self.tables if one.state is not State.DROPPED]

    def captured(self, table: TableId) -> Captured | None:
        return next((one for one in self.in_force if one.table == table), None)

    def is_live(self, table: TableId) -> bool:
        captured = self.captured(table)
        return captured is not None and captured.state is State.LIVE

    def is_right(self, schema_version: int, *, before_images: bool) -> bool:
        """Whether the triggers were made for this very schema, and log what is asked for."""
        logged = all(one.before_images == before_images for one in self.in_force)
        return self.schema_version == schema_version and logged


class OwnTables:
    """The pipeline's own tables in the source, over one connection. What writes belongs into a write transaction."""

    def __init__(self, connection: sqlite3.Connection, names: Names) -> None:
        self.connection = connection
        self.execute = connection.execute
        self.names = names

    def load(self) -> Meta | None:
        """None if nothing was ever prepared for this pipeline."""
        log, meta = (self.names.prefix + name for name in ("log", "meta"))
        query = "SELECT name FROM sqlite_master WHERE type = 'table' AND name IN (?, ?)"
        there = {name for (name,) in self.execute(query, (log, meta))}
        if meta not in there:
            return None
        if log not in there:
            problem = f"the change log {log} is gone although its meta table is there"
            raise SourceSetupError(problem, remedy=_START_AGAIN)
        values = dict(self.execute(f"SELECT key, value FROM {self.names.meta}").fetchall())
        if values["format"] != FORMAT:
            raise SourceSetupError(
                f"{meta} has format {values['format']}, this Lakefeed reads {FORMAT}",
                remedy="Use the version of Lakefeed that made it, or run its `lakefeed uninstall` first.",
            )
        tables = [Captured.from_json(values[key]) for key in values if key.startswith(_TABLE)]
        return Meta(
            identity=values["identity"],
            schema_version=values["schema_version"],
            confirmed=SqliteSequence.parse(values["confirmed"]),
            verified=values["verified"],
            tables=tuple(sorted(tables, key=lambda one: one.number)),
        )

    def create(self) -> None:
        """The empty log and meta, with a first row in the log, so that there is a position from the start.

        The log's columns have no type, so that values are kept exactly as they are. There is no AUTOINCREMENT, which
        would leave sqlite_sequence behind for ever; instead the newest row is never pruned, so that numbers only grow.
        """
        log = self.names.log
        self.execute(f"CREATE TABLE {self.names.meta} (key TEXT PRIMARY KEY, value) WITHOUT ROWID")
        self.execute(f"CREATE TABLE {log} (seq INTEGER PRIMARY KEY, tab INTEGER, op INTEGER, ts INTEGER, c0)")
        self.execute(f"CREATE INDEX {self.names.pending} ON {log} (tab) WHERE op = {CANDIDATE}")
        self.execute(f"CREATE TABLE {self.names.vacuum} (x)")
        self.mark()
        self.put(format=FORMAT, identity=str(uuid.uuid4()), next_number=1, confirmed=self.head().text())
        self.put_verified()

    def put(self, **values: Any) -> None:
        query = f"INSERT OR REPLACE INTO {self.names.meta} VALUES (?, ?)"
        self.connection.executemany(query, list(values.items()))

    def put_table(self, captured: Captured) -> None:
        self.put(**{f"{_TABLE}{captured.number}": captured.to_json()})

    def forget_table(self, number: int) -> None:
        self.execute(f"DELETE FROM {self.names.meta} WHERE key = ?", (f"{_TABLE}{number}",))

    def next_number(self) -> int:
        """A number for a captured table; every call gives another."""
        (number,) = self.execute(f"SELECT value FROM {self.names.meta} WHERE key = 'next_number'").fetchone()
        self.put(next_number=number + 1)
        return int(number)

    def put_verified(self) -> None:
        """From here on the triggers are right: call at the end of a transaction that made them so."""
        self.execute(f"DELETE FROM {self.names.vacuum}")
        self.execute(f"INSERT INTO {self.names.vacuum} (rowid) VALUES ({_HIGH_ROWID})")
        self.put(schema_version=schema_version(self.connection), verified=self.head().sequence)

    def was_vacuumed(self) -> bool:
        """Whether VACUUM ran since ``put_verified``: it renumbers the rows of tables without key and index."""
        row = self.execute(f"SELECT rowid FROM {self.names.vacuum}").fetchone()
        return row is None or int(row[0]) != _HIGH_ROWID

    def head(self) -> SqliteSequence:
        """The newest position in the log. A commit boundary, because SQLite shows committed transactions only."""
        passed = f"op NOT IN ({CANDIDATE}, {OLD_ROW})"
        row = self.execute(f"SELECT seq, ts FROM {self.names.log} WHERE {passed} ORDER BY seq DESC LIMIT 1").fetchone()
        if row is None:
            problem = f"the change log {self.names.prefix}log is empty, which it never is by itself"
            raise SourceSetupError(problem, remedy=_START_AGAIN)
        return SqliteSequence(*row)

    def mark(self, *, schema: TableSchema | None = None, notice: TableNotice | None = None) -> None:
        """Write an announcement into the log: it is delivered when it is read, and again if that is not confirmed."""
        text = None
        if schema or notice:
            data = notice and {"kind": type(notice).__name__, **asdict(notice), "table": str(notice.table)}
            text = json.dumps({"schema": schema and schema.to_json(), "notice": data})
        self.execute(f"INSERT INTO {self.names.log} (op, ts, c0) SELECT {MARK}, {NOW}, ?", (text,))

    def marks(self, after: int, upto: int) -> Announced | None:
        """Schemas (the last of each table) and notices announced in (after, upto]; None if there is no mark at all."""
        query = f"SELECT c0 FROM {self.names.log} WHERE seq > ? AND seq <= ? AND op = {MARK} ORDER BY seq"
        rows = self.execute(query, (after, upto)).fetchall()
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


def schema_version(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA main.schema_version").fetchone()[0])
