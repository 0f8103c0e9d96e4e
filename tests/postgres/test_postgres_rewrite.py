"""DDL that changes existing rows without a row in the log is noticed, with and without a process; what only makes a new
file of the same rows costs no copy."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from tests.postgres.rows import drain, opened

from lakefeed.capture.base import Continuity
from lakefeed.capture.postgres.source import Postgres
from lakefeed.change.change_set import ChangeSet, RecopyNeeded, TableNotice
from lakefeed.change.position import Position
from lakefeed.change.table import TableId, TableSchema

T = TableId("public", "t")
RUNS = [pytest.param(True, marks=pytest.mark.slow), False]
CHANGED = [
    ("c int", "5", "ALTER TABLE t ALTER c TYPE int USING c + 1"),
    ("c timestamp(6)", "'2020-01-01 10:00:00.6'", "ALTER TABLE t ALTER c TYPE timestamp(0)"),
    ("c varchar(20)", "'abcdef'", "ALTER TABLE t ALTER c TYPE varchar(3) USING left(c, 3)"),
    ("c char(5)", "'abc'", "ALTER TABLE t ALTER c TYPE char(10)"),
    ("c numeric", "1.234", "ALTER TABLE t ALTER c TYPE numeric(40,2)"),
    ("c timestamp(6)[]", "'{2020-01-01 10:00:00.6}'", "ALTER TABLE t ALTER c TYPE timestamp(0)[]"),
    ("c varchar(20)[]", "'{abc}'", "ALTER TABLE t ALTER c TYPE varchar(3)[] USING ARRAY['x']"),
    ("c numeric[]", "'{1.234}'", "ALTER TABLE t ALTER c TYPE numeric(40,2)[]"),
    ("c int GENERATED ALWAYS AS (id * 2) STORED", "DEFAULT", "ALTER TABLE t ALTER c DROP EXPRESSION"),
    ("d int", "1", "ALTER TABLE t ADD c float DEFAULT random(); ALTER TABLE t ALTER c DROP DEFAULT"),
    ("d int", "1", "ALTER TABLE t ADD c text DEFAULT 'x'; ALTER TABLE t ALTER c DROP DEFAULT; VACUUM FULL t"),
    ("c mood", "'sad'", "ALTER TYPE mood RENAME VALUE 'sad' TO 'blue'"),
    ("c mood[]", "'{sad}'", "ALTER TYPE mood RENAME VALUE 'sad' TO 'blue'"),
    ("c pair", "'(1,2)'", "ALTER TYPE pair ADD ATTRIBUTE z int"),
    ("c pair[]", "'{\"(1,2)\"}'", "ALTER TYPE pair ADD ATTRIBUTE z int"),
]
SAME = [
    "VACUUM FULL t",
    "VACUUM FREEZE t; CLUSTER t USING t_pkey",
    "REINDEX TABLE t",
    "TRUNCATE t; INSERT INTO t VALUES (3, 'x', 'happy')",
    "BEGIN; TRUNCATE t; INSERT INTO t VALUES (3, 'x', 'happy'); COMMIT",
    "ALTER TABLE t ALTER c TYPE varchar(50)",
    "ALTER TABLE t ALTER c SET DEFAULT 'y'; VACUUM FULL t",
    "ALTER TYPE mood ADD VALUE 'new' BEFORE 'sad'",
    "ALTER TABLE t ADD n int",
    "ANALYZE t",
]


ATTACHED = """CREATE TABLE t_9 (LIKE t INCLUDING ALL); INSERT INTO t_9 VALUES (25, 'x');
ALTER TABLE t ATTACH PARTITION t_9 FOR VALUES FROM (20) TO (30)"""


@pytest.fixture
def writer(dsn: str) -> Iterator[Any]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("CREATE TYPE mood AS ENUM ('sad', 'happy'); CREATE TYPE pair AS (x int, y int)")
        yield connection


class Life:
    """What a pipeline keeps between two processes; with ``runs``, one process lives through it all."""

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        with opened(Postgres(dsn)) as capture:
            self.position: Position = capture.prepare([T])
            self.schema: TableSchema = capture.snapshot(T).schema
            capture.copied(T)

    def copy_again(self) -> None:
        with opened(Postgres(self.dsn)) as capture:
            capture.continuity(self.position, [T])
            capture.recall([self.schema.at_version(1)])
            capture.prepare([T])
            self.schema = capture.snapshot(T).schema
            capture.copied(T)

    def after(self, writer: Any, statements: str, *, runs: bool) -> list[TableNotice]:
        if not runs:
            execute(writer, statements)
        with opened(Postgres(self.dsn)) as capture:
            assert capture.continuity(self.position, [T]) is Continuity.RESUMED
            capture.recall([self.schema.at_version(1)])
            capture.discover()
            sets = self.taken(capture)
            if runs:
                execute(writer, statements)
                capture.discover()
                sets += self.taken(capture)
            capture.confirm(self.position)
        return [notice for one in sets for notice in one.notices]

    def taken(self, capture: Any) -> list[ChangeSet]:
        """Twice: what the catalog says comes when the stream is past it."""
        sets: list[ChangeSet] = []
        for _ in range(2):
            sets += drain(capture, self.position)
            self.position = sets[-1].end if sets else self.position
        self.schema = next((one for a_set in reversed(sets) for one in reversed(a_set.schemas)), self.schema)
        return sets


def execute(writer: Any, statements: str) -> None:
    for one in [statements] if "BEGIN" in statements else statements.split("; "):  # VACUUM wants to be alone
        writer.execute(one)


@pytest.mark.parametrize("runs", RUNS, ids=["a process runs", "none runs"])
@pytest.mark.parametrize(("column", "value", "statements"), CHANGED, ids=[one[2][:60] for one in CHANGED])
def test_rows_that_were_changed_without_a_row_in_the_log_are_reported_once(
    dsn: str, writer: Any, column: str, value: str, statements: str, runs: bool
) -> None:
    writer.execute(f"CREATE TABLE t (id int PRIMARY KEY, {column})")
    writer.execute(f"INSERT INTO t VALUES (1, {value})")
    life = Life(dsn)
    (notice,) = life.after(writer, statements, runs=runs)
    assert isinstance(notice, RecopyNeeded)
    assert notice.table == T
    assert notice.columns in (("c",), None)
    assert life.after(writer, "SELECT 1", runs=False) == []


@pytest.mark.parametrize("runs", [True, False], ids=["a process runs", "none runs"])
def test_a_partitioned_tables_default_that_is_gone_again_is_known_from_its_partitions(
    dsn: str, writer: Any, runs: bool
) -> None:
    writer.execute("CREATE TABLE t (id int PRIMARY KEY) PARTITION BY RANGE (id)")
    writer.execute("CREATE TABLE low PARTITION OF t FOR VALUES FROM (0) TO (10); INSERT INTO t VALUES (1)")
    life = Life(dsn)
    assert life.after(writer, "ALTER TABLE t ADD c int DEFAULT 5; ALTER TABLE t ALTER c DROP DEFAULT", runs=runs) == []
    assert life.schema.column("c").default == 5


@pytest.mark.parametrize("runs", RUNS, ids=["a process runs", "none runs"])
@pytest.mark.parametrize("statements", SAME)
def test_what_changes_no_value_costs_no_copy(dsn: str, writer: Any, statements: str, runs: bool) -> None:
    writer.execute("CREATE TABLE t (id int PRIMARY KEY, c varchar(20), m mood)")
    writer.execute("INSERT INTO t VALUES (1, 'abc', 'sad')")
    life = Life(dsn)
    assert life.after(writer, statements, runs=runs) == []
    assert life.after(writer, "SELECT 1", runs=False) == []


def test_a_label_that_came_later_is_watched_too(dsn: str, writer: Any) -> None:
    writer.execute("CREATE TABLE t (id int PRIMARY KEY, c mood); INSERT INTO t VALUES (1, 'sad')")
    life = Life(dsn)
    assert life.after(writer, "ALTER TYPE mood ADD VALUE 'new'", runs=True) == []
    (notice,) = life.after(writer, "ALTER TYPE mood RENAME VALUE 'new' TO 'newer'", runs=False)
    assert isinstance(notice, RecopyNeeded)


@pytest.mark.parametrize("runs", [True, False], ids=["a process runs", "none runs"])
def test_a_partition_that_came_later_is_watched_too(dsn: str, writer: Any, runs: bool) -> None:
    writer.execute("CREATE TABLE t (id int PRIMARY KEY, c int) PARTITION BY RANGE (id)")
    life = Life(dsn)
    assert life.after(writer, "CREATE TABLE low PARTITION OF t FOR VALUES FROM (0) TO (10)", runs=True) == []
    assert life.after(writer, "INSERT INTO t VALUES (1, 5)", runs=True) == []
    (notice,) = life.after(writer, "ALTER TABLE t ALTER c TYPE int USING c + 1", runs=runs)
    assert isinstance(notice, RecopyNeeded)


@pytest.mark.parametrize("runs", [True, False], ids=["a process runs", "none runs"])
@pytest.mark.parametrize(
    ("statements", "reason"),
    [
        ("TRUNCATE t_1", 'its partition "public"."t_1" was truncated'),
        ("ALTER TABLE t DETACH PARTITION t_1", "was dropped or detached"),
        ("DROP TABLE t_1", "was dropped or detached"),
        (ATTACHED, "attached to it as a partition, with rows"),
    ],
    ids=["truncated", "detached", "dropped", "attached"],
)  # fmt: skip
def test_partitions_that_came_or_went_are_noticed_also_without_a_process_and_once(
    dsn: str, writer: Any, statements: str, reason: str, runs: bool
) -> None:
    writer.execute("CREATE TABLE t (id int PRIMARY KEY, c varchar(20)) PARTITION BY RANGE (id)")
    writer.execute("CREATE TABLE t_1 PARTITION OF t FOR VALUES FROM (0) TO (10)")
    writer.execute("CREATE TABLE t_2 PARTITION OF t FOR VALUES FROM (10) TO (20)")
    writer.execute("INSERT INTO t VALUES (1, 'a'), (11, 'b')")
    life = Life(dsn)
    (notice,) = life.after(writer, statements, runs=runs)
    assert isinstance(notice, RecopyNeeded)
    assert reason in notice.reason
    life.copy_again()
    assert life.after(writer, "SELECT 1", runs=False) == []
