"""A lake table on a store that only counts: what is planned on which number. No Spark."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lakefeed.change.segment import Window
from lakefeed.errors import CommitFailedError
from lakefeed.lake import table as lake_table
from lakefeed.lake.base import Applied
from lakefeed.lake.engine import Engine, Enrolled
from lakefeed.lake.layout import Layout
from lakefeed.lake.mode import Mirror
from lakefeed.lake.route import Route
from lakefeed.lake.table import SparkTable
from lakefeed.testing.builders import batch, table
from lakefeed.testing.scripted_log import ScriptedLog


class Counted(Mirror):
    """A mode whose step is its window."""

    def step(self, session: Any, window: Window, store: Any) -> Any:
        return window


class Store:
    """Records numbers, as a table's commits do."""

    location = "nowhere"
    layout = Layout()

    def __init__(self) -> None:
        self.number = 0
        self.windows: list[tuple[int, int]] = []

    def applied(self, generation: int, *, fresh: bool = True) -> Applied:
        return Applied(number=self.number, schema_version=1, rows=None)

    def commit(self, session: Any, step: Window, stamp: Any) -> Applied:
        self.windows.append((step.after, step.upto))
        self.number = stamp.number
        return self.applied(stamp.generation)


def test_b03_a_table_that_was_rolled_back_under_a_living_process_gets_its_changes_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lake_table, "run_job", lambda session, name, work, failpoint: work())
    log = ScriptedLog(tmp_path)
    schema = log.schema_of(table("main.t", {"id": pa.int64()}, key=("id",)))
    route, store = Route.same(schema.table, Counted()), Store()
    sessions: Any = type("Sessions", (), {"child": lambda self: None})()
    made: Any = SparkTable("shop", route, store, sessions)  # type: ignore[arg-type]  # what apply needs of it
    tables: Any = type("Tables", (), {"table": lambda self, _: made})()
    engine = Engine(tables, log, lambda: {schema.table: Enrolled(route, 1)})
    for number in range(1, 5):
        log.add(batch(schema, [("insert", {"id": number})]))
        engine.sync_once()
    assert store.windows == [(0, 1), (1, 2), (2, 3), (3, 4)]

    store.number = 2  # rollback_to_snapshot
    log.add(batch(schema, [("insert", {"id": 5})]))
    failed = engine.sync_once().tables[schema.table]
    assert failed.error is not None
    assert "was at change set 4 and is at 2" in failed.error
    assert engine.sync_once().tables[schema.table].error is None
    assert store.windows[4:] == [(2, 5)], "nothing is left out"
    store.number = 0
    with pytest.raises(CommitFailedError):
        made.apply(replace(log.window(schema.table, 4, 5), recorded=4), 1)
