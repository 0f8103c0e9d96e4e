"""Every type of value: the copy, the stream and polling give the same, and the server's own text is the oracle."""

from __future__ import annotations

from datetime import date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from scripts.types import mysql as documented

from lakefeed import Pipeline
from lakefeed.app.build import build_verification, rules
from lakefeed.app.config import load_config
from lakefeed.capture.mysql.dialect import MysqlDialect, MysqlVerifyReader
from lakefeed.capture.mysql.source import Mysql
from lakefeed.change.change_set import TableBlocked
from lakefeed.change.table import TableId
from lakefeed.lake.mode import Mirror
from lakefeed.lake.route import Routes
from lakefeed.storage.location import storage_at
from lakefeed.testing.capture_subject import drain, row_dicts
from lakefeed.testing.server.mysql import MysqlServer

COMMON: dict[str, list[Any]] = {
    "tinyint": [-128, 127, 0], "tinyint unsigned": [255], "bool": [1, 0], "smallint": [-32768], "year": [1901, 0],
    "smallint unsigned": [65535], "mediumint": [-8388608, 8388607], "mediumint unsigned": [16777215],
    "int": [-2147483648], "int unsigned": [4294967295], "bigint": [-9223372036854775808],
    "bigint unsigned": [18446744073709551615, 0], "decimal(10,3)": ["-1234567.891", "0.001", "-0.001"],
    "decimal(38,10)": ["-1234567890123456789012345678.0123456789"], "decimal(18,18)": ["-0.000000000000000001"],
    "decimal(38,0)": ["99999999999999999999999999999999999999", "-99999999999999999999999999999999999999"],
    "decimal(65,30)": ["-12345678901234567890123456789012345.123456789012345678901234567890", "0"],
    "decimal(5,0) unsigned": [99999], "float": [0.1, -3.4e38, 1.17549e-38, 16777217],
    "double": [0.1, -1.7976931348623157e308, 5e-324], "bit(1)": [1, 0], "bit(5)": [21], "bit(63)": [2**63 - 1],
    "bit(64)": [2**64 - 1], "date": ["1000-01-01", "9999-12-31", "2024-02-29"],
    "datetime": ["1000-01-01 00:00:00", "9999-12-31 23:59:59"], "datetime(3)": ["2020-01-01 01:02:03.456"],
    "datetime(6)": ["1969-12-31 23:59:59.999999"], "timestamp": ["1970-01-01 00:00:01", "2038-01-19 03:14:07"],
    "timestamp(6)": ["2001-02-03 04:05:06.000007"], "timestamp(1)": ["2001-02-03 04:05:06.7"],
    "time": ["-838:59:59", "838:59:59", "00:00:00"], "time(2)": ["-00:00:01.25", "25:00:00.5"],
    "time(6)": ["-838:59:58.000001"], "time(3)": ["-00:00:00.001"], "char(5)": ["ab ", "", "äöü"],
    "varchar(300)": ["x" * 300, "'\\\"\n"], "char(200)": ["y" * 200], "varchar(20) CHARACTER SET latin1": ["é€\x81ÿ"],
    "varchar(20) CHARACTER SET ucs2": ["Ωж中"], "varchar(20) CHARACTER SET gbk": ["中文"],
    "char(3) CHARACTER SET utf32": ["a😀"], "varchar(20) CHARACTER SET utf8mb4": ["😀"], "tinytext": ["t"],
    "mediumtext": ["m" * 70_000], "longtext": ["l"], "binary(4)": [b"\x01\x00", b"\x00\x00\x00\x00", b"abcd"],
    "varbinary(300)": [b"\x00\xff\x00", b""], "blob": [b"\x00\xff" * 300], "longblob": [b"z"],
    "enum('x','y''z','ä')": ["x", "y'z", "ä"], "set('p','q','r','s','t','u','v','w','z')": ["p,z", "", "q"],
    "enum('é','b') CHARACTER SET latin1": ["é"],
}  # fmt: skip
JSON = [
    '{"a": 1, "bb": [1, -2, 2.5, true, false, null], "c": {"d": "x\\ny\\"\\\\ é 😀"}}', "[]", "{}", '"text"', "null",
    "18446744073709551615", "-9223372036854775808", "1e100", "1.0", "3.5e-10", "[1e20, 1e15, 123456789012345680000]",
    '{"' + "k" * 300 + '": "' + "v" * 70000 + '"}', "[" + ", ".join(map(str, range(0, 80000, 7))) + "]",
]  # fmt: skip
OWN: dict[str, dict[str, list[Any]]] = {
    "mysql": {"json": JSON},
    "mariadb": {
        "json": ['{"a":1}'], "inet6": ["::1", "2001:db8::ff00:42:8329", "::ffff:1.2.3.4", "::"],
        "uuid": ["123e4567-e89b-12d3-a456-426614174000", "00000000-0000-0000-0000-000000000000",
                 "ffffffff-ffff-4fff-bfff-ffffffffffff", "018f4b1c-7b1a-7c3a-9d2e-0123456789ab"],
        "inet4": ["1.2.3.4", "0.0.0.0"],
    },
}  # fmt: skip


def _table(server: MysqlServer, database: str, kinds: dict[str, list[Any]]) -> TableId:
    with server.connect() as connection, connection.cursor() as cursor:
        columns = ", ".join(f"c{index} {kind} NULL" for index, kind in enumerate(kinds))
        cursor.execute(
            f"CREATE TABLE {database}.t (id int PRIMARY KEY, {columns}, g point, "
            "updated_at datetime(6) DEFAULT '2020-01-01', doubled int AS (id * 2) STORED, virt int AS (id + 1) VIRTUAL)"
        )
    return TableId(database, "t")


def _fill(server: MysqlServer, table: TableId, kinds: dict[str, list[Any]]) -> None:
    with server.connect(sql_mode="") as connection, connection.cursor() as cursor:
        cursor.execute("SET time_zone = '+00:00'")
        for row in range(max(map(len, kinds.values()))):
            given = {f"c{index}": values[row] for index, values in enumerate(kinds.values()) if row < len(values)}
            names = ", ".join(["id", "g", *given])
            marks = ", ".join(["%s", "ST_GeomFromText('POINT(1 2)')", *["%s"] * len(given)])
            cursor.execute(f"INSERT INTO {table} ({names}) VALUES ({marks})", (row, *given.values()))
        cursor.execute(f"INSERT INTO {table} (id) VALUES (1000)")


def test_t18_t19_t20_copy_stream_and_the_database_agree_on_every_type(
    server: MysqlServer, database: str, tmp_path: Path
) -> None:
    kinds = {**COMMON, **OWN[server.flavour]}
    table = _table(server, database, kinds)
    capture = Mysql(server.dsn, kind=server.flavour, tables=[f"{database}.*"], state=tmp_path).bind("types")
    capture.open()
    start = capture.prepare([table])
    _fill(server, table, kinds)
    found = drain(capture, start)
    assert [one for change_set in found for one in (*change_set.notices, *change_set.schemas)] == []
    streamed = {row["id"]: row for change_set in found for row in row_dicts(change_set)}
    plan = capture.snapshot(table)
    copied: dict[int, dict[str, Any]] = {}
    for chunk in plan.chunks:
        with chunk.open() as reader:
            copied |= {row["id"]: row for batch in reader for row in batch.to_pylist()}
    capture.close()
    names = plan.schema.names
    by_name = dict(zip([f"c{index}" for index in range(len(kinds))], kinds, strict=True))
    assert len(copied) == len(streamed)
    for key, row in copied.items():
        for name in names:
            assert streamed[key][name] == row[name], (by_name.get(name, name), key)
    verifier = MysqlVerifyReader(MysqlDialect(server.dsn, server.flavour), table)
    oracle = [row for run in verifier.rows(plan.schema.arrow, names) for row in run]
    for values in oracle:
        row = copied[values[0]]
        for name, value in zip(names, values, strict=True):
            kind = by_name.get(name, name)
            if kind == "float" and value is not None:
                value = pa.array([value], pa.float32())[0].as_py()
            assert row[name] == value, (kind, values[0])


@pytest.mark.parametrize(
    ("zero_dates", "expected"),
    [
        ("null", (None, None)),
        ("text", ("0000-00-00", "2020-00-10 00:00:00")),
        ("clamp", (date(1, 1, 1), datetime(2020, 1, 10))),
    ],
)
def test_dates_that_no_calendar_has_follow_the_rule(
    server: MysqlServer, database: str, tmp_path: Path, zero_dates: str, expected: tuple[Any, Any]
) -> None:
    table = TableId(database, "t")
    with server.connect(sql_mode="") as connection, connection.cursor() as cursor:
        cursor.execute(f"CREATE TABLE {table} (id int PRIMARY KEY, d date, m datetime)")
        source = Mysql(server.dsn, kind=server.flavour, tables=[f"{database}.*"], state=tmp_path, zero_dates=zero_dates)
        capture = source.bind("zero")
        capture.open()
        start = capture.prepare([table])
        cursor.execute(f"INSERT INTO {table} VALUES (1, '0000-00-00', '2020-00-10')")
    (row,) = [row for one in drain(capture, start) for row in row_dicts(one)]
    assert (row["d"], row["m"]) == expected
    with capture.snapshot(table).chunks[0].open() as reader:
        (copied,) = [row for batch in reader for row in batch.to_pylist()]
    assert (copied["d"], copied["m"]) == expected
    capture.close()


def test_a_date_that_no_calendar_has_blocks_its_table_and_no_other(
    server: MysqlServer, database: str, tmp_path: Path
) -> None:
    table, other = TableId(database, "t"), TableId(database, "u")
    with server.connect(sql_mode="") as connection, connection.cursor() as cursor:
        for one in (table, other):
            cursor.execute(f"CREATE TABLE {one} (id int PRIMARY KEY, d date)")
        capture = Mysql(server.dsn, kind=server.flavour, tables=[f"{database}.*"], state=tmp_path).bind("zero")
        capture.open()
        start = capture.prepare([table, other])
        cursor.execute(f"INSERT INTO {table} VALUES (1, '0000-00-00')")
        cursor.execute(f"INSERT INTO {other} VALUES (1, '2020-01-01')")
    found = drain(capture, start)
    notices = [notice for one in found for notice in one.notices]
    assert [(type(one), one.table) for one in notices] == [(TableBlocked, table)]
    assert isinstance(notices[0], TableBlocked)
    assert f"{{match: {table}, out_of_range: {{d: text}}}}" in notices[0].remedy
    assert [row["id"] for one in found for row in row_dicts(one)] == [1]
    capture.close()


CONFIG = """
pipeline: p
source: {{kind: {kind}, dsn: "{dsn}", tables: ["{database}.*"]{more}}}
lake:
  path: ./lake
  tables:
    - {{match: t, types: {{opens: microseconds, n: string, p: string}}, out_of_range: {{d: clamp, m: null, x: text}}}}
"""
NAMES = ("d", "m", "x", "opens", "n", "p")


@pytest.mark.spark
@pytest.mark.usefixtures("spark")  # verify takes the session that is there, or makes one that other tests cannot use
@pytest.mark.parametrize("capture", ["log", "poll"])
def test_rules_of_the_lake_hold_for_copy_stream_polling_and_verify(
    server: MysqlServer, database: str, tmp_path: Path, capture: str
) -> None:
    table, file = TableId(database, "t"), tmp_path / "p.yaml"
    values = "'0000-00-00', '2026-02-31 12:00:00', '2026-02-31', '-00:00:01.5', 7, '1.50', NOW(6)"
    more = ", capture: poll" if capture == "poll" else ""
    file.write_text(CONFIG.format(kind=server.flavour, dsn=server.dsn, database=database, more=more))
    with server.connect(sql_mode="ALLOW_INVALID_DATES") as connection, connection.cursor() as cursor:
        cursor.execute(
            f"CREATE TABLE {table} (id int PRIMARY KEY, d date, m datetime, x date, opens time(6), n int,"
            " p decimal(9,2), updated_at datetime(6))"
        )
        cursor.execute(f"INSERT INTO {table} VALUES (1, {values}), (2, {'NULL, ' * 6}NOW(6))")
        with Pipeline.from_yaml(file) as pipeline:  # one chunk: no Spark
            assert not pipeline.sync_once().errors
            assert [one.name for one in pipeline.plan().tables[0].columns if one.note] == ["d", "m"]
        verification = build_verification(load_config(file), "sync").run(lambda _: lambda _side, _rows: None)
        ((_, comparison),) = verification.tables
        assert comparison.equal, comparison.differences
        stream = load_config(file).source.source().bind("q")
        stream.represent(Routes(Mirror(), rules(load_config(file).lake)).choices)
        stream.keep_state(storage_at(tmp_path / "q"))
        stream.open()
        start = stream.prepare([table])
        cursor.execute(f"INSERT INTO {table} VALUES (3, {values})")
        (row,) = [row for one in drain(stream, start) for row in row_dicts(one) if row["id"] == 3]
        stream.close()
    expected = (date(1, 1, 1), None, "2026-02-31", -1_500_000, "7", "1.50")
    assert tuple(row[name] for name in NAMES) == expected
    stored = DeltaTable(str(tmp_path / "lake" / database / "t")).to_pyarrow_table().to_pylist()
    assert [tuple(one[name] for name in NAMES) for one in stored if one["id"] == 1] == [expected]


def test_the_page_of_types_says_what_the_server_gives(server: MysqlServer, database: str) -> None:
    page = list(documented())
    with server.connect() as connection, connection.cursor() as cursor:
        columns = ", ".join(f"c{index} {one.declared} NULL" for index, one in enumerate(page))
        cursor.execute(f"CREATE TABLE {database}.t (id int PRIMARY KEY, {columns})")
    schema = MysqlDialect(server.dsn, server.flavour).described(TableId(database, "t")).schema
    found = {one.declared: column.type for one, column in zip(page, schema.columns[1:], strict=True)}
    assert found == {one.declared: one.lake for one in page}
