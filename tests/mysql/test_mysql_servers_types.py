"""Polling gives the same values as a copy, for every type."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.mysql.test_mysql_types import COMMON, OWN, _fill, _table

from lakefeed.capture.mysql.dialect import MysqlDialect
from lakefeed.capture.mysql.source import Mysql
from lakefeed.capture.poll.capture import Polling
from lakefeed.capture.poll.source import Pace, TableRule
from lakefeed.capture.poll.store import MemoryWatermarkStore
from lakefeed.testing.capture_subject import drain, row_dicts
from lakefeed.testing.server.mysql import MysqlServer


def test_t18_t19_t20_polling_and_copy_agree_on_every_type(server: MysqlServer, database: str, tmp_path: Path) -> None:
    table = _table(server, database, kinds := {**COMMON, **OWN[server.flavour]})
    tables = [f"{database}.*"]
    dialect, rule = MysqlDialect(server.dsn, server.flavour), TableRule(updated_at="updated_at", safety_lag_seconds=0)
    polling = Polling(
        dialect, tables=tables, rules={"*.*": rule}, store=MemoryWatermarkStore(), pace=Pace(poll_seconds=0.05)
    )
    polling.open()
    start = polling.prepare([table])
    _fill(server, table, kinds)
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute(f"UPDATE {table} SET updated_at = now(6)")
    polled = {row["id"]: row for change_set in drain(polling, start) for row in row_dicts(change_set)}
    polling.close()
    capture = Mysql(server.dsn, kind=server.flavour, tables=tables, state=tmp_path).bind("types")
    capture.open()
    capture.prepare([table])
    plan = capture.snapshot(table)
    copied: dict[int, dict[str, Any]] = {}
    for chunk in plan.chunks:
        with chunk.open() as reader:
            copied |= {row["id"]: row for batch in reader for row in batch.to_pylist()}
    capture.close()
    assert len(polled) == len(copied) > 3
    by_name = dict(zip([f"c{index}" for index in range(len(kinds))], kinds, strict=True))
    for key, row in copied.items():
        for name in plan.schema.names:
            assert polled[key][name] == row[name], (by_name.get(name, name), key)
