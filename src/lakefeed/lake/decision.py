"""Decisions: the columns that one lake table has been given, by version of the source's schema. Durable.

A decision is on disk before the commit that makes the table so. The commit says which version the table has, the
decision which columns that meant: a policy that is changed later changes nothing of what is there. A version without a
decision is a table with the source's own columns, so most tables have no file at all.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path

from lakefeed.change.segment import Doubt
from lakefeed.change.table import TableId, TableSchema
from lakefeed.durable import make_directory, replace_file
from lakefeed.errors import LakeError
from lakefeed.lake.followed import Fed, Followed
from lakefeed.lake.following import Policy, follow, unsettled
from lakefeed.lake.location import table_path
from lakefeed.lake.projection import lineage

log = logging.getLogger(__name__)


def decisions_file(root: str, pipeline: str, table: TableId) -> Path:
    """Where the decisions of one lake table are: with the rest of the pipeline's state."""
    return Path(table_path(f"{root}/_lakefeed/{pipeline}/decisions", table) + ".json")


class Decisions:
    """``place`` is the table's file. Without one only what needs no decision can be followed: what evolves."""

    def __init__(self, policy: Policy, place: Path | None = None) -> None:
        self._policy = policy
        self._place = place
        self._generation: int | None = None
        self._known: dict[int, Followed] = {}

    def at(self, source: TableSchema, generation: int) -> Followed:
        """The columns that the table has at this version of the source's schema."""
        self._load(generation)
        return self._known.get(source.version) or Followed.plain(source)

    def has(self, version: int, generation: int) -> bool:
        """Does the table differ, at this version, from a table that was just copied?"""
        self._load(generation)
        return version in self._known

    def after(self, path: Sequence[TableSchema], generation: int, doubts: Sequence[Doubt] = ()) -> Followed:
        """The columns that the table is to have at the last schema of ``path``; it is at the first.

        TableStoppedError if the policy does not follow it there. Nothing is decided yet.
        """
        return follow(self.at(path[0], generation), path, self._policy, doubts)

    def decide(
        self, after: Followed, path: Sequence[TableSchema], generation: int, doubts: Sequence[Doubt] = ()
    ) -> None:
        """The table is about to have the columns ``after`` at the last schema of ``path``. Durable; idempotent.

        Tells what is left out, and which values are left as they were, from here on.
        """
        for doubt in unsettled(after, doubts, self._policy):
            log.warning(
                "table %s: %s; rows from before keep what they had, until they change", self._policy.table, doubt.reason
            )
        before, target = self.at(path[0], generation), path[-1]
        if after.is_plain(target) and target.version not in self._known:
            return
        self._known[target.version] = after
        self._save(generation)
        for said in _news(before, after, path):
            log.warning("table %s: %s", self._policy.table, said)

    def _load(self, generation: int) -> None:
        if self._generation == generation:
            return
        self._generation, self._known = generation, {}
        if self._place is None or not self._place.exists():
            return
        try:
            body = json.loads(self._place.read_bytes())
            if body["generation"] == generation:
                self._known = {
                    int(version): Followed(int(version), tuple(Fed.from_json(fed) for fed in columns))
                    for version, columns in body["versions"].items()
                }
        except (ValueError, KeyError, TypeError) as error:
            raise LakeError(
                f"the file {self._place}, which says what the columns of {self._policy.table} are, is damaged: {error}",
                remedy=f"Restore it, or copy the table anew: lakefeed rebuild FILE {self._policy.table} --from-source.",
            ) from error

    def _save(self, generation: int) -> None:
        if self._place is None:
            raise LakeError(f"table {self._policy.table}: there is no place to keep what its columns are")
        versions = {version: [fed.to_json() for fed in one.columns] for version, one in self._known.items()}
        make_directory(self._place.parent)
        data = json.dumps({"generation": generation, "versions": versions}, ensure_ascii=False, indent=1)
        replace_file(self._place, data.encode())


def _news(before: Followed, after: Followed, path: Sequence[TableSchema]) -> Iterator[str]:
    """What a person may miss in the lake table from here on, and did not before."""
    ignored, came_from = before.ignored(path[0]), lineage(path)
    for name in after.ignored(path[-1]):
        if came_from[name] not in ignored:
            yield f"the source's column '{name}' is ignored, as the evolution says"
    known = {fed.column.id: fed for fed in before.columns}
    for fed in after.columns:
        was = known.get(fed.column.id)
        if was is not None and was.is_live and not fed.is_live:
            yield f"column '{fed.column.name}' is kept, and NULL from here on"
        if was is None and fed.column.name != fed.source:
            yield f"column '{fed.column.name}' has the values of the source's '{fed.source}' from here on"
