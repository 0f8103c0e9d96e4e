# ruff: noqa: S608 (names in SQL are quoted by database.quoted; values are bound)
"""Can capture go on from a position? The log itself tells, without writing."""

from __future__ import annotations

import sqlite3

from lakefeed.capture.sqlite.meta import read_head
from lakefeed.capture.sqlite.names import Names
from lakefeed.change.position import Position, SqliteSequence
from lakefeed.errors import PositionLostError, SourceChangedError


def own_position(position: Position) -> SqliteSequence:
    if not isinstance(position, SqliteSequence):
        raise SourceChangedError(f"{position.encode()} is a position of another kind of source, not of SQLite")
    return position


def require_position(connection: sqlite3.Connection, names: Names, position: SqliteSequence) -> None:
    """PositionLostError, saying why, unless everything after ``position`` is in the log."""
    head = read_head(connection, names)
    if position > head:
        raise PositionLostError(
            f"the database is behind: its log ends at {head}, the pipeline has read up to {position}"
            " (was an older copy restored?)"
        )
    row = connection.execute(f"SELECT ts FROM {names.log} WHERE seq = ?", (position.sequence,)).fetchone()
    if row is not None:
        if row[0] != position.stamp:
            raise PositionLostError(
                f"the log's entry {position.sequence} is not the one that was read (its time is {row[0]}, not"
                f" {position.stamp}): an older copy was restored and has been written to since"
            )
        return
    (first,) = connection.execute(f"SELECT min(seq) FROM {names.log}").fetchone()
    if first > position.sequence + 1:
        raise PositionLostError(
            f"the log begins at {first}: entries after {position.sequence} were pruned, so some changes are gone"
        )
    if first <= position.sequence:
        raise PositionLostError(f"the log's entry {position.sequence} is missing: the log has been tampered with")
