"""How a lake table's columns follow the source's schema changes. Pure.

One version at a time, so that a column that was dropped and added again is a new one. The policy says what each change
does. If it stops one, TableStoppedError says what to do, and no change of the whole path is done.

This module settles stale reasons (``change.segment.StaleReason``), too, after every choice ``stop``:
- for all rows: Lakefeed copies the table again.
- for columns of rows from before a schema change: a mirror must equal the source, so Lakefeed copies it again, unless
  no lake column takes these values on (the column is ignored, or the new type got a column of its own). History and
  change log keep what was captured. A copy would end them, so they go on with the values they have.

A lake column has its source column's name, unless another lake column has that already (a kept one, or one renamed this
way). Then it gets the first free one of ``name__2``, ``name__3`` and so on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import count, pairwise

from lakefeed.change.schema_change import origins
from lakefeed.change.segment import StaleReason
from lakefeed.change.table import Column, TableSchema
from lakefeed.errors import RebuildNeededError, TableStoppedError
from lakefeed.lake.schema.mapping import ColumnMapping, MappedColumn, new_column
from lakefeed.lake.schema.policy import CHOICES, Policy
from lakefeed.lake.schema.widening import holds


def evolved(
    before: ColumnMapping, path: Sequence[TableSchema], policy: Policy, stale: Sequence[StaleReason] = ()
) -> ColumnMapping:
    """The columns at the last schema of ``path``, for a table that has ``before`` at the first.

    ``stale`` are the stale reasons on the path. RebuildNeededError: only a new copy can bring the table there.
    """
    for reason in stale:
        if reason.columns is None:
            # A copy, unless the policy stops one of the changes. A table that the source re-created shares no column
            # ids with the one before, so its columns are compared by name.
            old, new = path[0], path[-1]
            ids = {column.id for column in old.columns if column.id is not None}
            if ids and not any(column.id in ids for column in new.columns):
                plain = [tuple(replace(column, id=None) for column in one.columns) for one in (old, new)]
                old, new = replace(old, columns=plain[0]), replace(new, columns=plain[1])
            with suppress(RebuildNeededError):
                _Change(before, old, new, policy, is_copied=True).mapping()
            raise _rebuild_needed(policy, reason.reason)
    for old, new in pairwise(path):
        change = _Change(before, old, new, policy)
        before = change.mapping()
        for reason in stale:
            if old.version < reason.version <= new.version:
                change.settle(reason, before)
    return before


def unsettled(after: ColumnMapping, stale: Sequence[StaleReason], policy: Policy) -> list[StaleReason]:
    """The stale reasons that the table keeps: its older rows keep values that the source may not have any more."""
    if policy.mode.equals_source:
        return []
    return [one for one in stale if any(_takes_on(after, one.version, name) for name in one.columns or ())]


def _takes_on(after: ColumnMapping, version: int, name: str) -> bool:
    """Does a lake column also have this source column's values in rows from before ``version``?"""
    mapped = after.live.get(name)
    return mapped is not None and mapped.since != version


def _rebuild_needed(policy: Policy, problem: str) -> RebuildNeededError:
    return RebuildNeededError(
        f"table {policy.table}: {problem}",
        remedy="The next sync copies it again by itself.",
        table=str(policy.table),
    )


class _Change:
    """One version to the next. ``is_copied``: Lakefeed copies the table again, so only a choice ``stop`` matters."""

    def __init__(
        self, before: ColumnMapping, old: TableSchema, new: TableSchema, policy: Policy, *, is_copied: bool = False
    ) -> None:
        self._before = before
        self._old = old
        self._new = new
        self._policy = policy
        self._is_copied = is_copied
        self._evolution = policy.evolution.for_mode(policy.mode)
        self._origin = origins(old, new)
        self._became = {was: name for name, was in self._origin.items() if was is not None}

    def mapping(self) -> ColumnMapping:
        """The columns after the change: in the source's order, without those that the policy drops or ignores."""
        old, new = self._old, self._new
        key = tuple(self._became.get(name) for name in old.key)
        if key != new.key and self._policy.mode.uses_key:
            raise self._key_changed(f"the key changed from ({', '.join(old.key)}) to ({', '.join(new.key)})")

        # Columns that lose their source now, or had none before: kept or dropped.
        kept: list[MappedColumn] = []
        for mapped in self._before.columns:
            name = self._became.get(mapped.source) if mapped.is_live else None
            if not mapped.is_live:
                kept.append(mapped)
            elif name is not None:
                kept += [replace(mapped, until=old.version)] if self._is_replaced(mapped, name) else []
            elif self._evolution.drop_column == "stop":
                raise self._stopped("drop_column", f"column '{mapped.source}' was dropped")
            elif self._evolution.drop_column == "keep":
                self._refuse_without_key("drop_column", f"column '{mapped.source}' was dropped")
                kept.append(replace(mapped, until=old.version))

        # Columns with a source, in the order of the new schema.
        found: list[MappedColumn] = []
        live = self._before.live
        for column in new.columns:
            was = self._origin[column.name]
            if was is None:
                if self._evolution.add_column == "stop":
                    raise self._stopped("add_column", f"column '{column.name}' ({column.type}) was added")
                if self._evolution.add_column != "ignore":
                    found.append(MappedColumn(new_column(column, new.version), column.name))
            elif was in live:
                found.append(self._continued(live[was], was, column))

        # Columns without a source stay behind the columns that they were behind.
        order = [one.column.id for one in self._before.columns]
        for one in kept:
            ahead = set(order[: order.index(one.column.id)])
            last = max((index for index, other in enumerate(found, 1) if other.column.id in ahead), default=0)
            found.insert(last, one)
        return ColumnMapping(new.version, self._named(found))

    def settle(self, reason: StaleReason, after: ColumnMapping) -> None:
        """Settle the stale columns of a table that has the columns ``after`` from now on."""
        # A column renamed in the same change set counts as taken on: rather one copy too many.
        taken_on = [
            name
            for name in reason.columns or ()
            if name not in self._new.names or _takes_on(after, reason.version, name)
        ]
        retyped = [name for name in taken_on if self._origin.get(name) is not None]
        if retyped and self._evolution.widen_type == "stop":
            raise self._stopped("widen_type", reason.reason)
        if taken_on and self._policy.mode.equals_source:
            raise _rebuild_needed(self._policy, reason.reason)

    def _continued(self, mapped: MappedColumn, was: str, column: Column) -> MappedColumn:
        """A column that keeps its source, maybe under another name or type."""
        if was != column.name and self._evolution.rename_column == "stop":
            raise self._stopped("rename_column", f"column '{was}' is now called '{column.name}'")
        if self._is_replaced(mapped, column.name):
            fresh = replace(new_column(column, self._new.version), default=None)
            return MappedColumn(fresh, column.name, since=self._new.version)
        if mapped.column.type != column.type and self._evolution.widen_type == "stop":
            raise self._stopped("widen_type", self._retyped(mapped, column))
        name = column.name if was != column.name else mapped.column.name
        return replace(mapped, column=replace(column, name=name, id=mapped.column.id), source=column.name)

    def _is_replaced(self, mapped: MappedColumn, name: str) -> bool:
        """Does another lake column take the values from now on, because this one's type does not hold them?"""
        column = self._new.column(name)
        if holds(column.type, mapped.column.type):
            return False
        if name in self._new.key and self._policy.mode.uses_key:
            raise self._key_changed(self._retyped(mapped, column) + ", and it is part of the key")
        if self._evolution.change_type == "stop":
            raise self._stopped("change_type", self._retyped(mapped, column))
        if self._evolution.change_type == "rebuild":
            raise _rebuild_needed(self._policy, self._retyped(mapped, column))
        self._refuse_without_key("change_type", self._retyped(mapped, column))
        return True

    def _named(self, columns: Sequence[MappedColumn]) -> tuple[MappedColumn, ...]:
        """The columns under unique names. Columns keep names that they have; Spark ignores upper and lower case.

        Two source columns that differ only in case keep their names, and Lakefeed refuses them as in a copy.
        """
        given = {one.column.id: one.column.name for one in self._before.columns}
        stays = {one.column.id for one in columns if given.get(one.column.id) == one.column.name}
        taken = {one.column.name.lower() for one in columns if one.column.id in stays}
        wanted = Counter(name.lower() for name in self._new.names)
        found: list[MappedColumn] = []
        for mapped in columns:
            name = mapped.column.name
            if mapped.column.id not in stays and wanted[name.lower()] < 2:
                if name.lower() in taken:  # the first numbered form that no column has or is about to ask for
                    forms = (f"{name}__{number}" for number in count(2))
                    name = next(form for form in forms if form.lower() not in taken and form.lower() not in wanted)
                taken.add(name.lower())
            found.append(replace(mapped, column=replace(mapped.column, name=name)))
        return tuple(found)

    def _refuse_without_key(self, kind: str, problem: str) -> None:
        """TableStoppedError without a key: Lakefeed matches such rows by all their values, which this column lacks."""
        if self._new.key or self._is_copied or not self._policy.mode.uses_key:
            return
        raise TableStoppedError(
            f"table {self._policy.table}: {problem}; {kind}: {getattr(self._evolution, kind)} is not possible, because "
            "the table has no key, so Lakefeed matches its rows by all their values",
            remedy=f"Give {self._new.table} a primary key, or copy the table again: {self._rebuild()}.",
            table=str(self._policy.table),
        )

    def _stopped(self, kind: str, problem: str) -> TableStoppedError:
        then = "is then copied again" if self._is_copied or kind == "change_key" else "then goes on where it stopped"
        others = " or ".join(choice for choice in CHOICES[kind] if choice != "stop")
        return TableStoppedError(
            f"table {self._policy.table}: {problem}, and its evolution says {kind}: stop",
            remedy=f"Set evolution.{kind} to {others} and start again: the table {then}. "
            f"Or copy it again: {self._rebuild()}.",
            table=str(self._policy.table),
        )

    def _key_changed(self, problem: str) -> TableStoppedError:
        if self._evolution.change_key == "stop":
            return self._stopped("change_key", problem)
        return _rebuild_needed(self._policy, problem)

    def _rebuild(self) -> str:
        return f"lakefeed rebuild FILE {self._policy.table} --from-source"

    def _retyped(self, mapped: MappedColumn, column: Column) -> str:
        return f"column '{column.name}' changed from {mapped.column.type} to {column.type}"
