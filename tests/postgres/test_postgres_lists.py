"""Arrays are lists of their elements, the same from the stream's text and the copy's bytes; the server says what is
right."""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.postgres.rows import changes, copied, drain, opened

from lakefeed.capture.fit import MisfitError
from lakefeed.capture.postgres.slices import as_messages, copied_columns
from lakefeed.capture.postgres.source import Postgres
from lakefeed.capture.postgres.values import form_of, stated_type, to_arrow
from lakefeed.change.choice import Choices, TableChoice
from lakefeed.change.table import OutOfRange, TableId
from lakefeed.errors import DecodeError

STOP, NULL, CLAMP, TEXT = OutOfRange
T = TableId("public", "t")
INT4_ARRAY = 1007

SETUP = (
    "CREATE TYPE mood AS ENUM ('sad', 'it''s \"ok\"', 'a,b'); CREATE DOMAIN small AS int; CREATE DOMAIN many AS int[]"
)

VALUES: dict[str, list[str]] = {
    "boolean[]": ["{t,f,NULL}"],
    "smallint[]": ["{-32768,32767}"],
    "integer[]": ["{1,NULL,3}", "{}", "{NULL}", "{7}"],
    "bigint[]": ["{-9223372036854775808,NULL}"],
    "oid[]": ["{0,4294967295}"],
    "real[]": ["{NaN,Infinity,-Infinity,0.1,-0}"],
    "double precision[]": ["{NaN,Infinity,1.7976931348623157e308,5e-324}"],
    "numeric(12,2)[]": ["{0.01,-9999999999.99,NULL}", "{}"],
    "numeric[]": ["{1e-100,NaN,NULL}"],
    "text[]": ['{"a,b","c\\"d",NULL,"NULL",""," sp ","{x}","back\\\\slash","\\\\\\\\",null,ünï ☃}', "{}", '{""}'],
    "varchar(20)[]": ['{x,"y z"}'],
    "char(3)[]": ["{ab,NULL}"],
    "name[]": ["{some_name}"],
    "json[]": ['{"{\\"a\\": [1, 2]}",NULL,"null"}'],
    "jsonb[]": ['{"{\\"a\\": \\"x\\\\\\\\y\\"}"}'],
    "bytea[]": ['{"\\\\x00ff","\\\\x",NULL}'],
    "date[]": ["{0001-01-01,9999-12-31,NULL}"],
    "timestamp[]": ['{"2024-02-29 12:00:00.000001",NULL}'],
    "timestamptz[]": ['{"2024-02-29 12:00:00+05:30"}'],
    "uuid[]": ["{a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11,NULL}"],
    "mood[]": ['{sad,"it\'s \\"ok\\"","a,b",NULL}'],
    "small[]": ["{1,NULL}"],
    "many": ["{1,2}", "{}"],
    "inet[]": ["{192.168.0.1/24,::1}"],
    "time[]": ["{12:34:56,24:00:00}"],
}
"""Types whose columns are lists, with values."""

PLAIN: dict[str, list[str]] = {"box[]": ["{(1,1),(0,0)}"], "int2vector": ["1 2 3"], "oidvector": ["1 2"]}
"""What looks like an array and is text: its elements are not separated by commas."""


def fill(connection: psycopg.Connection[Any], values: dict[str, list[str]]) -> None:
    columns = ", ".join(f"c{place} {kind}" for place, kind in enumerate(values))
    connection.execute(f"CREATE TABLE t (id int PRIMARY KEY, {columns})".encode())
    add(connection, values)


def add(connection: psycopg.Connection[Any], values: dict[str, list[str]]) -> None:
    marks = ", ".join(f"%s::{kind}" for kind in values)
    (first,) = connection.execute("SELECT coalesce(max(id), 0) FROM t").fetchone() or (0,)
    for row in range(max(map(len, values.values()))):
        texts = [listed[row % len(listed)] for listed in values.values()]
        connection.execute(f"INSERT INTO t VALUES ({first + row + 1}, {marks})".encode(), texts)
    connection.execute(f"INSERT INTO t (id) VALUES ({first + 1000})".encode())


def oracle(connection: psycopg.Connection[Any], printed: Sequence[bool]) -> dict[int, list[Any]]:
    """Each array as psycopg reads it; where the elements are ``printed``, as the server prints each by itself."""
    connection.execute("SET timezone = 'UTC'; SET extra_float_digits = 1")
    found: dict[int, list[Any]] = {}
    for place, is_printed in enumerate(printed):
        texts = (
            "SELECT coalesce(array_agg(CASE WHEN e IS NULL THEN NULL ELSE format('%s', e) END ORDER BY n), '{}') "
            f"FROM unnest(c{place}) WITH ORDINALITY AS u(e, n)"
        )
        value = f"CASE WHEN c{place} IS NOT NULL THEN ({texts}) END" if is_printed else f"c{place}"
        if list(VALUES)[place] in ("small[]", "many"):  # psycopg does not know the domain
            value = f"c{place}::int[]"
        for key, one in connection.execute(f"SELECT id, {value} FROM t".encode()).fetchall():
            found.setdefault(key, []).append(one)
    return found


def rows_of(rows: Sequence[dict[str, Any]], count: int) -> dict[int, list[Any]]:
    return {row["id"]: [row[f"c{place}"] for place in range(count)] for row in rows}


def exact(value: Any) -> Any:
    if isinstance(value, list | dict):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        return [(key, exact(one)) for key, one in items]
    if isinstance(value, float):
        return struct.pack(">d", value)
    return (type(value), value)


def test_arrays_of_every_element_type_are_lists_the_same_by_copy_and_stream(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(SETUP.encode())
        fill(connection, VALUES)
        with opened(Postgres(dsn)) as capture:
            start = capture.prepare([T])
            (schema,) = capture.discover()
            assert [one.name for one in schema.columns if not pa.types.is_list(one.type)] == ["id"]
            add(connection, VALUES)
            streamed, copy = (
                rows_of(changes(drain(capture, start)), len(VALUES)),
                rows_of(copied(capture, T), len(VALUES)),
            )
        assert exact({key: copy[key] for key in streamed}) == exact(streamed)
        printed = [one.type == pa.list_(pa.string()) for one in schema.columns[1:]]
        for key, theirs in oracle(connection, printed).items():
            for kind, one, other in zip(VALUES, copy[key], theirs, strict=True):
                assert exact(one) == exact(as_float4(other) if kind == "real[]" else other), kind


def as_float4(values: list[float] | None) -> list[float] | None:
    return None if values is None else [struct.unpack("f", struct.pack("f", one))[0] for one in values]


def test_what_has_no_commas_between_its_elements_stays_text(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        fill(connection, PLAIN)
        with opened(Postgres(dsn)) as capture:
            capture.prepare([T])
            (schema,) = capture.discover()
            assert {str(one.type) for one in schema.columns} == {"int32", "string"}
            assert rows_of(copied(capture, T), 3)[1] == [listed[0] for listed in PLAIN.values()]


ODD = {"integer[]": ["{1,2}", "{{1,2},{3,NULL}}", "[0:1]={5,6}", "[-1:0][2:3]={{1,2},{3,4}}"]}


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (NULL, [[1, 2], None, None, None, None]),
        (CLAMP, [[1, 2], [1, 2, 3, None], [5, 6], [1, 2, 3, 4], None]),
        (TEXT, [*ODD["integer[]"], None]),
        (STOP, None),
    ],
)
@pytest.mark.parametrize("kind", ["integer[]", "text[]"])  # copied in binary form, and printed
def test_an_array_that_is_no_list_goes_by_the_columns_rule(
    dsn: str, rule: OutOfRange, expected: list[Any] | None, kind: str
) -> None:
    if kind == "text[]" and expected is not None:
        expected = [[one and str(one) for one in row] if isinstance(row, list) else row for row in expected]
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(f"CREATE TABLE t (id int PRIMARY KEY, c0 {kind})".encode())
        capture = Postgres(dsn).bind("test")
        capture.represent(Choices((("t", TableChoice(out_of_range={"c0": rule})),)))
        capture.open()
        try:
            start = capture.prepare([T])
            add(connection, {kind: ODD["integer[]"]})
            if expected is None:
                (change_set,) = drain(capture, start)
                assert "more than one dimension" in change_set.notices[0].reason  # type: ignore[union-attr]
            else:
                assert [row["c0"] for row in changes(drain(capture, start))] == expected
                assert [row["c0"] for row in copied(capture, T)] == expected
        finally:
            capture.close()


def quoted(text: str) -> str:
    """As array_out does it."""
    special = text == "" or text.upper() == "NULL" or any(one in '{}",\\' or one.isspace() for one in text)
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"' if special else text


TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=8) | st.sampled_from(
    ["NULL", "null", "", '"', "\\", '\\"', "{}", "a,b", "}"]
)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.none() | st.lists(st.none() | TEXTS, max_size=5), max_size=6))
def test_printed_arrays_of_texts_come_back_as_they_were(rows: list[list[str | None] | None]) -> None:
    printed = [
        None if row is None else "{" + ",".join("NULL" if one is None else quoted(one) for one in row) + "}"
        for row in rows
    ]
    found = to_arrow(pa.array([one and one.encode() for one in printed], pa.binary()), pa.list_(pa.string()))
    assert found.to_pylist() == rows


def sent(row: list[int | None] | None) -> bytes | None:
    """As array_send does it, of int4."""
    if row is None:
        return None
    head = struct.pack(">iii", 1 if row else 0, int(None in row), 23) + (
        struct.pack(">ii", len(row), 1) if row else b""
    )
    return head + b"".join(struct.pack(">i", -1) if one is None else struct.pack(">ii", 4, one) for one in row)


def in_copy(values: Sequence[bytes | None], rule: OutOfRange = STOP) -> Any:
    messages = [
        struct.pack(">h", 1) + (b"\xff\xff\xff\xff" if one is None else struct.pack(">i", len(one)) + one)
        for one in values
    ]
    (column,) = copied_columns(as_messages(messages), 1)
    return form_of("c", pa.list_(pa.int32()), stated_type(INT4_ARRAY, -1), rule)[1](column)


INTS = st.lists(st.none() | st.integers(-(2**31), 2**31 - 1), max_size=5)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.none() | INTS, max_size=6))
def test_arrays_in_binary_form_come_back_as_they_were(rows: list[list[int | None] | None]) -> None:
    assert in_copy([sent(row) for row in rows]).to_pylist() == rows


@pytest.mark.parametrize("rule", [STOP, NULL, CLAMP])
def test_damaged_arrays_are_refused_and_never_read_beyond_their_end(rule: OutOfRange) -> None:
    dice = random.Random(7)
    whole = [sent([1, None, 3]), sent([]), sent([4, 5])]
    text = b'{1,NULL,"a \\"b\\"",{x},[0:1]=}'
    refused = 0
    for _ in range(3000):
        rows = [bytearray(one or b"") for one in whole]
        victim = dice.choice(rows)
        victim[dice.randrange(len(victim))] = dice.randrange(256)
        try:
            in_copy([bytes(one) for one in rows], rule)
        except (DecodeError, MisfitError):
            refused += 1
        changed = bytearray(text)
        changed[dice.randrange(len(changed))] = dice.choice(b'{}",\\[]=N1')
        try:
            to_arrow(
                pa.array([bytes(changed[: dice.randrange(len(changed))]), None], pa.binary()),
                pa.list_(pa.string()),
                rule,
            )
        except (DecodeError, MisfitError):
            refused += 1
    assert refused > 1000


def test_an_array_in_a_key_or_declared_with_more_dimensions_is_text(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("CREATE TABLE t (id int[] PRIMARY KEY, grid int[][], list int[])")
        connection.execute("INSERT INTO t VALUES ('{1,2}', '{{1},{2}}', '{3}')")
        with opened(Postgres(dsn)) as capture:
            capture.prepare([T])
            assert copied(capture, T) == [{"id": "{1,2}", "grid": "{{1},{2}}", "list": [3]}]


INSTANTS = {
    "date": (
        ["infinity", "-infinity", "0044-03-15 BC", "10000-01-01", "2024-02-29"],
        date.min, date.max, date(2024, 2, 29),
    ),
    "timestamp": (
        ["infinity", "-infinity", "0044-03-15 00:00:00 BC", "10000-01-01 00:00:00", "2024-02-29 12:00:00"],
        datetime.min, datetime.max, datetime(2024, 2, 29, 12),
    ),
    "timestamptz": (
        ["infinity", "-infinity", "0044-03-15 00:00:00+00 BC", "10000-01-01 00:00:00+00", "2024-02-29 12:00:00+00"],
        datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC), datetime(2024, 2, 29, 12, tzinfo=UTC),
    ),
}  # fmt: skip


@pytest.mark.parametrize("rule", [NULL, CLAMP])
def test_t20_values_out_of_range_become_null_or_the_nearest_by_rule_in_copy_and_stream(
    dsn: str, rule: OutOfRange
) -> None:
    expected: dict[str, list[Any]] = {}
    for kind, (_, low, high, fit) in INSTANTS.items():
        expected[kind] = [high, low, low, high, fit] if rule is CLAMP else [None, None, None, None, fit]
    numbers = [None, Decimal("1.50")]
    expected |= {"numeric(5,2)": numbers, "numeric(30,2)": numbers}
    values = {kind: listed for kind, (listed, *_) in INSTANTS.items()}
    values |= {"numeric(5,2)": ["NaN", "1.50"], "numeric(30,2)": ["NaN", "1.50"]}
    values |= {f"{kind}[]": ["{" + ",".join(f'"{one}"' for one in values[kind]) + "}"] for kind in list(values)}
    with psycopg.connect(dsn, autocommit=True) as connection:
        capture = Postgres(dsn).bind("test")
        capture.represent(Choices(default=rule))
        fill(connection, values)
        capture.open()
        try:
            start = capture.prepare([T])
            add(connection, values)
            for rows in (changes(drain(capture, start)), copied(capture, T)):
                for place, kind in enumerate(values):
                    found = [row[f"c{place}"] for row in rows[: max(map(len, values.values()))]]
                    assert len(found) == 5
                    wanted = expected[kind] if kind in expected else [expected[kind.removesuffix("[]")]]
                    assert found == [wanted[index % len(wanted)] for index in range(len(found))], kind
        finally:
            capture.close()


def test_a_key_is_never_clamped_or_nulled(dsn: str) -> None:
    """Two rows could get one key."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("CREATE TABLE t (id date PRIMARY KEY)")
        capture = Postgres(dsn).bind("test")
        capture.represent(Choices(default=CLAMP))
        capture.open()
        try:
            start = capture.prepare([T])
            connection.execute("INSERT INTO t VALUES ('infinity'), ('10000-01-01')")
            (change_set,) = drain(capture, start)
            assert [type(one).__name__ for one in change_set.notices] == ["TableBlocked"]
        finally:
            capture.close()


def test_types_of_a_rule_are_given_by_copy_and_stream(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("CREATE TABLE t (id int PRIMARY KEY, opens time, amount numeric, tags text[])")
        capture = Postgres(dsn).bind("test")
        types = {"opens": "microseconds", "amount": "decimal(10,2)", "tags": "string"}
        capture.represent(Choices((("public.t", TableChoice(types=types, out_of_range={"amount": CLAMP})),)))
        capture.open()
        try:
            start = capture.prepare([T])
            connection.execute(
                "INSERT INTO t VALUES (1, NULL, 1.005, '{a}'), (2, '24:00', 1e20, '{}'), (3, '12:34:56.7', 7, NULL)"
            )
            expected = [
                (None, Decimal("1.01"), "{a}"),
                (86_400_000_000, Decimal("99999999.99"), "{}"),
                (45_296_700_000, Decimal("7.00"), None),
            ]
            for rows in (changes(drain(capture, start)), copied(capture, T)):
                assert [(row["opens"], row["amount"], row["tags"]) for row in rows] == expected
        finally:
            capture.close()
