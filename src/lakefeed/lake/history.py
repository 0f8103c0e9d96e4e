"""Which version of a lake table shows which position of the source, by the change sets that its commits record.

The same for every format: each gives its commits (``TableHistory``), with Lakefeed's note in them. A commit of Lakefeed
without an applied number changed columns alone, or belongs to a copy that was not complete yet. Commits of others
(compaction) do not change the rows.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from lakefeed.change.position import Position, decode_position, highest

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_NOTED = {"pipeline", "generation", "change_sets", "position"}


@dataclass(frozen=True, slots=True, kw_only=True)
class LogCommit:
    """One commit of the table. ``version`` is the format's number for it, ``metadata`` Lakefeed's note, if any."""

    version: int
    metadata: Mapping[str, Any] | None = None
    applied: int | None = None

    @property
    def upto(self) -> int:
        return int(self.metadata["change_sets"]["upto"]) if self.metadata else 0

    @property
    def position(self) -> Position | None:
        text = self.metadata["position"] if self.metadata else None
        return decode_position(text) if text else None

    @property
    def copied_upto(self) -> Position | None:
        """The newest position at which the copy read rows."""
        copy = (self.metadata or {}).get("copy")
        return decode_position(copy["high"]) if copy and copy["high"] else None

    @property
    def read_at_once(self) -> bool:
        """Is this the last commit of a copy that read its rows exactly at the position that it records?"""
        return self.copied_upto is not None and self.copied_upto == self.position

    @property
    def is_partial_copy(self) -> bool:
        return bool(self.metadata) and "copy" in (self.metadata or {}) and self.applied is None


@dataclass(frozen=True, slots=True, kw_only=True)
class LogState:
    """The rows of a table from ``commit`` on. ``version`` is the newest version that has them.

    ``is_newest``: Lakefeed has committed nothing after it. ``copied_upto``: before this position the rows of the copy
    are not all of one moment.
    """

    version: int
    commit: LogCommit
    is_newest: bool
    copied_upto: Position | None


class TableHistory(Protocol):
    """The versions of one lake table, in one format. ``commits`` and ``check`` start no JVM."""

    @property
    def keeps_more(self) -> str:
        """What an operator changes to keep older versions: the end of a sentence."""

    def commits(self) -> list[LogCommit]:
        """The commits that the table still has, oldest first. LakeError if there is no such table."""

    def check(self, version: int) -> None:
        """LakeError if that version is not readable any more. Spark would say so in pages, and only when it reads."""

    def read(self, spark: SparkSession, version: int) -> DataFrame:
        """The rows of one version."""


def state_at(commits: Sequence[LogCommit], within: Callable[[LogCommit], bool]) -> LogState | None:
    """The newest state whose commit satisfies ``within``; None if the log has none."""
    version: int | None = None
    newer = False
    for index in range(len(commits) - 1, -1, -1):
        commit = commits[index]
        if commit.metadata is not None and (commit.is_partial_copy or not within(commit)):
            version, newer = None, True
            continue
        version = commit.version if version is None else version
        if commit.applied is not None:
            copied = _copied_upto(commits[: index + 1])
            return LogState(version=version, commit=commit, is_newest=not newer, copied_upto=copied)
    return None


def exact_states(commits: Sequence[LogCommit], generation: int) -> list[LogCommit]:
    """The commits of one generation after which all rows are of one moment, oldest first."""
    own = [commit for commit in commits if commit.metadata and commit.metadata["generation"] == generation]
    copied: Position | None = None
    for commit in own:
        copied = highest(copied, commit.copied_upto)
    return [
        commit
        for commit in own
        if commit.applied is not None
        and (copied is None or commit.read_at_once or (commit.position is not None and commit.position >= copied))
    ]


def noted(text: Any) -> Mapping[str, Any] | None:
    """Lakefeed's note in a commit, if the text is one."""
    try:
        data = json.loads(text)
    except (TypeError, ValueError):
        return None
    return data if isinstance(data, dict) and data.keys() >= _NOTED else None


def _copied_upto(commits: Sequence[LogCommit]) -> Position | None:
    """The newest position of the copy that the last of ``commits`` builds on."""
    generation = (commits[-1].metadata or {}).get("generation")
    high: Position | None = None
    for commit in reversed(commits):
        if commit.metadata is not None and commit.metadata["generation"] != generation:
            break
        high = highest(high, commit.copied_upto)
    return high
