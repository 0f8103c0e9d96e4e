"""T19, T20: every type arrives as the database prints it, the same from snapshot and stream."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from psycopg import sql
from tests.postgres.conftest import new_database
from tests.postgres.rows import changes, copied, drain, opened
from tests.postgres.values import PRINTED, SETUP, TYPED, UNFIT

from lakefeed.capture.base import ChangeCapture
from lakefeed.capture.postgres.source import Postgres
from lakefeed.capture.postgres.values import SourceType, arrow_type
from lakefeed.change.batch import METADATA
from lakefeed.change.change_set import TableBlocked
from lakefeed.change.table import TableId
from lakefeed.errors import TableStoppedError
from lakefeed.testing.server.postgres import PostgresServer, find_binaries

XML = 142
TABLE = TableId("public", "t")


def create(connection: psycopg.Connection[Any], types: list[str]) -> None:
    columns = ", ".join(f"c{place} {kind}" for place, kind in enumerate(types))
    connection.execute(f"CREATE TABLE t (id int PRIMARY KEY, {columns})".encode())


def insert(connection: psycopg.Connection[Any], values: dict[str, list[str]]) -> None:
    """One row for each value of the longest list, the others going round; and one row of NULLs."""
    kinds = list(values)
    for row in range(max(map(len, values.values()))):
        listed = [f"{sql.Literal(values[kind][row % len(values[kind])]).as_string(None)}::{kind}" for kind in kinds]
        connection.execute(f"INSERT INTO t VALUES ({row}, {', '.join(listed)})".encode())
    connection.execute("INSERT INTO t (id) VALUES (-1)")


def printed(connection: psycopg.Connection[Any], count: int) -> dict[int, list[str | None]]:
    """What the output functions say. (``IS NULL`` is also true for a composite of NULLs, which is a value.)"""
    connection.execute("SET extra_float_digits = 1; SET timezone = 'UTC'; SET bytea_output = 'hex'")
    listed = ", ".join(f"CASE num_nulls(c{n}) WHEN 1 THEN NULL ELSE format('%s', c{n}) END" for n in range(count))
    connection.execute("SET search_path = pg_catalog")
    rows = connection.execute(f"SELECT id, {listed} FROM public.t".encode()).fetchall()
    connection.execute("RESET search_path")
    return {row[0]: list(row[1:]) for row in rows}


def exact(value: Any, kind: pa.DataType) -> Any:
    """Comparable bit by bit: NaN equals itself, -0 is not 0."""
    return struct.pack(">d", value) if isinstance(value, float) else value


def both_ways(capture: ChangeCapture, connection: psycopg.Connection[Any], values: dict[str, list[str]]) -> Any:
    """The rows by snapshot and by stream, each as id → values."""
    start = capture.prepare([TABLE])
    insert(connection, values)
    streamed = changes(drain(capture, start))
    return by_id(copied(capture, TABLE)), by_id(streamed)


def by_id(rows: list[dict[str, Any]]) -> dict[int, list[Any]]:
    own = [{name: value for name, value in row.items() if name not in METADATA.names} for row in rows]
    return {row["id"]: [exact(value, pa.null()) for name, value in row.items() if name != "id"] for row in own}


def parsed(text: str | None, kind: pa.DataType) -> Any:
    """The printed value by rules that are not Lakefeed's: Python's."""
    from datetime import date, datetime
    from decimal import Decimal

    if text is None:
        return None
    if pa.types.is_boolean(kind):
        return {"t": True, "f": False}[text]
    if pa.types.is_integer(kind):
        return int(text)
    if pa.types.is_float32(kind):
        return exact(struct.unpack("f", struct.pack("f", float(text)))[0], kind)
    if pa.types.is_floating(kind):
        return exact(float(text), kind)
    if pa.types.is_decimal(kind):
        return Decimal(text)
    if pa.types.is_binary(kind):
        return bytes.fromhex(text[2:])
    return date.fromisoformat(text) if pa.types.is_date(kind) else datetime.fromisoformat(text)


def test_t19_typed_values_are_exact_and_the_same_from_snapshot_and_stream(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(SETUP.encode())
        create(connection, list(TYPED))
        with opened(Postgres(dsn)) as capture:
            snapshot, stream = both_ways(capture, connection, TYPED)
            (schema,) = [one for one in capture.discover() if one.table == TABLE]
        assert snapshot == stream
        kinds = [column.type for column in schema.columns[1:]]
        assert pa.string() not in kinds
        for key, texts in printed(connection, len(TYPED)).items():
            assert stream[key] == [parsed(text, kind) for text, kind in zip(texts, kinds, strict=True)]


def test_t19_all_other_types_are_kept_as_postgresql_prints_them(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(SETUP.encode())
        create(connection, list(PRINTED))
        with opened(Postgres(dsn, text_columns=["public.t.c*"])) as capture:  # arrays too, which are lists by default
            snapshot, stream = both_ways(capture, connection, PRINTED)
        assert snapshot == stream == printed(connection, len(PRINTED))


@pytest.mark.parametrize(("kind", "value"), [(kind, value) for kind in UNFIT for value in UNFIT[kind]])
def test_t20_a_value_that_does_not_fit_stops_its_table_and_is_never_rounded_or_nulled(
    dsn: str, kind: str, value: str
) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        create(connection, [kind])
        connection.execute("CREATE TABLE other (id int PRIMARY KEY)")
        with opened(Postgres(dsn)) as capture:
            start = capture.prepare([TABLE, TableId("public", "other")])
            with connection.transaction():
                connection.execute("INSERT INTO t VALUES (1, %s)", (value,))
                connection.execute("INSERT INTO other VALUES (7)")
            (change_set,) = drain(capture, start)
            assert [row["id"] for row in changes([change_set])] == [7]  # the other table goes on
            (notice,) = change_set.notices
            assert isinstance(notice, TableBlocked)
            assert "{match: public.t, out_of_range: {c0: text}}" in notice.remedy
            with pytest.raises(TableStoppedError, match="does not fit"):
                copied(capture, TABLE)
        with opened(Postgres(dsn, text_columns=["public.t.c0"])) as capture:  # the remedy
            assert [row["c0"] for row in changes(drain(capture, start)) if "c0" in row] == printed(connection, 1)[1]
            assert [row["c0"] for row in copied(capture, TABLE)] == printed(connection, 1)[1]


def test_xml_is_kept_as_printed_where_the_server_has_it(servers: Callable[[int], PostgresServer]) -> None:
    """Some builds of PostgreSQL come without it: they refuse every value, so that there is nothing to carry."""
    for version in find_binaries():
        with new_database(servers(version)) as dsn, psycopg.connect(dsn, autocommit=True) as writer:
            try:
                writer.execute("SELECT '<a/>'::xml")
            except psycopg.errors.FeatureNotSupported:
                continue
            values = {"xml": ["<a b='c'>&amp; ü</a>", "just text", ""], "xml[]": ["{<a/>,NULL}"]}
            create(writer, list(values))
            with opened(Postgres(dsn, text_columns=["public.t.c*"])) as capture:
                copy, stream = both_ways(capture, writer, values)
            assert copy == stream == printed(writer, len(values))
    assert arrow_type(SourceType(XML)) == pa.string()
