"""Insert, update and delete messages of one table → columns. Pure and total.

Rules:
- An update that changes the key is two rows, delete of the old key and insert of the new one; so is every update of a
  table without a key, whose rows have no other identity than all their values.
- An unchanged TOAST value is not sent. It is taken from the old image where there is one (REPLICA IDENTITY FULL), and
  listed as absent otherwise; it is never NULL.
- A key is all or nothing: a row with a part of its key missing is a DecodeError.
- A before image is the old row of an update or delete, and only a full one (REPLICA IDENTITY FULL, the mark O). There
  PostgreSQL logs large values with it, so it is whole.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakefeed.capture.postgres.layout import Layout
from lakefeed.capture.postgres.message import DELETE, INSERT, UPDATE, Run
from lakefeed.capture.postgres.slices import Bytes, Ints, Mask, Slices
from lakefeed.capture.postgres.text import UnfitError, to_arrow
from lakefeed.capture.postgres.tuples import Field, walk
from lakefeed.change.batch import Operation
from lakefeed.errors import DecodeError

_NEW, _KEY, _OLD = ord("N"), ord("K"), ord("O")
_TUPLE = 6  # kind, relation id (4), N or K or O

PLACES = 3
"""How many places of a change set belong to one row message: before image, delete and insert."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of one table, in source order. ``message`` is the index of the message that each came from."""

    columns: tuple[Any, ...]
    operations: npt.NDArray[np.int8]
    seqs: Ints
    messages: Ints
    absent: Any
    incomplete: bool
    """A row got a new key while some of its values were not sent: nobody but the source can complete it."""


@dataclass(frozen=True, slots=True)
class _Tuples:
    """Where the tuples of the output rows begin. ``old`` is the tuple to complete it from, -1 for none."""

    at: Ints
    limit: Ints
    messages: Ints
    seqs: Ints
    operations: Ints
    old: Ints
    old_is_full: Mask


def decode_rows(run: Run, chosen: Ints, seqs: Ints, layout: Layout, *, before_images: bool = False) -> Rows:
    """The row messages ``chosen`` (all of one relation). ``PLACES`` from ``seqs`` on belong to each of them.

    UnfitError for a value that its column cannot hold; it names the column.
    """
    tuples, olds = _locate(run, chosen, seqs, layout)
    rows = _decode(run, tuples, layout)
    return _interleaved(rows, _decode(run, olds, layout)) if before_images and len(olds.at) else rows


def _decode(run: Run, tuples: _Tuples, layout: Layout) -> Rows:
    walked = walk(run.data, tuples.at, tuples.limit, len(layout.schema.columns))
    if np.any((walked.ends != tuples.limit) & (tuples.limit == run.ends[tuples.messages])):
        raise DecodeError("a row message has bytes left over")
    fields = _completed(run.data, walked.fields, tuples, layout)
    deletes = tuples.operations == Operation.DELETE
    unsent = _unsent(fields, deletes, layout)
    columns = _columns(fields, deletes, layout)
    moved = (tuples.operations == Operation.INSERT) & (run.kinds[tuples.messages] == UPDATE)
    incomplete = bool(np.any(unsent[moved]))
    operations = tuples.operations.astype(np.int8)
    return Rows(columns, operations, tuples.seqs, tuples.messages, _absent(unsent, layout), incomplete)


def _interleaved(one: Rows, other: Rows) -> Rows:
    """Both in order of their seqs. Each was decoded by itself: a delete and its before image are the same bytes."""
    order = np.argsort(np.concatenate((one.seqs, other.seqs)), kind="stable")
    places: Any = pa.array(order)

    def merged(a: Any, b: Any) -> Any:
        return pa.concat_arrays([a, b]).take(places)

    return Rows(
        columns=tuple(map(merged, one.columns, other.columns)),
        operations=np.concatenate((one.operations, other.operations))[order],
        seqs=np.concatenate((one.seqs, other.seqs))[order],
        messages=np.concatenate((one.messages, other.messages))[order],
        absent=merged(one.absent, other.absent),
        incomplete=one.incomplete,
    )


def _locate(run: Run, chosen: Ints, seqs: Ints, layout: Layout) -> tuple[_Tuples, _Tuples]:
    """The rows that the messages make, and the old rows among them that are whole."""
    begins, ends, kinds = run.begins[chosen], run.ends[chosen], run.kinds[chosen]
    if np.any(begins + _TUPLE > ends):
        raise DecodeError("a row message ends too early")
    marks = run.data[begins + _TUPLE - 1]
    has_new, has_old = marks == _NEW, (marks == _KEY) | (marks == _OLD)
    fine = (kinds == INSERT) & has_new | (kinds == UPDATE) & (has_new | has_old) | (kinds == DELETE) & has_old
    if not np.all(fine):
        raise DecodeError("a row message holds neither a new row nor an old one where it should")
    if not layout.schema.key and np.any(((kinds == UPDATE) & ~(marks == _OLD)) | ((kinds == DELETE) & (marks != _OLD))):
        raise DecodeError(f"a change of {layout.schema.table}, which has no key, came without the old row")
    full = (marks == _OLD) & layout.whole_old_rows
    at = begins + _TUPLE
    with_old = (kinds == UPDATE) & has_old
    new_at, moved = at.copy(), np.zeros(len(at), dtype=bool)
    if with_old.any():
        new_at[with_old], moved[with_old] = _second(run.data, at[with_old], ends[with_old], layout)
    news, olds = np.flatnonzero(kinds != DELETE), np.flatnonzero((kinds == DELETE) | moved)
    operation = np.where(kinds == INSERT, Operation.INSERT, np.where(moved, Operation.INSERT, Operation.UPDATE))
    limit = np.where(with_old, new_at - 1, ends)  # an old row ends where the N before the new one is
    none = np.full(len(olds), -1)
    first = seqs + 1  # behind the before image
    made = _Tuples(
        at=np.concatenate((new_at[news], at[olds])),
        limit=np.concatenate((ends[news], limit[olds])),
        messages=chosen[np.concatenate((news, olds))],
        seqs=np.concatenate((first[news] + moved[news], first[olds])),
        operations=np.concatenate((operation[news], np.full(len(olds), int(Operation.DELETE)))),
        old=np.concatenate((np.where(with_old, at, -1)[news], none)),
        old_is_full=np.concatenate((full[news], none > 0)),
    )
    order = np.argsort(made.seqs, kind="stable")
    whole = np.flatnonzero((kinds != INSERT) & full)
    none = np.full(len(whole), -1)
    before = np.full(len(whole), int(Operation.BEFORE))
    images = _Tuples(at[whole], limit[whole], chosen[whole], seqs[whole], before, none, none > 0)
    return _Tuples(*(getattr(made, name)[order] for name in _Tuples.__slots__)), images


def _second(data: Bytes, at: Ints, ends: Ints, layout: Layout) -> tuple[Ints, Mask]:
    """For updates with an old image: where the new row begins, and whether the key changed."""
    width = len(layout.schema.columns)
    old = walk(data, at, ends, width)
    if np.any(old.ends >= ends) or np.any(data[old.ends] != _NEW):
        raise DecodeError("an update has an old row and no new one")
    new = walk(data, old.ends + 1, ends, width)
    moved = np.full(len(at), not layout.key)
    for place in layout.key:
        before, after = old.fields[place], new.fields[place]
        same = pc.equal(before.values.binary(), after.values.binary()).fill_null(False)
        moved |= ~(same.to_numpy(zero_copy_only=False) | after.unsent)
    return old.ends + 1, moved


def _completed(data: Bytes, fields: tuple[Field, ...], tuples: _Tuples, layout: Layout) -> list[Field]:
    """What was not sent, out of the old image: all of a full one, the key of any."""
    found = list(fields)
    gaps = [place for place, field in enumerate(fields) if np.any(field.unsent & (tuples.old >= 0))]
    if not gaps:
        return found
    rows = np.flatnonzero(tuples.old >= 0)
    old = walk(data, tuples.old[rows], tuples.limit[rows], len(fields)).fields
    for place in gaps:
        field, source = fields[place], old[place]
        usable = field.unsent[rows] & ~source.unsent & (tuples.old_is_full[rows] | (place in layout.key))
        target, origin = rows[usable], np.flatnonzero(usable)
        values = field.values
        starts, lengths, valid = values.starts.copy(), values.lengths.copy(), values.valid.copy()
        unsent = field.unsent.copy()
        starts[target], lengths[target] = source.values.starts[origin], source.values.lengths[origin]
        valid[target], unsent[target] = source.values.valid[origin], False
        found[place] = Field(Slices(data, starts, lengths, valid), unsent)
    return found


def _unsent(fields: list[Field], deletes: Mask, layout: Layout) -> Mask:
    """Rows × columns; deletes carry the key alone, so nothing of them is missing."""
    table = np.zeros((len(deletes), len(fields)), dtype=bool)
    some = [place for place, field in enumerate(fields) if field.unsent.any()]
    if not layout.key and some:
        raise DecodeError(f"{layout.schema.table} has no key, and a row of it came without all of its values")
    for place in some:
        table[:, place] = fields[place].unsent & ~deletes
    return table


def _columns(fields: list[Field], deletes: Mask, layout: Layout) -> tuple[Any, ...]:
    arrays = []
    for place, (column, field) in enumerate(zip(layout.schema.columns, fields, strict=True)):
        values = field.values
        if place in layout.key and not values.valid.all():
            raise DecodeError(f"a row of {layout.schema.table} has no value for the key column {column.name}")
        if layout.key and place not in layout.key and deletes.any():
            values = replace(values, valid=values.valid & ~deletes)
        try:
            arrays.append(to_arrow(values.binary(), column.type))
        except UnfitError as error:
            raise UnfitError(f"{column.name}: {error}") from error
    return tuple(arrays)


def _absent(unsent: Mask, layout: Layout) -> Any:
    """``_lakefeed_absent``: the names of the columns that a row did not carry, NULL for a whole row."""
    kind = pa.list_(pa.string())
    if not unsent.any():
        return pa.nulls(len(unsent), kind)
    rows, places = np.nonzero(unsent)
    wanted: Any = pa.array(places)
    offsets: Any = pa.array(np.searchsorted(rows, np.arange(len(unsent) + 1)).astype(np.int32))
    some: Any = pa.array(np.any(unsent, axis=1))
    lists = pa.ListArray.from_arrays(offsets, pa.array(layout.schema.names, pa.string()).take(wanted))
    return pc.if_else(some, lists, pa.scalar(None, kind))
