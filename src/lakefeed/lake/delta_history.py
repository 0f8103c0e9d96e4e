"""What a Delta table's commits say of change sets: which version of the table shows which place of the source.

The applied number is a transaction of the commit itself (see ``lake.delta_log``), so it is there exactly when the
rows are. A commit of Lakefeed without one changed only columns, or is a part of a copy that was not complete yet.
Commits of others (OPTIMIZE, VACUUM) do not change what the table shows.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyarrow import fs

from lakefeed.change.position import Position, decode_position, highest
from lakefeed.change.table import TableId
from lakefeed.errors import LakeError
from lakefeed.lake.delta_log import AppIds
from lakefeed.lake.location import filesystem

_COMMIT = re.compile(r"(\d{20})\.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class LogCommit:
    """One commit of the table. ``metadata`` is None if it is not Lakefeed's."""

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
        """The newest position at which rows of a copy were read."""
        seed = (self.metadata or {}).get("seed")
        return decode_position(seed["high"]) if seed and seed["high"] else None

    @property
    def read_at_once(self) -> bool:
        """Is this the last commit of a copy that was read at the very position it is recorded for?"""
        return self.copied_upto is not None and self.copied_upto == self.position

    @property
    def is_partial_copy(self) -> bool:
        return bool(self.metadata) and "seed" in (self.metadata or {}) and self.applied is None


@dataclass(frozen=True, slots=True, kw_only=True)
class LogState:
    """What a table shows from ``commit`` on. ``version`` is the newest one that shows it.

    ``is_newest``: Lakefeed has committed nothing after it. ``copied_upto``: up to there the rows of the copy are not
    all from one moment.
    """

    version: int
    commit: LogCommit
    is_newest: bool
    copied_upto: Position | None


def read_log(path: str, table: TableId) -> list[LogCommit]:
    """The commits that the table's log still has, oldest first. LakeError if there is no Delta table."""
    system, place = filesystem(path)
    found = system.get_file_info(fs.FileSelector(f"{place}/_delta_log", allow_not_found=True))
    files = sorted((match[1], info.path) for info in found if (match := _COMMIT.fullmatch(info.base_name)))
    if not files:
        raise LakeError(
            f"there is no Delta table of {table} at {path}",
            remedy="Correct the lake's path or the table's name; read_at knows tables of format delta.",
        )
    return [_commit(int(version), _lines(system, file), table) for version, file in files]


def state_at(commits: Sequence[LogCommit], within: Callable[[LogCommit], bool]) -> LogState | None:
    """The newest state whose commit is ``within`` what is asked for; None if the log has none."""
    version: int | None = None
    newer = False
    for place in range(len(commits) - 1, -1, -1):
        commit = commits[place]
        if commit.metadata is not None and (commit.is_partial_copy or not within(commit)):
            version, newer = None, True
            continue
        version = commit.version if version is None else version
        if commit.applied is not None:
            copied = _copied_upto(commits[: place + 1])
            return LogState(version=version, commit=commit, is_newest=not newer, copied_upto=copied)
    return None


def exact_states(commits: Sequence[LogCommit], generation: int) -> list[LogCommit]:
    """The commits of one life of the table after which its rows are all of one moment, oldest first."""
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


def _copied_upto(commits: Sequence[LogCommit]) -> Position | None:
    """Over all commits of the copy that the last of ``commits`` stands on."""
    generation = (commits[-1].metadata or {}).get("generation")
    high: Position | None = None
    for commit in reversed(commits):
        if commit.metadata is not None and commit.metadata["generation"] != generation:
            break
        high = highest(high, commit.copied_upto)
    return high


def _lines(system: fs.FileSystem, path: str) -> list[dict[str, Any]]:
    with system.open_input_stream(path) as stream:
        return [json.loads(line) for line in stream.read().splitlines() if line.strip()]


def _commit(version: int, actions: Sequence[Mapping[str, Any]], table: TableId) -> LogCommit:
    information: Mapping[str, Any] = next((action["commitInfo"] for action in actions if "commitInfo" in action), {})
    metadata = _metadata(information.get("userMetadata"))
    if metadata is None:
        return LogCommit(version=version)
    recorded = {action["txn"]["appId"]: action["txn"]["version"] for action in actions if "txn" in action}
    ids = AppIds(f"lakefeed/{metadata['pipeline']}/{table}", metadata["generation"])
    return LogCommit(version=version, metadata=metadata, applied=recorded.get(ids.applied))


def _metadata(text: Any) -> Mapping[str, Any] | None:
    """Lakefeed's note, if the text is one."""
    try:
        data = json.loads(text)
    except (TypeError, ValueError):
        return None
    wanted = {"pipeline", "generation", "change_sets", "position"}
    return data if isinstance(data, dict) and wanted <= data.keys() else None
