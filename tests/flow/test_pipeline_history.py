"""Any history of a database, cut anywhere, crashed anywhere, ends with lake == source.

The source, the journal and the table states are real; the lake is the one in memory, so that hundreds of histories fit
into a minute. The same is done with Spark, in fewer histories, in tests/lake.
"""

from __future__ import annotations

import json
import random
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from tests.flow.history import Database, assert_equal

from lakefeed import Pipeline, PipelineOptions, Sqlite
from lakefeed.failpoint import NAMES, FailpointError, armed
from lakefeed.journal.options import JournalOptions
from lakefeed.testing.memory_lake import MemoryLake

KEYS = st.integers(0, 6)
TEXTS = st.sampled_from(["", "a", "B'\"", "\u00fc\U0001f40b", "\x00x"])
NUMBERS = st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1), st.sampled_from(["text", b"\xff", 1.5]))


class History(RuleBasedStateMachine):
    @initialize(wal=st.booleans())
    def begin(self, wal: bool) -> None:
        self.directory = tempfile.TemporaryDirectory()
        root = Path(self.directory.name)
        self.database = Database(root / "h.db", wal=wal)
        self.lake = MemoryLake(str(root / "lake"))
        self.added = 0
        self.pipeline = self.make()
        self.seen: dict[str, int] = {}

    def make(self) -> Pipeline:
        options = PipelineOptions(journal=JournalOptions(keep_seconds=0, keep_change_sets=2, fsync=False))
        return Pipeline(Sqlite(self.database.path), self.lake, name="h", options=options)

    @rule(key=KEYS, a=TEXTS, b=NUMBERS, u=KEYS)
    def replace(self, key: int, a: str, b: object, u: int) -> None:
        if {"a", "b"} <= set(self.database.columns("plain")):
            statement = "INSERT OR REPLACE INTO plain (id, a, b, u) VALUES (?, ?, ?, ?)"
            self.database.execute(statement, key, a, b, f"u{u}")

    @rule(key=KEYS, u=KEYS)
    def upsert(self, key: int, u: int) -> None:
        statement = "INSERT INTO plain (id, u) VALUES (?, ?) ON CONFLICT (id) DO UPDATE SET u = id || 'x'"
        self.database.execute(statement + " ON CONFLICT DO NOTHING", key, f"u{u}")

    @rule(old=KEYS, new=KEYS)
    def change_key(self, old: int, new: int) -> None:
        self.database.execute("UPDATE OR REPLACE plain SET id = ? WHERE id = ?", new, old)

    @rule(key=KEYS)
    def delete(self, key: int) -> None:
        self.database.execute("DELETE FROM plain WHERE id = ?", key)

    @rule(table=st.sampled_from(["plain", "pair", "loose"]))
    def delete_all(self, table: str) -> None:
        self.database.execute(f"DELETE FROM {table}")

    @rule(k1=TEXTS, k2=KEYS, v=st.floats(allow_nan=False))
    def write_pair(self, k1: str, k2: int, v: float) -> None:
        self.database.execute("INSERT INTO pair VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET v = excluded.v", k1, k2, v)

    @rule(k2=KEYS, k1=TEXTS)
    def move_pair(self, k1: str, k2: int) -> None:
        self.database.execute("UPDATE OR IGNORE pair SET k1 = ? WHERE k2 = ?", k1, k2)

    @rule(x=TEXTS, y=st.binary(max_size=3))
    def write_loose(self, x: str, y: bytes) -> None:
        self.database.execute("INSERT INTO loose (x, y) VALUES (?, ?)", x, y)

    @rule(x=TEXTS)
    def delete_loose(self, x: str) -> None:
        self.database.execute("DELETE FROM loose WHERE x = ?", x)

    @rule(keys=st.lists(KEYS, max_size=4), commit=st.booleans())
    def transaction(self, keys: list[int], commit: bool) -> None:
        self.database.execute("BEGIN IMMEDIATE")
        for key in keys:
            self.database.execute("INSERT OR IGNORE INTO plain (id) VALUES (?)", key)
            self.database.execute("UPDATE OR IGNORE plain SET u = ? WHERE id = ?", f"t{key}", key)
        self.database.execute("COMMIT" if commit else "ROLLBACK")

    @rule(default=st.sampled_from(["", " DEFAULT 7", " DEFAULT 'd''q'", " DEFAULT NULL"]))
    def add_column(self, default: str) -> None:
        self.added += 1
        self.database.execute(f"ALTER TABLE plain ADD COLUMN n{self.added} TEXT{default}")

    @rule(pick=st.integers(0, 20))
    def drop_column(self, pick: int) -> None:
        free = [name for name in self.database.columns("plain") if name not in ("id", "u")]
        if free:
            self.database.execute(f"ALTER TABLE plain DROP COLUMN {free[pick % len(free)]}")

    @rule(pick=st.integers(0, 20))
    def rename_column(self, pick: int) -> None:
        free = [name for name in self.database.columns("plain") if name not in ("id", "u", "a", "b")]
        if free:
            self.added += 1
            self.database.execute(f"ALTER TABLE plain RENAME COLUMN {free[pick % len(free)]} TO r{self.added}")

    @rule()
    def vacuum(self) -> None:
        self.database.execute("VACUUM")

    @rule()
    def recreate_table(self) -> None:
        """What migration tools do: a new table, the rows copied over, the old one dropped. Its triggers go with it."""
        self.database.connection.executescript(
            "BEGIN; CREATE TABLE copy (x TEXT, y BLOB); INSERT INTO copy SELECT x, y FROM loose; "
            "DROP TABLE loose; ALTER TABLE copy RENAME TO loose; COMMIT;"
        )

    @rule()
    def new_table(self) -> None:
        self.added += 1
        self.database.connection.executescript(
            f"CREATE TABLE t{self.added} (id INTEGER PRIMARY KEY, v); INSERT INTO t{self.added} VALUES (1, 'x');"
        )

    @rule()
    def sync(self) -> None:
        self.pipeline.sync_once()

    @rule(name=st.sampled_from(sorted(NAMES)), nth=st.integers(1, 3))
    def crash(self, name: str, nth: int) -> None:
        """An error at a failpoint, and a new process (as far as one process can: kill -9 is tested in tests/crash)."""
        with armed(name, f"raise@{nth}"), suppress(FailpointError):
            self.pipeline.sync_once()
        self.restart()

    @rule()
    def restart(self) -> None:
        self.pipeline.close()
        self.pipeline = self.make()

    @invariant()
    def progress_never_moves_back(self) -> None:
        if hasattr(self, "pipeline"):
            status = self.pipeline.status()
            assert status.journal_head >= self.seen.get("head", 0)
            self.seen["head"] = status.journal_head
            for table, found in status.tables.items():
                assert (found.applied or 0) <= status.journal_head, table

    def teardown(self) -> None:
        if not hasattr(self, "pipeline"):
            return
        try:
            self.pipeline.sync_once()
            self.pipeline.sync_once()  # a recopy that the first one asked for
            for table in self.database.tables():
                assert_equal(self.database, self.lake, table)
            again = self.pipeline.sync_once()
            assert (again.change_sets, again.counts.total, again.last_seq) == (0, 0, None)
        finally:
            self.pipeline.close()
            self.database.close()
            self.directory.cleanup()


def test_a_table_that_is_made_anew_twice_is_copied_twice_and_at_once() -> None:
    state = History()
    state.begin(wal=True)
    for _ in range(2):
        state.sync()
        state.recreate_table()
    state.write_loose(x="\x00x", y=b"\x08")
    state.teardown()  # two more syncs, then lake == source


TestHistory = History.TestCase
TestHistory.settings = settings(
    max_examples=20, stateful_step_count=30, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)


@pytest.mark.parametrize("wal", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_tables_that_come_change_and_go_while_run_copies_beside_the_stream_end_equal(tmp_path: Path, wal: bool) -> None:
    """Copies, stream and merges meet in every way that four seconds have room for; two restarts among them."""
    database, lake, chance = Database(tmp_path / "h.db", wal=wal), MemoryLake(str(tmp_path / "lake")), random.Random(7)
    options = PipelineOptions(
        interval_seconds=0.02,
        enrol_seconds=0.02,
        journal=JournalOptions(keep_seconds=0, keep_change_sets=2, fsync=False),
    )
    database.connection.execute("PRAGMA busy_timeout = 10000")
    pipeline = Pipeline(Sqlite(database.path), lake, name="h", options=options)
    for _ in range(3):
        failed: list[BaseException] = []

        def run(failed: list[BaseException] = failed) -> None:
            try:
                pipeline.run(60)
            except BaseException as error:  # noqa: BLE001  # asserted below
                failed.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        until = time.monotonic() + 1.5
        while time.monotonic() < until and thread.is_alive():
            number = chance.randrange(6)
            kind = chance.choice(["fill", "fill", "change", "change", "change", "drop", "add"])
            there = f"t{number}" in database.tables()
            if not there:
                database.execute(f"CREATE TABLE t{number} (id INTEGER PRIMARY KEY, v)")
            elif kind == "drop":
                database.execute(f"DROP TABLE t{number}")
            elif kind == "add":
                database.execute(f"ALTER TABLE t{number} ADD COLUMN c{len(database.columns(f't{number}'))} TEXT")
            elif kind == "fill":
                database.execute(
                    f"INSERT OR REPLACE INTO t{number} (id, v) SELECT value, ? FROM json_each(?)",
                    f"v{chance.random()}",
                    json.dumps([chance.randrange(500) for _ in range(50)]),
                )
            else:
                database.execute(f"UPDATE t{number} SET v = v || 'x' WHERE id % 7 = ?", chance.randrange(7))
                database.execute(f"DELETE FROM t{number} WHERE id % 11 = ?", chance.randrange(11))
            time.sleep(0.005)
        pipeline.stop()
        thread.join(60)
        assert not thread.is_alive()
        assert not failed
    with pipeline:
        pipeline.sync_once()
        pipeline.sync_once()  # a copy that the first one asked for
        assert pipeline.status().journal_head > 3
        for table in database.tables():
            assert_equal(database, lake, table)
    database.close()
