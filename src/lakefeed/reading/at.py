"""A lake table as it was at a position of the source: ``read_at``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from lakefeed.change.position import Position, decode_position
from lakefeed.change.table import TableId
from lakefeed.errors import ConfigError, LakeError
from lakefeed.journal.journal import Journal
from lakefeed.lake.delta import Delta
from lakefeed.lake.formats import history_at
from lakefeed.lake.history import LogCommit, LogState, TableHistory, state_at
from lakefeed.lake.iceberg import Iceberg
from lakefeed.lake.location import lake_root, table_path
from lakefeed.reading.options import STATE_FOLDER

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def read_at(
    spark: SparkSession,
    lake: str | Path | Delta | Iceberg,
    table: str,
    *,
    position: Position | str | None = None,
    change_set: int | None = None,
) -> DataFrame:
    """A table of the lake as it was at a position of the source, or at the end of a change set.

    ``lake`` is the lake's path, whatever the format of its tables, or the lake itself: ``Iceberg(spark, path,
    catalog=…)`` for tables of a catalog. Gives the newest version of the table that shows nothing from after that
    point. Change sets that were merged in one commit have no versions of their own: a point between them reads as the
    one before the first of them. A position is a value or its encoded text, ``sqlite=8@1794778483365``, as in the
    column ``_lakefeed_position``.

    LakeError if the table has not got there yet, if its rows are still those of a copy that was read at several
    moments after that point, or if that version's log or files have been cleaned up.
    """
    point = _Point.of(position, change_set)
    name = TableId.parse(table)
    root = lake.path if isinstance(lake, Delta | Iceberg) else lake_root(lake)
    if isinstance(lake, Delta | Iceberg):
        history: TableHistory = lake.history(name)
    else:  # the format is that of the table there
        history = history_at(spark, root, table_path(root, name), name)
    commits = history.commits()
    state = state_at(commits, point.covers)
    if state is None:
        raise _too_old(name, point, commits, history.keeps_more)
    if state.is_newest:
        _check_reached(root, name, point, state)
    _check_settled(root, name, point, state)
    history.check(state.version)
    return history.read(spark, state.version)


@dataclass(frozen=True, slots=True)
class _Point:
    """What was asked for; exactly one of the two."""

    position: Position | None
    change_set: int | None

    @classmethod
    def of(cls, position: Position | str | None, change_set: int | None) -> _Point:
        if (position is None) == (change_set is None):
            raise ConfigError("read_at needs either position or change_set", remedy="Give exactly one of them.")
        return cls(decode_position(position) if isinstance(position, str) else position, change_set)

    def __str__(self) -> str:
        return f"position {self.position}" if self.position is not None else f"change set {self.change_set}"

    def covers(self, commit: LogCommit) -> bool:
        """Does the commit bring nothing from after this point?"""
        if self.change_set is not None:
            return commit.upto <= self.change_set
        return commit.position is None or self.compare(commit.position) in (0, 1)

    def compare(self, other: Position) -> int | None:
        """The asked position against another of the source; None if they are not ordered."""
        try:
            return self.position.compare(other) if self.position is not None else None
        except TypeError:
            raise ConfigError(
                f"the table's positions are of kind {other.kind}", remedy=f"Ask for one that reads {other.encode()}."
            ) from None


def _check_reached(root: str, table: TableId, point: _Point, state: LogState) -> None:
    """The newest state stands for later points, too, if the journal has no change of the table up to there."""
    if _is_exactly(point, state.commit):
        return
    metadata = state.commit.metadata or {}
    journal = _journal(root, metadata)
    asked = _number(journal, point) if journal is not None else None
    if journal is None or asked is None:
        raise _not_yet(table, point, state)
    source = TableId.parse(metadata.get("table") or str(table))
    if journal.window(source, max(state.commit.applied or 0, journal.trimmed), asked).segments:
        raise _not_yet(table, point, state)


def _is_exactly(point: _Point, commit: LogCommit) -> bool:
    if point.change_set is not None:
        return commit.applied == point.change_set
    return commit.position is not None and point.compare(commit.position) == 0


def _number(journal: Journal, point: _Point) -> int | None:
    """The last change set that ends at or before a point; None if the journal has not got there."""
    if point.change_set is not None:
        return point.change_set if point.change_set <= journal.head else None
    if journal.end is None or point.compare(journal.end) not in (-1, 0):
        return None
    ends = [commit.number for commit in journal.commits() if point.compare(commit.end) in (0, 1)]
    return max(ends, default=journal.trimmed)


def _check_settled(root: str, table: TableId, point: _Point, state: LogState) -> None:
    """The rows of a copy are of several moments up to ``copied_upto``; from there on the table is exact."""
    copied = state.copied_upto
    if copied is None or (state.commit.position is not None and state.commit.position >= copied):
        return
    asked = point.position
    if point.change_set is not None:
        journal = _journal(root, state.commit.metadata or {})
        retained = journal is not None and journal.trimmed < point.change_set <= journal.head
        asked = journal.position(point.change_set) if journal is not None and retained else None
    if asked is None or not asked >= copied:
        raise LakeError(
            f"table {table} cannot be read at {point}: its rows were copied from the source up to position {copied}",
            remedy=f"Ask for a position at or after position {copied}.",
        )


def _journal(root: str, metadata: object) -> Journal | None:
    """The journal of the pipeline that made the table, where it can be read from here."""
    if "://" in root or not isinstance(metadata, dict):
        return None
    state = Path(root) / STATE_FOLDER / str(metadata["pipeline"])
    return Journal.read(state) if (state / "commits").is_dir() else None


def _not_yet(table: TableId, point: _Point, state: LogState) -> LakeError:
    at = state.commit.position
    return LakeError(
        f"table {table} is not at {point} yet: it has change sets up to {state.commit.applied}"
        + (f", position {at}" if at else ""),
        remedy="Run `lakefeed sync`, then read again; or ask for an earlier position.",
    )


def _too_old(table: TableId, point: _Point, commits: list[LogCommit], keeps_more: str) -> LakeError:
    states = [commit for commit in commits if commit.applied is not None]
    if not states:
        return LakeError(
            f"the table of {table} has no commit of Lakefeed that says what it shows",
            remedy="Check the lake's path and the table's name; a copy that is under way shows nothing yet.",
        )
    first = states[0]
    return LakeError(
        f"table {table} cannot be read at {point}: its log begins with change set {first.applied}"
        + (f", position {first.position}" if first.position else ""),
        remedy="Ask for a later position; " + keeps_more,
    )
