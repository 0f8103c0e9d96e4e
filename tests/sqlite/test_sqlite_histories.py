"""Random histories: whatever an application does to its tables, snapshot and live together give the same rows."""

from __future__ import annotations

import sqlite3
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from tests.sqlite.world import RememberingReplica, World

from lakefeed.change.change_set import TableBlocked

TABLES = {
    "plain": "CREATE TABLE plain (id INTEGER PRIMARY KEY, a TEXT, b REAL, n INT)",
    "pair": "CREATE TABLE pair (x INT, y TEXT COLLATE NOCASE, a, PRIMARY KEY (y, x)) WITHOUT ROWID",
    "named": "CREATE TABLE named (k TEXT NOT NULL PRIMARY KEY COLLATE NOCASE, a NUMERIC, b BLOB)",
    "loose": "CREATE TABLE loose (k NOT NULL PRIMARY KEY, a TEXT)",
    "keyless": "CREATE TABLE keyless (a TEXT, n INT)",
    "uniq": "CREATE TABLE uniq (id INTEGER PRIMARY KEY, a TEXT UNIQUE COLLATE NOCASE, n INT, m INT, UNIQUE (n, m))",
    "partial": "CREATE TABLE partial (id INTEGER PRIMARY KEY, a TEXT, n INT)",
    "bag": "CREATE TABLE bag (a TEXT UNIQUE, n INT)",
}
INDEXES = ("CREATE UNIQUE INDEX live_ones ON partial (a COLLATE NOCASE) WHERE n > 0 AND a <> ')'",)
CONFLICTS = ("", "OR REPLACE", "OR IGNORE", "OR FAIL")

small = st.integers(0, 3)
words = st.sampled_from(["a", "A", "b", "ä", "o'x", ""])
values = st.one_of(st.none(), small, words)
odd = st.one_of(values, st.sampled_from([1.0, 2.5, 2**60, b"", b"\xff", "7"]))


class SqliteHistory(RuleBasedStateMachine):
    """Writes at random, pulls at random, compares after each pull."""

    @initialize(recursive=st.booleans(), mode=st.sampled_from(["wal", "delete"]), before_images=st.booleans())
    def start(self, recursive: bool, mode: str, before_images: bool) -> None:
        self.place = tempfile.TemporaryDirectory()
        self.world = World(Path(self.place.name) / "history.db", journal_mode=mode)
        self.world.before_images = before_images
        self.world.replica = RememberingReplica()
        self.world.sql(*TABLES.values(), *INDEXES, f"PRAGMA recursive_triggers = {recursive}")
        self.world.sql("INSERT INTO plain VALUES (1, 'a', 1, 1)", "INSERT INTO keyless VALUES ('a', 1), ('b', 2)")
        self.world.seed()
        self.extra = 0

    def teardown(self) -> None:
        self.world.close()
        self.place.cleanup()

    def write(self, sql: str, parameters: tuple[Any, ...]) -> None:
        with suppress(sqlite3.IntegrityError):  # a conflict or a NULL key: the statement did not happen
            self.world.writer.execute(sql, parameters)

    def columns(self, name: str) -> list[str]:
        return [row[1] for row in self.world.query(f"PRAGMA table_info({name})")]

    @rule(name=st.sampled_from(sorted(TABLES)), conflict=st.sampled_from(CONFLICTS), data=st.data())
    def insert(self, name: str, conflict: str, data: st.DataObject) -> None:
        columns = self.columns(name)
        row = tuple(data.draw(odd if column in "ka" and name == "loose" else values) for column in columns)
        marks = ", ".join("?" for _ in columns)
        self.write(f"INSERT {conflict} INTO {name} VALUES ({marks})", row)

    @rule(name=st.sampled_from(sorted(TABLES)), conflict=st.sampled_from(CONFLICTS), data=st.data())
    def update(self, name: str, conflict: str, data: st.DataObject) -> None:
        columns = self.columns(name)
        changed, tested = data.draw(st.sampled_from(columns)), data.draw(st.sampled_from(columns))
        where = data.draw(st.sampled_from([f'WHERE "{tested}" IS ?', "WHERE ? OR 1"]))
        self.write(f'UPDATE {conflict} {name} SET "{changed}" = ? {where}', (data.draw(values), data.draw(values)))

    @rule(name=st.sampled_from(["plain", "uniq"]), conflict=st.sampled_from(["DO NOTHING", "UPDATE"]), data=st.data())
    def upsert(self, name: str, conflict: str, data: st.DataObject) -> None:
        columns = self.columns(name)
        last = columns[-1]
        action = f'DO UPDATE SET "{last}" = excluded."{last}"' if conflict == "UPDATE" else "DO NOTHING"
        marks = ", ".join("?" for _ in columns)
        row = tuple(data.draw(values) for _ in columns)
        self.write(f"INSERT INTO {name} VALUES ({marks}) ON CONFLICT (id) {action}", row)

    @rule(name=st.sampled_from(sorted(TABLES)), data=st.data())
    def delete(self, name: str, data: st.DataObject) -> None:
        column = data.draw(st.sampled_from(self.columns(name)))
        self.write(f'DELETE FROM {name} WHERE "{column}" IS ?', (data.draw(values),))

    @rule(name=st.sampled_from(sorted(TABLES)))
    def delete_all(self, name: str) -> None:
        self.world.sql(f"DELETE FROM {name}")

    @rule(value=odd)
    def write_an_odd_value(self, value: Any) -> None:
        for name, key in (("plain", None), ("named", "odd")):
            others = [value for _ in self.columns(name)][1:]
            self.write(f"INSERT INTO {name} VALUES ({', '.join('?' for _ in [key, *others])})", (key, *others))

    @rule(name=st.sampled_from(["plain", "keyless", "pair"]), default=st.sampled_from(["NULL", "7", "'x'", "2.5"]))
    def add_column(self, name: str, default: str) -> None:
        self.extra += 1
        self.world.sql(f"ALTER TABLE {name} ADD COLUMN e{self.extra} INT DEFAULT {default}")

    @precondition(lambda self: self.extra > 0)
    @rule(name=st.sampled_from(["plain", "keyless", "pair"]), data=st.data())
    def drop_column(self, name: str, data: st.DataObject) -> None:
        extras = [column for column in self.columns(name) if column.startswith("e")]
        if extras:
            self.alter(f"ALTER TABLE {name} DROP COLUMN {data.draw(st.sampled_from(extras))}")

    @rule(name=st.sampled_from(["plain", "keyless", "pair"]))
    def add_the_last_column_again(self, name: str) -> None:
        """In the same words, so that the catalog reads as before."""
        last = self.columns(name)[-1]
        if last.startswith("e"):
            self.alter(f"ALTER TABLE {name} DROP COLUMN {last}")
            if last not in self.columns(name):
                self.world.sql(f"ALTER TABLE {name} ADD COLUMN {last} INT DEFAULT 7")

    @rule(name=st.sampled_from(sorted(TABLES)), data=st.data())
    def rename_column(self, name: str, data: st.DataObject) -> None:
        if name != "uniq":  # upsert names its key
            column = data.draw(st.sampled_from([one for one in self.columns(name) if one not in ("id", "k")]))
            other = column[:-1] if column.endswith("_") else f"{column}_"
            self.alter(f"ALTER TABLE {name} RENAME COLUMN {column} TO {other}")

    def alter(self, sql: str) -> None:
        """Some builds of SQLite refuse to drop a column that was renamed until the triggers have been made anew."""
        try:
            self.world.sql(sql)
        except sqlite3.OperationalError as error:
            if "drop column" not in str(error):
                raise

    @rule()
    def vacuum(self) -> None:
        self.world.sql("VACUUM")

    @rule(name=st.sampled_from(sorted(TABLES)))
    def recreate(self, name: str) -> None:
        """As migration tools do it: a new table with the old rows, renamed into place."""
        if name == "partial":
            return  # its index would have to be made again; the other tables show the same
        (sql,) = self.world.query(f"SELECT sql FROM sqlite_master WHERE name = '{name}'")[0]
        fresh = sql.replace(name, "fresh", 1) if f'"{name}"' not in sql else sql.replace(f'"{name}"', "fresh", 1)
        self.world.sql("PRAGMA legacy_alter_table = ON", fresh, f"INSERT INTO fresh SELECT * FROM {name}")
        self.world.sql(f"DROP TABLE {name}", f"ALTER TABLE fresh RENAME TO {name}", "PRAGMA legacy_alter_table = OFF")

    @rule(before_images=st.booleans())
    def restart(self, before_images: bool) -> None:
        self.world.before_images = before_images
        self.world.restart()

    @rule()
    def confirm(self) -> None:
        if self.world.position is not None:
            self.world.capture.confirm(self.world.position)

    @rule()
    def pull(self) -> None:
        while not (change_set := self.world.pull()).is_heartbeat or change_set.start != change_set.end:
            self.world.recopy()
        assert not any(isinstance(notice, TableBlocked) for notice in self.world.notices)
        for name in TABLES:
            self.world.assert_equal(name)


class LongSqliteHistory(SqliteHistory):
    """The same, more often."""


_LIMITS = settings(stateful_step_count=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
TestSqliteHistory = SqliteHistory.TestCase
TestSqliteHistory.settings = settings(_LIMITS, max_examples=12)
TestLongSqliteHistory = pytest.mark.slow(LongSqliteHistory.TestCase)
LongSqliteHistory.TestCase.settings = settings(_LIMITS, max_examples=50)
