"""Intake: the source's side of a runtime. It connects, decides where to start, pulls, and reconnects after a failure.

The seven ways a runtime starts, from (checkpoint, options, source) to the first progress:

| checkpoint           | options           | what happens                                                      |
|----------------------|-------------------|-------------------------------------------------------------------|
| (any)                | disabled source   | nothing is read; the runtime itself decides this                  |
| none or stream       | incremental       | chunks beside the stream, from the checkpoint or the resume point |
| inside a snapshot    | snapshot_tables   | the chunks that are left, then the stream                         |
| the same, no resume  | snapshot_tables   | a warning, then as without a checkpoint                           |
| stream               | (tables ignored)  | the stream                                                        |
| none                 | no tables         | the stream from the source's resume point                         |
| none                 | snapshot_tables   | resume point first, then all chunks, then the stream from it      |
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

from lakefeed.capture.base import ChangeCapture, Continuity
from lakefeed.change.position import Position
from lakefeed.change.table import TableId
from lakefeed.embed.checkpoint import Checkpoint, source_type
from lakefeed.embed.feed import Feed, Pulled
from lakefeed.embed.options import ErrorLog, RuntimeOptions
from lakefeed.embed.progress import Progress, SnapshotCursor, from_checkpoint, is_snapshot_checkpoint
from lakefeed.errors import ConfigError, PositionLostError, SourceChangedError, StateError

log = logging.getLogger(__name__)


class Intake:
    """Owns the connection and the feed. ``identity`` is that of the database, known once it is open.

    Belongs to one thread at a time, except for ``interrupt``.
    """

    def __init__(self, capture: ChangeCapture, options: RuntimeOptions, errors: ErrorLog) -> None:
        self._capture = capture
        self._options = options
        self._errors = errors
        self._feed: Feed | None = None
        self._broken = False
        self.identity: str | None = None

    def open(self, checkpoint: Checkpoint | None) -> Progress:
        """Connect and continue from ``checkpoint``. If that fails, nothing stays open."""
        capture, errors = self._capture, self._errors
        found = errors.tagged("runtime.start.checkpoint", lambda: usable(checkpoint, capture, self._options))
        try:
            errors.tagged("runtime.start.connect", capture.open)
            progress = errors.tagged("runtime.start.source", lambda: begin(capture, found, self._options))
            self.identity = errors.tagged("runtime.start.source", capture.identity)
        except BaseException:
            self.close("runtime.start.close")
            raise
        self._feed = Feed(capture, progress, self._options)
        self._broken = False
        return progress

    def pull(self, wait_seconds: float) -> Pulled:
        """The feed's next pull. After an error, the next call reconnects first."""
        if self._feed is None:
            raise StateError("the source is not open")
        if self._broken:
            self._errors.tagged("runtime.poll.reconnect", self.reconnect)
        feed = self._feed
        self._broken = True  # until the pull returns: an interrupted one leaves the feed in an unknown state
        pulled = self._errors.tagged("runtime.poll.source", lambda: feed.pull(wait_seconds))
        self._broken = False
        return pulled

    def reconnect(self) -> None:
        """Continue the same feed after the last pull (what is in flight stays in flight), on the same database.

        The source must still have what comes after the position.
        """
        if self._feed is None:
            raise StateError("the source is not open")
        progress = self._feed.progress
        self._feed.close()
        self._capture.close()
        self._capture.open()
        check_identity(self._capture, self.identity)
        if self._capture.continuity(progress.position, captured(self._options)) is Continuity.FRESH:
            raise lost(progress.position)
        self._capture.recall(progress.schemas.newest)
        self._feed = Feed(self._capture, progress, self._options)

    def interrupt(self, tag: str) -> Exception | None:
        """Any thread: make a waiting pull return or raise. ``close`` must still follow."""
        try:
            self._capture.close()
        except Exception as error:  # noqa: BLE001  # returned
            return self._errors.record(tag, error)
        return None

    def close(self, tag: str) -> Exception | None:
        """Close whatever is open. An error is recorded and returned, because the caller has more to finish first."""
        feed, self._feed = self._feed, None
        failed: Exception | None = None
        try:
            if feed is not None:
                feed.close()
        except Exception as error:  # noqa: BLE001  # returned
            failed = self._errors.record(tag, error)
        return self.interrupt(tag) or failed


def usable(checkpoint: Checkpoint | None, capture: ChangeCapture, options: RuntimeOptions) -> Checkpoint | None:
    """The part of the checkpoint that can be used; decided without a connection."""
    if checkpoint is None or not is_snapshot_checkpoint(checkpoint, source_type(capture.kind)):
        return checkpoint
    if options.incremental is not None:
        raise ConfigError("cannot resume incremental snapshot startup from a snapshot checkpoint")
    if not capture.capabilities.snapshot_resume:
        log.warning("a %s snapshot cannot be resumed; the snapshot starts again from scratch", capture.kind)
        return None
    if not options.snapshot_tables:
        raise ConfigError("snapshot_tables must not be empty when resuming from a snapshot checkpoint")
    return checkpoint


def begin(capture: ChangeCapture, checkpoint: Checkpoint | None, options: RuntimeOptions) -> Progress:
    """Where to start, on an open capture. Asks ``continuity`` first, and prepares before any snapshot read."""
    saved = None
    if checkpoint is not None:
        saved = from_checkpoint(checkpoint, source_type(capture.kind), slot=capture.slot)
        saved = replace(saved, schemas=saved.schemas.bounded(options.schema_history_retention))
        check_identity(capture, checkpoint.identity)
    wanted = captured(options)
    resumed = capture.continuity(saved.position if saved else None, wanted) is Continuity.RESUMED
    if saved is not None and not resumed:
        raise lost(saved.position)
    if saved is not None:
        capture.recall(saved.schemas.newest)
    if options.incremental is not None:
        tables, generation = options.incremental.tables, options.incremental.generation
        cursor = saved.cursor if saved is not None else None
        if cursor is None or cursor.generation != generation:
            cursor = SnapshotCursor((), generation=generation)
        if saved is not None and set(tables) <= set(cursor.tables):
            return replace(saved, cursor=cursor)
        prepared = prepare(capture, tables)  # tables new to the cursor are copied last
        return replace(saved or Progress(prepared), cursor=cursor.covering(tables))
    if saved is not None and saved.in_snapshot and saved.cursor is not None:
        cursor = saved.cursor.covering(options.snapshot_tables)
        if cursor is not saved.cursor:
            prepare(capture, options.snapshot_tables)
        return replace(saved, cursor=cursor)
    if saved is not None:
        return saved
    if options.snapshot_tables:
        position = prepare(capture, options.snapshot_tables)
        return Progress(position, SnapshotCursor(options.snapshot_tables), in_snapshot=True)
    if resumed:  # from the existing resume point, wherever it is
        return Progress()
    return Progress(capture.prepare(wanted or [schema.table for schema in capture.discover()]))


def prepare(capture: ChangeCapture, tables: Sequence[TableId]) -> Position:
    """Create the resume point for tables that exist: a missing table is not the same as an empty one."""
    known = [schema.table for schema in capture.discover()]
    missing = [table for table in tables if table not in known]
    if missing:
        raise ConfigError(f"there is no table {missing[0]}; there are {', '.join(map(str, sorted(known)))}")
    return capture.prepare(tables)


def captured(options: RuntimeOptions) -> tuple[TableId, ...]:
    """All tables that the options name."""
    copied = options.incremental.tables if options.incremental else options.snapshot_tables
    return tuple(dict.fromkeys((*options.tables, *copied)))


def check_identity(capture: ChangeCapture, expected: str | None) -> None:
    """SourceChangedError if the capture is connected to another database. None means that it is not known (yet)."""
    identity = capture.identity()
    if identity is not None and expected is not None and identity != expected:
        raise SourceChangedError(f"the checkpoint belongs to the database {expected}, but this is {identity}")


def lost(position: Position | None) -> PositionLostError:
    return PositionLostError(f"the checkpoint is at {position}, but the source no longer has a resume point")
