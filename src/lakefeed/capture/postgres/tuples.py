"""TupleData of pgoutput: the columns of many rows of one table at once. Pure and total.

A tuple is a column count (int16), then for each column a kind: ``n`` NULL, ``u`` unchanged TOAST (not sent), ``t`` text
or ``b`` binary, each with a length (int32) and that many bytes. All rows are walked together, column by column.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lakefeed.capture.postgres.slices import Bytes, Ints, Mask, Slices, integers
from lakefeed.errors import DecodeError

_NULL, _UNCHANGED, _TEXT = ord("n"), ord("u"), ord("t")


@dataclass(frozen=True, slots=True)
class Field:
    """One column of all rows. Where ``unsent`` is True the source did not send the value: that is not NULL."""

    values: Slices
    unsent: Mask


@dataclass(frozen=True, slots=True)
class Tuples:
    fields: tuple[Field, ...]
    ends: Ints
    """Where each row's tuple ends: where the next part of its message begins."""


def walk(data: Bytes, at: Ints, limit: Ints, columns: int) -> Tuples:
    """The tuples that begin at ``at``; none may reach beyond its ``limit``. DecodeError for anything else."""
    _within(at + 2, limit)
    counts = integers(data, at, ">u2")
    if np.any(counts != columns):
        found = int(counts[np.flatnonzero(counts != columns)[0]])
        raise DecodeError(f"a row has {found} columns, its relation message has {columns}")
    place = at + 2
    fields = []
    for _ in range(columns):
        _within(place + 1, limit)
        kinds = data[place]
        sent = kinds == _TEXT
        unsent = kinds == _UNCHANGED
        if not np.all(sent | unsent | (kinds == _NULL)):
            raise DecodeError("a column is neither NULL, unchanged nor text")
        _within(np.where(sent, place + 5, place + 1), limit)
        lengths = np.where(sent, integers(data, place + 1, ">i4"), 0)
        starts = np.where(sent, place + 5, place + 1)
        if np.any(lengths < 0):
            raise DecodeError("a column has a negative length")
        place = starts + lengths
        _within(place, limit)
        fields.append(Field(Slices(data, starts, lengths, sent), unsent))
    return Tuples(tuple(fields), place)


def _within(place: Ints, limit: Ints) -> None:
    if np.any(place > limit):
        raise DecodeError("a message ends inside a row")
