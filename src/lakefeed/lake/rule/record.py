"""The rule that made a lake table, and how many values it has changed. Durable, one small file for each table.

The table itself does not record its rule. The file says which rule made the rows of a generation: so Lakefeed notices a
changed rule, and whoever reads the table with the journal's changes on top can apply the same one. A table without a
rule has no file, unless it has counts. The file has no secrets: of a rule with secrets it has the fingerprint alone.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lakefeed.change.mask import KEYED
from lakefeed.change.table import TableId
from lakefeed.errors import LakeError, TableStoppedError
from lakefeed.lake.location import table_path
from lakefeed.lake.rule.rows import RowRule
from lakefeed.storage.base import Storage, StoredFile
from lakefeed.storage.local import LocalStorage


@dataclass(frozen=True, slots=True)
class RecordedRule:
    """The content of the file. ``rule`` is None if it has secrets; ``touched`` counts changed values, and rows left
    out."""

    generation: int
    fingerprint: str
    described: str
    rule: RowRule | None
    touched: Mapping[str, int]


def rule_file(lake: Storage, pipeline: str, table: TableId) -> StoredFile:
    """The file with the rule of one lake table: in the lake, in the folder of the pipeline that made the table."""
    return StoredFile(lake.below(), table_path(f"_lakefeed/{pipeline}/rules", table) + ".json")


def read_rule(place: StoredFile | Path) -> RecordedRule | None:
    data = _stored(place).read()
    if data is None:
        return None
    try:
        body: dict[str, Any] = json.loads(data)
    except ValueError as error:
        raise LakeError(
            f"the file {place}, which records the rule that made a lake table, is damaged: {error}",
            remedy="Restore it, or copy the table again with lakefeed rebuild FILE TABLE --from-source.",
        ) from error
    rule = RowRule.from_json(body["rule"]) if body["rule"] is not None else None
    return RecordedRule(body["generation"], body["fingerprint"], body["described"], rule, body["touched"])


def _stored(place: StoredFile | Path) -> StoredFile:
    return StoredFile(LocalStorage(place.parent), place.name) if isinstance(place, Path) else place


class TableRule:
    """The configuration's rule for one lake table, beside the recorded one. ``place`` is the file."""

    def __init__(self, rule: RowRule, table: TableId, place: StoredFile | Path | None = None) -> None:
        self.rule = rule
        self._table = table
        self._file = _stored(place) if place is not None else None
        self._known: RecordedRule | None = None
        self._is_read = False
        self.required: int | None = None
        """The generation whose rows this rule has made, as ``require`` has checked."""

    def newest(self) -> RecordedRule | None:
        """The record of the table's newest generation; None: its rows are the source's."""
        if not self._is_read and self._file is not None:
            self._known, self._is_read = read_rule(self._file), True
        return self._known

    def recorded(self, generation: int) -> RecordedRule | None:
        """The record of one generation; None if the file has another, or none."""
        known = self.newest()
        return known if known is not None and known.generation == generation else None

    def begin(self, generation: int) -> None:
        """Record that the rule makes the rows of this generation. Idempotent; durable."""
        if self._file is None:
            return
        if self.rule.is_empty:
            self._file.storage.remove([self._file.name])
            self._known, self._is_read = None, True
        elif self.recorded(generation) is not None:
            self.require(generation)
        else:
            self._save(generation, {})

    def require(self, generation: int) -> None:
        """TableStoppedError if another rule than the configuration's has made the rows."""
        known = self.recorded(generation)
        made_by = known.fingerprint if known is not None else RowRule().fingerprint
        mine = RowRule().fingerprint if self.rule.is_empty else self.rule.fingerprint
        if self._file is not None and made_by != mine:
            was = known.described if known is not None else RowRule().describe()
            now = self.rule.describe()
            change = f"from '{was}' to '{now}'" if was != now else f"in a hidden part of '{now}', such as the salt"
            raise TableStoppedError(
                f"table {self._table}: its rule has changed since it was copied, {change}",
                remedy=f"Put the rule back, or copy the table again: lakefeed rebuild FILE {self._table} --from-source",
                table=str(self._table),
            )
        self.required = generation

    def add(self, generation: int, touched: Mapping[str, int]) -> None:
        """Count what a commit changed. Without fsync: a crash may lose the count of one commit, and no row.

        A table without a rule gets a file once ``out_of_range`` has replaced one of its values.
        """
        known = self.recorded(generation)
        if any(touched.values()) and (known is not None or self.rule.is_empty):
            before = known.touched if known is not None else {}
            self._save(generation, Counter(before) + Counter(touched), fsync=False)

    def touched(self, generation: int) -> Mapping[str, int]:
        """The counts of a generation. Reads the file again: another process may count."""
        self._is_read = False
        known = self.recorded(generation)
        return known.touched if known is not None else {}

    def _save(self, generation: int, touched: Mapping[str, int], *, fsync: bool = True) -> None:
        if self._file is None:
            return
        rule = self.rule
        is_secret = rule.has_secrets or any(kind in KEYED for _, kind in rule.mask)
        body = {
            "generation": generation,
            "fingerprint": rule.fingerprint,
            "described": rule.describe(),
            "rule": None if is_secret else rule.to_json(),
            "touched": dict(touched),
        }
        data = json.dumps(body, ensure_ascii=False, indent=1).encode()
        (self._file.storage if fsync else self._file.storage.without_fsync()).replace(self._file.name, data)
        self._known, self._is_read = read_rule(self._file), True
