"""Each kind of position: its text, what it refuses, and how it compares."""

from __future__ import annotations

from decimal import Decimal

import pytest

from lakefeed.change.lsn import PostgresLsn, SqlServerLsn
from lakefeed.change.mysql import MariadbGtid, MysqlBinlog, MysqlGtid
from lakefeed.change.position import Custom, Position, SqliteSequence, decode_position, position_kinds
from lakefeed.change.watermark import KeyValue, Mark, Watermark
from lakefeed.errors import CheckpointError

A = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
B = "4e11fa47-71ca-11e1-9e33-c80aa9429562"

REFUSED: dict[type[Position], list[str]] = {
    PostgresLsn: ["", "1", "/", "1/", "/1", "1/2/3", "+1/2", "1/-2", " 1/2", "1/2 ", "1/2\n", "0x1/2", "1_0/2", "g/1",
                  "123456789/1", "1/123456789", "１/2"],
    SqlServerLsn: ["", "0x", "0x" + "0" * 19, "0x" + "0" * 21, "0X" + "0" * 20, "0" * 20, "0x" + "g" * 20,
                   "0x" + "0" * 20 + "\n"],
    SqliteSequence: ["", "5", "5@", "@5", "-1@0", "+1@0", "1@-1", " 1@0", "1@0@0", "1_0@0", "٣@0", f"{1 << 63}@0",
                     f"{'9' * 5000}@0"],
    MysqlBinlog: ["", "f", "mysql-bin.000003", "mysql-bin.000003:", ":4", "mysql-bin.000003:-4", "mysql-bin.000003:4 ",
                  "mysql-bin:4", "mysql-bin.3:4", ".000003:4", "a/mysql-bin.000003:4", "mysql bin.000003:4",
                  "mysql-bin.0000003:4", "mysql-bin.000003:1:2", f"mysql-bin.000003:{1 << 64}"],
    MysqlGtid: [A, f"{A}:", f"{A}:0", f"{A}:5-1", f"{A}:1-", f"{A}:-1", f"{A}:+1", f"{A}:1--2", f"{A}:1,", f",{A}:1",
                f"{A}:1,,{B}:1", f"{A}:tag", f"{A}:one:two:1", f"{A}:1:tag", f"{A}:9tag:1", f"{A}:{'t' * 33}:1",
                f"{A[:-1]}:1", "0-1-100", f"{A}:{1 << 63}", "uuid:1-5"],
    MariadbGtid: ["0-1", "0-1-2-3", "a-1-2", "0-1-", "-1-1-1", "0-1-+5", "0-1-5,", "0-1-5,0-2-6", f"{1 << 32}-1-1",
                  f"0-{1 << 32}-1", f"0-1-{1 << 64}", f"{A}:1-5"],
    Watermark: ["", "[]", "null", "5", "{", '{"a":1}', '{"a":{}}', '{"a":{"us":1}}', '{"a":{"us":1.5,"key":[]}}',
                '{"a":{"us":true,"key":[]}}', '{"a":{"us":1,"key":"x"}}', '{"a":{"us":1,"key":[5]}}',
                '{"a":{"us":1,"key":[["int","5"]]}}', '{"a":{"us":1,"key":[["int",true]]}}',
                '{"a":{"us":1,"key":[["float",1.5]]}}', '{"a":{"us":1,"key":[["bytes","0g"]]}}',
                '{"a":{"us":1,"key":[["decimal","x"]]}}', '{"a":{"us":1,"key":[["decimal","NaN"]]}}',
                '{"a":{"us":1,"key":[],"more":1}}', '{"a":{"us":1,"key":[]},"a":{"us":2,"key":[]}}', "[" * 100_000],
}  # fmt: skip


@pytest.mark.parametrize(("kind", "text"), [(kind, text) for kind, texts in REFUSED.items() for text in texts])
def test_a_text_that_is_not_a_position_is_refused_and_named(kind: type[Position], text: str) -> None:
    with pytest.raises(CheckpointError) as refused:
        kind.parse(text)
    assert f"'{text}'" in str(refused.value)


def test_the_registry_has_every_kind_under_its_own_name() -> None:
    assert {name: kind.kind for name, kind in position_kinds().items()} == {name: name for name in position_kinds()}
    assert set(position_kinds().values()) == {*REFUSED, Custom}


@pytest.mark.parametrize("text", ["", "0/1", "=0/1", "oracle=5", "postgres"])
def test_decoding_a_text_without_a_known_kind_is_refused_with_the_choices(text: str) -> None:
    with pytest.raises(CheckpointError, match="postgres, sqlite"):
        decode_position(text)


def test_positions_of_two_kinds_have_no_order() -> None:
    with pytest.raises(TypeError, match="mysql_gtid"):
        MysqlGtid("").compare(MariadbGtid(""))
    nothing: list[Position] = [MysqlGtid(""), MariadbGtid("")]
    assert nothing[0] != nothing[1]


@pytest.mark.parametrize(
    ("position", "text"),
    [
        (PostgresLsn(0x112345678), "postgres=1/12345678"),
        (PostgresLsn(0), "postgres=0/0"),
        (PostgresLsn((1 << 64) - 1), "postgres=FFFFFFFF/FFFFFFFF"),
        (SqlServerLsn(bytes.fromhex("0000002a000001f0000a")), "sqlserver=0x0000002A000001F0000A"),
        (SqliteSequence(7, 1234), "sqlite=7@1234"),
        (MysqlBinlog("mysql-bin.000003", 12345), "binlog=mysql-bin.000003:12345"),
        (MysqlGtid(f" {A.upper()}:7:1-5,\n{B}:x:1"), f"mysql_gtid= {A.upper()}:7:1-5,\n{B}:x:1"),
        (MariadbGtid("1-1-5, 0-2-7"), "mariadb_gtid=1-1-5, 0-2-7"),
        (Watermark.of({"s.t": Mark(-5, (1, "a"))}), 'watermark={"s.t":{"key":[["int",1],["str","a"]],"us":-5}}'),
        (Custom("a=b\n"), "custom=a=b\n"),
    ],
)
def test_positions_are_stored_under_these_texts(position: Position, text: str) -> None:
    assert position.encode() == text
    assert decode_position(text) == position
    assert decode_position(text).text() == str(position)


@pytest.mark.parametrize("value", [-1, 1 << 64])
def test_an_lsn_beyond_64_bits_cannot_be_made(value: int) -> None:
    with pytest.raises(CheckpointError):
        PostgresLsn(value)


def test_values_that_could_not_be_read_back_cannot_be_made() -> None:
    with pytest.raises(CheckpointError, match="10 bytes"):
        SqlServerLsn(b"short")
    with pytest.raises(CheckpointError):
        SqliteSequence(-1)
    with pytest.raises(CheckpointError):
        MysqlBinlog("mysql-bin.000003", -1)


def test_t16_binlog_files_are_ordered_by_number() -> None:
    names = ["bin.000009", "bin.000010", "bin.999999", "bin.1000000", "bin.1000001"]
    positions = [MysqlBinlog(name, offset) for name in names for offset in (4, 900)]
    for index, position in enumerate(positions):
        assert all(earlier < position for earlier in positions[:index])
        assert all(later > position for later in positions[index + 1 :])


@pytest.mark.parametrize("junk", ["\x8a\x01\xc3\x7f", "\ufffd", "\x00", " ", "x"])
def test_t16_a_file_name_with_checksum_bytes_at_its_end_is_refused(junk: str) -> None:
    with pytest.raises(CheckpointError, match="binlog file name"):
        MysqlBinlog("mariadb-bin.000003" + junk, 4)
    with pytest.raises(CheckpointError, match="binlog file name"):
        MysqlBinlog("mariadb-bin.0000031234", 4)  # four bytes that happen to be digits


def test_t16_binlogs_of_two_base_names_are_not_ordered() -> None:
    one, other = MysqlBinlog("a.000001", 4), MysqlBinlog("b.000002", 4)
    _assert_compares(one, other, None)


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ("", "", 0),
        ("", f"{A}:1", -1),
        (f"{A}:1-5", f"{A}:1-5", 0),
        (f"{A}:1-3:4-5", f"{A.upper()}:5:1-4", 0),
        (f"{A}:1-5", f"{A}:1-6", -1),
        (f"{A}:1-5:7", f"{A}:1-7", -1),
        (f"{A}:1-5:7", f"{A}:1-6", None),
        (f"{A}:1-5", f"{B}:1-5", None),
        (f"{A}:1-5", f"{A}:1-5,{B}:1", -1),
        (f"{A}:1-5,{B}:1", f"{A}:1-9", None),
        (f"{A}:1,{A}:2", f"{A}:1-2", 0),
        (f"{A}:1-3:blue:1", f"{A}:1-3", 1),
        (f"{A}:BLUE:1-3", f"{A}:blue:1-3", 0),
        (f"{A}:blue:1-3", f"{A}:1-3", None),
        (f"{A}:blue:1:red:2", f"{A}:red:2,{A}:blue:1", 0),
        (f"{A}:1-{(1 << 63) - 2}", f"{A}:1", 1),
    ],
)
def test_t17_mysql_gtid_sets_compare_as_sets(a: str, b: str, expected: int | None) -> None:
    _assert_compares(MysqlGtid(a), MysqlGtid(b), expected)


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ("", "", 0),
        ("", "0-1-1", -1),
        ("0-1-9", "0-1-10", -1),
        ("0-1-9", "0-2-10", -1),
        ("0-1-9", "0-2-9", None),
        ("0-1-9,1-1-5", "1-1-5,0-1-9", 0),
        ("0-1-9", "0-1-9,1-1-5", -1),
        ("0-1-9,1-1-5", "0-1-10", None),
        ("0-1-9,1-1-5", "0-1-8,1-1-6", None),
        ("0-01-9", "0-1-9", 0),
    ],
)
def test_t17_mariadb_gtids_compare_domain_by_domain(a: str, b: str, expected: int | None) -> None:
    _assert_compares(MariadbGtid(a), MariadbGtid(b), expected)


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ((1,), (1,), 0),
        ((9,), (10,), -1),
        ((-2,), (-1,), -1),
        ((Decimal("9.5"),), (10,), -1),
        ((1, 9), (2, 1), -1),
        ((b"\x01",), (b"\x01\x00",), -1),
        (("a",), ("a",), 0),
        (("a",), ("B",), None),
        ((1, "x"), (2, "a"), -1),
        ((9,), ("10",), None),
        ((1,), (1, 2), None),
    ],
)
def test_marks_of_one_time_are_ordered_by_key_where_all_databases_agree(
    a: tuple[KeyValue, ...], b: tuple[KeyValue, ...], expected: int | None
) -> None:
    _assert_compares(Watermark.of({"s.t": Mark(5, a)}), Watermark.of({"s.t": Mark(5, b)}), expected)
    _assert_compares(Watermark.of({"s.t": Mark(4, b)}), Watermark.of({"s.t": Mark(5, a)}), -1)


def test_watermarks_compare_table_by_table() -> None:
    low, high = Mark(1, (1,)), Mark(2, (1,))
    _assert_compares(Watermark.of({}), Watermark.of({"s.a": low}), -1)
    _assert_compares(Watermark.of({"s.a": low, "s.b": low}), Watermark.of({"s.b": high, "s.a": low}), -1)
    _assert_compares(Watermark.of({"s.a": low, "s.b": high}), Watermark.of({"s.a": high, "s.b": low}), None)
    _assert_compares(Watermark.of({"s.a": high}), Watermark.of({"s.a": low, "s.b": low}), None)


@pytest.mark.parametrize("value", [1.5, None, True, Decimal("NaN"), Decimal("Infinity")])
def test_a_watermark_with_a_key_that_has_no_exact_text_cannot_be_made(value: KeyValue) -> None:
    with pytest.raises(CheckpointError, match=r"s\.t"):
        Watermark.of({"s.t": Mark(1, (value,))})


def test_a_watermark_has_each_table_once() -> None:
    with pytest.raises(CheckpointError, match="each table once"):
        Watermark((("s.t", Mark(1, ())), ("s.t", Mark(2, ()))))


def test_custom_positions_are_equal_or_not_ordered() -> None:
    _assert_compares(Custom("a"), Custom("a"), 0)
    _assert_compares(Custom("a"), Custom("b"), None)


def _assert_compares(a: Position, b: Position, expected: int | None) -> None:
    assert a.compare(b) == expected
    assert b.compare(a) == (None if expected is None else -expected)
    assert (a == b) == (expected == 0)
    assert (a < b, a <= b, a > b, a >= b) == (expected == -1, expected in (-1, 0), expected == 1, expected in (0, 1))
