"""Feeds: where a runtime's change sets come from. Stream, snapshot then stream, or both side by side.

Every step carries the progress that holds once it is committed, so the runtime saves what the step says and never
works it out again. A feed is rebuilt from its progress after a lost connection by ``make_feed``, the same way as at a
start: a snapshot that was under way goes on as a snapshot and never silently as a plain stream.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass, replace
from typing import Protocol

from lakefeed.capture.base import ChangeCapture
from lakefeed.change.change_set import ChangeSet
from lakefeed.change.position import Position
from lakefeed.errors import SourceError
from lakefeed.flow.runtime_chunks import ChunkFeed
from lakefeed.flow.runtime_options import RuntimeOptions
from lakefeed.flow.runtime_progress import Progress

_STALE_READS_MAX = 100


@dataclass(frozen=True, slots=True)
class Step:
    """One pull. Without a change set it only moves progress (``idle``: the source has nothing more right now)."""

    progress: Progress
    change_set: ChangeSet | None = None
    bracket: tuple[Position, Position] | None = None
    idle: bool = False
    deduplicated: int = 0

    @property
    def rows(self) -> int:
        return self.change_set.rows if self.change_set else 0


class Feed(Protocol):
    @property
    def progress(self) -> Progress:
        """Behind the last step that was pulled."""

    def pull(self, wait_seconds: float) -> Step:
        """The next step. After an error the feed is not used again; ``make_feed`` builds the next one."""

    def close(self) -> None: ...


def make_feed(capture: ChangeCapture, progress: Progress, options: RuntimeOptions) -> Feed:
    """The feed that goes on from ``progress``."""
    if progress.in_snapshot:
        return SnapshotFeed(capture, progress, options.chunk_rows)
    if options.incremental is not None and progress.cursor is not None and not progress.cursor.done:
        return IncrementalFeed(capture, progress, options.chunk_rows)
    return StreamFeed(capture, progress)


class StreamFeed:
    """Live changes strictly after a position. A cursor in its progress is carried along untouched."""

    def __init__(self, capture: ChangeCapture, progress: Progress) -> None:
        self._capture = capture
        self.progress = progress
        self._live: Iterator[ChangeSet] | None = None
        self._wait_seconds = 0.0

    def pull(self, wait_seconds: float) -> Step:
        change_set = next(self._iterator(wait_seconds), None)
        if change_set is None:  # it ended, which a real source's does not: ask for a new one next time
            self._live = None
            return Step(self.progress, idle=True)
        if self._seen(change_set):
            return Step(self.progress, deduplicated=change_set.rows)
        position = self.progress.position
        if position is None or not change_set.end < position:
            self.progress = replace(self.progress, position=change_set.end)
        if change_set.is_heartbeat:
            return Step(self.progress, idle=True)
        return Step(self.progress, change_set)

    def close(self) -> None:
        if isinstance(self._live, Generator):
            self._live.close()
        self._live = None

    def _iterator(self, wait_seconds: float) -> Iterator[ChangeSet]:
        if self._live is None or wait_seconds != self._wait_seconds:
            self.close()
            self._live = self._capture.live(self.progress.position, wait_seconds=wait_seconds)
            self._wait_seconds = wait_seconds
        return self._live

    def _seen(self, change_set: ChangeSet) -> bool:
        """All of it lies behind the position. Told by positions, never by content: equal rows can be two rows.

        A set that starts and ends at the position is new: a poll that looks back finds late rows without moving on.
        """
        position, start = self.progress.position, change_set.start
        return position is not None and start is not None and start < position and change_set.end <= position


class SnapshotFeed:
    """All chunks, then the stream from the position of before the first chunk."""

    def __init__(self, capture: ChangeCapture, progress: Progress, chunk_rows: int) -> None:
        assert progress.cursor is not None  # noqa: S101  # make_feed's condition
        self._capture = capture
        self.progress = progress
        self._chunks = ChunkFeed(capture, progress.cursor, chunk_rows)
        self._stale_reads = 0
        self._stream: StreamFeed | None = None

    def pull(self, wait_seconds: float) -> Step:
        if self._stream is None:
            return self._pull_chunk()
        step = self._stream.pull(wait_seconds)
        self.progress = step.progress
        return step

    def close(self) -> None:
        if self._stream is not None:
            self._stream.close()

    def _pull_chunk(self) -> Step:
        position = self.progress.position
        read = self._chunks.read(position)
        if read is None:
            self._stale_reads = _count_stale(self._stale_reads)
            return Step(self.progress, idle=True)
        self._stale_reads = 0
        cursor = self._chunks.cursor
        if cursor.done:
            self.progress = Progress(position)
            self._stream = StreamFeed(self._capture, self.progress)
        else:
            self.progress = Progress(position, cursor, in_snapshot=True)
        return Step(self.progress, read.change_set, read.bracket)


class IncrementalFeed:
    """Chunks and stream by turns; the stream alone when the chunks are done.

    While chunks remain, the stream never waits: an idle source must not slow the copy down.
    """

    def __init__(self, capture: ChangeCapture, progress: Progress, chunk_rows: int) -> None:
        assert progress.cursor is not None  # noqa: S101  # make_feed's condition
        self._chunks = ChunkFeed(capture, progress.cursor, chunk_rows)
        self._stream = StreamFeed(capture, progress)
        self._chunk_turn = False
        self._stale_reads = 0

    @property
    def progress(self) -> Progress:
        return Progress(self._stream.progress.position, self._chunks.cursor)

    def pull(self, wait_seconds: float) -> Step:
        if self._chunks.cursor.done:
            return replace(self._stream.pull(wait_seconds), progress=self.progress)
        self._chunk_turn = not self._chunk_turn
        if not self._chunk_turn:
            step = self._stream.pull(0.0)
            return replace(step, progress=self.progress, idle=False)
        read = self._chunks.read(self._stream.progress.position)
        if read is None:
            self._stale_reads = _count_stale(self._stale_reads)
            return Step(self.progress, idle=True)
        self._stale_reads = 0
        return Step(self.progress, read.change_set, read.bracket)

    def close(self) -> None:
        self._stream.close()


def _count_stale(reads: int) -> int:
    if reads + 1 >= _STALE_READS_MAX:
        raise SourceError(
            f"a snapshot chunk was read {reads + 1} times and was older than the stream each time",
            remedy="Use snapshot_tables instead of an incremental snapshot: this source copies from a fixed state.",
        )
    return reads + 1
