"""When each state of a lake table appeared, and the newest tick that it shows: read from files, without Spark."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import unquote

import pyarrow.compute as pc
import pyarrow.parquet as pq

_LOOK_SECONDS = 0.02


class Versions:
    """Watches one table. A row that was deleted later still counts for the state that showed it."""

    def __init__(self, fmt: str, table: Path) -> None:
        self._table = table
        self._states: Callable[[Path], set[int]] = _delta_states if fmt == "delta" else _Snapshots()
        self._files_of: Callable[[Path, int], list[str]] = _delta_files if fmt == "delta" else _iceberg_files
        self._seen: dict[int, float] = {}
        self._newest: dict[str, int] = {}

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Looks for new states while the block runs."""
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
        """(when, newest tick in the table) for each state."""
        return [(when, self._tick(state)) for state, when in self._seen.items()]

    def _watch(self, over: threading.Event) -> None:
        while not over.wait(_LOOK_SECONDS):
            self._look()

    def _look(self) -> None:
        now = time.time()
        for state in self._states(self._table):
            self._seen.setdefault(state, now)

    def _tick(self, state: int) -> int:
        return max((self._tick_in(file) for file in self._files_of(self._table, state)), default=0)

    def _tick_in(self, file: str) -> int:
        if file not in self._newest:
            found = pc.max(pq.read_table(file, columns=["tick"], partitioning=None)["tick"]).as_py()
            self._newest[file] = int(found or 0)
        return self._newest[file]


def _delta_states(table: Path) -> set[int]:
    return {int(path.stem) for path in (table / "_delta_log").glob("*.json") if path.stem.isdigit()}


def _delta_files(table: Path, version: int) -> list[str]:
    from deltalake import DeltaTable

    return [unquote(uri.removeprefix("file://")) for uri in DeltaTable(str(table), version=version).file_uris()]


class _Snapshots:
    """The current snapshot of each metadata file, which is read as soon as it is seen: old ones are removed."""

    def __init__(self) -> None:
        self._read: dict[str, int] = {}

    def __call__(self, table: Path) -> set[int]:
        for path in (table / "metadata").glob("v*.metadata.json"):
            if path.name not in self._read:
                with suppress(OSError):
                    self._read[path.name] = json.loads(path.read_text()).get("current-snapshot-id") or -1
        return {state for state in self._read.values() if state > 0}


def _iceberg_files(table: Path, snapshot: int) -> list[str]:
    from pyiceberg.table import StaticTable

    newest = max((table / "metadata").glob("v*.metadata.json"), key=lambda path: int(path.name[1:].split(".")[0]))
    tasks = StaticTable.from_metadata(str(newest)).scan(snapshot_id=snapshot).plan_files()
    return [unquote(task.file.file_path.removeprefix("file:").replace("///", "/")) for task in tasks]
