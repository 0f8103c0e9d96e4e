"""Tables, columns and types: what is stored is read back equal."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakefeed.change.table import Column, TableId, TableSchema, type_from_text
from lakefeed.errors import ConfigError

TYPES = [
    pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.string(), pa.binary(),
    pa.date32(), pa.time64("us"), pa.timestamp("us"), pa.timestamp("us", tz="UTC"), pa.decimal128(38, 10),
    pa.decimal128(5, -2), pa.list_(pa.int64()), pa.list_(pa.list_(pa.decimal128(3, 1))),
]  # fmt: skip
USERS = TableSchema(
    TableId("main", "users"),
    (
        Column("id", pa.int64(), nullable=False, source_type="INTEGER", id="1"),
        Column("name", pa.string(), source_type="TEXT", id="2", default="Ünnamed 'x'"),
        Column("score", pa.decimal128(12, 2), default=1.5),
    ),
    key=("id",),
    version=3,
)


@pytest.mark.parametrize("kind", TYPES, ids=str)
def test_a_type_is_read_back_from_its_text(kind: pa.DataType) -> None:
    assert type_from_text(str(kind)) == kind


@pytest.mark.parametrize("text", ["", "uint8", "decimal128(5)", "list<item: thing>", "list<item: int64", "int64 "])
def test_a_text_that_is_no_type_is_refused_with_the_choices(text: str) -> None:
    with pytest.raises(ConfigError, match="int64"):
        type_from_text(text)


@settings(deadline=None)
@given(st.text(min_size=1).filter(lambda text: "." not in text), st.text(min_size=1))
def test_a_table_name_is_read_back_from_its_text(schema: str, name: str) -> None:
    table = TableId(schema, name)
    assert TableId.parse(str(table)) == table


@pytest.mark.parametrize("text", ["", "users", ".users", "main.", "."])
def test_a_text_without_schema_and_table_is_no_table_name(text: str) -> None:
    with pytest.raises(ConfigError, match=r"schema\.table"):
        TableId.parse(text)


def test_a_schema_with_a_dot_is_refused_since_its_text_would_name_another_table() -> None:
    with pytest.raises(ConfigError, match=r"a\.b\.c"):
        TableId("a.b", "c")


def test_a_schema_survives_json_with_everything_in_it() -> None:
    assert TableSchema.from_json(json.loads(json.dumps(USERS.to_json()))) == USERS


def test_a_key_column_must_be_among_the_columns() -> None:
    with pytest.raises(ConfigError, match="'nope'"):
        TableSchema(USERS.table, USERS.columns, key=("id", "nope"))


def test_a_column_is_found_by_name_or_refused_with_the_choices() -> None:
    assert USERS.column("score") is USERS.columns[2]
    with pytest.raises(ConfigError, match="id, name, score"):
        USERS.column("nope")


def test_two_versions_of_the_same_columns_have_the_same_shape() -> None:
    assert USERS.same_shape(USERS.at_version(9))
    assert USERS.at_version(9) != USERS
    assert not USERS.same_shape(TableSchema(USERS.table, USERS.columns, key=(), version=3))


def test_the_arrow_schema_has_the_tables_own_columns_only() -> None:
    fields = [(field.name, field.type, field.nullable) for field in USERS.arrow]
    assert fields == [("id", pa.int64(), False), ("name", pa.string(), True), ("score", pa.decimal128(12, 2), True)]
