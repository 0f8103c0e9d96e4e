"""Small segments of a window, put together in larger files: what a read costs is then its rows and not its files.

A busy source makes about five change sets a second, each with a file for each table: after a minute without a merge a
window has three hundred files, and Spark opens each of them more than once. So eight neighbours become one file, eight
of those the next one, by Arrow, and every later read uses them. The files are copies in a temporary directory of this
process, and are removed when the journal has trimmed what they were made of.
"""

from __future__ import annotations

import shutil
import tempfile
import threading
import uuid
import weakref
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from lakefeed.change.position import Position
from lakefeed.change.segment import Counts, Segment, Window
from lakefeed.change.table import TableId, TableSchema
from lakefeed.journal.journal import Journal

_TOGETHER = 8
_MOST_BYTES = 1 << 20
"""Of a file that is put together with others. A larger one is worth a task of its own."""


@dataclass(frozen=True, slots=True)
class _Pack:
    members: tuple[str, ...]
    segment: Segment


_Item = tuple[int, Segment]


class PackedLog:
    """A journal whose windows have few files. Any thread. See ``lake.base.ChangeLog`` for the contract."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._lock = threading.Lock()
        self._packs: dict[str, _Pack] = {}  # by their first member's path
        self._trimmed = journal.trimmed  # when packs were last removed
        self._directory: str | None = None  # goes with this object

    @property
    def head(self) -> int:
        return self._journal.head

    def position(self, number: int) -> Position | None:
        return self._journal.position(number)

    def check(self, window: Window) -> None:
        self._journal.check(window)

    def schema(self, table: TableId, version: int) -> TableSchema:
        return self._journal.schema(table, version)

    def window(self, table: TableId, after: int, upto: int) -> Window:
        window = self._journal.window(table, after, upto)
        with self._lock, suppress(FileNotFoundError):  # just trimmed: whoever reads the window finds that out
            items: list[_Item] = [(0, segment) for segment in window.segments]
            while len(fewer := self._packed(items, window)) < len(items):
                items = fewer
            window = replace(window, segments=tuple(segment for _, segment in items))
            self._forget_trimmed()
        return window

    def _packed(self, items: Sequence[_Item], window: Window) -> list[_Item]:
        """Neighbours of one level as one of the next; ``items`` are segments with their levels."""
        found: list[_Item] = []
        index = 0
        while index < len(items):
            group, (level, first) = items[index : index + _TOGETHER], items[index]
            fits = len(group) == _TOGETHER and all(
                (one_level, one.schema_version, one.absent) == (level, first.schema_version, first.absent)
                and one.bytes < _MOST_BYTES
                for one_level, one in group
            )
            if fits:
                members = tuple(one.path for _, one in group)
                pack = self._packs.get(first.path)
                if pack is None or pack.members != members:
                    written = self._written([one for _, one in group], window)
                    pack = self._packs[first.path] = _Pack(members, written)
                found.append((level + 1, pack.segment))
            else:
                found.append((level, first))
            index += _TOGETHER if fits else 1
        return found

    def _written(self, group: Sequence[Segment], window: Window) -> Segment:
        """One file with the rows of all, in their order."""
        self._journal.check(replace(window, segments=tuple(group)))
        if self._directory is None:
            self._directory = tempfile.mkdtemp(prefix="lakefeed-packed-")
            weakref.finalize(self, shutil.rmtree, self._directory, ignore_errors=True)
        tables: list[Any] = [pq.read_table(one.path, partitioning=None) for one in group]
        path = Path(self._directory, f"{uuid.uuid4()}.parquet")
        pq.write_table(pa.concat_tables(tables), path, compression="lz4")
        truncates = [one.truncated_at for one in group if one.truncated_at is not None]
        return replace(
            group[0],
            path=str(path),
            rows=sum(one.rows for one in group),
            bytes=path.stat().st_size,
            last_seq=group[-1].last_seq,
            counts=sum((one.counts for one in group), Counts()),
            truncated_at=max(truncates, default=None),
            crc32=None,
        )

    def _forget_trimmed(self) -> None:
        """Packs whose change sets the journal has no more: nothing that is made from here on reads them."""
        trimmed, self._trimmed = self._trimmed, self._journal.trimmed
        if trimmed == self._trimmed:
            return
        for first, pack in list(self._packs.items()):
            if not Path(first).exists():
                Path(pack.segment.path).unlink(missing_ok=True)
                del self._packs[first]
