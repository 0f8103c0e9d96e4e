"""Repairs beside the stream: never over a newer change, once for each request, and by the ordinary sync."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from lakefeed import Pipeline, Sqlite
from lakefeed.change.table import TableId
from lakefeed.failpoint import FailpointError, armed
from lakefeed.flow.reread.repair import Repairs, answer, ask
from lakefeed.flow.run_loop import OpenPipeline
from lakefeed.testing.memory_lake import MemoryLake

T = TableId("main", "t")


class Shop:
    def __init__(self, place: Path) -> None:
        self._database = place / "shop.db"
        self.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, a TEXT)", "INSERT INTO t VALUES (1, 'x'), (2, 'y')")
        self.lake = MemoryLake(str(place / "lake"))
        self.pipeline = Pipeline(Sqlite(self._database), self.lake, name="shop")
        self.pipeline.sync_once()

    def execute(self, *statements: str) -> None:
        with closing(sqlite3.connect(self._database)) as connection, connection:
            for statement in statements:
                connection.execute(statement)

    @property
    def opened(self) -> OpenPipeline:
        assert self.pipeline._opened is not None
        return self.pipeline._opened

    @property
    def repairs(self) -> Repairs:
        assert self.opened.capture._repairs is not None
        return self.opened.capture._repairs

    def read(self) -> None:
        """The step that reads: begun, and waited for."""
        assert self.repairs.turn(now=True) is None
        work = self.repairs._work
        assert work is not None
        assert work.thread is not None
        work.thread.join(10)

    def rows(self) -> list[tuple[int, str]]:
        return sorted((row["id"], row["a"]) for row in self.lake.rows("main.t"))


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    made = Shop(tmp_path)
    yield made
    made.pipeline.close()


def test_the_next_sync_repairs_what_was_asked_for(shop: Shop) -> None:
    rows = shop.lake.tables[T].rows
    rows[(1,)]["a"], rows[(7,)] = "damaged", {"id": 7, "a": "extra"}
    name = ask(shop.pipeline.state, T, [(1,), (7,)], shop.opened.journal.head)
    shop.pipeline.sync_once()
    assert shop.rows() == [(1, "x"), (2, "y")]
    done = answer(shop.pipeline.state, name)
    assert done is not None
    assert (done.rows, done.deleted, done.moved, done.error) == (1, 1, 0, None)
    assert len(done.change_sets) == 1
    commit = shop.opened.journal.commit(done.change_sets[0])
    assert commit.start == commit.end, "the source's next change comes after it"
    shop.execute("UPDATE t SET a = 'later' WHERE id = 1")
    shop.pipeline.sync_once()
    assert shop.rows() == [(1, "later"), (2, "y")]


def test_a_row_that_changes_while_it_is_read_again_is_never_overwritten(shop: Shop) -> None:
    ask(shop.pipeline.state, T, [(1,), (2,)], shop.opened.journal.head)
    shop.execute("UPDATE t SET a = 'before' WHERE id = 2")
    shop.read()  # has the update, which the journal does not have yet
    shop.execute("UPDATE t SET a = 'newer' WHERE id = 1")
    assert shop.repairs.turn() is None, "the journal has not passed what was read"
    shop.opened.capture.drain()
    assert shop.repairs.turn() is None, "both have moved since"
    shop.read()
    commit = shop.repairs.turn()
    assert commit is not None
    shop.pipeline.sync_once()
    assert shop.rows() == [(1, "newer"), (2, "before")]


def test_only_the_rows_that_did_not_move_are_written(shop: Shop) -> None:
    shop.lake.tables[T].rows[(2,)]["a"] = "damaged"
    ask(shop.pipeline.state, T, [(1,), (2,)], shop.opened.journal.head)
    shop.read()
    shop.execute("UPDATE t SET a = 'newer' WHERE id = 1")
    shop.opened.capture.drain()
    commit = shop.repairs.turn()
    assert commit is not None
    assert commit.rows == 1, "the row that moved is read again first"
    shop.pipeline.sync_once()
    assert shop.rows() == [(1, "newer"), (2, "y")]


def test_a_repair_that_was_written_before_a_crash_is_not_repeated(shop: Shop) -> None:
    name = ask(shop.pipeline.state, T, [(1,)], shop.opened.journal.head)
    with armed("repair.after_append", "raise"), pytest.raises(FailpointError):
        shop.pipeline.sync_once()
    shop.pipeline.sync_once()
    done = answer(shop.pipeline.state, name)
    assert done is not None
    assert len(done.change_sets) == 1
    commits = [one for one in shop.opened.journal.commits() if one.start == one.end and one.rows]
    assert [one.number for one in commits] == list(done.change_sets)


def test_a_request_that_cannot_be_carried_out_is_answered_with_the_reason(shop: Shop) -> None:
    name = ask(shop.pipeline.state, TableId("main", "nothing"), [(1,)], shop.opened.journal.head)
    (Path(str(shop.pipeline.state)) / "repairs" / "0-broken.json").write_text("{")
    shop.pipeline.sync_once()
    done = answer(shop.pipeline.state, name)
    assert done is not None
    assert done.error == "the journal does not know main.nothing"
