"""Which attribute number each column of a relation message has. Pure.

The message has names alone, as they were at that place of the log. What is known besides: the columns that were
delivered last (before that place, or of a copy that is newer), and the catalog's (after it). Numbers only ever grow
and dropped ones stay in the catalog, so names and order tell nearly always; where they do not, that is said, and the
table is copied anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lakefeed.capture.postgres.catalog import SourceTable
from lakefeed.change.table import TableSchema

_INVISIBLE = 10_000  # beyond every attribute number (1600 columns at most)


@dataclass(frozen=True, slots=True)
class Matched:
    """The number of each column; ``doubt`` is why existing rows may have other values than these numbers say."""

    numbers: tuple[int, ...]
    doubt: str | None = None


def relation_of(schema: TableSchema) -> int | None:
    """The oid of the table that a schema was delivered for; None if it has no columns to tell it."""
    first = schema.columns[0].id if schema.columns else None
    return int(first.partition(".")[0]) if first else None


def numbers_of(schema: TableSchema) -> dict[str, int]:
    """Attribute numbers by name, from the stable ids."""
    return {column.name: int((column.id or ".0").partition(".")[2]) for column in schema.columns}


def match_columns(names: Sequence[str], before: TableSchema | None, source: SourceTable | None) -> Matched:
    """``before`` is the last schema of the same relation that was delivered, ``source`` the catalog as it is now."""
    was = numbers_of(before) if before is not None else {}
    if source is None:
        unknown = range(_INVISIBLE, _INVISIBLE + len(names))
        return Matched(tuple(was.get(name, number) for name, number in zip(names, unknown, strict=True)))
    now = {column.name: column.number for column in source.columns}
    as_before, as_now = list(names) == list(was), list(names) == list(now)
    if as_before and not as_now:
        numbers = tuple(was.values())
    else:
        numbers = tuple(now.values()) if as_now else _guessed(names, source)
    return Matched(numbers, _doubt(dict(zip(names, numbers, strict=True)), was, source) if was else None)


def _doubt(found: dict[str, int], was: dict[str, int], source: SourceTable) -> str | None:
    now = {column.name: column.number for column in source.columns}
    # A column that was there before and is there still was there all the time.
    if (set(was.values()) & set(now.values())) - set(found.values()):
        return "its columns changed while it was being copied"
    if list(found) == list(was) and list(found.values()) != list(was.values()):
        return "a column was dropped and added again under the same name"
    gone = [one.number for one in source.attributes if one.dropped and one.number > max(was.values(), default=0)]
    for name, number in found.items():
        swapped = name in was and was[name] != number and list(found) != list(now)
        replaced = name not in was and number in now.values() and any(one < number for one in gone)
        if swapped or (replaced and number > max(was.values(), default=0)):
            return f"what column {name} was when its rows were written cannot be told any more"
    return None


def _guessed(names: Sequence[str], source: SourceTable) -> tuple[int, ...]:
    """By name first, by order for the rest."""
    live = {column.name: column.number for column in source.columns}
    numbers = _in_order([live.get(name) for name in names])
    taken = {number for number in numbers if number is not None}
    free = [column.number for column in source.attributes if column.number not in taken]
    found: list[int] = []
    for number in numbers:
        if number is None:
            low = found[-1] if found else 0
            number = next((one for one in free if one > low), low + _INVISIBLE)
        found.append(number)
    return tuple(found)


def _in_order(numbers: Sequence[int | None]) -> list[int | None]:
    """Keep the matches that grow, as attribute numbers do; a name that was given to another column does not."""
    kept: list[int | None] = []
    last = 0
    for number in numbers:
        grows = number is not None and number > last
        kept.append(number if grows else None)
        last = number if grows and number is not None else last
    return kept
