"""Binary JSON, a column at a time: the text is the server's own, whatever shapes the documents of a column have."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lakefeed.capture.mysql.source import Mysql
from lakefeed.change.table import TableId
from lakefeed.testing.capture_subject import drain, row_dicts
from lakefeed.testing.server.mysql import Flavour, MysqlServer

SCALARS: tuple[Any, ...] = (
    0, -1, 32_767, 40_000, -70_000, 2**31, -(2**40), 2**64 - 1, True, False, None, "", "plain", "ä😀", 'q"uo\\te',
    "\n\t\x01", "x" * 127, "y" * 128, "z" * 20_000, 0.5, -1e300, 1e-7, [], {},
)  # fmt: skip


def _document(chance: random.Random, depth: int = 0) -> Any:
    shape = chance.randrange(6)
    if depth > 3 or shape < 2:
        return chance.choice(SCALARS)
    if shape == 2:
        return [_document(chance, depth + 1) for _ in range(chance.randrange(4))]
    if shape == 3:
        return {
            chance.choice(("a", "bb", "ccc", "ä")): _document(chance, depth + 1) for _ in range(chance.randrange(3))
        }
    return {"k": chance.randrange(10**6), "tag": f"t{chance.randrange(100)}", "in": {"ok": chance.random() < 0.5}}


def test_t20_json_of_many_shapes_in_one_column_is_the_text_of_the_server(
    servers: Callable[[Flavour], MysqlServer], tmp_path: Path
) -> None:
    server, table = servers("mysql"), TableId("many_shapes", "t")
    chance = random.Random(7)
    documents = [json.dumps(_document(chance)) for _ in range(1_500)]
    exact = (
        "json_object('d', cast('12.340' AS decimal(10,3)), 'e', cast('0.00000012' AS decimal(20,8)), 'w', "
        "cast(repeat('9', 60) AS decimal(65,2)), 't', cast('2026-02-03 04:05:06.7' AS datetime(6)), 'n', NULL, 'i', {})"
    )
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute("CREATE DATABASE many_shapes")
        cursor.execute(f"CREATE TABLE {table} (id int PRIMARY KEY, doc json)")
        capture = Mysql(server.dsn, tables=["many_shapes.*"], state=tmp_path).bind("json")
        capture.open()
        start = capture.prepare([table])
        cursor.executemany(f"INSERT INTO {table} VALUES (%s, %s)", list(enumerate(documents)))
        cursor.execute(f"INSERT INTO {table} VALUES (-1, NULL), " + ", ".join(
            f"({-index - 2}, {exact.format(index * 7_000)})" for index in range(60)
        ))  # fmt: skip
        cursor.execute(f"UPDATE {table} SET doc = json_set(doc, '$.k', 'longer than the number that was there')")
        cursor.execute(f"SELECT id, doc FROM {table}")
        expected = dict(cursor.fetchall())
        cursor.execute("DROP DATABASE many_shapes")
    found = {row["id"]: row["doc"] for one in drain(capture, start) for row in row_dicts(one)}
    capture.close()
    assert len(found) == len(documents) + 61
    assert {key: (found[key], text) for key, text in expected.items() if found[key] != text} == {}
