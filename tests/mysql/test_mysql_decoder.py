"""The decoder alone: whatever the bytes are, it gives Arrow or DecodeError; compressed transactions as a server writes
them."""

from __future__ import annotations

import random
import struct
import uuid
import zlib
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pytest
from tests.mysql.test_mysql_types import COMMON, OWN, _fill, _table

from lakefeed.capture.log import Announced, Rows
from lakefeed.capture.mysql import binlog, stream
from lakefeed.capture.mysql.binlog import BinlogDecoder, BinlogPiece, Resolved
from lakefeed.capture.mysql.columns import Kind, ZeroDates
from lakefeed.capture.mysql.database import Database
from lakefeed.capture.mysql.dialect import column_of
from lakefeed.capture.mysql.events import Effect, read_statement
from lakefeed.capture.mysql.history import Gtid, executed
from lakefeed.capture.mysql.packets import Packets, join
from lakefeed.capture.mysql.rows import Layout, TableMap
from lakefeed.capture.mysql.stream import BinlogReader
from lakefeed.capture.mysql.xa import PreparedTransactions
from lakefeed.change.mysql import MysqlGtid
from lakefeed.change.table import TableSchema
from lakefeed.errors import DecodeError
from lakefeed.testing.server.mysql import MysqlServer


def _resolve(found: TableMap) -> Resolved:
    kinds = [one.kind or Kind("blob") for one in found.columns]
    columns = tuple(
        column_of(one.name or f"c{i}", kind, True, ZeroDates.NULL)
        for i, (one, kind) in enumerate(zip(found.columns, kinds, strict=True))
    )
    return Resolved(Layout(TableSchema(found.table, columns), found.columns, tuple(kinds)))


def _decoder() -> BinlogDecoder:
    return BinlogDecoder(_resolve, lambda statement: Announced(), lambda table: True, PreparedTransactions())


def _recorded(server: MysqlServer, database: str) -> tuple[Gtid, list[bytes]]:
    """The events of a table with every type."""
    place = Database(server.dsn, server.flavour)
    with place.connection() as connection:
        start: Gtid = executed(connection)
    table = _table(server, database, kinds := {**COMMON, **OWN[server.flavour]})
    _fill(server, table, {name: values[:2] for name, values in kinds.items()})
    with server.connect() as writer, writer.cursor() as cursor:
        cursor.execute(f"UPDATE {table} SET c0 = 1 WHERE id < 2")
        cursor.execute(f"DELETE FROM {table} WHERE id = 1")
    return start, _events_after(place, start)


def _events_after(place: Database, start: Gtid) -> list[bytes]:
    reader = BinlogReader(place, 4_000_000_001, start)
    events = []
    while (piece := reader.read(0)) is not None:
        if piece.packets is not None:
            packets = piece.packets
            events += [packets.data[a:b] for a, b in zip(packets.starts, packets.ends, strict=True)]
    reader.close()
    return events


def _piece(start: Gtid, events: list[bytes]) -> BinlogPiece:
    ends, at = [], 0
    for event in events:
        at += len(event)
        ends.append(at)
    return BinlogPiece(start, Packets(b"".join(events), np.array([0, *ends[:-1]]), np.array(ends)))


def test_packets_that_are_joined_are_the_same_packets() -> None:
    """The buffer of a gulp has heads before its packets, and bytes of the next one behind the last."""
    first = Packets(b"....one....twotail", np.array([4, 11]), np.array([7, 14]))
    second = Packets(b"....three", np.array([4]), np.array([9]))
    both = join([first, second])
    assert both is not None
    assert [both.data[a:b] for a, b in zip(both.starts, both.ends, strict=True)] == [b"one", b"two", b"three"]
    assert join([first]) is first
    assert join([]) is None


def test_events_that_are_looked_at_together_give_what_each_gives_alone(
    server: MysqlServer, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two tables and one that is not captured, a transaction of each size, an ALTER and an XA transaction between."""
    place = Database(server.dsn, server.flavour)
    with place.connection() as connection:
        start: Gtid = executed(connection)
    with server.connect(database=database, autocommit=False) as writer, writer.cursor() as cursor:
        for name in ("a", "b", "other"):
            cursor.execute(f"CREATE TABLE {name} (id int PRIMARY KEY, v varchar(300), d decimal(40,3), n int)")
        for step in range(120):
            for name in ("a", "b", "other")[: step % 4]:
                cursor.execute(f"INSERT INTO {name} VALUES ({step}, repeat('x', {step * 2}), {step} / 7, NULL)")
                cursor.execute(f"UPDATE {name} SET n = {step}, id = id + {1000 * (step % 2)} WHERE id % 3 = 0")
            cursor.execute(f"DELETE FROM a WHERE id = {step - 2}")
            writer.commit()
            if step == 60:
                cursor.execute("ALTER TABLE a MODIFY COLUMN v text")
            if step in (70, 80):
                cursor.execute(f"XA START 'x{step}'")
                for name in ("a", "other"):
                    cursor.execute(f"INSERT INTO {name} VALUES ({-step}, 'xa', NULL, {step})")
                cursor.execute(f"XA END 'x{step}'")
                cursor.execute(f"XA PREPARE 'x{step}'")
                cursor.execute(f"XA COMMIT 'x{step}'")
    events = _events_after(place, start)

    def decoded(block: int, few: int) -> tuple[list[tuple[object, ...]], list[object]]:
        monkeypatch.setattr(binlog, "_BLOCK", block)
        monkeypatch.setattr(binlog, "_FEW", few)
        resolve = lambda found: Resolved(None) if found.table.name == "other" else _resolve(found)  # noqa: E731
        decoder = BinlogDecoder(
            resolve, lambda statement: Announced(), lambda table: table.name != "other", PreparedTransactions()
        )
        made = decoder.decode(_piece(start, events))
        items = [one for item in made.items for one in (item if isinstance(item, Iterator) else (item,))]
        rows = [
            (order, str(item.schema.table), code, made.transactions[transaction].end, *values)
            for item in items
            if isinstance(item, Rows)
            for order, code, transaction, *values in zip(
                np.asarray(item.order).tolist(), np.asarray(item.operations).tolist(),
                np.asarray(item.transactions).tolist(), *(one.to_pylist() for one in item.columns), strict=True,
            )
        ]  # fmt: skip
        orders = [row[0] for row in rows]
        assert len(set(orders)) == len(orders)
        return [row[1:] for row in sorted(rows, key=lambda row: row[0])], list(made.transactions)

    alone = decoded(2_048, 1 << 60)
    assert len(alone[0]) > 300
    for block, few in ((2_048, 16), (64, 2), (7, 1), (200, 8)):
        assert decoded(block, few) == alone


def test_many_events_with_their_checksums_have_the_checksum_of_one() -> None:
    """Otherwise they would be summed up one by one, which is right and slow."""
    summed = [one + zlib.crc32(one).to_bytes(4, "little") for one in (b"one", bytes(300), b"and another")]
    assert {zlib.crc32(one) for one in summed} == {stream._RESIDUE}
    assert zlib.crc32(stream._RESET.join(summed)) == stream._RESIDUE
    assert len(stream._RESET) == 5
    for wrong in (summed[0].replace(b"one", b"onf"), summed[0][:-1] + b"?"):
        assert zlib.crc32(stream._RESET.join([wrong, *summed])) != stream._RESIDUE


@pytest.mark.parametrize("rounds", [50, pytest.param(5_000, marks=pytest.mark.slow)])
def test_mutated_events_give_rows_or_a_decode_error(server: MysqlServer, database: str, rounds: int) -> None:
    start, events = _recorded(server, database)
    _decoder().decode(_piece(start, events))
    chance = random.Random(rounds)
    errors = 0
    for _ in range(rounds):
        changed = list(events)
        for _ in range(chance.choice((1, 1, 2, 5))):
            index = chance.randrange(len(changed))
            one = bytearray(changed[index])
            if chance.random() < 0.2:
                del one[chance.randrange(len(one)) :]
            else:
                for _ in range(chance.choice((1, 3))):
                    if one:
                        one[chance.randrange(len(one))] = chance.randrange(256)
            changed[index] = bytes(one)
        try:
            _decoder().decode(_piece(start, [one for one in changed if one]))
        except DecodeError:
            errors += 1
    assert errors > 5


def test_t15_a_compressed_transaction_is_decoded_as_if_it_stood_there(database: str, server: MysqlServer) -> None:
    if server.flavour == "mariadb":
        return  # it has another compression, tested beside the server
    start, events = _recorded(server, database)
    plain = _decoder().decode(_piece(start, events))
    packed, run = [], list[bytes]()
    for event in events:
        code = event[5]
        if code in (2, 19, 30, 31, 32, 16):
            run.append(event[1:-4])  # without the status and the checksum
        else:
            packed.append(event)
        if code == 16 or (code == 2 and b"CREATE" in event.upper()):
            inner = b"".join(one[:9] + struct.pack("<I", len(one)) + one[13:] for one in run)
            body = pa.compress(inner, codec="zstd", asbytes=True)
            fields = (
                b"\x02\x01\x00"
                b"\x03\x09\xfe"
                + struct.pack("<Q", len(inner))
                + b"\x01\x09\xfe"
                + struct.pack("<Q", len(body))
                + b"\x00"
            )
            whole = (
                b"\x00"
                + struct.pack("<IBIIIH", 0, 40, 1, 19 + len(fields) + len(body) + 4, 0, 0)
                + fields
                + body
                + bytes(4)
            )
            packed.append(whole)
            run = []
    found = _decoder().decode(_piece(start, packed))
    assert [one.end for one in found.transactions] == [one.end for one in plain.transactions]
    rows = [[one.columns for one in decoded.items if hasattr(one, "columns")] for decoded in (plain, found)]
    assert sum(len(one[0]) for one in rows[0]) == sum(len(one[0]) for one in rows[1]) > 3


def test_an_event_that_could_carry_rows_and_is_not_understood_stops_with_its_name_and_position() -> None:
    rotate = b"\x00" + struct.pack("<IBIIIHQ", 0, 4, 1, 0, 0, 0, 4) + b"bin.000017"
    for code, name in (
        (26, r"ends at bin\.000017:4711 is an incident event"),
        (34, "without a GTID"),
        (99, r"ends at bin\.000017:4711 is .*kind 99"),
    ):
        event = b"\x00" + struct.pack("<IBIIIH", 0, code, 1, 119, 4711, 0) + bytes(100)
        with pytest.raises(DecodeError, match=name):
            _decoder().decode(_piece(MysqlGtid(""), [rotate, event]))


def _varying(value: int) -> bytes:
    """A number as MySQL's serialization library has it: as many ones at the end as bytes follow the first."""
    size = next(size for size in range(1, 10) if value < 1 << 7 * size or size == 9)
    if size == 9:
        return b"\xff" + struct.pack("<Q", value)
    return (value << size | (1 << size - 1) - 1).to_bytes(size, "little")


def _tagged_gtid(server: uuid.UUID, tag: str, number: int, micro: int, original: int | None = None) -> bytes:
    """An event of kind 42, from the layout that the server's documentation gives."""
    fields = [
        (0, _varying(1)),
        (1, b"".join(map(_varying, server.bytes))),
        (2, _varying(number << 1)),
        (3, _varying(len(tag)) + tag.encode()),
        (4, _varying(2 << 1)),
        (5, _varying(3 << 1)),
        (6, _varying(micro)),
        *([] if original is None else [(7, _varying(original))]),
        (8, _varying(1 << 20)),
        (9, _varying(90_704)),
    ]
    inside = b"".join(_varying(index) + value for index, value in fields)
    body = _varying(1) + _varying(len(inside) + 5) + _varying(11) + inside
    return b"\x00" + struct.pack("<IBIIIH", 7, 42, 1, 19 + len(body), 0, 0) + body


def test_d11_a_tagged_gtid_is_read_and_its_transaction_ends_at_the_united_set() -> None:
    server, micro = uuid.UUID("fe11fa47-71ca-11e1-9e33-c80aa94295ff"), 1_794_851_288_036_123
    drop = b"\x00" + struct.pack("<IBIIIH", 7, 2, 1, 0, 0, 0) + bytes(13) + b"\x00" + b"TRUNCATE TABLE s.t"
    made = BinlogDecoder(_resolve, lambda statement: Announced(), lambda table: True, PreparedTransactions())
    for tag, number, original in (("red", 300, None), ("", 6, micro - 5), ("red", 1 << 40, None)):
        event = _tagged_gtid(server, tag, number, micro, original)
        found = made.decode(_piece(MysqlGtid(f"{server}:1-5"), [event, drop]))
    assert found.reached == MysqlGtid(f"{server}:1-6:red:300:{1 << 40}")
    real = bytes.fromhex(  # as MySQL 9.7.4 sent it
        "0000f153652a01000000500000006102000000000272000000023503d90234d90389033a22c5035902310204f1030000000204040606"
        "72656408080a0c0c7f88f832f96d60061055041283120b62d9a9f2"
    )
    found = _decoder().decode(_piece(MysqlGtid(""), [real[:-4], drop]))
    assert found.reached == MysqlGtid("cdb61af6-e21d-11f1-968c-02fc00000001:red:1")
    with pytest.raises(DecodeError):
        _decoder().decode(_piece(MysqlGtid(""), [_tagged_gtid(server, "red", 1, micro)[:40]]))


@pytest.mark.parametrize(
    ("sql", "effect", "tables"),
    [
        ("DROP TABLE IF EXISTS `a`.`b``c`, d /* generated by server */", Effect.DROP, ["a.b`c", "s.d"]),
        ("DROP TEMPORARY TABLE x", Effect.OTHER, []),
        ("/* c */ truncate x", Effect.TRUNCATE, ["s.x"]),
        ("TRUNCATE TABLE `q`.x", Effect.TRUNCATE, ["q.x"]),
        ("RENAME TABLE a TO b, c.d TO `e`", Effect.RENAME, ["s.a", "s.b", "c.d", "s.e"]),
        ("ALTER TABLE a ADD COLUMN x int", Effect.ALTER, ["s.a"]),
        ("ALTER TABLE a RENAME TO b", Effect.REPLACED, ["s.a"]),
        ("ALTER TABLE a RENAME COLUMN x TO y", Effect.ALTER, ["s.a"]),
        ("ALTER TABLE a TRUNCATE PARTITION p1", Effect.REPLACED, ["s.a"]),
        ("ALTER TABLE a EXCHANGE PARTITION p1 WITH TABLE c", Effect.REPLACED, ["s.a"]),
        ("CREATE OR REPLACE TABLE a (id int)", Effect.DROP, ["s.a"]),
        ("CREATE TABLE a (id int)", Effect.OTHER, []),
        ("GRANT SELECT ON a.* TO b", Effect.OTHER, []),
        ("INSERT INTO a VALUES ('DROP TABLE t')", Effect.CHANGE, []),
        ("ROLLBACK TO `s`", Effect.ROLLBACK_TO, []),
        ("XA START X'78',X'',1", Effect.XA_START, []),
        ("XA COMMIT X'78',X'',1", Effect.XA_COMMIT, []),
        ("", Effect.OTHER, []),
        ("RENAME", Effect.OTHER, []),
    ],
)
def test_statements_are_told_by_their_beginning(sql: str, effect: Effect, tables: list[str]) -> None:
    found = read_statement(sql, "s")
    assert (found.effect, [str(one) for one in found.tables]) == (effect, tables)
