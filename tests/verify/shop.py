"""A pipeline that runs in a thread beside a writer, and its verification as another process would do it."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from lakefeed.app.build import build_pipeline, build_verification
from lakefeed.app.config import load_config
from lakefeed.change.table import TableId
from lakefeed.flow.pipeline import Pipeline
from lakefeed.flow.table_state import TableStates
from lakefeed.verify.compare import Comparison
from lakefeed.verify.live import LiveOptions
from lakefeed.verify.pipeline import Verification
from lakefeed.verify.repair import Repaired, repair_table

CONFIG = """
pipeline: shop
source: {{kind: sqlite, path: shop.db}}
lake:
  path: ./lake
  format: {format}
  tables:
    - {{match: items}}
    - {{match: items, mode: temporal, name: "{{table}}_history"}}
    - {{match: items, mode: append, name: "{{table}}_log"}}
sync: {{interval_seconds: 1.0}}
"""


class Shop:
    """Table ``items`` of SQLite in three lake tables, or another configuration whose source ``execute`` writes to."""

    def __init__(self, place: Path, spark: Any, text: str) -> None:
        self.place = place
        self.spark = spark
        self.file = place / "shop.yaml"
        self.file.write_text(text)

    def execute(self, script: str) -> None:
        with closing(sqlite3.connect(self.place / "shop.db", timeout=30)) as connection, connection:
            connection.executescript(script)

    def pipeline(self) -> Pipeline:
        return build_pipeline(load_config(self.file), spark=self.spark)

    def sync(self) -> None:
        with self.pipeline() as pipeline:
            for _ in range(2):  # the copy, then what came after it
                result = pipeline.sync_once()
        assert all(table.error is None for table in result.tables.values()), result

    @contextmanager
    def running(self) -> Iterator[Pipeline]:
        with self.pipeline() as pipeline:
            thread = threading.Thread(target=pipeline.run, daemon=True)
            thread.start()
            try:
                yield pipeline
            finally:
                pipeline.stop()
                thread.join(60)

    def verify(self, *tables: str, live: bool | None = True, **options: Any) -> Verification:
        config = load_config(self.file)
        work = build_verification(config, "lakefeed sync", spark=self.spark, options=LiveOptions(**options))
        return work.run(lambda _table: lambda _side, _rows: None, live=live, tables=tables)

    def repair(self, table: str, **options: Any) -> Repaired:
        config = load_config(self.file)
        work = build_verification(config, "lakefeed sync", spark=self.spark, options=LiveOptions(**options))
        record = TableStates(config.state()).all()[TableId.parse(table)]
        return repair_table(work.live_table(record), lambda _side, _rows: None, lambda _line: None)

    def compared(self, table: str, **options: Any) -> Comparison:
        return self.verify(table, **options).tables[0][1]


@contextmanager
def writing(work: Any, pause: float = 0.01) -> Iterator[None]:
    """Call ``work(n)`` again and again, from a thread of its own. Its error is raised at the end."""
    over, errors = threading.Event(), []

    def loop() -> None:
        number = 0
        try:
            while not over.wait(pause):
                work(number)
                number += 1
        except Exception as error:  # noqa: BLE001  # raised below
            errors.append(error)

    thread = threading.Thread(target=loop, daemon=True)
    thread.start()
    time.sleep(0.2)
    try:
        yield
    finally:
        over.set()
        thread.join(30)
    if errors:
        raise errors[0]
