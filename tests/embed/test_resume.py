"""C21 to C25: from a snapshot checkpoint to the place where the stream goes on."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakefeed.change.lsn import PostgresLsn, SqlServerLsn
from lakefeed.change.mysql import MariadbGtid, MysqlBinlog, MysqlGtid
from lakefeed.change.position import Custom, Position, SqliteSequence
from lakefeed.change.table import TableId
from lakefeed.embed.progress import (
    Progress,
    SnapshotCursor,
    from_checkpoint,
    postgres_offset,
    snapshot_fields,
    stream_offset,
)
from lakefeed.errors import CheckpointError, SourceChangedError, StateError


def refused(kind: str, fields: Any) -> str:
    with pytest.raises(CheckpointError) as caught:
        stream_offset(kind, json.dumps(fields))
    return caught.value.message


def test_c21_postgres_streams_from_the_snapshot_watermark_with_the_configured_slot() -> None:
    offset = stream_offset("postgres", json.dumps({"snapshot_watermark": 0x112345678}), slot="shop")
    assert (offset.source_type, offset.position, offset.slot) == ("postgres", PostgresLsn(0x112345678), "shop")


@pytest.mark.parametrize("in_snapshot", [True, False])
def test_c21_a_checkpoint_of_another_slot_is_refused_by_both_names(in_snapshot: bool) -> None:
    cursor = SnapshotCursor((TableId("public", "t"),)) if in_snapshot else None
    progress = Progress(PostgresLsn(7), cursor, in_snapshot=in_snapshot)
    saved = progress.to_checkpoint("postgres", identity="db", committed=0, slot="lakefeed_a")
    assert saved is not None
    assert from_checkpoint(saved, "postgres", slot="lakefeed_a") == progress
    assert from_checkpoint(saved, "postgres") == progress, "a capture that names none has none to contradict"
    with pytest.raises(SourceChangedError, match="slot lakefeed_a, but this capture reads from lakefeed_b"):
        from_checkpoint(saved, "postgres", slot="lakefeed_b")
    unnamed = progress.to_checkpoint("postgres", identity="db", committed=0)
    assert unnamed is not None
    assert from_checkpoint(unnamed, "postgres", slot="lakefeed_b") == progress


@pytest.mark.parametrize(
    "fields", [{}, [], {"snapshot_watermark": "1/2"}, {"snapshot_watermark": -1}, {"snapshot_watermark": True}]
)
def test_c21_a_missing_watermark_is_an_error_and_not_a_start_from_zero(fields: Any) -> None:
    assert refused("postgres", fields) == "postgres snapshot checkpoint is missing 'snapshot_watermark'"


@pytest.mark.parametrize("kind", ["postgres", "mysql", "mariadb", "sqlserver", "sqlite"])
def test_c21_a_payload_that_is_not_json_is_an_error(kind: str) -> None:
    with pytest.raises(CheckpointError, match=f"{kind} snapshot checkpoint is not JSON"):
        stream_offset(kind, "not json")


def test_c21_the_conversion_of_another_source_is_a_state_error() -> None:
    with pytest.raises(StateError, match="called for non-postgres runtime source"):
        postgres_offset("mysql", {"snapshot_watermark": 1}, None)


def test_c22_mysql_streams_from_file_and_offset_with_an_optional_gtid() -> None:
    fields = {"binlog_file": "mysql-bin.000003", "binlog_pos": 12345}
    plain = stream_offset("mysql", json.dumps(fields))
    assert (plain.source_type, plain.position, plain.gtid) == ("mysql", MysqlBinlog("mysql-bin.000003", 12345), "")
    gtid = "3e11fa47-71ca-11e1-9e33-c80aa9429562:1-5"
    offset = stream_offset("mysql", json.dumps({**fields, "gtid": gtid}))
    assert (offset.position, offset.gtid) == (MysqlGtid(gtid), gtid), "a GTID set counts on every server"
    assert refused("mysql", {**fields, "gtid": "0-1-5"}).startswith("'0-1-5' is not a MySQL GTID set")


def test_c22_each_missing_mysql_field_has_its_own_error() -> None:
    assert refused("mysql", {"binlog_pos": 4}) == "mysql snapshot checkpoint is missing 'binlog_file'"
    assert refused("mysql", {"binlog_file": "b.000001"}) == "mysql snapshot checkpoint is missing 'binlog_pos'"
    assert (
        refused("mysql", {"binlog_file": "b.000001", "binlog_pos": 1 << 32})
        == "mysql snapshot checkpoint binlog_pos exceeds u32"
    )
    stream_offset("mysql", json.dumps({"binlog_file": "b.000001", "binlog_pos": (1 << 32) - 1}))


def test_c23_mariadb_has_the_payload_of_mysql_and_its_own_type() -> None:
    offset = stream_offset("mariadb", json.dumps({"binlog_file": "maria.000002", "binlog_pos": 7}))
    assert (offset.source_type, offset.position) == ("mariadb", MysqlBinlog("maria.000002", 7))
    assert "'binlog_file'" in refused("mariadb", {})
    fields = {"binlog_file": "maria.000002", "binlog_pos": 7, "gtid": "0-1-5"}
    assert stream_offset("mariadb", json.dumps(fields)).position == MariadbGtid("0-1-5")


def test_c24_sqlserver_streams_from_ten_bytes_written_in_upper_case_hex() -> None:
    offset = stream_offset("sqlserver", json.dumps({"lsn_start": [0, 0, 0, 0x2A, 0, 0, 1, 0xFF, 0, 3]}))
    assert (offset.source_type, offset.position.text()) == ("sqlserver", "0x0000002A000001FF0003")


def test_c24_each_way_an_lsn_can_be_wrong_has_its_own_error() -> None:
    prefix = "sqlserver snapshot checkpoint"
    assert refused("sqlserver", {}) == f"{prefix} is missing 'lsn_start'"
    assert refused("sqlserver", {"lsn_start": [0] * 9}) == f"{prefix} lsn_start must contain exactly 10 bytes"
    assert refused("sqlserver", {"lsn_start": [0] * 9 + ["x"]}) == f"{prefix} lsn_start contains non-byte value"
    assert refused("sqlserver", {"lsn_start": [0] * 9 + [-1]}) == f"{prefix} lsn_start contains non-byte value"
    assert refused("sqlserver", {"lsn_start": [0] * 9 + [256]}) == f"{prefix} lsn_start contains out-of-range byte"


def test_c25_a_source_without_a_rule_is_a_state_error_and_not_a_start_from_the_default() -> None:
    with pytest.raises(StateError, match="cannot be derived"):
        stream_offset("oracle", "{}")
    assert stream_offset("oracle", json.dumps(snapshot_fields("oracle", Custom("scn=5")))).position == Custom("scn=5")


def test_sqlite_streams_from_its_sequence() -> None:
    assert stream_offset("sqlite", '{"sequence": 9, "stamp": 5}').position == SqliteSequence(9, 5)
    assert "'sequence'" in refused("sqlite", {})
    assert "'stamp'" in refused("sqlite", {"sequence": 1, "stamp": "x"})


POSITIONS: st.SearchStrategy[tuple[str, Position]] = st.one_of(
    st.builds(lambda value: ("postgres", PostgresLsn(value)), st.integers(0, 2**64 - 1)),
    st.builds(
        lambda kind, number, offset: (kind, MysqlBinlog(f"bin.{number:06}", offset)),
        st.sampled_from(["mysql", "mariadb"]),
        st.integers(1, 10**7),
        st.integers(0, 2**32 - 1),
    ),
    st.builds(lambda value: ("sqlserver", SqlServerLsn(value)), st.binary(min_size=10, max_size=10)),
    st.builds(
        lambda sequence, stamp: ("sqlite", SqliteSequence(sequence, stamp)),
        st.integers(0, 2**63 - 1),
        st.integers(0, 2**50),
    ),
)


@given(POSITIONS)
def test_what_a_snapshot_checkpoint_says_is_read_back_exactly(place: tuple[str, Position]) -> None:
    kind, position = place
    assert stream_offset(kind, json.dumps(snapshot_fields(kind, position))).position == position
