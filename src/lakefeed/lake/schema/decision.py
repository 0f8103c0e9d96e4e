"""Decisions: the column mapping of one lake table, by version of the source's schema. Durable.

A decision is on disk before the commit that applies it. The commit records the table's schema version, the decision
which columns that means. So a policy that changes later changes nothing of the columns that exist. A version without a
decision has the source's own columns, so most tables have no file.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from pathlib import Path

from lakefeed.change.segment import StaleReason
from lakefeed.change.table import TableId, TableSchema
from lakefeed.durable import pack, unpack
from lakefeed.errors import JournalDamagedError, LakeError
from lakefeed.lake.location import table_path
from lakefeed.lake.schema.evolve import evolved, unsettled
from lakefeed.lake.schema.mapping import ColumnMapping, MappedColumn
from lakefeed.lake.schema.policy import Policy
from lakefeed.lake.schema.projection import lineage
from lakefeed.storage.base import Storage, StoredFile
from lakefeed.storage.local import LocalStorage

log = logging.getLogger(__name__)


def decisions_file(lake: Storage, pipeline: str, table: TableId) -> StoredFile:
    """The file with the decisions of one lake table: in the lake, in the folder of the pipeline that made the table."""
    return StoredFile(lake.below(), table_path(f"_lakefeed/{pipeline}/decisions", table) + ".json")


class Decisions:
    """``file`` keeps the decisions. Without one, only changes that need no decision are possible."""

    def __init__(self, policy: Policy, file: StoredFile | Path | None = None) -> None:
        self._policy = policy
        self._file = StoredFile(LocalStorage(file.parent), file.name) if isinstance(file, Path) else file
        self._generation: int | None = None
        self._known: dict[int, ColumnMapping] = {}

    def get(self, version: int, generation: int) -> ColumnMapping | None:
        """The decision for this version of the source's schema; None: the table has the source's own columns."""
        if self._generation != generation:
            self._load(generation)
        return self._known.get(version)

    def at(self, source: TableSchema, generation: int) -> ColumnMapping:
        """The columns that the table has at this version of the source's schema."""
        return self.get(source.version, generation) or ColumnMapping.plain(source)

    def after(self, path: Sequence[TableSchema], generation: int, stale: Sequence[StaleReason] = ()) -> ColumnMapping:
        """The columns for the last schema of ``path``; the table is at the first. Decides nothing yet.

        TableStoppedError if the policy does not allow this evolution.
        """
        return evolved(self.at(path[0], generation), path, self._policy, stale)

    def decide(
        self, after: ColumnMapping, path: Sequence[TableSchema], generation: int, stale: Sequence[StaleReason] = ()
    ) -> None:
        """Record that the table gets the columns ``after`` at the last schema of ``path``. Durable; idempotent.

        Logs which columns are ignored, and which values stay as they were, from now on.
        """
        for reason in unsettled(after, stale, self._policy):
            log.warning(
                "table %s: %s; older rows keep their values until they change",
                self._policy.table,
                reason.reason,
            )
        before, target = self.at(path[0], generation), path[-1]
        if after.is_plain(target) and target.version not in self._known:
            return
        self._known[target.version] = after
        if self._file is None:
            raise LakeError(f"table {self._policy.table}: there is no file to keep its column mapping")
        versions = {
            str(version): [one.to_json() for one in mapping.columns] for version, mapping in self._known.items()
        }
        self._file.replace(pack({"generation": generation, "versions": versions}))

        # Log what people may miss in the lake table from now on.
        ignored, came_from = before.ignored(path[0]), lineage(path)
        for name in after.ignored(target):
            if came_from[name] not in ignored:
                log.warning(
                    "table %s: ignores the source's column '%s', as the evolution says", self._policy.table, name
                )
        known = {mapped.column.id: mapped for mapped in before.columns}
        for mapped in after.columns:
            was, name = known.get(mapped.column.id), mapped.column.name
            if was is not None and was.is_live and not mapped.is_live:
                log.warning("table %s: keeps column '%s', which is NULL from now on", self._policy.table, name)
            if was is None and name != mapped.source:
                text = "table %s: column '%s' has the values of the source's '%s' from now on"
                log.warning(text, self._policy.table, name, mapped.source)

    def _load(self, generation: int) -> None:
        self._generation, self._known = generation, {}
        data = self._file.read() if self._file is not None else None
        if data is None:
            return
        try:
            body = json.loads(data)
            if "sha256" in body:  # files of earlier versions have none
                body = unpack(data, str(self._file))
            if body["generation"] == generation:
                self._known = {
                    int(version): ColumnMapping(int(version), tuple(MappedColumn.from_json(one) for one in columns))
                    for version, columns in body["versions"].items()
                }
        except (ValueError, KeyError, TypeError, AttributeError, JournalDamagedError) as error:
            raise LakeError(
                f"the file {self._file}, which keeps the column mapping of {self._policy.table}, is damaged: {error}",
                remedy="Restore it, or copy the table again: "
                f"lakefeed rebuild FILE {self._policy.table} --from-source.",
            ) from error
