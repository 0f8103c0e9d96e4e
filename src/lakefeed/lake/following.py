"""Following: from the columns that a lake table has, along the source's schema changes, to those it is to have. Pure.

One step per version, so that a column that was dropped and added again is a new one. Every change is either followed as
the policy says or raises TableStoppedError with what to do; then nothing of the whole way is done.

Doubts (``change.segment.Doubt``) are settled here, too, and a choice ``stop`` comes before any of it:
- about all rows: the table is copied anew.
- about columns of rows from before a schema change: a mirror must equal the source and is copied anew, unless none of
  its columns takes these values on (the column is ignored, or the new type got a column of its own). History and change
  log tell what was captured; a copy would end them, so they go on with the values they have.

A name in the lake table is the source's unless another column of the lake table has it already (one that was kept, or
one that got it this way): then it is the first free one of ``name__2``, ``name__3`` and so on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from itertools import count, pairwise

from lakefeed.change.schema_change import origins
from lakefeed.change.segment import Doubt
from lakefeed.change.table import Column, TableId, TableSchema
from lakefeed.errors import RebuildNeededError, TableStoppedError
from lakefeed.lake.followed import Fed, Followed, born
from lakefeed.lake.mode import Append, Mirror, Mode
from lakefeed.lake.policy import Evolution, others
from lakefeed.lake.widening import holds


@dataclass(frozen=True, slots=True)
class Policy:
    """What one lake table follows. ``table`` is its name in the lake."""

    table: TableId
    mode: Mode
    evolution: Evolution = field(default_factory=Evolution)


def follow(before: Followed, path: Sequence[TableSchema], policy: Policy, doubts: Sequence[Doubt] = ()) -> Followed:
    """The columns at the last schema of ``path``, of a table that has ``before`` at the first.

    ``doubts`` are those that come with the way. RebuildNeededError: the table can only be copied anew.
    """
    for doubt in doubts:
        if doubt.columns is None:
            raise _copied_anew(before, path, policy, doubt)
    for old, new in pairwise(path):
        step = _Step(before, old, new, policy)
        after = step.followed()
        for doubt in doubts:
            if old.version < doubt.version <= new.version:
                step.settle(doubt, after)
        before = after
    return before


def unsettled(after: Followed, doubts: Sequence[Doubt], policy: Policy) -> list[Doubt]:
    """The doubts that a table goes on with: its rows from before keep values that the source may not have any more."""
    if isinstance(policy.mode, Mirror):
        return []
    return [doubt for doubt in doubts if any(_takes_on(after, doubt.version, name) for name in doubt.columns or ())]


def _copied_anew(before: Followed, path: Sequence[TableSchema], policy: Policy, doubt: Doubt) -> TableStoppedError:
    """What a doubt about all rows comes to: a copy, unless the schema changed in a way that is to stop the table."""
    step = _Step(before, *_comparable(path[0], path[-1]), policy, is_copied=True)
    try:
        step.followed()
    except RebuildNeededError:
        pass
    except TableStoppedError as stopped:
        return stopped
    return _rebuild_needed(policy, doubt.reason)


def _comparable(old: TableSchema, new: TableSchema) -> tuple[TableSchema, TableSchema]:
    """Columns of a table that was made anew are known by their names: it shares no ids with the one before."""
    ids = {column.id for column in old.columns if column.id is not None}
    if not ids or any(column.id in ids for column in new.columns):
        return old, new
    plain = [
        replace(schema, columns=tuple(replace(column, id=None) for column in schema.columns)) for schema in (old, new)
    ]
    return plain[0], plain[1]


def _takes_on(after: Followed, version: int, name: str) -> bool:
    """Does a lake column have this source column's values in rows from before ``version``, too?"""
    fed = after.live.get(name)
    return fed is not None and fed.since != version


def _rebuild_needed(policy: Policy, said: str) -> RebuildNeededError:
    return RebuildNeededError(
        f"table {policy.table}: {said}",
        remedy="It is copied anew by itself, in the next cycle.",
        table=str(policy.table),
    )


class _Step:
    """One version to the next. ``is_copied``: only what is to stop the table matters, for it is copied anew."""

    def __init__(
        self, before: Followed, old: TableSchema, new: TableSchema, policy: Policy, *, is_copied: bool = False
    ) -> None:
        self._before = before
        self._old = old
        self._new = new
        self._policy = policy
        self._is_copied = is_copied
        self._evolution = policy.evolution.for_mode(policy.mode)
        self._origin = origins(old, new)
        self._became = {was: name for name, was in self._origin.items() if was is not None}

    def followed(self) -> Followed:
        self._check_key()
        kept = [self._without_source(fed) for fed in self._before.columns]
        columns = _in_order(self._before, [fed for fed in kept if fed is not None], self._fed())
        return Followed(self._new.version, _named(columns, self._before, self._new))

    def settle(self, doubt: Doubt, after: Followed) -> None:
        """What a doubt about columns comes to in a table that has ``after`` from here on."""
        # One that has another name by now, in the same change set, counts as taken on: better copied once too often.
        taken_on = [
            name for name in doubt.columns or () if name not in self._new.names or _takes_on(after, doubt.version, name)
        ]
        retyped = [name for name in taken_on if self._origin.get(name) is not None]
        if retyped and self._evolution.widen_type == "stop":
            raise self._stopped("widen_type", doubt.reason)
        if taken_on and isinstance(self._policy.mode, Mirror):
            raise _rebuild_needed(self._policy, doubt.reason)

    def _check_key(self) -> None:
        """A change log has no use for a key; every other table is matched by it."""
        now = tuple(self._became.get(name) for name in self._old.key)
        if now == self._new.key or isinstance(self._policy.mode, Append):
            return
        said = f"the key changed from ({', '.join(self._old.key)}) to ({', '.join(self._new.key)})"
        raise self._key_changed(said)

    def _without_source(self, fed: Fed) -> Fed | None:
        """A column that nothing feeds any more, or did not before; None for one that is fed on or goes."""
        if not fed.is_live:
            return fed
        name = self._became.get(fed.source)
        if name is not None:
            return replace(fed, until=self._old.version) if self._is_replaced(fed, name) else None
        if self._evolution.drop_column == "stop":
            raise self._stopped("drop_column", f"column '{fed.source}' was dropped")
        if self._evolution.drop_column == "evolve":
            return None
        self._refuse_without_key("drop_column", f"column '{fed.source}' was dropped")
        return replace(fed, until=self._old.version)

    def _fed(self) -> list[Fed]:
        """The columns that the new schema feeds, in its order."""
        found: list[Fed] = []
        live = self._before.live
        for column in self._new.columns:
            was = self._origin[column.name]
            fed = live.get(was) if was is not None else None
            if was is None:
                found += self._added(column)
            elif fed is not None:
                found.append(self._again(fed, was, column))
        return found

    def _added(self, column: Column) -> list[Fed]:
        if self._evolution.add_column == "stop":
            raise self._stopped("add_column", f"column '{column.name}' ({column.type}) was added")
        if self._evolution.add_column == "ignore":
            return []
        return [Fed(born(column, self._new.version), column.name)]

    def _again(self, fed: Fed, was: str, column: Column) -> Fed:
        """A column that was fed and is fed again: under another name or type, maybe."""
        if was != column.name and self._evolution.rename_column == "stop":
            raise self._stopped("rename_column", f"column '{was}' is now called '{column.name}'")
        if self._is_replaced(fed, column.name):
            return Fed(replace(born(column, self._new.version), default=None), column.name, since=self._new.version)
        if fed.column.type != column.type and self._evolution.widen_type == "stop":
            raise self._stopped("widen_type", self._retyped(fed, column))
        name = column.name if was != column.name else fed.column.name
        return replace(fed, column=replace(column, name=name, id=fed.column.id), source=column.name)

    def _is_replaced(self, fed: Fed, name: str) -> bool:
        """Does another lake column take the values from here on, because this one's type does not hold them?"""
        column = self._new.column(name)
        if holds(column.type, fed.column.type):
            return False
        if name in self._new.key and not isinstance(self._policy.mode, Append):
            raise self._key_changed(self._retyped(fed, column) + ", and it is part of the key")
        if self._evolution.change_type == "stop":
            raise self._stopped("change_type", self._retyped(fed, column))
        if self._evolution.change_type == "rebuild":
            raise _rebuild_needed(self._policy, self._retyped(fed, column))
        self._refuse_without_key("change_type", self._retyped(fed, column))
        return True

    def _refuse_without_key(self, kind: str, said: str) -> None:
        """Rows without a key are matched by all their values, which a column that is no longer fed has not."""
        if self._new.key or self._is_copied or isinstance(self._policy.mode, Append):
            return
        raise TableStoppedError(
            f"table {self._policy.table}: {said}; {kind}: {getattr(self._evolution, kind)} is not possible, because "
            "the table has no key and its rows are matched by all their values",
            remedy=f"Give {self._new.table} a primary key, or copy the table anew: {self._rebuild()}.",
            table=str(self._policy.table),
        )

    def _stopped(self, kind: str, said: str) -> TableStoppedError:
        then = "is then copied anew" if self._is_copied or kind == "change_key" else "then goes on where it stopped"
        return TableStoppedError(
            f"table {self._policy.table}: {said}, and its evolution says {kind}: stop",
            remedy=f"Set evolution.{kind} to {others(kind, 'stop')} and start again: the table {then}. "
            f"Or copy it anew: {self._rebuild()}.",
            table=str(self._policy.table),
        )

    def _key_changed(self, said: str) -> TableStoppedError:
        if self._evolution.change_key == "stop":
            return self._stopped("change_key", said)
        return _rebuild_needed(self._policy, said)

    def _rebuild(self) -> str:
        return f"lakefeed rebuild FILE {self._policy.table} --from-source"

    def _retyped(self, fed: Fed, column: Column) -> str:
        return f"column '{column.name}' changed from {fed.column.type} to {column.type}"


def _in_order(before: Followed, unfed: Sequence[Fed], fed: Sequence[Fed]) -> list[Fed]:
    """The source's order; columns that nothing feeds stay behind those that they were behind."""
    found = list(fed)
    places = [old.column.id for old in before.columns]
    for one in unfed:
        ahead = set(places[: places.index(one.column.id)])
        last = max((place for place, other in enumerate(found, 1) if other.column.id in ahead), default=0)
        found.insert(last, one)
    return found


def _named(columns: Sequence[Fed], before: Followed, new: TableSchema) -> tuple[Fed, ...]:
    """Every column with a name of its own. Names that were given stay; Spark does not tell upper from lower case.

    Two source columns that differ only in case keep their names, and are refused as they are in a copy.
    """
    given = {fed.column.id: fed.column.name for fed in before.columns}
    stays = {fed.column.id for fed in columns if given.get(fed.column.id) == fed.column.name}
    taken = {fed.column.name.lower() for fed in columns if fed.column.id in stays}
    wanted = Counter(name.lower() for name in new.names)
    found: list[Fed] = []
    for fed in columns:
        column = fed.column
        if column.id not in stays and wanted[column.name.lower()] < 2:
            column = replace(column, name=_free(column.name, taken, wanted))
            taken.add(column.name.lower())
        found.append(replace(fed, column=column))
    return tuple(found)


def _free(name: str, taken: Collection[str], wanted: Collection[str]) -> str:
    """``name`` itself, else the first numbered form that no column has or is about to ask for."""
    if name.lower() not in taken:
        return name
    numbered = (f"{name}__{number}" for number in count(2))
    return next(form for form in numbered if form.lower() not in taken and form.lower() not in wanted)
