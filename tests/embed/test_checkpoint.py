"""The checkpoint value: D1 to D11."""

from __future__ import annotations

import json
import pickle
import time
from typing import Any

import pytest

from lakefeed.change.lsn import PostgresLsn, SqlServerLsn
from lakefeed.change.mysql import MariadbGtid, MysqlBinlog, MysqlGtid
from lakefeed.change.position import Custom, Position, SqliteSequence
from lakefeed.change.watermark import Mark, Watermark
from lakefeed.embed.checkpoint import Checkpoint, PositionType
from lakefeed.embed.progress import from_checkpoint, is_snapshot_checkpoint
from lakefeed.errors import CheckpointError, ConfigError, SourceChangedError

GTID_SET = "3E11FA47-71CA-11E1-9E33-C80AA9429562:1-5,\n4E11FA47-71CA-11E1-9E33-C80AA9429562:7"


def _full() -> Checkpoint:
    return Checkpoint(
        source_type="postgres",
        position_type=PositionType.POSTGRES_LSN,
        position="0/0012ab",
        timestamp=1_700_000_000,
        transaction_id="tx-9",
        metadata={"slot": "s1", "ключ": "значение"},
        identity="7300000000000000001",
        committed=12,
    )


def test_d1_a_checkpoint_with_every_field_set_survives_json() -> None:
    checkpoint = _full()
    assert Checkpoint.from_json(json.loads(json.dumps(checkpoint.to_json()))) == checkpoint
    assert json.loads(json.dumps(checkpoint.to_json())) == {
        "source_type": "postgres",
        "position_type": "PostgresLsn",
        "position": "0/0012ab",
        "timestamp": 1_700_000_000,
        "transaction_id": "tx-9",
        "metadata": {"slot": "s1", "ключ": "значение"},
        "identity": "7300000000000000001",
        "committed": 12,
    }


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("source_type", None),
        ("position_type", "Oracle"),
        ("position_type", ["Gtid"]),
        ("position", 5),
        ("timestamp", "now"),
        ("timestamp", True),
        ("timestamp", -1),
        ("transaction_id", 7),
        ("metadata", {"a": 1}),
        ("metadata", None),
        ("identity", 1),
        ("committed", -1),
        ("committed", 1.5),
        ("surprise", "x"),
    ],
)
def test_d1_json_with_a_field_that_cannot_be_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(CheckpointError, match=name):
        Checkpoint.from_json({**_full().to_json(), name: value})


def test_d1_json_without_a_field_is_refused_by_name() -> None:
    for name in _full().to_json():
        data = _full().to_json()
        del data[name]
        with pytest.raises(CheckpointError, match=name):
            Checkpoint.from_json(data)


def test_d1_a_checkpoint_is_a_value_that_nobody_can_change_from_outside() -> None:
    metadata = {"a": "1"}
    checkpoint = Checkpoint("s", PositionType.CUSTOM, "p", metadata=metadata)
    metadata["a"] = "2"
    assert checkpoint.metadata == {"a": "1"}
    with pytest.raises(TypeError):
        checkpoint.metadata["a"] = "3"  # type: ignore[index]
    assert pickle.loads(pickle.dumps(checkpoint)) == checkpoint
    assert hash(pickle.loads(pickle.dumps(checkpoint))) == hash(checkpoint)


def test_d2_d11_there_is_a_position_type_for_every_source() -> None:
    assert {kind.value for kind in PositionType} == {
        "PostgresLsn", "MysqlBinlog", "Gtid", "Custom", "SqlServerLsn", "SqliteSequence", "Watermark",
    }  # fmt: skip


def test_d3_an_lsn_is_written_in_upper_case_without_padding() -> None:
    checkpoint = Checkpoint.postgres_lsn(0x112345678)
    assert checkpoint.position == "1/12345678"
    assert checkpoint.source_type == "postgres"
    assert checkpoint.position_type is PositionType.POSTGRES_LSN
    assert Checkpoint.postgres_lsn(0xAB_0000_000F).position == "AB/F"


def test_d4_an_lsn_given_as_text_is_kept_as_given_if_it_is_one() -> None:
    assert Checkpoint.postgres_lsn_str("0/0012abcd").position == "0/0012abcd"
    with pytest.raises(CheckpointError, match="nonsense"):
        Checkpoint.postgres_lsn_str("nonsense")


def test_d5_a_binlog_place_is_file_and_offset() -> None:
    checkpoint = Checkpoint.mysql_binlog("mysql-bin.000003", 12345)
    assert checkpoint.position == "mysql-bin.000003:12345"
    assert checkpoint.source_type == "mysql"
    assert checkpoint.position_type is PositionType.MYSQL_BINLOG


def test_d6_a_gtid_set_is_kept_verbatim_for_the_source_that_the_caller_names() -> None:
    mysql, mariadb = Checkpoint.gtid("mysql", GTID_SET), Checkpoint.gtid("mariadb", "1-2-50, 0-1-100")
    assert (mysql.source_type, mysql.position) == ("mysql", GTID_SET)
    assert (mariadb.source_type, mariadb.position) == ("mariadb", "1-2-50, 0-1-100")
    assert mysql.position_type is mariadb.position_type is PositionType.GTID
    assert isinstance(mysql.decoded, MysqlGtid)
    assert isinstance(mariadb.decoded, MariadbGtid)


def test_d6_d11_a_gtid_set_of_the_other_database_is_refused() -> None:
    with pytest.raises(CheckpointError):
        Checkpoint.gtid("mysql", "0-1-100")
    with pytest.raises(CheckpointError):
        Checkpoint.gtid("mariadb", GTID_SET)
    with pytest.raises(CheckpointError, match="postgres"):
        Checkpoint.gtid("postgres", GTID_SET)


def test_d7_the_builders_add_to_a_copy() -> None:
    plain = Checkpoint.postgres_lsn(1)
    built = plain.with_transaction_id("tx").with_metadata("a", "1").with_metadata("b", "2").with_metadata("a", "3")
    assert built.transaction_id == "tx"
    assert built.metadata == {"a": "3", "b": "2"}
    assert plain.transaction_id is None
    assert plain.metadata == {}


@pytest.mark.parametrize(("text", "value"), [("0/12345678", 0x12345678), ("1/0", 0x100000000), ("a/B", 0xA_0000_000B)])
def test_d8_an_lsn_is_read_back_as_a_number(text: str, value: int) -> None:
    assert Checkpoint.postgres_lsn_str(text).parse_postgres_lsn() == value


@pytest.mark.parametrize(
    "text", ["invalid", "", "1", "1/2/3", "/", "1/", "/1", "+1/2", "1/+2", " 1/2", "1/2\n", "0x1/2"]
)
def test_d8_d11_what_is_not_an_lsn_is_none(text: str) -> None:
    assert Checkpoint("postgres", PositionType.POSTGRES_LSN, text).parse_postgres_lsn() is None


@pytest.mark.parametrize("text", ["100000000/0", "0/100000000", "0/FFFFFFFFFF"])
def test_d11_an_lsn_with_a_part_beyond_32_bits_is_none(text: str) -> None:
    assert Checkpoint("postgres", PositionType.POSTGRES_LSN, text).parse_postgres_lsn() is None


def test_d8_d9_another_position_type_is_none() -> None:
    assert Checkpoint.custom("postgres", "0/1").parse_postgres_lsn() is None
    assert Checkpoint.custom("mysql", "mysql-bin.000003:5").parse_mysql_binlog() is None
    assert Checkpoint.postgres_lsn(1).parse_mysql_binlog() is None
    assert Checkpoint.mysql_binlog("mysql-bin.000003", 5).parse_postgres_lsn() is None


def test_d9_a_binlog_place_is_read_back_as_file_and_number() -> None:
    assert Checkpoint.mysql_binlog("my.bin-log.000003", 12345).parse_mysql_binlog() == ("my.bin-log.000003", 12345)


@pytest.mark.parametrize(
    "text", ["mysql-bin.000003", "mysql-bin.000003:", "mysql-bin.000003:x", "mysql-bin.000003:1:2", "f:+1", ":5"]
)
def test_d9_what_is_not_a_binlog_place_is_none(text: str) -> None:
    assert Checkpoint("mysql", PositionType.MYSQL_BINLOG, text).parse_mysql_binlog() is None


def test_d10_age_is_measured_from_the_time_stamp_and_never_negative() -> None:
    hour_old = Checkpoint("s", PositionType.CUSTOM, "p", timestamp=int(time.time()) - 3600)
    assert 3599 <= hour_old.age_seconds() <= 3700
    assert hour_old.age_seconds(hour_old.timestamp + 7.9) == 7
    assert hour_old.age_seconds(hour_old.timestamp - 100) == 0
    assert Checkpoint.postgres_lsn(1).age_seconds() <= 60


@pytest.mark.parametrize(
    ("position", "source", "kind"),
    [
        (PostgresLsn(5), "postgres", PositionType.POSTGRES_LSN),
        (MysqlBinlog("mariadb-bin.000001", 4), "mysql", PositionType.MYSQL_BINLOG),
        (MysqlGtid(GTID_SET), "mysql", PositionType.GTID),
        (MariadbGtid("0-1-5"), "mariadb", PositionType.GTID),
        (SqlServerLsn(bytes(range(10))), "sqlserver", PositionType.SQLSERVER_LSN),
        (SqliteSequence(7, 9), "sqlite", PositionType.SQLITE_SEQUENCE),
    ],
)
def test_d11_every_position_becomes_a_checkpoint_and_comes_back(
    position: Position, source: str, kind: PositionType
) -> None:
    checkpoint = Checkpoint.from_position(position, identity="id", committed=3)
    assert checkpoint.source_type == source
    assert checkpoint.position_type is kind
    assert checkpoint.position == position.text()
    assert (checkpoint.identity, checkpoint.committed) == ("id", 3)
    assert checkpoint.decoded == position


@pytest.mark.parametrize("position", [Watermark.of({"s.t": Mark(5, (1, "a"))}), Custom("anything")])
def test_d11_a_position_that_any_source_may_have_needs_the_source_named(position: Position) -> None:
    with pytest.raises(ConfigError, match="source_type"):
        Checkpoint.from_position(position)
    assert Checkpoint.from_position(position, source_type="mysql").decoded == position


def test_d11_a_position_is_not_filed_under_a_source_that_cannot_have_it() -> None:
    assert Checkpoint.from_position(MysqlBinlog("b.000001", 4), source_type="mariadb").source_type == "mariadb"
    with pytest.raises(ConfigError, match="mariadb_gtid"):
        Checkpoint.from_position(MariadbGtid(""), source_type="mysql")


@pytest.mark.parametrize(
    ("source_type", "kind", "expected"),
    [
        ("mysql_snapshot", "mysql", True),
        ("mysql", "mysql", False),
        ("my_snapshot", "my_snapshot", False),  # a source of that name, in its stream
        ("my_snapshot_snapshot", "my_snapshot", True),
        ("other_mysql_snapshot", "mysql", False),
        ("postgres_snapshot", "mysql", False),
    ],
)
def test_c10_a_snapshot_checkpoint_is_known_by_its_whole_source_type(
    source_type: str, kind: str, expected: bool
) -> None:
    assert is_snapshot_checkpoint(Checkpoint.custom(source_type, "x"), kind) is expected
    if not expected and source_type != kind:
        with pytest.raises(SourceChangedError, match=source_type):
            from_checkpoint(Checkpoint.custom(source_type, "x"), kind)
