"""A lake table as it was at a position of the source: ``read_at``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lakefeed.change.position import Position, decode_position
from lakefeed.change.table import TableId
from lakefeed.errors import ConfigError, LakeError
from lakefeed.lake.history import LogCommit, LogState, state_at
from lakefeed.reading.moment import AnyLake, ReadLake, ReadPipeline

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def read_at(
    spark: SparkSession,
    lake: AnyLake,
    table: str,
    *,
    position: Position | str | None = None,
    change_set: int | None = None,
) -> DataFrame:
    """A table of the lake as it was at a position of the source, or at the end of a change set.

    ``lake`` is the lake's path, whatever the format of its tables, or the lake itself: ``Iceberg(spark, path,
    catalog=…)`` for tables in a catalog. A position is a value or its encoded text, ``sqlite=8@1794778483365``, as in
    the column ``_lakefeed_position``; one inside a change set reads as the end of the previous one.

    If a merge ended at that point, this is a version of the table, and needs no journal. Otherwise it is the version
    before it, with the journal's change sets on top, merged or not. LakeError with the reason if one of the two is
    gone, if the journal does not reach that point, or if the rows of the table's copy were read at several moments
    after it.
    """
    point, name, place = _Point.of(position, change_set), TableId.parse(table), ReadLake.of(spark, lake)
    if "://" not in place.root and (parts := _union(place, name)) is not None:
        return parts.at(name, parts.change_set(point.change_set if point.change_set is not None else point.position))
    history = place.history(name)
    commits = history.commits()
    state = state_at(commits, point.covers)
    if state is None:
        raise _too_old(name, point, commits, history.keeps_more)
    applied, metadata = state.commit.applied or 0, state.commit.metadata or {}
    exact = point.is_exactly(state.commit)
    pipeline = _pipeline(place, metadata)
    number = None if exact else _number(pipeline, name, point, state)
    _check_settled(pipeline, name, point, state)
    if number is None or number <= applied or pipeline is None:
        history.check(state.version)
        return history.read(spark, state.version)
    return pipeline.at(name, number)


@dataclass(frozen=True, slots=True)
class _Point:
    """What was asked for: exactly one of the two."""

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
        """Whether the commit contains nothing from after this point."""
        if self.change_set is not None:
            return commit.upto <= self.change_set
        return commit.position is None or self.compare(commit.position) in (0, 1)

    def compare(self, other: Position) -> int | None:
        """The requested position compared with another one of the source; None if they are not ordered."""
        try:
            return self.position.compare(other) if self.position is not None else None
        except TypeError:
            raise self.other_kind(other) from None

    def is_exactly(self, commit: LogCommit) -> bool:
        """Whether the commit ended at this very point."""
        if self.change_set is not None:
            return commit.applied == self.change_set
        return commit.position is not None and self.compare(commit.position) == 0

    @staticmethod
    def other_kind(own: Position | None) -> ConfigError:
        kind, text = (own.kind, own.encode()) if own is not None else ("no kind", "nothing")
        return ConfigError(f"the table's positions are of kind {kind}", remedy=f"Ask for one that reads {text}.")


def _pipeline(lake: ReadLake, metadata: Mapping[str, Any]) -> ReadPipeline | None:
    """The pipeline that made the table, if its journal can be read."""
    if "://" in lake.root or not metadata:
        return None
    try:
        return lake.pipeline(str(metadata["pipeline"]))
    except (ConfigError, LakeError):
        return None


def _union(lake: ReadLake, table: TableId) -> ReadPipeline | None:
    """The pipeline of a table that is a union; None for every other table."""
    try:
        pipeline = lake.pipeline_of(table)
    except (ConfigError, LakeError):
        return None
    return pipeline if pipeline.parts(table) else None


def _number(pipeline: ReadPipeline | None, table: TableId, point: _Point, state: LogState) -> int:
    """The change set for a point between two merges. LakeError if the journal does not have it."""
    if pipeline is None:
        raise LakeError(
            f"table {table} cannot be read at {point}: no merge ended there, and its journal cannot be read from here",
            remedy=f"Ask for a point that a version of the table was made at; one before it is {_reached(state)}.",
        )
    try:
        return pipeline.change_set(point.change_set if point.change_set is not None else point.position)
    except LakeError as error:
        raise LakeError(f"table {table} cannot be read at {point}: {error.message}", remedy=error.remedy) from error
    except TypeError:
        raise _Point.other_kind(pipeline.journal.end) from None


def _check_settled(pipeline: ReadPipeline | None, table: TableId, point: _Point, state: LogState) -> None:
    """The rows of a copy come from several moments up to ``copied_upto``; from there on the table is exact."""
    copied = state.copied_upto
    if copied is None or (state.commit.position is not None and state.commit.position >= copied):
        return
    asked = point.position
    if point.change_set is not None and pipeline is not None:
        journal = pipeline.journal
        retained = journal.trimmed < point.change_set <= journal.head
        asked = journal.position(point.change_set) if retained else None
    if asked is None or not asked >= copied:
        raise LakeError(
            f"table {table} cannot be read at {point}: its rows were copied from the source up to position {copied}",
            remedy=f"Ask for a position at or after position {copied}.",
        )


def _reached(state: LogState) -> str:
    at = state.commit.position
    return f"change set {state.commit.applied}" + (f", position {at}" if at else "")


def _too_old(table: TableId, point: _Point, commits: list[LogCommit], keeps_more: str) -> LakeError:
    states = [commit for commit in commits if commit.applied is not None]
    if not states:
        return LakeError(
            f"table {table} has no commit that says which change sets it has",
            remedy="Check the lake's path and the table's name; a copy that is under way shows nothing yet.",
        )
    first = states[0]
    return LakeError(
        f"table {table} cannot be read at {point}: its log begins with change set {first.applied}"
        + (f", position {first.position}" if first.position else ""),
        remedy="Ask for a later position; " + keeps_more,
    )
