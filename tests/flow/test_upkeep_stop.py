"""The upkeep thread stops after the table under way. No Spark: the tables only wait."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

from lakefeed.change.table import TableId
from lakefeed.flow.seed import Phase, SeedStore
from lakefeed.flow.upkeep import UpkeepThread, keep_up
from lakefeed.lake.route import Route
from lakefeed.lake.upkeep import UpkeepOptions, UpkeepResult
from lakefeed.testing.memory_lake import MemoryLake, MemoryLakeTable

TABLES = [TableId("main", name) for name in ("a", "b", "c")]


class SlowLake(MemoryLake):
    """Upkeep of a table says that it has begun, and lasts until it is let go on."""

    def __init__(self) -> None:
        super().__init__("lake")
        self.begun = threading.Event()
        self.go_on = threading.Event()
        self.kept: list[TableId] = []

    def table(self, route: Route) -> SlowTable:
        return SlowTable(self, route)


class SlowTable(MemoryLakeTable):
    _lake: SlowLake

    def upkeep(self, options: UpkeepOptions, key: Sequence[str]) -> UpkeepResult:
        self._lake.begun.set()
        assert self._lake.go_on.wait(30)
        self._lake.kept.append(self.route.table)
        return super().upkeep(options, key)


def live(place: Path) -> SeedStore:
    seeds = SeedStore(place)
    for table in TABLES:
        seeds.stage(Route.same(table), reason="new")
        seeds.update(table, phase=Phase.LIVE)
    return seeds


def test_stop_waits_for_the_table_under_way_and_not_for_those_after_it(tmp_path: Path) -> None:
    lake = SlowLake()
    upkeep = UpkeepThread(live(tmp_path), lake, UpkeepOptions(), every_seconds=0.01)
    upkeep.start()
    assert lake.begun.wait(30)
    stopping = threading.Thread(target=upkeep.stop)
    stopping.start()
    stopping.join(0.2)
    assert stopping.is_alive(), "a table was under way"
    lake.go_on.set()
    stopping.join(30)
    assert not stopping.is_alive()
    assert lake.kept == TABLES[:1]


def test_upkeep_by_hand_takes_every_table(tmp_path: Path) -> None:
    lake = SlowLake()
    lake.go_on.set()
    assert list(keep_up(live(tmp_path), lake, UpkeepOptions())) == TABLES == lake.kept
