"""The maintenance thread stops after the table under way. No Spark: the tables only wait."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

from lakefeed.change.table import TableId
from lakefeed.flow.maintenance import MaintenanceThread, maintain_tables
from lakefeed.flow.table_state import Phase, TableStates
from lakefeed.lake.maintenance import MaintenanceOptions, MaintenanceResult
from lakefeed.lake.route import Route
from lakefeed.testing.memory_lake import MemoryLake, MemoryLakeTable

TABLES = [TableId("main", name) for name in ("a", "b", "c")]


class SlowLake(MemoryLake):
    """Maintenance of a table says that it has begun, and lasts until it is let go on."""

    def __init__(self) -> None:
        super().__init__("lake")
        self.begun = threading.Event()
        self.go_on = threading.Event()
        self.kept: list[TableId] = []

    def table(self, route: Route) -> SlowTable:
        return SlowTable(self, route)


class SlowTable(MemoryLakeTable):
    _lake: SlowLake

    def maintain(self, options: MaintenanceOptions, key: Sequence[str]) -> MaintenanceResult:
        self._lake.begun.set()
        assert self._lake.go_on.wait(30)
        self._lake.kept.append(self.route.table)
        return super().maintain(options, key)


def live(place: Path) -> TableStates:
    states = TableStates(place)
    for table in TABLES:
        states.stage(Route.same(table), reason="new")
        states.update(table, phase=Phase.LIVE)
    return states


def test_stop_waits_for_the_table_under_way_and_not_for_those_after_it(tmp_path: Path) -> None:
    lake = SlowLake()
    maintenance = MaintenanceThread(live(tmp_path), lake, MaintenanceOptions(), every_seconds=0.01)
    maintenance.start()
    assert lake.begun.wait(30)
    stopping = threading.Thread(target=maintenance.stop)
    stopping.start()
    stopping.join(0.2)
    assert stopping.is_alive(), "a table was under way"
    lake.go_on.set()
    stopping.join(30)
    assert not stopping.is_alive()
    assert lake.kept == TABLES[:1]


def test_maintenance_by_hand_takes_every_table(tmp_path: Path) -> None:
    lake = SlowLake()
    lake.go_on.set()
    assert list(maintain_tables(live(tmp_path), lake, MaintenanceOptions())) == TABLES == lake.kept
