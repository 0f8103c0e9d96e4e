"""Schema changes while no process runs: noticed at the next start, once, whether or not a row tells of them."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from tests.postgres.rows import PostgresLog, changes, drain, opened

from lakefeed.capture.base import Continuity
from lakefeed.capture.postgres.source import Postgres
from lakefeed.change.change_set import ChangeSet, RecopyNeeded, TableBlocked, TableDropped, TableNotice
from lakefeed.change.position import Position
from lakefeed.change.schema_change import AddColumn, DropColumn, RenameColumn, SchemaChange, diff
from lakefeed.change.table import TableId, TableSchema

T = TableId("public", "t")
ROW = "INSERT INTO t (id) VALUES (2)"


class Life:
    """What a pipeline keeps between two processes: the position and the schema of its journal."""

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        self.options: dict[str, Any] = {}
        with opened(Postgres(dsn)) as capture:
            self.position: Position = capture.prepare([T])
            self.schema: TableSchema = capture.snapshot(T).schema
            capture.copied(T)

    def start(self, *, crash: bool = False) -> list[ChangeSet]:
        """A process as the flow makes one: it takes what there is. A crash forgets it before it was durable."""
        with opened(Postgres(self.dsn, **self.options)) as capture:
            assert capture.continuity(self.position, [T]) is Continuity.RESUMED
            capture.recall([self.schema.at_version(3)])
            capture.discover()
            sets = self._take(capture)
            if not crash and sets:
                capture.confirm(sets[-1].end)
        if not crash and sets:
            self.position = sets[-1].end
            self.schema = next((one for one in reversed(announced(sets)) if one.table == T), self.schema)
        return sets

    def _take(self, capture: PostgresLog) -> list[ChangeSet]:
        """Twice: what the catalog says comes when the stream is past it."""
        sets = drain(capture, self.position)
        return sets + drain(capture, sets[-1].end if sets else self.position)


@pytest.fixture
def writer(dsn: str) -> Any:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
        connection.execute("INSERT INTO t VALUES (1, 'a')")
        yield connection


@pytest.fixture
def life(dsn: str, writer: Any) -> Life:
    return Life(dsn)


def announced(sets: list[ChangeSet]) -> list[TableSchema]:
    return [schema for one in sets for schema in one.schemas]


def notices(sets: list[ChangeSet]) -> list[TableNotice]:
    return [notice for one in sets for notice in one.notices]


@pytest.mark.parametrize("row", [pytest.param(None, marks=pytest.mark.slow), ROW], ids=["no row", "a row"])
@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ("ALTER TABLE t ADD n int", [(AddColumn, "n")]),
        ("ALTER TABLE t ADD n int NOT NULL DEFAULT 7", [(AddColumn, "n")]),
        ("ALTER TABLE t DROP v", [(DropColumn, "v")]),
        ("ALTER TABLE t RENAME v TO w", [(RenameColumn, "w")]),
        ("ALTER TABLE t RENAME v TO w; ALTER TABLE t ADD v int", [(RenameColumn, "w"), (AddColumn, "v")]),
    ],
)
def test_what_the_lake_can_follow_is_a_new_schema_once(
    life: Life, writer: Any, statement: str, expected: list[tuple[type[Any], str]], row: str | None
) -> None:
    writer.execute(statement)
    if row is not None:
        writer.execute(row)
    before = life.schema
    for crash in (True, False):  # what was not durable is told again
        sets = life.start(crash=crash)
        (schema,) = announced(sets)
        assert [(type(change), name_of(change)) for change in diff(before, schema)] == expected
        assert notices(sets) == []
        assert [one["id"] for one in changes(sets)] == ([2] if row else [])
    assert announced(life.start()) == []
    writer.execute("INSERT INTO t (id) VALUES (3)")
    assert announced(life.start()) == []


def name_of(change: SchemaChange) -> str:
    if isinstance(change, AddColumn):
        return change.column.name
    return change.new if isinstance(change, RenameColumn) else getattr(change, "name", "")


@pytest.mark.parametrize("row", [pytest.param(None, marks=pytest.mark.slow), ROW], ids=["no row", "a row"])
@pytest.mark.parametrize(
    ("statement", "reason", "columns"),
    [
        ("ALTER TABLE t ALTER v TYPE int USING 5", "the type of v changed from text to integer", ("v",)),
        ("ALTER TABLE t ALTER v SET NOT NULL; ALTER TABLE t DROP CONSTRAINT t_pkey, ADD PRIMARY KEY (id, v)",
         "its key changed from (id) to (id, v)", ()),
        ("ALTER TABLE t ALTER v TYPE int USING 5, ALTER id TYPE bigint, ADD n float DEFAULT random()",
         "the type of id changed from integer to bigint", ("id", "v", "n")),
        ("ALTER TABLE t ADD n float DEFAULT random()",
         "existing rows have values in the new column n, by its default", ("n",)),
        ("ALTER TABLE t ADD n int GENERATED ALWAYS AS IDENTITY",
         "existing rows have values in the new column n, by its default", ("n",)),
        ("ALTER TABLE t DROP v; ALTER TABLE t ADD v text",
         "a column was dropped and added again under the same name", None),
        ("ALTER TABLE t DROP v; ALTER TABLE t ADD v int",
         "a column was dropped and added again under the same name", None),
    ],
)  # fmt: skip
def test_what_may_have_changed_rows_without_a_trace_is_told_once_with_the_columns_in_doubt(
    life: Life, writer: Any, statement: str, reason: str, columns: tuple[str, ...] | None, row: str | None
) -> None:
    writer.execute(statement)
    if row is not None:
        writer.execute(row if "(id, v)" not in reason else "INSERT INTO t VALUES (2, 'b')")
    for crash in (True, False):
        assert notices(life.start(crash=crash)) == [RecopyNeeded(T, reason, columns)]
    assert notices(life.start()) == []


def test_a_table_that_was_made_anew_is_copied_anew_once(life: Life, writer: Any) -> None:
    writer.execute("DROP TABLE t; CREATE TABLE t (id int PRIMARY KEY, v text); INSERT INTO t VALUES (9, 'new')")
    (notice,) = notices(life.start())
    assert isinstance(notice, RecopyNeeded)


def test_a_table_that_was_made_anew_under_a_publication_of_all_tables_is_copied_anew(life: Life, writer: Any) -> None:
    writer.execute("DROP PUBLICATION lakefeed_test; CREATE PUBLICATION lakefeed_test FOR ALL TABLES")
    writer.execute("DROP TABLE t; CREATE TABLE t (id int PRIMARY KEY, v text)")
    assert notices(life.start(crash=True)) == [RecopyNeeded(T, "the table was dropped and created again")]
    writer.execute("INSERT INTO t VALUES (9, 'new')")
    assert notices(life.start()) == [RecopyNeeded(T, "the table was dropped and created again")]


def test_a_dropped_table_is_told_after_its_last_row(life: Life, writer: Any) -> None:
    writer.execute("CREATE TABLE other (id int PRIMARY KEY)")  # a pattern that matches nothing at all is an error
    writer.execute("INSERT INTO t VALUES (2, 'last'); DROP TABLE t")
    sets = life.start()
    assert notices(sets) == [TableDropped(T)]
    assert [row["id"] for row in changes(sets)] == [2]
    assert not sets[0].notices or sets[0].rows


def test_a_table_that_lost_its_identity_is_blocked_with_the_statement_that_helps(life: Life, writer: Any) -> None:
    writer.execute("ALTER TABLE t DROP CONSTRAINT t_pkey")
    for row in (None, ROW):
        if row is not None:
            writer.execute(row)
        sets = life.start(crash=True)
        (notice,) = notices(sets)
        assert isinstance(notice, TableBlocked)
        assert notice.remedy == 'ALTER TABLE "public"."t" REPLICA IDENTITY FULL;'
        assert changes(sets) == []


def test_full_replica_identity_is_no_reason_for_a_new_copy(life: Life, writer: Any) -> None:
    writer.execute("ALTER TABLE t REPLICA IDENTITY FULL")
    writer.execute("UPDATE t SET v = 'b'")
    sets = life.start()
    assert notices(sets) == []
    assert [(row["id"], row["v"]) for row in changes(sets)] == [(1, "b")]


def test_another_replica_identity_index_is_another_key(life: Life, writer: Any) -> None:
    writer.execute("ALTER TABLE t ALTER v SET NOT NULL; CREATE UNIQUE INDEX u ON t (v)")
    writer.execute("ALTER TABLE t REPLICA IDENTITY USING INDEX u")
    assert notices(life.start()) == [RecopyNeeded(T, "its key changed from (id) to (v)", ())]


def test_text_columns_that_say_otherwise_now_put_the_column_in_doubt(life: Life, writer: Any) -> None:
    life.options = {"text_columns": ["public.t.id"]}
    reason = "the configuration gives id another type than before"
    assert notices(life.start()) == [RecopyNeeded(T, reason, ("id",))]


def test_rows_of_before_a_change_keep_their_shape(life: Life, writer: Any) -> None:
    """The name v is another column's by the time that the rows are read."""
    writer.execute("INSERT INTO t VALUES (2, 'two')")
    writer.execute("ALTER TABLE t RENAME v TO w")
    writer.execute("ALTER TABLE t ADD v int")
    writer.execute("INSERT INTO t VALUES (3, 'three', 3)")
    before = life.schema
    sets = life.start()
    assert notices(sets) == []
    assert [(row.get("w"), row["v"]) for row in changes(sets)] == [(None, "two"), ("three", 3)]
    changed = diff(before, life.schema)
    assert [type(change) for change in changed] == [RenameColumn, AddColumn]


def test_what_older_rows_read_is_not_forgotten_with_the_catalogs_note(life: Life, writer: Any) -> None:
    writer.execute("ALTER TABLE t ADD n int DEFAULT 7")
    life.start()
    assert life.schema.column("n").default == 7
    writer.execute("VACUUM FULL t")  # rewrites the rows, so that the catalog needs no note any more
    writer.execute(ROW)
    before = life.schema
    sets = life.start()
    assert [(diff(before, one), one.column("n").default) for one in announced(sets)] == [((), 7)]
    assert notices(sets) == []
    assert [row["n"] for row in changes(sets)] == [7]


def test_a_process_that_runs_notices_a_change_without_a_row_too(life: Life, dsn: str, writer: Any) -> None:
    with opened(Postgres(dsn)) as capture:
        capture.continuity(life.position, [T])
        capture.recall([life.schema])
        drain(capture, life.position)
        writer.execute("ALTER TABLE t ADD n int")
        assert capture.discover()[0].names == ("id", "v", "n")
        end = [*drain(capture, life.position)]
        (schema,) = announced(end + drain(capture, end[-1].end if end else life.position))
        assert schema.names == ("id", "v", "n")


def test_a_change_between_plan_and_rows_of_before_it_asks_for_a_new_copy(dsn: str, writer: Any) -> None:
    """Rows from before the change come after the copy has the new column: they must not take it back."""
    with opened(Postgres(dsn)) as capture:
        start = capture.prepare([T])
        capture.copied(T)
        capture.live(start, wait_seconds=0)
        writer.execute("INSERT INTO t VALUES (2, 'b')")
        writer.execute("ALTER TABLE t ADD n int DEFAULT 7")
        plan = capture.snapshot(T)
        assert plan.schema.names == ("id", "v", "n")
        assert notices(drain(capture, start)) == [RecopyNeeded(T, "its columns changed while it was being copied")]
