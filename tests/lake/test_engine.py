"""The sync engine, part B of the requirements, with a lake in memory: no Spark."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from lakefeed.change.segment import Counts, Window
from lakefeed.change.table import TableId, TableSchema
from lakefeed.errors import ConfigError, SparkSetupError, TableStoppedError
from lakefeed.failpoint import armed
from lakefeed.lake.base import Applied, SyncResult, TableCopy
from lakefeed.lake.delta import Delta
from lakefeed.lake.engine import Engine, Enrolled
from lakefeed.lake.mode import Mirror, mode_named
from lakefeed.lake.route import Route
from lakefeed.testing.builders import batch, table
from lakefeed.testing.memory_lake import MemoryLake, MemoryLakeTable
from lakefeed.testing.scripted_log import ScriptedLog

GENERATION = 7


class WatchedLake(MemoryLake):
    """Counts what is asked of it, fails for tables that it is told to, and can be held in the middle of an apply."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.applies: list[Window] = []
        self.questions = 0
        self.broken: dict[TableId, Exception] = {}
        self.gate = threading.Event()
        self.gate.set()
        self.inside = threading.Event()

    def table(self, route: Route) -> WatchedTable:
        return WatchedTable(self, route)


class WatchedTable(MemoryLakeTable):
    def __init__(self, lake: WatchedLake, route: Route) -> None:
        super().__init__(lake, route)
        self.watch = lake

    def applied(self, generation: int) -> Applied | None:
        self.watch.questions += 1
        return super().applied(generation)

    def apply(self, window: Window, generation: int) -> Applied:
        self.watch.inside.set()
        assert self.watch.gate.wait(120)
        if window.table in self.watch.broken:
            raise self.watch.broken[window.table]
        self.watch.applies.append(window)
        return super().apply(window, generation)


class Bench:
    """A log, a lake and an engine over some tables."""

    def __init__(self, root: Path, *names: str) -> None:
        self.log = ScriptedLog(root)
        self.lake = WatchedLake(str(root))
        columns: dict[str, pa.DataType] = {"id": pa.int64(), "v": pa.string()}
        self.schemas = {name: self.log.schema_of(table(f"main.{name}", columns, key=("id",))) for name in names}
        self.enrolled = {
            schema.table: Enrolled(Route.same(schema.table), GENERATION) for schema in self.schemas.values()
        }
        for schema in self.schemas.values():
            self.seed(schema)
        self.engine = self.new_engine()

    def seed(self, schema: TableSchema) -> None:
        copy = TableCopy(schema=schema, generation=GENERATION, base=self.log.head, position=None, chunks=[])
        self.lake.table(Route.same(schema.table)).load(copy, lambda _: None)

    def new_engine(self) -> Engine:
        return Engine(self.lake, self.log, lambda: self.enrolled, parallel=2)

    def insert(self, name: str, *ids: int) -> int:
        rows = [("insert", {"id": id_, "v": "x"}) for id_ in ids]
        return self.log.add(batch(self.schemas[name], rows))


def quickest(call: Callable[[], object]) -> float:
    """The seconds that the quickest of some calls took: the machine may have been busy during the others."""
    seconds = []
    for _ in range(5):
        started = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - started)
    return min(seconds)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path, "a", "b")


def test_b01_a_sync_applies_what_is_new_and_says_what_it_did(bench: Bench) -> None:
    bench.insert("a", 1, 2)
    bench.log.add(batch(bench.schemas["a"], [("update", {"id": 1, "v": "y"}), ("delete", {"id": 2})]))
    result = bench.engine.sync_once()
    assert (result.change_sets, result.counts) == (2, Counts(inserted=2, updated=1, deleted=1))
    assert (result.last_seq, result.last_position) == (4, bench.log.position(2))
    assert result.tables[bench.schemas["a"].table].applied == 2
    assert bench.lake.rows("main.a") == [{"id": 1, "v": "y"}]


def test_b02_nothing_new_is_all_zero_and_no_last_seq(bench: Bench) -> None:
    bench.insert("a", 1)
    bench.engine.sync_once()
    asked = bench.lake.questions
    result = bench.engine.sync_once()
    assert quickest(bench.engine.sync_once) < 0.05
    assert result == SyncResult()
    assert (result.counts.total, result.change_sets, result.last_seq) == (0, 0, None)
    assert bench.lake.questions == asked, "an idle sync asked the lake"


def test_b02_an_empty_journal_is_nothing_new(bench: Bench) -> None:
    assert bench.engine.sync_once() == SyncResult()


@pytest.mark.parametrize("place", ["lake.before_commit", "lake.during_commit", "lake.after_commit"])
def test_b03_a_cycle_that_failed_is_made_good_by_the_next(bench: Bench, place: str) -> None:
    bench.insert("a", 1)
    with armed(place, "raise"):
        failed = bench.engine.sync_once()
    assert failed.tables[bench.schemas["a"].table].error == f"failpoint {place}"
    bench.new_engine().sync_once()
    bench.engine.sync_once()
    assert bench.lake.rows("main.a") == [{"id": 1, "v": "x"}]
    assert bench.engine.status().lag == 0


def test_b05_a_mode_that_does_not_exist_is_refused_with_the_choices(tmp_path: Path) -> None:
    assert mode_named("mirror") == Mirror()
    with pytest.raises(ConfigError) as refused:
        Delta(lambda: pytest.fail("Spark was started"), tmp_path, mode="cube")
    assert "cube" in refused.value.message
    assert "mirror" in refused.value.remedy


def test_b06_what_concerns_all_tables_is_raised(bench: Bench) -> None:
    bench.insert("a", 1)
    bench.lake.broken[bench.schemas["a"].table] = SparkSetupError("no Java")
    with pytest.raises(SparkSetupError, match="no Java"):
        bench.engine.sync_once()
    assert not bench.engine.status().running


def test_b06_one_tables_error_does_not_hold_up_the_others(bench: Bench) -> None:
    bench.log.add(
        batch(bench.schemas["a"], [("insert", {"id": 1, "v": "x"})]),
        batch(bench.schemas["b"], [("insert", {"id": 1, "v": "x"})]),
    )
    stopped = bench.schemas["a"].table
    bench.lake.broken[stopped] = TableStoppedError("it has no key", remedy="Add one.", table=str(stopped))
    result = bench.engine.sync_once()
    assert (result.tables[stopped].error, result.tables[stopped].remedy) == ("it has no key", "Add one.")
    assert result.tables[bench.schemas["b"].table].error is None
    assert bench.lake.rows("main.b") == [{"id": 1, "v": "x"}]
    del bench.lake.broken[stopped]
    assert bench.engine.sync_once().tables[stopped].error is None
    assert bench.lake.rows("main.a") == [{"id": 1, "v": "x"}]


def test_b07_status_answers_while_a_sync_runs_and_while_the_lake_hangs(bench: Bench) -> None:
    bench.insert("a", 1)
    bench.lake.gate.clear()
    worker = threading.Thread(target=bench.engine.sync_once)
    worker.start()
    assert bench.lake.inside.wait(60)
    status = bench.engine.status()
    assert quickest(bench.engine.status) < 0.1
    assert (status.running, status.latest_available) == (True, 1)
    bench.lake.gate.set()
    worker.join(120)
    assert not worker.is_alive()
    assert not bench.engine.status().running


def test_b08_lag_is_none_before_the_first_sync_and_never_negative(bench: Bench) -> None:
    bench.insert("a", 1)
    assert bench.engine.status().lag is None
    bench.engine.sync_once()
    status = bench.engine.status()
    assert (status.last_synced, status.latest_available, status.lag) == (1, 1, 0)
    bench.insert("a", 2)
    assert bench.engine.status().lag == 1
    assert replace(status, latest_available=0).lag == 0, "a journal that is read a moment earlier than the tables"


def test_b08_a_stopped_table_counts_as_lag(bench: Bench) -> None:
    bench.insert("a", 1)
    bench.engine.sync_once()
    bench.insert("a", 2)
    bench.lake.broken[bench.schemas["a"].table] = TableStoppedError("no", table="main.a")
    bench.engine.sync_once()
    assert bench.engine.status().lag == 1


def test_b09_concurrent_syncs_do_not_apply_twice(bench: Bench) -> None:
    bench.insert("a", 1)
    results: list[SyncResult] = []
    threads = [threading.Thread(target=lambda: results.append(bench.engine.sync_once())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not any(thread.is_alive() for thread in threads)
    assert len(bench.lake.applies) == 1
    assert sorted(result.change_sets for result in results) == [0, 0, 0, 1]


def test_b11_nothing_is_skipped_after_an_error(bench: Bench) -> None:
    name = bench.schemas["a"].table
    bench.insert("a", 1)
    bench.lake.broken[name] = RuntimeError("disk on fire")
    result = bench.engine.sync_once()
    assert (result.tables[name].error or "").endswith("cannot be brought up to date: RuntimeError: disk on fire")
    assert (result.tables[name].applied, bench.engine.complete(name, GENERATION)) == (0, 0)
    bench.insert("a", 2)
    del bench.lake.broken[name]
    bench.engine.sync_once()
    assert [row["id"] for row in bench.lake.rows("main.a")] == [1, 2]


def test_b12_what_waits_is_applied_in_one_commit(bench: Bench) -> None:
    for number in range(1, 6):
        bench.insert("a", number)
    bench.engine.sync_once()
    assert [(window.after, window.upto) for window in bench.lake.applies] == [(0, 5)]


def test_b12_a_table_is_complete_up_to_what_was_for_it(bench: Bench) -> None:
    """What the trim goes by: see ``flow.lake_side``."""
    idle = bench.schemas["b"].table
    assert bench.engine.complete(idle, GENERATION) is None, "before the first look nothing may go"
    bench.insert("a", 1)
    bench.engine.sync_once()
    assert bench.engine.complete(idle, GENERATION) == 1, "table b has everything that was for it"
    bench.insert("b", 1)
    bench.lake.broken[idle] = RuntimeError("no")
    bench.engine.sync_once()
    assert (bench.engine.complete(idle, GENERATION) or 0) <= 1


def test_an_idle_table_survives_a_trim_and_a_restart(bench: Bench) -> None:
    idle = bench.schemas["b"].table
    for number in range(1, 6):
        bench.insert("a", number)
    bench.engine.sync_once()
    known = bench.engine.known(idle, GENERATION)
    assert known is not None
    assert (known.complete, known.applied.number) == (5, 0)
    bench.enrolled[idle] = Enrolled(Route.same(idle), GENERATION, settled_recorded=0, settled_effective=5)
    bench.log.trimmed = 5
    bench.insert("b", 1)
    result = bench.new_engine().sync_once()
    assert result.tables[idle].error is None
    assert bench.lake.rows("main.b") == [{"id": 1, "v": "x"}]


@pytest.mark.parametrize("is_exact", [False, True])
def test_changes_that_the_copy_may_have_are_a_window_of_their_own(bench: Bench, is_exact: bool) -> None:
    copied = bench.schemas["a"].table
    for number in range(1, 8):
        bench.insert("a", number)
    low, high = bench.log.position(1), bench.log.position(3)
    entry = Enrolled(Route.same(copied), GENERATION, copied_from=low, exact_at=high, is_exact=is_exact)
    bench.enrolled[copied] = entry
    result = bench.engine.sync_once()
    assert [(window.after, window.upto, window.exact) for window in bench.lake.applies] == [(0, 3, False), (3, 7, True)]
    assert [window.copied_at for window in bench.lake.applies] == [high if is_exact else None, None]
    assert (result.change_sets, result.tables[copied].applied, result.counts.inserted) == (7, 7, 7)
    bench.insert("a", 8)
    bench.engine.sync_once()
    assert bench.lake.applies[-1].exact


def test_a_copy_that_was_read_at_one_state_has_no_such_window(bench: Bench) -> None:
    copied = bench.schemas["a"].table
    quiet = bench.log.position(9)
    bench.enrolled[copied] = Enrolled(Route.same(copied), GENERATION, copied_from=quiet, exact_at=quiet)
    bench.insert("a", 1)
    bench.engine.sync_once()
    assert [window.exact for window in bench.lake.applies] == [True]


def test_a_journal_that_has_not_reached_the_copy_yet_is_all_overlap(bench: Bench) -> None:
    copied = bench.schemas["a"].table
    start, far = bench.log.position(1), bench.log.position(9)
    bench.enrolled[copied] = Enrolled(Route.same(copied), GENERATION, copied_from=start, exact_at=far)
    bench.insert("a", 1)
    bench.insert("b", 1)
    bench.engine.sync_once()
    assert [window.exact for window in bench.lake.applies if window.table == copied] == [False]
    assert bench.engine.complete(copied, GENERATION) == 2


def test_a_table_that_was_set_back_is_an_error_and_not_a_gap(bench: Bench) -> None:
    idle = bench.schemas["b"].table
    bench.insert("b", 1)
    bench.insert("b", 2)
    bench.enrolled[idle] = Enrolled(
        Route.same(idle), GENERATION, settled_recorded=1, settled_effective=1
    )  # but the table says 0
    bench.log.trimmed = 1
    result = bench.engine.sync_once()
    assert "trimmed" in (result.tables[idle].error or "")
    assert bench.lake.rows("main.b") == []


def test_a_lake_table_that_is_gone_is_said(bench: Bench) -> None:
    del bench.lake.tables[bench.schemas["a"].table]
    bench.insert("a", 1)
    result = bench.engine.sync_once()
    assert "no table main.a" in (result.tables[bench.schemas["a"].table].error or "")
    assert bench.engine.status().lag == 1


def test_a_schema_change_without_rows_reaches_the_table(bench: Bench) -> None:
    columns: dict[str, pa.DataType] = {"id": pa.int64(), "v": pa.string(), "w": pa.string()}
    bench.log.schema_of(table("main.a", columns, key=("id",)))
    bench.insert("b", 1)
    bench.engine.sync_once()
    assert bench.lake.tables[bench.schemas["a"].table].schema.names == ("id", "v", "w")
