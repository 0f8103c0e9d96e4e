"""Golden binlogs of every server version: decoded to the values that the statements in statements.sql put there."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest
from tests.mysql.golden import PLACE, events
from tests.mysql.test_mysql_decoder import _piece

from lakefeed.capture.log import Announced, Rows
from lakefeed.capture.mysql.binlog import BinlogDecoder, Resolved
from lakefeed.capture.mysql.columns import Kind, ZeroDates
from lakefeed.capture.mysql.dialect import column_of
from lakefeed.capture.mysql.rows import Layout, TableMap
from lakefeed.capture.mysql.xa import PreparedTransactions
from lakefeed.change.batch import Operation
from lakefeed.change.mysql import MariadbGtid, MysqlGtid
from lakefeed.change.table import TableSchema
from lakefeed.testing.server.mysql import RELEASES

NAMES = [f"{one.flavour}-{one.version}" for one in RELEASES]
INSERT, UPDATE, DELETE, TRUNCATE = Operation.INSERT, Operation.UPDATE, Operation.DELETE, Operation.TRUNCATE
FIRST = {
    "ti": -128, "tu": 255, "y": 2026, "su": 65535, "m": -8388608, "i": -2147483648, "b": -9223372036854775808,
    "bu": Decimal(18446744073709551615), "de": Decimal("-123456789012345.12345"), "f": 0.5,
    "d": -1.7976931348623157e308, "bi": 257, "da": date(2024, 2, 29), "dt": datetime(2024, 2, 29, 23, 59, 59, 999999),
    "ts": datetime(2001, 2, 3, 4, 5, 6, 789000, tzinfo=UTC), "tm": "-838:59:58.25", "c": "ab", "v": "größer",
    "l": "é€", "t": "text", "bn": b"\x01\x02\x00\x00", "bl": b"\x00\xff\x00", "e": "y'z", "s": "p,r",
    "j": '{"a": 1, "b": [true, null, "ä"]}',
}  # fmt: skip
EXPECTED: list[tuple[Operation, dict[str, Any]]] = [
    (INSERT, {"id": 1, **FIRST}),
    (INSERT, {"id": 2}),
    (UPDATE, {"id": 2, "ti": 7, "v": "v" * 260}),
    (DELETE, {"id": 1}),
    (INSERT, {"id": 3, **FIRST}),
    (INSERT, {"id": 4, "i": 44}),
    (INSERT, {"id": 6, "i": 66}),
    (DELETE, {"id": 3}),
    (INSERT, {"id": 7, "more": "more"}),
    (INSERT, {"id": 8, "t": "packed " * 500}),
    (INSERT, {"id": 9, "t": "b"}),
    (UPDATE, {"id": 9, "t": "again " * 300}),
    (DELETE, {"id": 8}),
    (TRUNCATE, {}),
]
TRANSACTIONS = 10
"""Those with rows; each UPDATE, DELETE, INSERT is one, the group between BEGIN and COMMIT another, and TRUNCATE."""


def keyed(found: TableMap) -> Resolved:
    """A layout as the table map has it, for a table that is captured."""
    kinds = [one.kind or Kind("blob") for one in found.columns]
    columns = tuple(
        column_of(one.name or f"c{index}", kind, one.nullable, ZeroDates.NULL)
        for index, (one, kind) in enumerate(zip(found.columns, kinds, strict=True))
    )
    key = tuple(columns[index].name for index in found.key)
    return Resolved(Layout(TableSchema(found.table, columns, key), found.columns, tuple(kinds)))


def decoder() -> BinlogDecoder:
    return BinlogDecoder(keyed, lambda statement: Announced(), lambda table: True, PreparedTransactions())


def test_every_version_that_the_matrix_knows_has_its_golden_binlog() -> None:
    assert sorted(json.loads((PLACE / "servers.json").read_text())) == sorted(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_t13_t15_the_binlog_of_a_version_is_decoded_to_the_values_of_its_statements(name: str) -> None:
    recorded = events(name)
    after = MysqlGtid("") if name.startswith("mysql") else MariadbGtid("")
    made = decoder().decode(_piece(after, recorded))
    rows = []
    for item in made.items:
        if isinstance(item, Rows):
            every = zip(*(column.to_pylist() for column in item.columns), strict=True)
            for order, code, values in zip(item.order.tolist(), item.operations.tolist(), every, strict=True):
                row = dict(zip(item.schema.names, values, strict=True))
                rows.append((order, Operation(code), {key: value for key, value in row.items() if value is not None}))
    found = [(operation, row) for _, operation, row in sorted(rows, key=lambda one: one[0])]
    if name.startswith("mariadb"):  # its JSON is the text that was given
        assert found[0][1]["j"] == FIRST["j"]
    assert found == EXPECTED
    assert len(made.transactions) == TRANSACTIONS
    assert not made.open
    # What the version can compress is compressed in its file.
    codes = {event[5] for event in recorded}
    packed = {"mysql": {40}, "mariadb": {165, 166, 167, 168}}[name.partition("-")[0]]
    assert packed <= codes if name != "mysql-8.0.15" else not packed & codes
