"""The contract suite of TableFormat. Every table format runs it:

class TestMyFormat(TableFormatContract):
    def make_format(self, root: Path) -> TableFormat:
        return MyLake(root).bind("contract")

    def read_rows(self, tables: TableFormat, table: TableId) -> list[dict[str, Any]]:
        return rows by a reader that is not the writer
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lakefeed.change.table import Column, TableId, TableSchema
from lakefeed.errors import TableStoppedError
from lakefeed.failpoint import FailpointError, armed
from lakefeed.lake.base import Applied, LakeTable, Loaded, TableCopy, TableFormat
from lakefeed.testing.builders import at, batch, table
from lakefeed.testing.scripted_log import ListChunk, ScriptedLog

COLUMNS: dict[str, pa.DataType] = {"tenant": pa.int64(), "id": pa.string(), "name": pa.string(), "big": pa.string()}
FIRST_GENERATION, SECOND_GENERATION = 1_000, 2_000


def person(tenant: int, code: str, name: str | None, big: str | None = "b") -> dict[str, Any]:
    return {"tenant": tenant, "id": code, "name": name, "big": big}


def one(tables: TableFormat, schema: TableSchema) -> LakeTable:
    """The lake table with the name of the source table."""
    return tables.table(tables.routes(schema.table)[0])


class TableFormatContract(ABC):
    """What holds for every TableFormat. ``made`` is called more than once: formats keep no state of their own."""

    @abstractmethod
    def make_format(self, root: Path) -> TableFormat:
        """The tables below ``root``, for one pipeline. Called again, it represents a new process on the same lake."""

    @abstractmethod
    def read_rows(self, tables: TableFormat, table: TableId) -> list[dict[str, Any]]:
        """All rows, read by something other than the writer."""

    @pytest.fixture
    def log(self, tmp_path: Path) -> ScriptedLog:
        (tmp_path / "segments").mkdir()
        return ScriptedLog(tmp_path / "segments")

    @pytest.fixture
    def people(self, log: ScriptedLog) -> TableSchema:
        return log.schema_of(table("main.people", COLUMNS, key=("tenant", "id")))

    @pytest.fixture
    def tables(self, tmp_path: Path) -> TableFormat:
        return self.make_format(tmp_path / "lake")

    def copied(
        self, tables: TableFormat, schema: TableSchema, *chunks: list[dict[str, Any]], marks: Path, generation: int = 1
    ) -> Loaded:
        """Copy chunks of rows; the n-th one is read at position n."""
        made = [ListChunk.of(schema, rows, read_at=number, marks=marks) for number, rows in enumerate(chunks, 1)]
        copy = TableCopy(schema=schema, generation=generation, base=0, position=at(0), chunks=made)
        return one(tables, schema).load(copy, lambda _: None)

    def content(self, tables: TableFormat, schema: TableSchema) -> set[tuple[Any, ...]]:
        rows = self.read_rows(tables, schema.table)
        found = {tuple(row[name] for name in schema.names) for row in rows}
        assert len(found) == len(rows), "a row is there twice"
        assert all(set(row) == set(schema.names) for row in rows), "there are other columns than the source's"
        return found

    def test_a_table_that_was_never_copied_has_nothing_applied(self, tables: TableFormat, people: TableSchema) -> None:
        assert one(tables, people).applied(FIRST_GENERATION) is None

    def test_an_empty_table_is_copied_as_an_empty_table(
        self, tables: TableFormat, people: TableSchema, tmp_path: Path
    ) -> None:
        assert self.copied(tables, people, marks=tmp_path) == Loaded(rows=0, high=None)
        assert one(tables, people).applied(1) == Applied(number=0, schema_version=1, rows=0)
        assert self.content(tables, people) == set()

    def test_a_copy_has_every_row_and_tells_the_highest_position(
        self, tables: TableFormat, people: TableSchema, tmp_path: Path
    ) -> None:
        loaded = self.copied(tables, people, [person(1, "a", "Ada"), person(1, "b", None)], [], marks=tmp_path)
        assert loaded == Loaded(rows=2, high=at(2))
        assert self.content(tables, people) == {(1, "a", "Ada", "b"), (1, "b", None, "b")}
        assert one(tables, people).applied(1) == Applied(number=0, schema_version=1, rows=2)

    def test_an_interrupted_copy_goes_on_where_it_was(
        self, tables: TableFormat, people: TableSchema, tmp_path: Path
    ) -> None:
        chunks = [[person(number, "x", "Ada")] for number in range(20)]
        with armed("lake.during_load", "raise@1"), pytest.raises(FailpointError):
            self.copied(tables, people, *chunks, marks=tmp_path)
        again = self.make_format(tmp_path / "lake")
        loaded = self.copied(again, people, *chunks, marks=tmp_path)
        assert loaded == Loaded(rows=20, high=at(20))
        assert len(self.content(again, people)) == 20
        assert ListChunk.reads(tmp_path) == 20, "a chunk that was there has been read again"

    def test_a_finished_copy_is_not_made_again(self, tables: TableFormat, people: TableSchema, tmp_path: Path) -> None:
        with armed("lake.after_load", "raise"), pytest.raises(FailpointError):
            self.copied(tables, people, [person(1, "a", "Ada")], marks=tmp_path)
        loaded = self.copied(self.make_format(tmp_path / "lake"), people, [person(1, "a", "Ada")], marks=tmp_path)
        assert loaded == Loaded(rows=1, high=at(1))
        assert ListChunk.reads(tmp_path) == 1

    def test_a_new_generation_replaces_the_table_and_knows_nothing_of_the_old(
        self, tables: TableFormat, people: TableSchema, tmp_path: Path
    ) -> None:
        self.copied(tables, people, [person(1, "a", "Ada")], marks=tmp_path, generation=FIRST_GENERATION)
        self.copied(tables, people, [person(2, "b", "Bo")], marks=tmp_path, generation=SECOND_GENERATION)
        assert self.content(tables, people) == {(2, "b", "Bo", "b")}
        assert one(tables, people).applied(FIRST_GENERATION) is None
        assert one(tables, people).applied(SECOND_GENERATION) == Applied(number=0, schema_version=1, rows=1)

    def test_acceptance_5_a_window_leaves_one_row_per_key_by_the_last_operation(
        self, tables: TableFormat, people: TableSchema, log: ScriptedLog, tmp_path: Path
    ) -> None:
        start = [person(1, "kept", "K"), person(1, "old key", "moves"), person(1, "again", "1"), person(1, "gone", "G")]
        self.copied(tables, people, start, marks=tmp_path)
        log.add(
            batch(
                people,
                [
                    ("insert", person(1, "new", "1")),
                    ("update", person(1, "new", "2")),
                    ("delete", person(1, "old key", None, None)),
                    ("insert", person(1, "new key", "moved")),
                    ("delete", person(1, "again", None, None)),
                ],
            )
        )
        log.add(
            batch(
                people,
                [
                    ("insert", person(1, "again", "2")),
                    ("update", person(1, "new", None)),
                    ("insert", person(2, "brief", "B")),
                    ("delete", person(2, "brief", None, None)),
                    ("delete", person(1, "gone", None, None)),
                    ("delete", person(9, "never there", None, None)),
                ],
            )
        )
        one(tables, people).apply(log.window(people.table, 0, 2), 1)
        expected = {("kept", "K"), ("new", None), ("new key", "moved"), ("again", "2")}
        assert self.content(tables, people) == {(1, code, name, "b") for code, name in expected}
        assert one(tables, people).applied(1) == Applied(number=2, schema_version=1, rows=4)

    def test_b03_a_step_that_failed_anywhere_is_made_good_by_doing_it_again(
        self, tables: TableFormat, people: TableSchema, log: ScriptedLog, tmp_path: Path
    ) -> None:
        self.copied(tables, people, [person(1, "a", "0")], marks=tmp_path)
        for number, place in enumerate(("lake.before_commit", "lake.during_commit", "lake.after_commit"), 1):
            log.add(batch(people, [("update", person(1, "a", place)), ("insert", person(number, "n", "N"))]))
            window = log.window(people.table, number - 1, number)
            with armed(place, "raise"), pytest.raises(FailpointError):
                one(tables, people).apply(window, 1)
            one(self.make_format(tmp_path / "lake"), people).apply(window, 1)
            expected = {(1, "a", place, "b"), *((one, "n", "N", "b") for one in range(1, number + 1))}
            assert self.content(tables, people) == expected
            assert one(tables, people).applied(1) == Applied(number=number, schema_version=1, rows=number + 1)

    def test_truncate_takes_what_was_before_it_and_nothing_after(
        self, tables: TableFormat, people: TableSchema, log: ScriptedLog, tmp_path: Path
    ) -> None:
        self.copied(tables, people, [person(1, "a", "A")], marks=tmp_path)
        rows: list[tuple[str, dict[str, Any]]] = [("insert", person(1, "b", "B")), ("truncate", {})]
        log.add(batch(people, [*rows, ("insert", person(1, "c", "C")), ("insert", person(1, "d", "D"))]))
        log.add(batch(people, [("delete", person(1, "d", None, None))]))
        one(tables, people).apply(log.window(people.table, 0, 2), 1)
        assert self.content(tables, people) == {(1, "c", "C", "b")}
        assert one(tables, people).applied(1) == Applied(number=2, schema_version=1, rows=1)

    def test_acceptance_6_a_column_that_was_not_carried_keeps_its_value(
        self, tables: TableFormat, people: TableSchema, log: ScriptedLog, tmp_path: Path
    ) -> None:
        self.copied(tables, people, [person(1, "a", "A", "table"), person(1, "b", "B", None)], marks=tmp_path)
        not_sent = {1: ["big"], 3: ["big"], 4: ["big"]}
        rows = [
            ("update", person(1, "b", "B1", "carried")),
            ("update", person(1, "a", "A1", None)),
            ("insert", person(2, "c", "C", "inserted")),
            ("update", person(1, "b", "B2", None)),
            ("update", person(2, "c", "C1", None)),
        ]
        log.add(batch(people, rows, absent=not_sent))
        one(tables, people).apply(log.window(people.table, 0, 1), 1)
        assert self.content(tables, people) == {
            (1, "a", "A1", "table"),
            (1, "b", "B2", "carried"),
            (2, "c", "C1", "inserted"),
        }

    def test_columns_follow_the_source(
        self, tables: TableFormat, people: TableSchema, log: ScriptedLog, tmp_path: Path
    ) -> None:
        self.copied(tables, people, [person(1, "a", "A"), person(1, "z", "Z")], marks=tmp_path)
        added = TableSchema(people.table, (*people.columns, Column("note", pa.string())), people.key)
        log.add(batch(people, [("insert", person(1, "b", "B"))]))
        noted = log.schema_of(added)
        log.add(batch(noted, [("update", {**person(1, "a", "A1"), "note": "n"})]))
        one(tables, people).apply(log.window(people.table, 0, 2), 1)
        assert self.content(tables, noted) == {
            (1, "a", "A1", "b", "n"), (1, "b", "B", "b", None), (1, "z", "Z", "b", None),
        }  # fmt: skip
        dropped = [column for column in noted.columns if column.name not in ("big", "name")]
        level = Column("level", pa.int64(), default=7)
        log.add(batch(noted, [("insert", {**person(1, "c", "C"), "note": "c"})]))
        levelled = log.schema_of(TableSchema(people.table, (*dropped, level), people.key))
        log.add(batch(levelled, [("insert", {"tenant": 1, "id": "d", "note": "d", "level": 8})]))
        one(tables, people).apply(log.window(people.table, 2, 4), 1)
        assert self.content(tables, levelled) == {
            (1, "a", "n", 7), (1, "b", None, 7), (1, "c", "c", 7), (1, "d", "d", 8), (1, "z", None, 7),
        }  # fmt: skip
        assert one(tables, people).applied(1) == Applied(number=4, schema_version=3, rows=5)

    def test_a_changed_type_or_key_stops_the_table_and_changes_nothing(
        self, tables: TableFormat, people: TableSchema, log: ScriptedLog, tmp_path: Path
    ) -> None:
        self.copied(tables, people, [person(1, "a", "A")], marks=tmp_path)
        columns: dict[str, pa.DataType] = {**COLUMNS, "name": pa.int64()}
        retyped = log.schema_of(table("main.people", columns, key=("tenant", "id")))
        log.add(batch(retyped, [("insert", {"tenant": 2, "id": "b", "name": 5, "big": "b"})]))
        with pytest.raises(TableStoppedError, match=r"main\.people"):
            one(tables, people).apply(log.window(people.table, 0, 1), 1)
        assert self.content(tables, people) == {(1, "a", "A", "b")}
        assert one(tables, people).applied(1) == Applied(number=0, schema_version=1, rows=1)
