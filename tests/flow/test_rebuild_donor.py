"""Which state of which lake table a rebuild begins with, where some of them can no longer be read."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from lakefeed import Pipeline, PipelineOptions, Sqlite
from lakefeed.change.table import TableId, TableSchema
from lakefeed.errors import LakeError
from lakefeed.flow.report.listener import Listener
from lakefeed.journal.options import JournalOptions
from lakefeed.lake.base import TableVersion
from lakefeed.lake.mode import Mirror
from lakefeed.lake.route import Route, Rule
from lakefeed.testing.memory_lake import MemoryLake, MemoryLakeTable, RowsChunk

OPTIONS = PipelineOptions(journal=JournalOptions(fsync=False))
VERSIONS = 400
T, TOO = TableId("main", "t"), TableId("main", "t_too")


class OldTable(MemoryLakeTable):
    """A table that knows many states of the same rows, some of which have lost their files."""

    lost: Callable[[TableId, int], bool]
    opened: list[tuple[TableId, int]]

    def states(self, generation: int) -> tuple[TableVersion, ...]:
        return tuple(replace(state, version=n) for state in super().states(generation) for n in range(VERSIONS))

    def chunks(self, state: TableVersion, schema: TableSchema) -> tuple[RowsChunk, ...]:
        self.opened.append((self.route.table, state.version))
        if self.lost(self.route.table, state.version):
            raise LakeError(f"version {state.version} of {self.route.table} has lost a file")
        return super().chunks(state, schema)


class OldLake(MemoryLake):
    def __init__(self, path: str) -> None:
        super().__init__(path, rules=[Rule("t", Mirror(), "{table}_too")])
        self.opened: list[tuple[TableId, int]] = []
        self.lost: Callable[[TableId, int], bool] = lambda _table, _version: False

    def table(self, route: Route) -> OldTable:
        found = OldTable(self, route)
        found.lost, found.opened = self.lost, self.opened
        return found


class Copies(Listener):
    def __init__(self) -> None:
        self.told: list[tuple[object, ...]] = []

    def snapshot_started(self, table: TableId, rows_estimate: int) -> None:
        self.told.append(("started", table, rows_estimate))

    def snapshot_progress(self, table: TableId, rows: int) -> None:
        self.told.append(("progress", table, rows))

    def snapshot_done(self, table: TableId, rows: int, seconds: float) -> None:
        assert seconds >= 0
        self.told.append(("done", table, rows))


@pytest.fixture
def lake(tmp_path: Path) -> OldLake:
    return OldLake(str(tmp_path / "lake"))


@pytest.fixture
def copies() -> Copies:
    return Copies()


@pytest.fixture
def pipeline(tmp_path: Path, lake: OldLake, copies: Copies) -> Iterator[Pipeline]:
    connection = sqlite3.connect(tmp_path / "s.db", isolation_level=None)
    connection.executescript("CREATE TABLE t (id INTEGER PRIMARY KEY); INSERT INTO t VALUES (1), (2);")
    connection.close()
    with Pipeline(Sqlite(tmp_path / "s.db"), lake, name="p", options=OPTIONS, listener=copies) as pipeline:
        pipeline.sync_once()
        copies.told.clear()
        yield pipeline


def opened(lake: OldLake, table: TableId) -> list[int]:
    return [version for name, version in lake.opened if name == table]


def test_the_oldest_state_that_can_be_read_is_found_in_a_few_tries(pipeline: Pipeline, lake: OldLake) -> None:
    lake.lost = lambda _table, version: version < 137
    assert pipeline.rebuild("main.t_too").rows == 2
    for table in (T, TOO):
        readable = [version for version in opened(lake, table) if version >= 137]
        assert min(readable) == 137
        assert len(opened(lake, table)) <= 12
    assert lake.rows("main.t_too") == [{"id": 1}, {"id": 2}]


def test_one_look_is_enough_where_the_oldest_state_can_be_read(pipeline: Pipeline, lake: OldLake) -> None:
    pipeline.rebuild("main.t_too")
    assert lake.opened == [(T, 0), (TOO, 0)]


def test_a_table_without_any_readable_state_leaves_it_to_the_others(pipeline: Pipeline, lake: OldLake) -> None:
    lake.lost = lambda table, _version: table == T
    assert pipeline.rebuild("main.t").donor == TOO
    assert opened(lake, T) == [0, VERSIONS - 1]
    assert lake.rows("main.t") == [{"id": 1}, {"id": 2}]


def test_without_any_donor_the_last_reason_is_told_and_nothing_has_changed(pipeline: Pipeline, lake: OldLake) -> None:
    before = dict(lake.tables)
    lake.lost = lambda _table, _version: True
    with pytest.raises(
        LakeError, match=r"no lake table of main\.t has a state .* version 399 of main\.t_too"
    ) as failed:
        pipeline.rebuild("main.t")
    assert "--from-source" in failed.value.remedy
    assert lake.tables == before
    assert {status.state for status in pipeline.status().tables.values()} == {"live"}


def test_a_table_whose_states_cannot_be_listed_leaves_it_to_the_others(
    pipeline: Pipeline, lake: OldLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = OldTable.states

    def gone(self: OldTable, generation: int) -> tuple[TableVersion, ...]:
        if self.route.table == T:
            raise LakeError(f"there is no table {T}")
        return listed(self, generation)

    monkeypatch.setattr(OldTable, "states", gone)
    assert pipeline.rebuild("main.t").donor == TOO


def test_a_rebuild_tells_its_listener_of_a_copy_from_beginning_to_end(pipeline: Pipeline, copies: Copies) -> None:
    pipeline.rebuild("main.t_too")
    assert copies.told == [("started", TOO, 2), ("progress", TOO, 2), ("done", TOO, 2)]
