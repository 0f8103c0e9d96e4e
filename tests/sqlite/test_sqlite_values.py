"""Values arrive exactly as SQLite has them, by snapshot and by stream alike. The database is the oracle."""

from __future__ import annotations

import math
import sqlite3
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.sqlite.world import made, table

from lakefeed.capture.fit import MisfitError
from lakefeed.capture.sqlite.table import mixed_columns
from lakefeed.capture.sqlite.values import arrow_type, lenient_text, text_form, to_arrow
from lakefeed.change.change_set import RecopyNeeded
from lakefeed.errors import TableStoppedError

EVERY_TYPE = (
    "CREATE TABLE v (id INTEGER PRIMARY KEY, i INT, r REAL, t TEXT, b BLOB, n NUMERIC, d DATE, f BOOLEAN, x,"
    " g TEXT GENERATED ALWAYS AS (t || '!') VIRTUAL, s INT GENERATED ALWAYS AS (i) STORED)"
)
COLUMNS = ("i", "r", "t", "b", "n", "d", "f", "x")
ROWS: list[tuple[Any, ...]] = [
    (None,) * 8,
    (2**63 - 1, 0.1, 'o\'hara "quoted"', b"\x00\xff", 2.5, "2024-02-29", 1, "text"),
    (-(2**63), 1e308, "日本語 ❤", b"", 2**53, "2024", 0, 1.0),
    (2**53 + 1, math.inf, "a\x00b", b"X'41'", -(2**53), 20240229, None, b"\x01"),
    (0, 5e-324, "", b"\n", 0.1, 1.5, 1, 2**62),
]


@pytest.mark.parametrize(
    ("declared", "expected"),
    [
        ("INTEGER", pa.int64()), ("bigint", pa.int64()), ("UNSIGNED BIG INT", pa.int64()),
        ("VARCHAR(10)", pa.string()), ("clob", pa.string()), ("TEXT", pa.string()),
        ("BLOB", pa.binary()), ("", pa.string()), ("ANY", pa.string()),
        ("REAL", pa.float64()), ("DOUBLE PRECISION", pa.float64()), ("float", pa.float64()),
        ("BOOLEAN", pa.int64()), ("DATE", pa.string()), ("DATETIME", pa.string()), ("TIMESTAMP", pa.string()),
        ("DECIMAL(10,2)", pa.float64()), ("NUMERIC", pa.float64()), ("whatever", pa.float64()),
    ],
)  # fmt: skip
def test_a_declared_type_has_its_arrow_type(declared: str, expected: pa.DataType) -> None:
    assert arrow_type(declared) == expected


def test_t19_snapshot_and_stream_give_the_same_for_every_type(tmp_path: Path) -> None:
    insert = f"INSERT INTO v ({', '.join(COLUMNS)}) VALUES ({', '.join('?' for _ in COLUMNS)})"
    with made(tmp_path / "copied.db", EVERY_TYPE) as copied, made(tmp_path / "streamed.db", EVERY_TYPE) as streamed:
        copied.writer.executemany(insert, ROWS)
        copied.seed()
        streamed.seed()
        streamed.writer.executemany(insert, ROWS)
        streamed.pull()
        assert streamed.notices == []
        copied.assert_equal("v")
        streamed.assert_equal("v")
        assert copied.replica.rows(table("v")) == streamed.replica.rows(table("v"))
        assert [type(value) for value in copied.replica.rows(table("v"))[1].values()] == [
            int, int, float, str, bytes, float, str, int, str, str, int,
        ]  # fmt: skip


def test_t20_an_integer_beyond_2_53_is_exact_in_an_integer_column(tmp_path: Path) -> None:
    with made(tmp_path / "x.db", "CREATE TABLE v (id INTEGER PRIMARY KEY, i BIGINT)") as world:
        world.seed()
        world.sql(f"INSERT INTO v VALUES ({2**53 + 1}, {2**63 - 1})")
        world.pull()
        assert world.replica.rows(table("v")) == [{"id": 2**53 + 1, "i": 2**63 - 1}]


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("i", "'text'"),
        ("i", "1.5"),
        ("i", "x'00'"),
        ("r", "'text'"),
        ("n", f"{2**53 + 1}"),
        ("b", "'text'"),
        ("b", "5"),
    ],
)
def test_a_value_of_another_type_makes_its_column_text_and_the_table_is_copied_anew(
    tmp_path: Path, column: str, value: str
) -> None:
    with made(tmp_path / "x.db", EVERY_TYPE, "INSERT INTO v (i, r, n, b) VALUES (7, 2.5, 3, x'41')") as world:
        world.seed()
        world.sql(f"INSERT INTO v ({column}) VALUES ({value})")
        change_set = world.pull()
        (notice,) = change_set.notices
        assert isinstance(notice, RecopyNeeded)
        assert column in notice.reason
        assert column in (notice.columns or ()), "no change was missed: other columns are right"
        assert change_set.schemas[0].column(column).type == pa.string()
        world.recopy()
        world.assert_equal("v")
        world.restart()  # and it stays text
        world.sql("INSERT INTO v (i) VALUES (1)")
        assert world.pull().notices == ()
        world.assert_equal("v")


def test_a_value_of_another_type_that_was_there_before_is_found_when_the_table_is_prepared(tmp_path: Path) -> None:
    with made(tmp_path / "x.db", EVERY_TYPE, "INSERT INTO v (i) VALUES (7), ('seven')") as world:
        world.seed()
        assert world.replica.schemas[table("v")].column("i").type == pa.string()
        world.assert_equal("v")
        change_set = world.pull()  # at most the shape that the copy has had already
        assert (change_set.rows, change_set.notices) == (0, ())


def test_a_value_of_another_type_that_is_written_while_the_table_is_prepared_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the scan, which follows the triggers: the log has it, so the copy that stumbles on it is made again."""
    with made(tmp_path / "x.db", "CREATE TABLE t (id INTEGER PRIMARY KEY, n INT)") as world:

        def scan_then_write(connection: sqlite3.Connection, name: str) -> frozenset[str]:
            found = mixed_columns(connection, name)
            world.sql("INSERT OR IGNORE INTO t VALUES (1, 'n/a')")
            return found

        monkeypatch.setattr("lakefeed.capture.sqlite.resume.mixed_columns", scan_then_write)
        with pytest.raises(TableStoppedError, match="appeared in n"):
            world.seed()
        world.pull()
        assert [type(notice) for notice in world.notices] == [RecopyNeeded]
        world.seed()
        world.assert_equal("t")
        world.sql("INSERT INTO t VALUES (2, 5)")
        world.pull()
        world.assert_equal("t")


def test_the_announcement_of_a_mixed_column_is_repeated_until_it_is_confirmed(tmp_path: Path) -> None:
    with made(tmp_path / "x.db", EVERY_TYPE) as world:
        world.seed()
        before = world.position
        world.sql("INSERT INTO v (i) VALUES ('text')")
        first = world.pull()
        world.position = before
        world.restart()
        again = world.pull()
        assert (again.notices, again.schemas, again.rows) == (first.notices, first.schemas, 1)


def test_a_blob_in_a_text_column_is_hexadecimal_text_and_nothing_has_to_be_copied(tmp_path: Path) -> None:
    with made(tmp_path / "x.db", "CREATE TABLE v (id INTEGER PRIMARY KEY, t TEXT)") as world:
        world.seed()
        world.sql("INSERT INTO v VALUES (1, x'00ff'), (2, 'plain')")
        assert world.pull().notices == ()
        assert [row["t"] for row in world.replica.rows(table("v"))] == ["X'00FF'", "plain"]


@pytest.mark.parametrize("seeded_first", [True, False])
def test_text_that_is_not_utf8_is_kept_as_hexadecimal(tmp_path: Path, seeded_first: bool) -> None:
    with made(tmp_path / "x.db", "CREATE TABLE v (id INTEGER PRIMARY KEY, t TEXT)") as world:
        if seeded_first:
            world.seed()
        world.sql("INSERT INTO v VALUES (1, 'fine'), (2, CAST(x'41ff' AS TEXT)), (3, 'ünï')")
        if not seeded_first:
            world.seed()
        world.pull()
        assert [row["t"] for row in world.replica.rows(table("v"))] == ["fine", "X'41FF'", "ünï"]
        world.assert_equal("v")


@given(value=st.one_of(st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False), st.text(), st.binary()))
def test_the_text_form_loses_nothing(value: int | float | str | bytes) -> None:
    text = text_form(value)
    assert text is not None
    if isinstance(value, bytes):
        assert bytes.fromhex(text[2:-1]) == value
    elif isinstance(value, str):
        assert text == value
    else:
        assert type(value)(text) == value


@given(data=st.binary())
def test_lenient_text_never_fails(data: bytes) -> None:
    assert lenient_text(data).encode("utf-8", "surrogateescape") == data


@settings(max_examples=50)
@given(values=st.lists(st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False), st.binary())))
def test_a_column_holds_its_values_exactly_or_refuses_them(values: list[Any]) -> None:
    for kind in (pa.int64(), pa.float64(), pa.binary(), pa.string()):
        try:
            array = to_arrow(values, kind)
        except MisfitError:
            continue
        expected = [text_form(value) for value in values] if kind == pa.string() else values
        assert array.to_pylist() == expected
