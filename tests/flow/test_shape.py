"""Columns that a rule leaves out: in no journal file and no lake table, by copy or stream; lists that do not fit."""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lakefeed import Pipeline, PipelineOptions, Sqlite
from lakefeed.capture.builder import Spill
from lakefeed.change.batch import ABSENT, ChangeBatch, change_schema
from lakefeed.change.change_set import ChangeSet, RecopyNeeded
from lakefeed.change.position import SqliteSequence
from lakefeed.change.table import TableId, TableSchema
from lakefeed.errors import ConfigError
from lakefeed.flow.shape import Shape
from lakefeed.journal.options import JournalOptions
from lakefeed.lake.route import Rule
from lakefeed.lake.rule.rows import RowOptions
from lakefeed.testing.builders import table
from lakefeed.testing.memory_lake import MemoryLake

SECRET = "12-345-678"
OPTIONS = PipelineOptions(journal=JournalOptions(fsync=False))
PEOPLE = table("main.people", {"id": pa.int64(), "name": pa.string(), "tax": pa.string(), "city": pa.string()}, ("id",))


@pytest.fixture
def database(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(tmp_path / "s.db", isolation_level=None)
    connection.executescript(
        "CREATE TABLE people (id INTEGER PRIMARY KEY, name TEXT, tax TEXT, city TEXT);"
        f"INSERT INTO people VALUES (1, 'Ann', '{SECRET}', 'Ulm'), (2, 'Bob', '{SECRET}', 'Bonn');"
    )
    yield connection
    connection.close()


def pipeline_of(tmp_path: Path, lake: MemoryLake) -> Pipeline:
    return Pipeline(Sqlite(tmp_path / "s.db", before_images=True), lake, name="p", options=OPTIONS)


def lake_with(tmp_path: Path, *columns: str, other: MemoryLake | None = None) -> MemoryLake:
    lake = MemoryLake(str(tmp_path / "lake"), rules=[Rule("people", columns=columns)])
    if other is not None:
        lake.tables = other.tables
    return lake


def people(lake: MemoryLake) -> list[dict[str, Any]]:
    return sorted(lake.rows("main.people"), key=lambda row: row["id"])


def test_what_is_left_out_is_stored_nowhere_by_copy_stream_and_before_image(
    tmp_path: Path, database: sqlite3.Connection
) -> None:
    lake = lake_with(tmp_path, "*", "!tax")
    with pipeline_of(tmp_path, lake) as pipeline:
        pipeline.sync_once()
        database.executescript(
            f"INSERT INTO people VALUES (3, 'Cy', '{SECRET}', NULL); UPDATE people SET city = 'Kiel' WHERE id = 1;"
            f"UPDATE people SET tax = '{SECRET}0' WHERE id = 2; DELETE FROM people WHERE id = 2;"
        )
        pipeline.sync_once()
    assert people(lake) == [{"id": 1, "name": "Ann", "city": "Kiel"}, {"id": 3, "name": "Cy", "city": None}]
    files = [path for path in (tmp_path / "lake").rglob("*") if path.is_file()]
    segments = [path for path in files if path.suffix == ".parquet"]
    assert segments
    assert all("tax" not in pq.read_schema(path).names for path in segments)
    assert not [path for path in files if SECRET.encode() in path.read_bytes()]


def test_a_restart_goes_on_without_a_copy_and_takes_a_column_that_was_added_meanwhile(
    tmp_path: Path, database: sqlite3.Connection
) -> None:
    lake = lake_with(tmp_path, "!tax*")
    with pipeline_of(tmp_path, lake) as pipeline:
        pipeline.sync_once()
    generation = next(iter(lake.tables.values())).generation
    database.executescript(
        "ALTER TABLE people ADD COLUMN born INTEGER; ALTER TABLE people ADD COLUMN tax_two TEXT;"
        f"INSERT INTO people VALUES (3, 'Cy', '{SECRET}', 'Rom', 1999, '{SECRET}');"
    )
    with pipeline_of(tmp_path, lake) as pipeline:
        pipeline.sync_once()
    assert people(lake)[-1] == {"id": 3, "name": "Cy", "city": "Rom", "born": 1999}
    assert next(iter(lake.tables.values())).generation == generation


@pytest.mark.parametrize(
    ("columns", "problem"),
    [
        (("name",), "leaves out id, which is part of the key"),
        (("*", "!tax_number"), "has '!tax_number', which matches no column"),
        (("id", "nme"), "has 'nme', which matches no column"),
    ],
)
def test_a_list_that_does_not_fit_stops_its_table_alone(
    tmp_path: Path, database: sqlite3.Connection, columns: tuple[str, ...], problem: str
) -> None:
    database.execute("CREATE TABLE other (id INTEGER PRIMARY KEY)")
    database.execute("INSERT INTO other VALUES (7)")
    lake = lake_with(tmp_path, *columns)
    with pipeline_of(tmp_path, lake) as pipeline:
        for _ in range(2):
            pipeline.sync_once()
        found = {str(name): one for name, one in pipeline.status().tables.items()}
    assert found["main.people"].state == "blocked"
    assert problem in (found["main.people"].error or "")
    assert lake.rows("main.other") == [{"id": 7}]
    assert "main.people" not in map(str, lake.tables)


def test_a_list_for_many_tables_needs_its_columns_in_one_of_them(tmp_path: Path, database: sqlite3.Connection) -> None:
    database.execute("CREATE TABLE other (id INTEGER PRIMARY KEY)")
    database.execute("INSERT INTO other VALUES (7)")
    lake = MemoryLake(str(tmp_path / "lake"), rules=[Rule("*", columns=("*", "!tax"))])
    with pipeline_of(tmp_path, lake) as pipeline:
        assert not pipeline.sync_once().errors
    assert lake.rows("main.other") == [{"id": 7}]
    assert "tax" not in people(lake)[0]
    lake = MemoryLake(str(tmp_path / "lake2"), rules=[Rule("*", columns=("*", "!tax_number"))])
    with pipeline_of(tmp_path, lake) as pipeline, pytest.raises(ConfigError, match="'!tax_number', which matches no"):
        pipeline.sync_once()


def test_a_changed_list_is_refused_until_the_table_is_copied_again(
    tmp_path: Path, database: sqlite3.Connection
) -> None:
    lake = lake_with(tmp_path, "*", "!tax")
    with pipeline_of(tmp_path, lake) as pipeline:
        pipeline.sync_once()
    lake = lake_with(tmp_path, "*", "!city", other=lake)
    with pipeline_of(tmp_path, lake) as pipeline:
        with pytest.raises(ConfigError, match=r"was made with the columns id, name, city of main\.people") as caught:
            pipeline.sync_once()
        assert "lakefeed rebuild FILE main.people --from-source" in caught.value.remedy
        pipeline.rebuild("main.people", from_source=True)
        pipeline.sync_once()
    assert people(lake)[0] == {"id": 1, "name": "Ann", "tax": SECRET}


def test_a_list_belongs_to_the_source_table_and_not_to_a_second_lake_table() -> None:
    with pytest.raises(ConfigError, match="has a name and columns"):
        Rule("people", name="{table}_too", columns=("id",))


def test_a_rule_that_names_the_table_counts_before_a_pattern() -> None:
    lake = MemoryLake("x", rules=[Rule("main.people", columns=("id",)), Rule("main.*", columns=("*", "!tax"))])
    assert lake.columns is not None
    assert lake.columns(PEOPLE.table) == ("id",)


def changes(schema: TableSchema, absent: list[list[str] | None]) -> ChangeBatch:
    count = len(absent)
    given: dict[str, Any] = {"id": list(range(count)), ABSENT: absent}
    arrays = [pa.array(given.get(field.name) or [None] * count, field.type) for field in change_schema(schema)]
    return ChangeBatch(schema, pa.RecordBatch.from_arrays(arrays, schema=change_schema(schema)))


def test_columns_that_were_not_sent_and_are_left_out_are_not_listed() -> None:
    batch = Shape(lambda _: ("!tax",)).batch(changes(PEOPLE, [["tax"], ["city", "tax"], None]))
    assert batch is not None
    assert batch.data.column(ABSENT).to_pylist() == [None, ["city"], None]
    assert batch.schema.names == ("id", "name", "city")
    assert batch.schema.whole == PEOPLE
    assert TableSchema.from_json(batch.schema.to_json()).whole == PEOPLE


def test_stale_values_of_a_column_that_is_left_out_cost_no_copy() -> None:
    both = RecopyNeeded(PEOPLE.table, "rewritten", ("tax", "city"))
    only = RecopyNeeded(PEOPLE.table, "rewritten", ("tax",))
    given = ChangeSet(None, SqliteSequence(1), schemas=(PEOPLE,), notices=(both, only))
    found = Shape(lambda _: ("!tax",)).change_set(given)
    assert [notice.columns for notice in found.notices if isinstance(notice, RecopyNeeded)] == [("city",)]


def test_clear_text_of_a_sensitive_column_is_in_no_file_and_equal_values_stay_equal(
    tmp_path: Path, database: sqlite3.Connection
) -> None:
    database.executescript(
        "CREATE TABLE accounts (iban TEXT PRIMARY KEY, owner TEXT, pin INTEGER DEFAULT 765432);"
        "INSERT INTO accounts VALUES ('DE44-5555', 'Ann Secret', 987654), ('DE44-6666', 'Ann Secret', NULL);"
    )
    masks = {"iban": "tokenize", "owner": "hash", "pin": "hash"}
    rule = Rule("accounts", rows=RowOptions(mask=masks, sensitive=True))
    lake = MemoryLake(str(tmp_path / "lake"), rules=[rule], salt="pepper and salt")
    steps = [
        "SELECT 1",
        "INSERT INTO accounts VALUES ('DE44-7777', 'Bob Secret', 987654);DELETE FROM accounts WHERE iban = 'DE44-6666'",
        "UPDATE accounts SET owner = 'Cy Secret'; ALTER TABLE accounts ADD COLUMN city TEXT",
    ]
    for step in steps:
        database.executescript(step)
        with pipeline_of(tmp_path, lake) as pipeline:
            assert not pipeline.sync_once().errors
    rows = lake.rows("main.accounts")
    assert len(rows) == 2
    assert len({row["owner"] for row in rows}) == 1
    assert {row["pin"] for row in rows} == {hashlib.sha256(b"pepper and salt987654").hexdigest()}
    assert all(len(row["iban"]) == 32 for row in rows)
    clear = [b"Secret", b"DE44", b"987654", b"765432", b"pepper"]
    files = [path for path in (tmp_path / "lake").rglob("*") if path.is_file()]
    assert [path for path in files if path.suffix == ".parquet"]
    assert not [(path, one) for path in files for one in clear if one in path.read_bytes()]
    assert not any(one in str(lake.rows("main.accounts")).encode() for one in clear)


def test_what_is_spilled_to_disk_cannot_be_read_there() -> None:
    spill = Spill(memory_bytes=0)
    for text in (SECRET, "another"):
        spill.append(pa.record_batch({"a": [text] * 100}))
    assert [batch.column("a")[0].as_py() for batch in spill] == [SECRET, "another"]
    spill._file.seek(0)
    content = spill._file.read()
    assert len(content) > 200
    assert SECRET.encode() not in content


@pytest.mark.parametrize(
    ("mask", "problem"),
    [({"id": "redact"}, "makes different keys one"), ({"tx": "hash"}, "names the column tx")],
)
def test_a_mask_before_the_journal_that_does_not_fit_stops_its_table(
    tmp_path: Path, database: sqlite3.Connection, mask: dict[str, str], problem: str
) -> None:
    assert database
    rules = [
        Rule("people", rows=RowOptions(mask=mask, sensitive=True)),
        Rule("*", rows=RowOptions(mask={"name": "null"})),
    ]
    lake = MemoryLake(str(tmp_path / "lake"), rules=rules, salt="x")
    found = pipeline_of(tmp_path, lake).check()
    assert problem in " ".join(one.problem for one in found)


@pytest.mark.parametrize("match", ["people", "*"])
@pytest.mark.parametrize("restarts", [False, True])
def test_a_masked_column_that_gets_another_name_stops_its_table_and_does_not_come_as_clear_text(
    tmp_path: Path, database: sqlite3.Connection, match: str, restarts: bool
) -> None:
    lake = MemoryLake(
        str(tmp_path / "lake"), rules=[Rule(match, rows=RowOptions(mask={"tax": "hash"}, sensitive=True))], salt="x"
    )
    rename = f"ALTER TABLE people RENAME COLUMN tax TO tax_id; INSERT INTO people VALUES (9, 'Cy', '{SECRET}-9', NULL);"
    with pipeline_of(tmp_path, lake) as pipeline:
        pipeline.sync_once()
        if not restarts:
            database.executescript(rename)
            pipeline.sync_once()
    if restarts:
        database.executescript(rename)
    for _ in range(2):  # a restart by itself changes nothing
        with pipeline_of(tmp_path, lake) as pipeline:
            for _ in range(2):
                with suppress(ConfigError):
                    pipeline.sync_once()
            assert pipeline.status().tables[TableId("main", "people")].state in ("blocked", "staged", "live")
    assert {row["id"] for row in lake.rows("main.people")} == {1, 2}
    files = [path for path in (tmp_path / "lake").rglob("*") if path.is_file()]
    assert not [path for path in files if SECRET.encode() in path.read_bytes()]
