"""pgoutput, protocol version 1: runs of messages → rows as Arrow columns. Pure and total: values or DecodeError.

Format: PostgreSQL documentation, "Logical Replication Message Formats". Integers are big-endian. A run is many messages
in one buffer, seen as arrays; all row messages of a table are decoded together, column by column. What the catalog has
to say about a relation comes with the piece that describes it: the decoder asks nobody.

A tuple is a column count (int16), then for each column a kind: ``n`` NULL, ``u`` unchanged TOAST (not sent), ``t`` text
with a length (int32) and that many bytes. Rules:
- An update that changes the key is two rows, delete of the old key and insert of the new one; so is every update of a
  table without a key, whose rows have no other identity than all their values.
- An unchanged TOAST value is not sent. It is taken from the old image where there is one (REPLICA IDENTITY FULL), and
  listed as absent otherwise; it is never NULL. In the insert of a changed key, too: the delete before it says under
  which key the lake has the value.
- A key is all or nothing: a row with a part of its key missing is a DecodeError.
- A before image is the old row of an update or delete, and only a full one (REPLICA IDENTITY FULL, the mark O). There
  PostgreSQL logs large values with it, so it is whole.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from lakefeed.capture.fit import MisfitError
from lakefeed.capture.log import Announced, Decoded, Rows, Transaction
from lakefeed.capture.postgres.catalog import CatalogFacts
from lakefeed.capture.postgres.values import (
    EPOCH_MICROSECONDS,
    KEEP_AS_TEXT,
    PAD,
    Bytes,
    Ints,
    Mask,
    Slices,
    integers,
    padded,
    to_arrow,
)
from lakefeed.change.batch import Operation
from lakefeed.change.lsn import PostgresLsn
from lakefeed.change.table import TableSchema
from lakefeed.errors import DecodeError

BEGIN, COMMIT, INSERT, UPDATE, DELETE = (ord(letter) for letter in "BCIUD")
RELATION, TYPE, TRUNCATE, ORIGIN, MESSAGE = (ord(letter) for letter in "RYTOM")
_KNOWN = np.zeros(256, dtype=bool)
_KNOWN[[BEGIN, COMMIT, INSERT, UPDATE, DELETE, RELATION, TYPE, TRUNCATE, ORIGIN, MESSAGE]] = True
_SIZES = {BEGIN: 21, COMMIT: 26}


@dataclass(frozen=True, slots=True)
class Run:
    """Messages one after another in one buffer. ``kinds`` is the first byte of each."""

    data: Bytes
    begins: Ints
    ends: Ints
    kinds: Ints

    def __len__(self) -> int:
        return len(self.begins)

    @property
    def size(self) -> int:
        """Bytes of all messages."""
        return int((self.ends - self.begins).sum())

    def message(self, index: int) -> bytes:
        return self.data[self.begins[index] : self.ends[index]].tobytes()

    def part(self, start: int, stop: int) -> Run:
        """The messages from ``start`` to before ``stop``."""
        return Run(self.data, self.begins[start:stop], self.ends[start:stop], self.kinds[start:stop])

    def whole(self) -> int:
        """How many messages there are up to the last COMMIT."""
        found = np.flatnonzero(self.kinds == COMMIT)
        return int(found[-1]) + 1 if len(found) else 0

    def relations(self) -> list[Relation]:
        """The tables that are described in it."""
        return [read_relation(self.message(index)) for index in np.flatnonzero(self.kinds == RELATION).tolist()]


def make_run(messages: list[bytes], *, skip: int = 0) -> Run:
    """A run of whole messages, each behind ``skip`` bytes of something else."""
    lengths = np.fromiter(map(len, messages), np.int64, len(messages))
    ends = np.cumsum(lengths)
    return run_of(padded(messages), ends - lengths + skip, ends)


def run_of(data: Bytes, begins: Ints, ends: Ints) -> Run:
    """A run of messages that lie anywhere in a padded buffer, in its order."""
    if np.any(ends <= begins):
        raise DecodeError("a message is empty")
    kinds = data[begins].astype(np.int64)
    if not np.all(_KNOWN[kinds]):
        strange = int(kinds[np.flatnonzero(~_KNOWN[kinds])[0]])
        raise DecodeError(f"a message of the unknown kind {chr(strange)!r}")
    return Run(data, begins, ends, kinds)


def joined(runs: list[Run]) -> Run:
    """Several runs as one: what is decoded together costs less than one by one."""
    if len(runs) == 1:
        return runs[0]
    # Of each buffer, only the stretch that its run lies in.
    pieces = [run.data[run.begins[0] : run.ends[-1]] for run in runs]
    sizes = np.array([len(piece) for piece in pieces], np.int64)
    moved = [at - run.begins[0] for at, run in zip(np.cumsum(sizes) - sizes, runs, strict=True)]
    return Run(
        np.concatenate([*pieces, np.zeros(PAD, np.uint8)]),
        np.concatenate([run.begins + by for run, by in zip(runs, moved, strict=True)]),
        np.concatenate([run.ends + by for run, by in zip(runs, moved, strict=True)]),
        np.concatenate([run.kinds for run in runs]),
    )


def _fixed(run: Run, kind: int) -> Ints:
    """Where the messages of one fixed-size kind begin."""
    chosen = run.kinds == kind
    at: Ints = run.begins[chosen]
    if np.any(run.ends[chosen] - at != _SIZES[kind]):
        raise DecodeError(f"a message of kind {chr(kind)!r} has a wrong size")
    return at


@dataclass(frozen=True, slots=True)
class RelationColumn:
    name: str
    type: int
    modifier: int
    in_identity: bool


@dataclass(frozen=True, slots=True)
class Relation:
    """A table as the stream describes it before its first row, and again after each change of it."""

    id: int
    schema: str
    name: str
    identity: str
    """``d`` default (primary key), ``n`` nothing, ``f`` full row, ``i`` an index."""
    columns: tuple[RelationColumn, ...]


def read_relation(message: bytes) -> Relation:
    cursor = _Cursor(message)
    relation = cursor.integer(4)
    schema = cursor.text() or "pg_catalog"
    name = cursor.text()
    identity = chr(cursor.integer(1))
    columns = []
    for _ in range(cursor.integer(2)):
        key = cursor.integer(1) & 1 == 1
        column = cursor.text()
        columns.append(RelationColumn(column, cursor.integer(4), cursor.signed(4), key))
    cursor.finish()
    if identity not in "dnfi" or not name:
        raise DecodeError(f"a relation message has the replica identity {identity!r} and the name {name!r}")
    return Relation(relation, schema, name, identity, tuple(columns))


def read_truncate(message: bytes) -> tuple[int, ...]:
    """The relations that are truncated. The options (cascade, restart identity) change nothing for us."""
    cursor = _Cursor(message)
    count, _ = cursor.integer(4), cursor.integer(1)
    if count * 4 > len(message):
        raise DecodeError("a truncate message names more tables than it holds")
    relations = tuple(cursor.integer(4) for _ in range(count))
    cursor.finish()
    return relations


class _Cursor:
    """Reads one message front to back, past its kind."""

    def __init__(self, message: bytes) -> None:
        self._message = message
        self._at = 1

    def integer(self, size: int) -> int:
        return int.from_bytes(self._take(size), "big")

    def signed(self, size: int) -> int:
        return int.from_bytes(self._take(size), "big", signed=True)

    def text(self) -> str:
        end = self._message.find(b"\0", self._at)
        if end < 0:
            raise DecodeError("a message ends inside a name")
        try:
            text = self._message[self._at : end].decode()
        except UnicodeDecodeError as error:
            raise DecodeError("a name is not UTF-8") from error
        self._at = end + 1
        return text

    def finish(self) -> None:
        if self._at != len(self._message):
            raise DecodeError(f"a message has {len(self._message) - self._at} bytes too many")

    def _take(self, size: int) -> bytes:
        taken = self._message[self._at : self._at + size]
        if len(taken) != size:
            raise DecodeError("a message ends too early")
        self._at += size
        return taken


@dataclass(frozen=True, slots=True)
class Layout:
    """How the rows of one relation become rows of a table. ``schema.columns`` are the columns of the relation message,
    in its order. An empty key: rows match as a whole.

    ``whole_old_rows``: an old row that is said to be full is. Not so where a partition has another replica identity.
    """

    relation: int
    schema: TableSchema
    whole_old_rows: bool = True
    key: frozenset[int] = field(init=False)
    """Indices of the key columns."""

    def __post_init__(self) -> None:
        found = frozenset(index for index, name in enumerate(self.schema.names) if name in self.schema.key)
        object.__setattr__(self, "key", found)


@dataclass(frozen=True, slots=True)
class Resolved:
    """What a relation message means. No layout: the table is not captured."""

    layout: Layout | None
    announced: Announced = field(default_factory=Announced)


Resolve = Callable[[Relation, CatalogFacts], Resolved]


@dataclass(frozen=True, slots=True)
class WalPiece:
    """What has come of the log: messages, and what the catalog says about the relations that they describe.

    ``idle_at``: the server has nothing more up to here.
    """

    run: Run | None = None
    facts: CatalogFacts = field(default_factory=CatalogFacts)
    idle_at: PostgresLsn | None = None


_NULL, _UNCHANGED, _TEXT = ord("n"), ord("u"), ord("t")
_NEW, _KEY, _OLD = ord("N"), ord("K"), ord("O")
_TUPLE = 6  # kind, relation id (4), N or K or O
_ABSENT = pa.list_(pa.string())


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


PLACES = 3
"""How many places of a change set belong to one row message: before image, delete and insert."""


@dataclass(frozen=True, slots=True)
class DecodedRows:
    """Rows of one table, in source order. ``messages`` is the index of the message that each came from."""

    columns: tuple[Any, ...]
    operations: npt.NDArray[np.int8]
    seqs: Ints
    messages: Ints
    absent: Any


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


def _decode(run: Run, tuples: _Tuples, layout: Layout) -> DecodedRows:
    """MisfitError for a value that its column cannot hold; it names the column."""
    walked = walk(run.data, tuples.at, tuples.limit, len(layout.schema.columns))
    if np.any((walked.ends != tuples.limit) & (tuples.limit == run.ends[tuples.messages])):
        raise DecodeError("a row message has bytes left over")
    fields = _completed(run.data, walked.fields, tuples, layout)
    deletes = tuples.operations == Operation.DELETE
    # Rows × columns. Deletes carry the key alone, so nothing of them is missing.
    unsent = np.zeros((len(deletes), len(fields)), dtype=bool)
    some = [place for place, one in enumerate(fields) if one.unsent.any()]
    if not layout.key and some:
        raise DecodeError(f"{layout.schema.table} has no key, and a row of it came without all of its values")
    for place in some:
        unsent[:, place] = fields[place].unsent & ~deletes
    columns = []
    for place, (column, one) in enumerate(zip(layout.schema.columns, fields, strict=True)):
        values = one.values
        if place in layout.key and not values.valid.all():
            raise DecodeError(f"a row of {layout.schema.table} has no value for the key column {column.name}")
        if layout.key and place not in layout.key and deletes.any():
            values = replace(values, valid=values.valid & ~deletes)
        try:
            columns.append(to_arrow(values.binary(), column.type))
        except MisfitError as error:
            raise MisfitError(error.reason, column=column.name, remedy=KEEP_AS_TEXT) from error
    absent = pa.nulls(len(unsent), _ABSENT)
    if some:
        rows, places = np.nonzero(unsent)
        wanted: Any = pa.array(places)
        offsets: Any = pa.array(np.searchsorted(rows, np.arange(len(unsent) + 1)).astype(np.int32))
        lists = pa.ListArray.from_arrays(offsets, pa.array(layout.schema.names, pa.string()).take(wanted))
        has_gaps: Any = pa.array(np.any(unsent, axis=1))
        absent = pc.if_else(has_gaps, lists, absent)
    operations = tuples.operations.astype(np.int8)
    return DecodedRows(tuple(columns), operations, tuples.seqs, tuples.messages, absent)


def _interleaved(one: DecodedRows, other: DecodedRows) -> DecodedRows:
    """Both in order of their seqs. Each was decoded by itself: a delete and its before image are the same bytes."""
    order = np.argsort(np.concatenate((one.seqs, other.seqs)), kind="stable")
    places: Any = pa.array(order)

    def merged(a: Any, b: Any) -> Any:
        return pa.concat_arrays([a, b]).take(places)

    return DecodedRows(
        columns=tuple(map(merged, one.columns, other.columns)),
        operations=np.concatenate((one.operations, other.operations))[order],
        seqs=np.concatenate((one.seqs, other.seqs))[order],
        messages=np.concatenate((one.messages, other.messages))[order],
        absent=merged(one.absent, other.absent),
    )


def _locate(run: Run, chosen: Ints, seqs: Ints, layout: Layout) -> tuple[_Tuples, _Tuples]:
    """The rows that the messages ``chosen`` (all of one relation) make, and the old rows among them that are whole.
    ``PLACES`` from ``seqs`` on belong to each message."""
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
    gaps = [place for place, one in enumerate(fields) if np.any(one.unsent & (tuples.old >= 0))]
    if not gaps:
        return found
    rows = np.flatnonzero(tuples.old >= 0)
    old = walk(data, tuples.old[rows], tuples.limit[rows], len(fields)).fields
    for place in gaps:
        own, source = fields[place], old[place]
        usable = own.unsent[rows] & ~source.unsent & (tuples.old_is_full[rows] | (place in layout.key))
        target, origin = rows[usable], np.flatnonzero(usable)
        values = own.values
        starts, lengths, valid = values.starts.copy(), values.lengths.copy(), values.valid.copy()
        unsent = own.unsent.copy()
        starts[target], lengths[target] = source.values.starts[origin], source.values.lengths[origin]
        valid[target], unsent[target] = source.values.valid[origin], False
        found[place] = Field(Slices(data, starts, lengths, valid), unsent)
    return found


PIECE_BYTES = 4 << 20
_PIECE_MESSAGES = 12_000
"""Messages are decoded so many at a time: fewer cost more each, more leave the processor's caches."""


class PgoutputDecoder:
    """See ``capture.log.Decoder``. Whole transactions are decoded as they come. The beginning of one is kept until its
    commit has come, too, so that a change set can be cut before it; unless it is large: then it is given in parts.

    ``resolve`` says what a relation message means, given the facts of the piece; it asks nobody either. With
    ``before_images`` the old rows that the stream carries whole are delivered, too.
    """

    def __init__(self, resolve: Resolve, *, before_images: bool = False) -> None:
        self._resolve = resolve
        self._before_images = before_images
        self._layouts: dict[int, Layout | None] = {}
        self._begun: list[Run] = []
        self._begun_bytes = 0
        self._facts = CatalogFacts()
        self._open: Transaction | None = None

    def decode(self, piece: WalPiece) -> Decoded[PostgresLsn]:
        """DecodeError if the messages are not what PostgreSQL sends."""
        run, runs = piece.run, list[Run]()
        if piece.facts.tables:
            tables, types = {**self._facts.tables, **piece.facts.tables}, {**self._facts.types, **piece.facts.types}
            self._facts = CatalogFacts(tables, types)
        if run is not None:
            whole = run.whole()
            if whole:
                runs, self._begun, self._begun_bytes = [*self._begun, run.part(0, whole)], [], 0
            if whole < len(run):
                self._begun.append(run.part(whole, len(run)))
                self._begun_bytes += self._begun[-1].size
        if not runs and self._begun_bytes > PIECE_BYTES:
            runs, self._begun, self._begun_bytes = self._begun, [], 0
        decoded = self._decoded(joined(runs)) if runs else Decoded[PostgresLsn]()
        if not self._begun:
            self._facts = CatalogFacts()
            if self._open is None:
                decoded.reached = piece.idle_at
        return decoded

    def _decoded(self, run: Run) -> Decoded[PostgresLsn]:
        """1. transactions, 2. an order for every message, 3. tables as they are described, truncates, and the rows
        between them."""
        begin, commit = run.kinds == BEGIN, run.kinds == COMMIT
        depth = int(self._open is not None) + np.cumsum(begin) - np.cumsum(commit)
        row_kinds = np.isin(run.kinds, (INSERT, UPDATE, DELETE))
        if np.any(depth[begin | row_kinds | (run.kinds == TRUNCATE)] != 1) or np.any(depth[commit] != 0):
            raise DecodeError("messages do not come in whole transactions")
        made = Decoded[PostgresLsn](continues=self._open is not None)
        at = _fixed(run, BEGIN)
        times = (integers(run.data, at + 9, ">i8") + EPOCH_MICROSECONDS).tolist()
        xids = integers(run.data, at + 17, ">u4").tolist()
        # Of each COMMIT, where its record *ends*: that is the position to resume from (T1).
        ends: list[int] = integers(run.data, _fixed(run, COMMIT) + 10, ">i8").tolist()
        known = [(one.time_us, one.id) for one in (self._open,) if one is not None]
        known += [(when, str(xid)) for when, xid in zip(times, xids, strict=True)]
        made.open = len(known) > len(ends)
        for (when, xid), end in zip(known, [*ends, 0], strict=False):
            made.transactions.append(Transaction(PostgresLsn(end & 0xFFFF_FFFF_FFFF_FFFF), when, xid))
        codes = (np.cumsum(begin) - (0 if made.continues else 1)).astype(np.int32)
        self._open = made.transactions[-1] if made.open else None

        truncates = {
            int(index): read_truncate(run.message(int(index))) for index in np.flatnonzero(run.kinds == TRUNCATE)
        }
        widths = np.where(row_kinds, PLACES, 0)
        for index, truncate in truncates.items():
            widths[index] = len(truncate)
        until = np.cumsum(widths)
        made.width = int(until[-1]) if len(until) else 0
        order = until - widths

        start = 0
        special = np.flatnonzero((run.kinds == RELATION) | (run.kinds == TRUNCATE))
        for index in (*special.tolist(), len(run)):
            for first in range(start, index, _PIECE_MESSAGES):
                last = min(first + _PIECE_MESSAGES, index)
                self._rows(run, first + np.flatnonzero(row_kinds[first:last]), order, codes, made)
            if index in truncates:
                for place, relation in enumerate(truncates[index]):
                    layout = self._layout(relation)
                    if layout is not None:
                        empty = [pa.array([None], column.type) for column in layout.schema.columns]
                        kinds = np.full(1, int(Operation.TRUNCATE), np.int8)
                        seq, code = order[index : index + 1] + place, codes[index : index + 1]
                        made.items.append(Rows(layout.schema, empty, kinds, seq, code))
            elif index < len(run):
                relation_message = read_relation(run.message(index))
                resolved = self._resolve(relation_message, self._facts)
                self._layouts[relation_message.id] = resolved.layout
                made.items.append(resolved.announced)
            start = index + 1
        return made

    def _layout(self, relation: int) -> Layout | None:
        if relation not in self._layouts:
            raise DecodeError(f"a row of relation {relation} came before its description")
        return self._layouts[relation]

    def _rows(self, run: Run, chosen: Ints, order: Ints, codes: Any, made: Decoded[PostgresLsn]) -> None:
        """The row messages ``chosen``, table by table."""
        if not len(chosen):
            return
        if np.any(run.begins[chosen] + 5 > run.ends[chosen]):
            raise DecodeError("a row message ends too early")
        relations = integers(run.data, run.begins[chosen] + 1, ">u4")
        for relation in np.unique(relations).tolist():
            layout = self._layout(relation)
            if layout is None:
                continue
            own, schema = chosen[relations == relation], layout.schema
            try:
                tuples, olds = _locate(run, own, order[own], layout)
                rows = _decode(run, tuples, layout)
                if self._before_images and len(olds.at):
                    rows = _interleaved(rows, _decode(run, olds, layout))
            except MisfitError as error:
                made.items.append(Announced(notices=(error.blocked(schema.table),)))
                continue
            codes_of = codes[rows.messages]
            made.items.append(Rows(schema, rows.columns, rows.operations, rows.seqs, codes_of, rows.absent))
