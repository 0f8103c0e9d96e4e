"""The seven ways a runtime starts, as one function from (checkpoint, options, source) to the first progress.

| checkpoint           | options           | what happens                                                      |
|----------------------|-------------------|-------------------------------------------------------------------|
| (any)                | disabled source   | nothing is read; decided by the runtime itself                    |
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
from lakefeed.errors import ConfigError, PositionLostError, SourceChangedError
from lakefeed.flow.runtime_options import IncrementalSnapshot, RuntimeOptions
from lakefeed.flow.runtime_progress import Progress, SnapshotCursor, from_checkpoint, is_snapshot_checkpoint
from lakefeed.journal.checkpoint import Checkpoint

log = logging.getLogger(__name__)


def check_options(options: RuntimeOptions) -> None:
    """C8: the two ways to copy tables exclude each other."""
    if options.incremental is not None and options.snapshot_tables:
        raise ConfigError(
            "cannot configure both snapshot_tables and incremental_snapshot; choose one startup mode",
            remedy="Leave out snapshot_tables or incremental.",
        )


def usable(checkpoint: Checkpoint | None, capture: ChangeCapture, options: RuntimeOptions) -> Checkpoint | None:
    """C10 to C13: what of the checkpoint can be used, decided without a connection."""
    if checkpoint is None or not is_snapshot_checkpoint(checkpoint, capture.kind):
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
    """Where to start, on an open capture. Asks ``continuity`` first and prepares before any snapshot read."""
    saved = from_checkpoint(checkpoint, capture.kind) if checkpoint is not None else None
    if checkpoint is not None:
        _check_identity(capture, checkpoint)
    captured = _captured(options)
    continuity = capture.continuity(saved.position if saved else None, captured)
    if continuity is Continuity.FRESH and saved is not None:
        raise _lost(saved.position)
    if options.incremental is not None:
        return _begin_incremental(capture, saved, options.incremental)
    if saved is not None and saved.in_snapshot:
        return _resume_snapshot(capture, saved, options.snapshot_tables)
    if saved is not None:
        return saved
    if options.snapshot_tables:
        position = _prepare(capture, options.snapshot_tables)
        return Progress(position, SnapshotCursor(options.snapshot_tables), in_snapshot=True)
    if continuity is Continuity.RESUMED:
        return Progress()  # the resume point that is there, wherever it is
    return Progress(capture.prepare(captured or [schema.table for schema in capture.discover()]))


def check_continuity(capture: ChangeCapture, position: Position | None, options: RuntimeOptions) -> None:
    """After a reconnect: the source must still have what comes after ``position``."""
    if capture.continuity(position, _captured(options)) is Continuity.FRESH:
        raise _lost(position)


def _begin_incremental(capture: ChangeCapture, saved: Progress | None, wanted: IncrementalSnapshot) -> Progress:
    """C15. A cursor of the same generation goes on; tables that are new to it are prepared and copied last."""
    cursor = saved.cursor if saved is not None else None
    if cursor is None or cursor.generation != wanted.generation:
        cursor = SnapshotCursor((), generation=wanted.generation)
    if set(wanted.tables) <= set(cursor.tables) and saved is not None:
        return replace(saved, cursor=cursor)
    prepared = _prepare(capture, wanted.tables)
    return Progress(saved.position if saved is not None else prepared, cursor.covering(wanted.tables))


def _resume_snapshot(capture: ChangeCapture, saved: Progress, tables: Sequence[TableId]) -> Progress:
    """C16."""
    assert saved.cursor is not None  # noqa: S101  # a snapshot checkpoint has one
    cursor = saved.cursor.covering(tables)
    if cursor is not saved.cursor:
        _prepare(capture, tables)
    return replace(saved, cursor=cursor)


def _prepare(capture: ChangeCapture, tables: Sequence[TableId]) -> Position:
    """The resume point, for tables that exist: a name without a table is no table without rows."""
    known = [schema.table for schema in capture.discover()]
    missing = [table for table in tables if table not in known]
    if missing:
        raise ConfigError(f"there is no table {missing[0]}; there are {', '.join(map(str, sorted(known)))}")
    return capture.prepare(tables)


def _captured(options: RuntimeOptions) -> tuple[TableId, ...]:
    copied = options.incremental.tables if options.incremental else options.snapshot_tables
    return tuple(dict.fromkeys((*options.tables, *copied)))


def _check_identity(capture: ChangeCapture, checkpoint: Checkpoint) -> None:
    identity = capture.identity()
    if None not in (identity, checkpoint.identity) and identity != checkpoint.identity:
        raise SourceChangedError(f"the checkpoint belongs to the database {checkpoint.identity}, this is {identity}")


def _lost(position: Position | None) -> PositionLostError:
    return PositionLostError(f"the checkpoint is at {position}, but the source has no resume point any more")
