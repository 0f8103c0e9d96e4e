# ruff: noqa: S608 (names in SQL are quoted by database.quoted; values are bound)
"""What one pipeline has inside the source: its tables, their content, and its triggers.

    _lakefeed_<pipeline>_log          the change log, all tables in one order
    _lakefeed_<pipeline>_pending      index on its few unresolved candidates (fact 3)
    _lakefeed_<pipeline>_meta         key → value: identity, format, confirmed sequence, captured tables
    _lakefeed_<pipeline>_vacuum       one row with a high rowid and no key: VACUUM renumbers it, which shows that it ran
    _lakefeed_<pipeline>_<n>_<event>  the triggers of captured table number n

Two pipelines can share a database. Their names never collide: a trigger's name ends in number and event, which keeps
the pipelines ``a`` and ``a_1`` apart.

Five facts about SQLite shape the triggers.

1. A trigger that mentions NEW."a" makes SQLite refuse ALTER TABLE … DROP COLUMN a. So only key columns, which cannot be
   dropped, are read that way. The others are read from the table, each by a scalar subquery, inside a scope that has a
   NULL under every name: after a column is dropped, its name resolves to that NULL. When a column is renamed, SQLite
   rewrites the name in the subquery, and ``slot_names`` reads the column's current name from there.
   (Measured with six columns: this form costs the writer 6.2 µs, NEW. 3.9 µs, one UPDATE … FROM for all columns 11 µs.)
2. The user's own triggers may fire before these. So everything that is logged is checked against the table at that
   moment: no image of a row that is gone, no delete of a key that exists again.
3. REPLACE removes rows that conflict in another unique index, and fires no delete triggers (unless the writer has
   recursive_triggers on). If there are such indexes, a BEFORE trigger logs the keys of conflicting rows as candidates;
   the AFTER trigger turns those that are gone into deletes, ahead of the new row. Candidates of an INSERT that was then
   ignored remain for a while; readers skip them, and the row's own trigger removes them. A row that conflicts in two
   indexes is a candidate twice and a delete once. Since the columns of such an index must be read with NEW., they can
   be dropped only after the index is dropped *and* the capture has noticed that. In a BEFORE trigger NEW. is not what
   will be stored: a rowid that is not given is -1, and a NULL that REPLACE turns into the column's default is still
   NULL.
4. By the column's collation 'a' and 'A' may be one key, and by value 1 and 1.0: a key has changed if its bytes or its
   type have.
5. Fact 1 holds for OLD. as well, and in an AFTER trigger the old row is no longer in the table. So if before images are
   wanted, a BEFORE trigger logs the row while it exists (OLD_ROW), and the AFTER trigger turns the newest one with that
   key into a before image, and moves it to the end of the log if something was logged in between (a cascade, a user's
   trigger, a row that REPLACE removed). If the statement was ignored, the entry remains; readers skip it."""

from __future__ import annotations

import json
import re
import sqlite3
import uuid
from collections.abc import Collection, Iterable
from dataclasses import asdict, dataclass, replace
from enum import Enum
from functools import lru_cache
from typing import Any, NamedTuple

import pyarrow as pa

from lakefeed.capture.log import Announced, not_prepared
from lakefeed.capture.sqlite.database import quoted
from lakefeed.capture.sqlite.table import SourceTable, default_value, schema_version
from lakefeed.capture.sqlite.values import text_form
from lakefeed.change.batch import Operation
from lakefeed.change.change_set import RecopyNeeded, TableBlocked, TableDropped, TableNotice
from lakefeed.change.position import SqliteSequence
from lakefeed.change.table import TableId, TableSchema
from lakefeed.errors import SourceSetupError

EVENTS = ("bi", "bu", "bd", "ai", "au", "ad")  # before and after insert, update, delete
NOW = "CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)"
"""Milliseconds since 1970, in SQL that every supported SQLite understands."""

# Operations in the log besides those of ``Operation``:
CANDIDATE = 0  # the key of a row that REPLACE may be about to remove; never delivered
OLD_ROW = 7  # a row that is about to change; delivered only if its change makes it a before image
MARK = 9  # a schema or notice to announce here, as JSON in c0, or only a position (NULL)

FORMAT = 1
_TABLE = "table/"
_HIGH_ROWID = 1000
_NOTICES = {notice.__name__: notice for notice in (TableDropped, RecopyNeeded, TableBlocked)}
_START_AGAIN = "Run `lakefeed uninstall`, then `lakefeed sync`, which copies every table again."


# Unresolved candidates may belong to an enclosing statement (a user's trigger on the same table), so the newest few are
# kept for it; older ones belong to INSERTs that were ignored.
_CANDIDATES_KEPT = 16
_VICTIM = "_lakefeed_victim"  # an alias that no table of the user can have
_FOUND = re.compile(r"/\*<\*/(.*?)/\*>\*/", re.DOTALL)
_FIXED_COLUMNS = 4  # of the log: seq, tab, op, ts
_SLOT = re.compile(r"""/\*(\d+)\*/(?:\(SELECT |NEW\.)"((?:[^"]|"")*)\"""")
_INSERT, _UPDATE, _DELETE, _BEFORE = Operation.INSERT, Operation.UPDATE, Operation.DELETE, Operation.BEFORE


class Installation:
    """The names of what one pipeline has in the source. ``log``, ``meta``, ``vacuum`` and ``pending`` are quoted for
    SQL. ``before_images``: whether its triggers should also log rows as they were."""

    def __init__(self, pipeline: str, *, before_images: bool = False) -> None:
        self.pipeline = pipeline
        self.before_images = before_images
        self.prefix = f"_lakefeed_{pipeline}_"
        own = ("log", "meta", "vacuum", "pending")
        self.log, self.meta, self.vacuum, self.pending = (quoted(self.prefix + name) for name in own)

    def trigger(self, number: int, event: str) -> str:
        return f"{self.prefix}{number}_{event}"


class Trigger(NamedTuple):
    """The table it is on, and its text, which SQLite keeps up to date through renames."""

    table: str
    sql: str

    @property
    def slot_names(self) -> dict[int, str]:
        """The current name of each slot's column. Only for an AFTER INSERT trigger."""
        return {int(slot): name.replace('""', '"') for slot, name in _SLOT.findall(self.sql)}

    @property
    def candidates(self) -> list[str] | str:
        """The part of a BEFORE trigger that finds candidates, without the part that logs them."""
        return _FOUND.findall(self.sql) or self.sql


class State(Enum):
    LIVE = "live"
    BLOCKED = "blocked"  # no rows are delivered until the table is prepared again
    DROPPED = "dropped"  # the table is gone; what was logged before is still delivered


@dataclass(frozen=True, slots=True)
class Captured:
    """One captured table. ``number`` marks its rows in the log and is never reused. ``slots`` are the log columns (c0,
    c1 …) of ``schema.columns``, in the same order. A slot belongs to one column for good, even through renames; so it
    is also the column's stable id. ``sql`` is the CREATE statement when the triggers were last checked.
    ``before_images``: the triggers also log rows as they were. ``scanned``: rows from before the triggers are known to
    fit ``schema``."""

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
        """The capture with the ``mixed`` columns as strings."""
        columns = list(self.schema.columns)
        for at, one in enumerate(columns):
            if one.name in mixed:
                columns[at] = replace(one, type=pa.string(), default=text_form(one.default))
        return replace(self, schema=replace(self.schema, columns=tuple(columns)))

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
    """The content of the meta table. ``verified`` is the sequence up to which the triggers are known to have suited the
    tables' definitions."""

    identity: str
    schema_version: int
    confirmed: SqliteSequence
    verified: int
    tables: tuple[Captured, ...]

    @property
    def in_force(self) -> list[Captured]:
        return [one for one in self.tables if one.state is not State.DROPPED]

    def state(self, table: TableId) -> State | None:
        return next((one.state for one in self.in_force if one.table == table), None)

    def is_right(self, version: int, names: Installation) -> bool:
        """Whether the triggers were made for this schema version, and log what is wanted."""
        logged = all(one.before_images == names.before_images for one in self.in_force)
        return self.schema_version == version and logged


class OwnTables:
    """The pipeline's own tables in the source, on one connection. Methods that write need a write transaction."""

    def __init__(self, connection: sqlite3.Connection, names: Installation) -> None:
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
            problem = f"the change log {log} is missing although its meta table exists"
            raise SourceSetupError(problem, remedy=_START_AGAIN)
        values = dict(self.execute(f"SELECT key, value FROM {self.names.meta}").fetchall())
        if values["format"] != FORMAT:
            problem = f"{meta} has format {values['format']}; this version of Lakefeed reads format {FORMAT}"
            remedy = "Use the version of Lakefeed that made it, or run its `lakefeed uninstall` first."
            raise SourceSetupError(problem, remedy=remedy)
        captured = [Captured.from_json(values[key]) for key in values if key.startswith(_TABLE)]
        tables = tuple(sorted(captured, key=lambda one: one.number))
        confirmed = SqliteSequence.parse(values["confirmed"])
        return Meta(values["identity"], values["schema_version"], confirmed, values["verified"], tables)

    def require(self) -> Meta:
        if (meta := self.load()) is None:
            raise not_prepared()
        return meta

    def create(self) -> None:
        """Create log and meta, with a first row in the log, so that there is a position from the start. The log's
        columns have no type, so that values are stored unchanged. It has no AUTOINCREMENT, which would leave
        sqlite_sequence behind for ever; instead the newest row is never pruned, so that numbers only grow."""
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
        """A number for a captured table; each call returns a new one."""
        (number,) = self.execute(f"SELECT value FROM {self.names.meta} WHERE key = 'next_number'").fetchone()
        self.put(next_number=number + 1)
        return int(number)

    def put_verified(self) -> None:
        """From here on the triggers suit the tables. Call at the end of the transaction that achieved it."""
        self.execute(f"DELETE FROM {self.names.vacuum}")
        self.execute(f"INSERT INTO {self.names.vacuum} (rowid) VALUES ({_HIGH_ROWID})")
        self.put(schema_version=schema_version(self.connection), verified=self.head().sequence)

    def was_vacuumed(self) -> bool:
        """Whether VACUUM ran since ``put_verified``: it renumbers rows of tables without a key and an index."""
        row = self.execute(f"SELECT rowid FROM {self.names.vacuum}").fetchone()
        return row is None or int(row[0]) != _HIGH_ROWID

    def head(self) -> SqliteSequence:
        """The newest position in the log. It is a commit boundary, because SQLite shows only committed transactions."""
        passed = f"op NOT IN ({CANDIDATE}, {OLD_ROW})"
        row = self.execute(f"SELECT seq, ts FROM {self.names.log} WHERE {passed} ORDER BY seq DESC LIMIT 1").fetchone()
        if row is None:
            problem = f"the change log {self.names.prefix}log is empty, which it never is by itself"
            raise SourceSetupError(problem, remedy=_START_AGAIN)
        return SqliteSequence(*row)

    def mark(self, *, schema: TableSchema | None = None, notice: TableNotice | None = None) -> None:
        """Write an announcement into the log. It is delivered when it is read, and again until it is confirmed."""
        text = None
        if schema or notice:
            data = notice and {"kind": type(notice).__name__, **asdict(notice), "table": str(notice.table)}
            text = json.dumps({"schema": schema and schema.to_json(), "notice": data})
        self.execute(f"INSERT INTO {self.names.log} (op, ts, c0) SELECT {MARK}, {NOW}, ?", (text,))

    def marks(self, after: int, upto: int) -> Announced | None:
        """Schemas (the last one of each table) and notices announced in (after, upto]; None if there is no mark."""
        query = f"SELECT c0 FROM {self.names.log} WHERE seq > ? AND seq <= ? AND op = {MARK} ORDER BY seq"
        schemas: dict[TableId, TableSchema] = {}
        notices: dict[TableNotice, None] = {}
        rows = self.execute(query, (after, upto)).fetchall()
        for content in (json.loads(text) for (text,) in rows if text is not None):
            if content["schema"]:
                schema = TableSchema.from_json(content["schema"])
                schemas[schema.table] = schema
            if data := content["notice"]:
                data["table"] = TableId.parse(data["table"])
                if data.get("columns") is not None:  # marks of an older version lack it
                    data["columns"] = tuple(data["columns"])
                notices[_NOTICES[data.pop("kind")](**data)] = None
        return Announced(tuple(schemas.values()), tuple(notices)) if rows else None

    def triggers(self) -> dict[int, dict[str, Trigger]]:
        """This pipeline's existing triggers, by number of the captured table and event."""
        own_name = re.compile(rf"{re.escape(self.names.prefix)}(\d+)_({'|'.join(EVENTS)})")
        found: dict[int, dict[str, Trigger]] = {}
        query = "SELECT name, tbl_name, sql FROM sqlite_master WHERE type = 'trigger'"
        for name, table, sql in self.execute(query).fetchall():
            if (parts := own_name.fullmatch(name)) is not None:
                found.setdefault(int(parts[1]), {})[parts[2]] = Trigger(table, sql)
        return found

    def install_triggers(self, source: SourceTable, captured: Captured) -> None:
        """Replace the table's triggers by the wanted ones, and make the log wide enough for them."""
        have = len(self.execute(f"PRAGMA table_info({self.names.log})").fetchall()) - _FIXED_COLUMNS
        for slot in range(have, captured.next_slot):
            self.execute(f"ALTER TABLE {self.names.log} ADD COLUMN c{slot}")
        self.remove_triggers(captured.number)
        for trigger in self.wanted_triggers(source, captured).values():
            self.execute(trigger.sql)

    def remove_triggers(self, number: int) -> None:
        for event in EVENTS:
            self.execute(f"DROP TRIGGER IF EXISTS {quoted(self.names.trigger(number, event))}")

    def wanted_triggers(self, source: SourceTable, captured: Captured) -> dict[str, Trigger]:
        """The triggers that a table should have, by event."""
        sql = _Sql(self.names, source, captured)
        changed = " OR ".join(f"NOT ({_identical(f'OLD.{name}', f'NEW.{name}')})" for name in sql.key)
        image = sql.image(f"CASE WHEN {changed} THEN {_INSERT} ELSE {_UPDATE} END")
        resolve, no_victim, before_insert, before_update = list[str](), list[str](), list[str](), list[str]()
        if source.conflicts:
            resolve = sql.resolve()
            # A row's own trigger logs it, so what an ignored INSERT logged about it is obsolete.
            no_victim = [f"DELETE FROM {self.names.log} WHERE {sql.candidate} AND {sql.logged}"]
            # The rowid of a new row may not be chosen yet; an existing row may have the key -1 that NEW. then shows.
            not_given = [f"NEW.{sql.key[0]} = -1"] if source.key_is_rowid or captured.rowid_key else []
            before_insert, before_update = sql.candidates("NEW", not_given), sql.candidates("OLD", [])
        old_row, updated, deleted = list[str](), list[str](), list[str]()
        if captured.before_images:
            old_row, gone = [sql.old_row()], sql.gone(sql.old_key)
            updated = sql.before(f"CASE WHEN {changed} THEN {gone} ELSE {sql.there('NEW')} END")
            deleted = sql.before(gone)
        bodies = {
            "ai": ("AFTER INSERT", [*resolve, sql.image(_INSERT)]),
            "au": ("AFTER UPDATE", [*no_victim, *resolve, *updated, sql.delete(f"({changed})"), image]),
            "ad": ("AFTER DELETE", [*deleted, sql.delete("1"), *no_victim]),
            "bi": ("BEFORE INSERT", before_insert),
            "bu": ("BEFORE UPDATE", [*before_update, *old_row]),
            "bd": ("BEFORE DELETE", old_row),
        }
        created = {event: f"CREATE TRIGGER {quoted(self.names.trigger(captured.number, event))}" for event in bodies}
        return {
            event: Trigger(source.name, f"{created[event]} {when} ON {sql.table} BEGIN\n{';'.join(body)};\nEND")
            for event, (when, body) in bodies.items()
            if body
        }


class _Sql:
    """The pieces of SQL that the triggers of one table are made of."""

    def __init__(self, names: Installation, source: SourceTable, captured: Captured) -> None:
        self._log, self._source, self._captured = names.log, source, captured
        self.table, self.key = quoted(source.name), source.sql_key
        # The rowid if there is one, else the key: it finds a row in the table, and ALTER never changes it.
        self._locator = (quoted(source.rowid),) if source.rowid else self.key
        self._key_slots = captured.key_slots
        self.slots = [f"c{slot}" for slot in captured.slots]
        self.old_key = [f"OLD.{name}" for name in self.key]
        self.candidate = f"op = {CANDIDATE} AND tab = {captured.number}"
        # True for an entry of the log that has the old row's key.
        self.logged = " AND ".join(_identical(*pair) for pair in zip(self._key_slots, self.old_key, strict=True))
        # A NULL under every name, for columns that are dropped under the trigger.
        self.nulls = f"(SELECT {', '.join(f'NULL AS {quoted(column.name)}' for column in source.columns)})"

    def insert(self, operation: str | int, slots: list[str], values: list[str], rest: str) -> str:
        """An INSERT into the log; ``rest`` is what follows the SELECT list."""
        columns = ", ".join(["tab", "op", "ts", *slots])
        listed = ", ".join([str(self._captured.number), str(operation), NOW, *values])
        return f"INSERT INTO {self._log} ({columns}) SELECT {listed} {rest}"

    def image(self, operation: str | int) -> str:
        """Log the row as it is now, if it still exists."""
        return self.insert(operation, self.slots, self.values("NEW"), f"FROM {self.nulls} WHERE {self.there('NEW')}")

    def old_row(self) -> str:
        """Log the row that is about to be changed."""
        rest = f"FROM {self.nulls} WHERE {self.known(self.old_key)}"
        return self.insert(OLD_ROW, self.slots, self.values("OLD"), rest)

    def _here(self, row: str) -> str:
        """SQL: the table's row has the locator of ``row`` (NEW, OLD or an alias)."""
        return " AND ".join(f"{name} = {row}.{name}" for name in self._locator)

    def there(self, row: str) -> str:
        return f"EXISTS (SELECT 1 FROM {self.table} WHERE {self._here(row)})"

    def values(self, row: str) -> list[str]:
        """A row's values by slot: the key from ``row``, the rest from the table (fact 1)."""
        values, captured = [], self._captured
        for name, slot in captured.slot_of.items():
            if captured.rowid_key and name == captured.schema.key[0]:
                values.append(f"{row}.{self.key[0]}")
            elif name in self._source.key:
                values.append(f"/*{slot}*/{row}.{quoted(name)}")
            else:
                values.append(f"/*{slot}*/(SELECT {quoted(name)} FROM {self.table} WHERE {self._here(row)})")
        return values

    def before(self, condition: str) -> list[str]:
        """Turn the old row into a before image at the end of the log, if its change is logged next. Usually it is there
        already. A before image at the end of the log was just made: its change follows."""
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
        """SQL: the key has no NULL. Rows with a NULL in the key are never delivered, so there is nothing to delete."""
        return " AND ".join(f"{value} IS NOT NULL" for value in key) if self._source.nullable_key else "1"

    def gone(self, key: list[str]) -> str:
        """SQL: no row has exactly this key. The plain comparison lets SQLite use the index, the rest makes it exact."""
        pairs = zip(self.key, key, strict=True)
        same = " AND ".join(f"{name} = {value} AND {_identical(name, value)}" for name, value in pairs)
        return f"NOT EXISTS (SELECT 1 FROM {self.table} WHERE {same})"

    def candidates(self, itself: str, unless: list[str]) -> list[str]:
        """Log the keys of rows that conflict with the new one, and their other columns if before images are wanted.
        ``itself``: NEW or OLD, whose exact key no other row has, ``unless`` one of these conditions holds."""
        other = " OR ".join([*(f"NOT ({_identical(name, f'{itself}.{name}')})" for name in self.key), *unless])
        old = f"{self.candidate} AND seq <= (SELECT max(seq) FROM {self._log}) - {_CANDIDATES_KEPT}"
        statements = [f"DELETE FROM {self._log} WHERE {old}"]
        declared = {column.name: column for column in self._source.columns}
        for index in self._source.conflicts:
            same = []
            for name, collation in index.columns:
                stored, column = f"NEW.{quoted(name)}", declared[name]
                if column.not_null and column.default is not None:  # REPLACE stores it where NULL is not allowed
                    stored = f"coalesce({stored}, {default_value(column.default)})"
                same.append(f"{quoted(name)} = {stored} COLLATE {quoted(collation)}")
            # The line break ends a comment that may be at the end of the condition.
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
        """Turn candidates that are gone into deletes, one for each row, after its before image if that is wanted."""
        log = self._log
        victims = [f"{log}.{slot}" for slot in self._key_slots]
        gone = f"{self.candidate} AND {self.gone(victims)}"
        if self._captured.before_images:
            # A row may be a candidate twice: the newest entry is valid.
            newest = f"SELECT max(seq) FROM {log} WHERE {self.candidate} GROUP BY {', '.join(self._key_slots)}"
            others = {slot: f"CASE kind WHEN {_BEFORE} THEN {log}.{slot} END" for slot in self.slots}
            values = list({**others, **dict(zip(self._key_slots, victims, strict=True))}.values())
            kinds = f"(SELECT {_BEFORE} AS kind UNION ALL SELECT {_DELETE})"
            pairs = f"FROM {log}, {kinds} WHERE {gone} ORDER BY {log}.seq, kind = {_DELETE}"
            twins = f"DELETE FROM {log} WHERE {self.candidate} AND seq NOT IN ({newest})"
            once = [twins, self.insert("kind", self.slots, values, pairs)]
        else:
            # Usually there are no candidates: this is evaluated only per candidate, GROUP BY would burden every insert.
            same = " AND ".join(f"twin.{slot} IS {log}.{slot}" for slot in self._key_slots)
            twins = f"twin.op = {CANDIDATE} AND twin.tab = {self._captured.number} AND {same}"
            rest = f"FROM {log} WHERE {gone} AND {log}.seq = (SELECT max(twin.seq) FROM {log} AS twin WHERE {twins})"
            once = [self.insert(_DELETE, self._key_slots, victims, rest)]
        return [*once, f"DELETE FROM {log} WHERE {gone}"]


def _identical(a: str, b: str) -> str:
    return f"{a} IS {b} COLLATE BINARY AND typeof({a}) = typeof({b})"
