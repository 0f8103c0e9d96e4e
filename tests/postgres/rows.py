"""Reading what a capture gives, for tests."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from lakefeed.capture.base import ChangeCapture
from lakefeed.capture.log_capture import LogCapture
from lakefeed.capture.postgres.facts import TableFacts
from lakefeed.capture.postgres.pgoutput import WalPiece
from lakefeed.capture.postgres.resume import PostgresResumePoint
from lakefeed.capture.postgres.source import Postgres
from lakefeed.capture.postgres.walsender import Walsender
from lakefeed.capture.reader import BackgroundReader
from lakefeed.change.batch import SEQ
from lakefeed.change.change_set import ChangeSet
from lakefeed.change.lsn import PostgresLsn
from lakefeed.change.position import Position
from lakefeed.change.table import TableId

PostgresLog = LogCapture[PostgresLsn, WalPiece]


def changes(change_sets: Iterable[ChangeSet]) -> list[dict[str, Any]]:
    """Every row with its metadata, in source order."""
    found: list[dict[str, Any]] = []
    for one in change_sets:
        found += sorted((row for batch in one.batches for row in batch.data.to_pylist()), key=lambda row: int(row[SEQ]))
    return found


def drain(capture: ChangeCapture, after: Position | None) -> list[ChangeSet]:
    """The change sets that are there now."""
    found: list[ChangeSet] = []
    for change_set in capture.live(after, wait_seconds=0):
        if change_set.start == change_set.end and change_set.is_heartbeat:
            return found
        found.append(change_set)
    return found


def copied(capture: ChangeCapture, table: TableId, chunk_rows: int = 250_000) -> list[dict[str, Any]]:
    """The rows of a snapshot."""
    found: list[dict[str, Any]] = []
    for chunk in capture.snapshot(table, chunk_rows=chunk_rows).chunks:
        with chunk.open() as reader:
            found += [row for batch in reader for row in batch.to_pylist()]
    return found


@contextmanager
def opened(source: Postgres, pipeline: str = "test") -> Iterator[PostgresLog]:
    """An open capture, closed whatever happens."""
    capture = source.bind(pipeline)
    assert isinstance(capture, LogCapture)
    capture.open()
    try:
        yield capture
    finally:
        capture.close()


def facts_of(capture: PostgresLog) -> TableFacts:
    assert isinstance(capture._facts, TableFacts)
    return capture._facts


def resume_of(capture: PostgresLog) -> PostgresResumePoint:
    assert isinstance(capture._resume, PostgresResumePoint)
    return capture._resume


def reader_of(capture: PostgresLog) -> BackgroundReader[PostgresLsn, WalPiece]:
    assert capture._stream is not None
    assert isinstance(capture._stream.reader, BackgroundReader)
    return capture._stream.reader


def walsender_of(capture: PostgresLog) -> Walsender:
    reader = reader_of(capture)._reader
    assert isinstance(reader, Walsender)
    return reader


def head(writer: Any) -> PostgresLsn:
    """How far the log is flushed."""
    (flushed,) = writer.execute("SELECT pg_current_wal_flush_lsn()::text").fetchone()
    return PostgresLsn.parse(flushed)
