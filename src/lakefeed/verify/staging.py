"""What a comparison has read from the source, in Parquet files below ``verify/`` of the state, while it runs.

A comparison of a whole table that was killed continues with the missing chunks: the plan is saved before the first
chunk is read, and each group of chunks when it has been read. For some hours the pin of the dead process still keeps
the change sets that the comparison needs; after that, everything is read again. The next comparison of the table
removes files that nobody continues with.
"""

from __future__ import annotations

import fcntl
import json
import shutil
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote

from lakefeed.change.position import decode_position
from lakefeed.change.table import TableId
from lakefeed.errors import CheckpointError, LeaseError
from lakefeed.lake.loader import ChunkFile, DataFile
from lakefeed.storage.base import Storage

_RESUMED_SECONDS = 3600.0
_PLAN = "plan.json"


class Staging:
    """One comparison of one table, for a ``with`` block. LeaseError if another process is comparing it."""

    def __init__(self, state: Storage, table: TableId) -> None:
        self._is_kept = state.directory is not None
        parent = state.directory / "verify" if state.directory is not None else Path(tempfile.mkdtemp())
        self._table = table
        self.place = parent / quote(str(table), safe=" .")
        self._lock: Any = None
        self._plan: dict[str, Any] = {}

    def __enter__(self) -> Self:
        for folder in (self.place.parent, self.place):  # private: these are rows of the source
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._lock = (self.place / ".lock").open("a")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self._lock.close()
            raise LeaseError(
                f"table {self._table} is being compared already",
                remedy="Wait for it: `lakefeed status` shows its result.",
            ) from error
        return self

    def __exit__(self, *error: object) -> None:
        """Remove everything; only a kill leaves something behind."""
        shutil.rmtree(self.place, ignore_errors=True)
        self._lock.close()

    def resumed(self, asked: Mapping[str, Any]) -> list[ChunkFile | None] | None:
        """What an earlier process has read of a plan, chunk by chunk, with None for missing ones. None if there is no
        recent plan with the same parameters. Otherwise ``chunks`` are that plan's."""
        try:
            plan = json.loads((self.place / _PLAN).read_bytes())
            if plan["asked"] != dict(asked) or not 0 <= time.time() - plan["at"] < _RESUMED_SECONDS:
                return None
            found: list[ChunkFile | None] = [None] * len(plan["chunks"])
            for index, one in plan["done"].items():
                found[int(index)] = _read_file(one)
            names = [one.file.name for one in found if one is not None and one.file is not None]
            if not all((self.place / name).exists() for name in names):
                return None
        except (OSError, ValueError, KeyError, TypeError, CheckpointError):
            return None
        self._plan = plan
        return found

    @property
    def chunks(self) -> list[Mapping[str, Any]]:
        return list(self._plan["chunks"])

    @property
    def began(self) -> int:
        """The journal's head when the plan was made."""
        return int(self._plan["began"])

    def begin(self, asked: Mapping[str, Any], chunks: list[Mapping[str, Any]], began: int) -> None:
        """Remove what exists, and save a plan."""
        for path in self.place.iterdir():
            if path.name != ".lock":
                path.unlink()
        self._plan = {"asked": dict(asked), "chunks": chunks, "began": began, "at": time.time(), "done": {}}
        self.save()

    def done(self, index: int, one: ChunkFile) -> None:
        self._plan["done"][str(index)] = {
            "low": one.low.encode() if one.low is not None else None,
            "high": one.high.encode(),
            "file": [one.file.name, one.file.rows, one.file.bytes] if one.file is not None else None,
        }

    def save(self) -> None:
        """Save what is done so far, so that it survives a kill. Not a power cut: it only saves work."""
        if self._is_kept:
            temporary = self.place / f".{_PLAN}"
            temporary.write_text(json.dumps(self._plan, ensure_ascii=False), encoding="utf-8")
            temporary.replace(self.place / _PLAN)

    def drop_plan(self) -> None:
        """The look that the plan was for is over."""
        with suppress(FileNotFoundError):
            (self.place / _PLAN).unlink()


def _read_file(body: Mapping[str, Any]) -> ChunkFile:
    low = decode_position(body["low"]) if body["low"] is not None else None
    file = None
    if body["file"] is not None:
        name, rows, size = body["file"]
        file = DataFile(name, rows, size, statistics="{}", written_ms=0)
    return ChunkFile(file, decode_position(body["high"]), low)
