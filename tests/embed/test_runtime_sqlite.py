"""The runtime over a real SQLite database, with no Spark and a sink of its own."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from lakefeed.capture.sqlite.source import Sqlite
from lakefeed.change.batch import OP, Operation
from lakefeed.change.change_set import ChangeSet
from lakefeed.change.table import TableId
from lakefeed.embed.options import IncrementalSnapshot, RuntimeOptions
from lakefeed.embed.runtime import Runtime
from lakefeed.embed.store import MemoryCheckpointStore
from lakefeed.errors import PositionLostError

PEOPLE = TableId("main", "people")
COPY = RuntimeOptions(snapshot_tables=(PEOPLE,), chunk_rows=3, wait_seconds=0)
BESIDE = RuntimeOptions(incremental=IncrementalSnapshot(tables=(PEOPLE,)), chunk_rows=3, wait_seconds=0)


class Mirror:
    """A sink: rows by key, as the changes say."""

    def __init__(self) -> None:
        self.rows: dict[int, Any] = {}

    def apply(self, change_sets: tuple[ChangeSet, ...]) -> None:
        for row in (row for part in change_sets for batch in part.batches for row in batch.data.to_pylist()):
            if row[OP] == Operation.DELETE:
                self.rows.pop(row["id"], None)
            else:
                self.rows[row["id"]] = row["name"]


class Shop:
    """A database with one table, and what a test writes into it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.write("CREATE TABLE people (id INTEGER PRIMARY KEY, name TEXT)")

    def write(self, *statements: str) -> None:
        with closing(sqlite3.connect(self.path)) as connection, connection:
            for statement in statements:
                connection.execute(statement)

    def rows(self) -> dict[int, Any]:
        with closing(sqlite3.connect(self.path)) as connection:
            return dict(connection.execute("SELECT id, name FROM people"))


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    made = Shop(tmp_path / "shop.db")
    made.write(*(f"INSERT INTO people VALUES ({number}, 'old')" for number in range(10)))
    return made


def mirrored(runtime: Runtime, mirror: Mirror) -> None:
    while delivery := runtime.poll():
        mirror.apply(delivery.change_sets)
        runtime.commit(delivery.token)


@pytest.mark.parametrize("options", [COPY, BESIDE])
@pytest.mark.parametrize("restart_after", [0, 1, 2, 3, 12])
def test_a_database_that_is_written_to_meanwhile_is_mirrored_over_a_restart(
    shop: Shop, options: RuntimeOptions, restart_after: int
) -> None:
    mirror, store = Mirror(), MemoryCheckpointStore()
    runtime = Runtime(Sqlite(shop.path).bind("shop"), store, key="shop", options=options)
    runtime.start()
    for number in range(restart_after):
        delivery = runtime.poll()
        shop.write(
            f"UPDATE people SET name = 'new {number}' WHERE id IN ({number % 10}, 9)",
            f"DELETE FROM people WHERE id = {(number + 5) % 9}",
            f"INSERT INTO people VALUES ({100 + number}, 'added')",
        )
        if delivery is not None:
            mirror.apply(delivery.change_sets)
            runtime.commit(delivery.token)
    runtime.force_stop()
    again = Runtime(Sqlite(shop.path).bind("shop"), store, key="shop", options=options)
    again.start()
    mirrored(again, mirror)
    assert mirror.rows == shop.rows()
    assert again.stop() == []


def test_a_source_that_lost_its_log_stops_the_start(shop: Shop) -> None:
    store = MemoryCheckpointStore()
    capture = Sqlite(shop.path).bind("shop")
    runtime = Runtime(capture, store, key="shop", options=RuntimeOptions(wait_seconds=0))
    runtime.start()
    shop.write("INSERT INTO people VALUES (50, 'x')")
    mirrored(runtime, Mirror())
    runtime.stop()
    capture.open()
    capture.uninstall()
    capture.close()
    with pytest.raises(PositionLostError):
        runtime.start()


def test_without_tables_only_what_is_written_from_now_on_arrives(shop: Shop) -> None:
    mirror = Mirror()
    runtime = Runtime(
        Sqlite(shop.path).bind("shop"), MemoryCheckpointStore(), key="shop", options=RuntimeOptions(wait_seconds=0)
    )
    runtime.start()
    shop.write("INSERT INTO people VALUES (50, 'x')")
    mirrored(runtime, mirror)
    assert mirror.rows == {50: "x"}
    assert runtime.stop() == []
