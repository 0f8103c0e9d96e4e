"""When each version of a lake table appeared, and the newest tick that it shows: read from files, without Spark."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import unquote

import pyarrow.compute as pc
import pyarrow.parquet as pq

_LOOK_SECONDS = 0.02
_MARKS = {"delta": "_delta_log/*.json", "iceberg": "metadata/v*.metadata.json"}
"""The file that makes a version visible."""


class Versions:
    """Watches one table. A row that was deleted later still counts for the version that showed it."""

    def __init__(self, fmt: str, table: Path) -> None:
        self._files_of: Callable[[Path], list[str]] = _delta_files if fmt == "delta" else _iceberg_files
        self._table = table
        self._pattern = _MARKS[fmt]
        self._seen: dict[Path, float] = {}
        self._newest: dict[str, int] = {}

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Looks for new versions while the block runs."""
        over = threading.Event()
        watcher = threading.Thread(target=self._watch, args=(over,))
        watcher.start()
        try:
            yield
        finally:
            over.set()
            watcher.join()
            self._look()

    def visible(self) -> list[tuple[float, int]]:
        """(when, newest tick in the table) for each version."""
        return [(when, self._tick(mark)) for mark, when in sorted(self._seen.items(), key=lambda item: item[1])]

    def _watch(self, over: threading.Event) -> None:
        while not over.wait(_LOOK_SECONDS):
            self._look()

    def _look(self) -> None:
        now = time.time()
        for mark in self._table.glob(self._pattern):
            self._seen.setdefault(mark, now)

    def _tick(self, mark: Path) -> int:
        return max((self._tick_in(file) for file in self._files_of(mark)), default=0)

    def _tick_in(self, file: str) -> int:
        if file not in self._newest:
            found = pc.max(pq.read_table(file, columns=["tick"], partitioning=None)["tick"]).as_py()
            self._newest[file] = int(found or 0)
        return self._newest[file]


def _delta_files(mark: Path) -> list[str]:
    from deltalake import DeltaTable

    table = DeltaTable(str(mark.parent.parent), version=int(mark.stem))
    return [unquote(uri.removeprefix("file://")) for uri in table.file_uris()]


def _iceberg_files(mark: Path) -> list[str]:
    from pyiceberg.table import StaticTable

    tasks = StaticTable.from_metadata(str(mark)).scan().plan_files()
    return [unquote(task.file.file_path.removeprefix("file:").replace("///", "/")) for task in tasks]
