"""COPY in binary form: every value as PostgreSQL has it, and nothing but DecodeError for bytes that are none of its."""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence
from contextlib import closing
from decimal import Decimal
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.postgres.rows import copied, opened

from lakefeed.capture.fit import MisfitError
from lakefeed.capture.postgres.database import Database
from lakefeed.capture.postgres.slices import Slices, as_messages, copied_columns
from lakefeed.capture.postgres.source import Postgres
from lakefeed.capture.postgres.values import Reader, SourceType, arrow_type, decimals, form_of
from lakefeed.capture.postgres.wire import read_copy
from lakefeed.change.table import TableId
from lakefeed.errors import DecodeError

T = TableId("public", "t")
OIDS = (16, 17, 19, 20, 21, 23, 25, 26, 114, 700, 701, 1042, 1043, 1082, 1114, 1184, 2950, 3802)
"""Types that are copied in binary form, beside numeric."""


def reader_of(oid: int) -> Reader:
    sql, read = form_of("c", arrow_type(SourceType(oid)), SourceType(oid))
    assert sql == "c"
    return read


def row(values: Sequence[bytes | None]) -> bytes:
    fields = [b"\xff\xff\xff\xff" if value is None else struct.pack(">i", len(value)) + value for value in values]
    return struct.pack(">h", len(values)) + b"".join(fields)


def column(values: Sequence[bytes | None]) -> Slices:
    (found,) = copied_columns(as_messages([row([value]) for value in values]), 1)
    return found


def sent(value: Decimal) -> bytes:
    """As numeric_send does it, for a finite value."""
    sign, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int)
    whole = "".join(map(str, digits)) + "0" * max(exponent, 0)
    scale = max(-exponent, 0)
    whole = whole.rjust(scale + 1, "0")
    before, after = whole[: len(whole) - scale], whole[len(whole) - scale :]
    before, after = before.rjust(-(-len(before) // 4) * 4, "0"), after.ljust(-(-len(after) // 4) * 4, "0")
    groups = [int((before + after)[at : at + 4]) for at in range(0, len(before) + len(after), 4)]
    weight = len(before) // 4 - 1
    while groups and groups[0] == 0:
        groups, weight = groups[1:], weight - 1
    while groups and groups[-1] == 0:
        groups = groups[:-1]
    head = struct.pack(">hhHh", len(groups), weight if groups else 0, 0x4000 if sign else 0, scale)
    return head + struct.pack(f">{len(groups)}h", *groups)


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_t19_a_numeric_is_the_same_number(data: st.DataObject) -> None:
    scale = data.draw(st.integers(0, 18))
    numbers = st.integers(-(10**18) + 1, 10**18 - 1)
    values = data.draw(st.lists(st.none() | numbers.map(lambda number: Decimal(number).scaleb(-scale)), max_size=8))
    found = decimals(column([None if one is None else sent(one) for one in values]), pa.decimal128(18, scale))
    found.validate(full=True)
    assert found.to_pylist() == values


@pytest.mark.parametrize("value", ["1000", "-1000", "0.001", "12345678901234567890123456789", "1e-30"])
def test_t20_a_numeric_with_more_digits_than_its_column_is_never_cut(value: str) -> None:
    with pytest.raises(MisfitError):
        decimals(column([sent(Decimal(value))]), pa.decimal128(5, 2))


def test_t19_numerics_of_every_scale_are_copied_as_postgresql_prints_them(dsn: str) -> None:
    scales = range(-3, 19)
    with psycopg.connect(dsn, autocommit=True) as connection, opened(Postgres(dsn)) as capture:
        columns = ", ".join(
            f"c{place} numeric({15 if scale < 0 else 18},{scale})" for place, scale in enumerate(scales)
        )
        connection.execute(f"CREATE TABLE t (id int PRIMARY KEY, {columns})".encode())
        values = ", ".join(f"(random() - 0.5)::numeric * 10.0::numeric ^ {16 - scale - 15}" for scale in scales)
        connection.execute(f"INSERT INTO t SELECT i, {values} FROM generate_series(1, 500) i".encode())
        connection.execute(f"INSERT INTO t SELECT 0 {', 0' * len(scales)}".encode())
        capture.prepare([T])
        rows = {one["id"]: one for one in copied(capture, T)}
        for key, *texts in connection.execute(
            f"SELECT id, {', '.join(f'c{place}::text' for place in range(len(scales)))} FROM t".encode()
        ):
            assert [rows[key][f"c{place}"] for place in range(len(scales))] == [Decimal(text) for text in texts]


def test_rows_of_a_copy_come_whole_in_pieces_of_any_size(dsn: str) -> None:
    with closing(Database(dsn).connect("test")) as connection:
        query = "SELECT i::int4, CASE WHEN i % 3 > 0 THEN repeat('x', i) END FROM generate_series(1, 50) i"
        for rows, size in ((1, 1 << 20), (7, 1 << 20), (1000, 40), (1000, 1 << 20)):
            found: list[Any] = []
            for piece in read_copy(connection, query, piece_bytes=size, piece_rows=rows):
                assert 1 <= len(piece) <= rows
                numbers, texts = copied_columns(piece, 2)
                found += zip(reader_of(23)(numbers).to_pylist(), reader_of(25)(texts).to_pylist(), strict=True)
            assert found == [(i, "x" * i if i % 3 else None) for i in range(1, 51)]
        assert list(read_copy(connection, "SELECT 1 WHERE false", piece_bytes=100, piece_rows=100)) == []


def test_a_copy_that_fails_in_the_middle_is_an_error(dsn: str) -> None:
    with closing(Database(dsn).connect("test")) as connection:
        query = "SELECT 1 / (5000 - i) FROM generate_series(1, 10000) i"
        with pytest.raises(psycopg.errors.DivisionByZero):
            list(read_copy(connection, query, piece_bytes=1 << 20, piece_rows=10))
        assert connection.execute("SELECT 1").fetchone() == (1,)  # the connection is usable


def test_a_column_whose_type_was_changed_since_the_plan_is_read_as_printed(dsn: str) -> None:
    """The two have the same size: read as what it was, a bigint would be a tiny float."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("CREATE TABLE t (id int PRIMARY KEY, v float8, w int8)")
        connection.execute("INSERT INTO t VALUES (1, 7, 8), (2, NULL, NULL)")
        with opened(Postgres(dsn)) as capture:
            capture.prepare([T])
            saved = [chunk.to_json() for chunk in capture.snapshot(T).chunks]
        connection.execute("ALTER TABLE t ALTER v TYPE int8, ALTER w TYPE float8")
        with opened(Postgres(dsn)) as capture, capture.chunk(saved[0]).open() as reader:
            rows = [one for batch in reader for one in batch.to_pylist()]
    assert rows == [{"id": 1, "v": 7.0, "w": 8}, {"id": 2, "v": None, "w": None}]


def test_t20_a_nan_is_one_nan_whatever_its_bits_are() -> None:
    strange = bytes.fromhex("fff8000000000001")
    (value,) = reader_of(701)(column([strange])).to_pylist()
    assert struct.pack(">d", value) == struct.pack(">d", float("nan"))


def test_only_a_type_that_gives_the_columns_arrow_type_is_read_in_binary_form() -> None:
    assert form_of("c", pa.int32(), SourceType(23))[0] == "c"
    assert "format" in form_of("c", pa.string(), SourceType(23))[0]  # kept as printed by wish of the user
    assert "format" in form_of("c", pa.int32(), SourceType(20))[0]  # it was changed to bigint
    assert "format" in form_of("c", pa.string(), SourceType(1186))[0]  # interval
    assert "format" in form_of("c", pa.decimal128(20, 5), SourceType(1700, (20 << 16) + 5 + 4))[0]  # more than 64 bits


def test_mutated_rows_give_arrow_or_decode_error_and_nothing_else() -> None:
    source = random.Random(4)
    kinds = [lambda values: decimals(values, pa.decimal128(18, 4)), *map(reader_of, OIDS)]
    good = [b"\1", b"\0\1", b"\0\0\0\1", b"\0" * 8, b"\0" * 4, sent(Decimal("12.5")), b"\1{}", b"\0" * 16, b"abc", None]
    outcomes = set()
    for _ in range(5_000):
        rows = [row([source.choice(good) for _ in range(3)]) for _ in range(source.randint(1, 3))]
        if source.random() < 0.7:
            at = source.randrange(len(rows))
            changed = bytearray(rows[at])
            for _ in range(source.randint(1, 3)):
                changed[source.randrange(len(changed))] = source.choice((0, 1, 2, 127, 128, 255, source.randrange(256)))
            rows[at] = bytes(changed[: source.randint(0, len(changed))] if source.random() < 0.3 else changed)
        try:
            for values in copied_columns(as_messages(rows), 3):
                source.choice(kinds)(values).validate(full=True)
            outcomes.add("arrow")
        except (DecodeError, MisfitError) as error:
            outcomes.add(type(error).__name__)
    assert outcomes == {"arrow", "DecodeError", "MisfitError"}
