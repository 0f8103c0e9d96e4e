"""pgoutput, protocol version 1: runs of messages decoded to Arrow columns. Pure and total: rows or a DecodeError.

Format: PostgreSQL documentation, "Logical Replication Message Formats". Integers are big-endian. A run is many messages
in one buffer, viewed as arrays; all row messages of a table are decoded together, column by column.

A tuple is a column count (int16), then for each column a kind: ``n`` NULL, ``u`` unchanged TOAST (not sent), ``t`` text
with a length (int32) and its bytes, ``b`` binary, only if the server cannot print a row (``walsender``). Rules:
- An update that changes the key becomes two rows, a delete of the old key and an insert of the new one; so does every
  update of a table without a key, whose rows are identified by all their values.
- An unchanged TOAST value is taken from the old row if there is one (REPLICA IDENTITY FULL), and otherwise listed as
  absent; it is never NULL. That holds for the insert of a changed key, too: the delete before it has the key of the
  value.
- A key is all or nothing: a row that lacks part of its key is a DecodeError.
- Rows in binary form are not decoded: their table is copied again, or blocked because of a row that is too large.
- A before image is the old row of an update or delete, but only a full one (tuple type O), which has large values, too.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakefeed.capture.fit import REPLACED, MisfitError
from lakefeed.capture.log import Announced, Decoded, Rows, Transaction
from lakefeed.capture.postgres.catalog import CatalogFacts
from lakefeed.capture.postgres.slices import Ints, Mask, Messages, Slices, join, numbers
from lakefeed.capture.postgres.values import EPOCH_US, TOO_LARGE, to_arrow
from lakefeed.change.batch import Operation, replaced_metadata
from lakefeed.change.change_set import RecopyNeeded, TableBlocked, TableNotice
from lakefeed.change.lsn import PostgresLsn
from lakefeed.change.table import TableSchema
from lakefeed.errors import DecodeError

_BEGIN, _COMMIT, _INSERT, _UPDATE, _DELETE, _RELATION, _TRUNCATE = (ord(letter) for letter in "BCIUDRT")
_KNOWN = np.isin(np.arange(256), list(b"BCIUDRTYOM"))  # with types, origins and logical messages, which are ignored
CHANGES = list(b"BIUDT")  # messages that every reading of the log repeats; relations are sent once per connection
_NULL, _UNCHANGED, _TEXT, _BINARY = (ord(letter) for letter in "nutb")
_NEW, _KEY, _OLD = ord("N"), ord("K"), ord("O")
_TUPLE = 6  # kind, relation id (4), N or K or O
_PLACES = 3  # order numbers that each row message occupies: before image, delete, and insert or update
_ABSENT = pa.list_(pa.string())
PIECE_BYTES = 4 << 20
_PIECE_MESSAGES = 12_000  # decoded at a time: fewer cost more each, more exceed the processor's caches
LARGE_BYTES = 64 << 20  # a binary row from this size on may be the one that cannot be printed: text has 8 times at most


class _BinaryError(DecodeError):
    """A row is in binary form."""


class RelationColumn(NamedTuple):
    name: str
    type: int
    modifier: int
    in_identity: bool


class Relation(NamedTuple):
    """A table as the stream describes it before its first row, and again after each change of its definition."""

    id: int
    schema: str
    name: str
    identity: str  # d default (primary key), n nothing, f full row, i an index
    columns: tuple[RelationColumn, ...]


def read_relation(message: bytes) -> Relation:
    columns = []
    try:
        (relation,) = struct.unpack_from(">I", message, 1)
        schema, table, rest = message[5:].split(b"\0", 2)
        identity, count = struct.unpack_from(">cH", rest)
        rest = rest[3:]
        for _ in range(count):
            is_key, (name, rest) = rest[0] & 1 == 1, rest[1:].split(b"\0", 1)
            kind, modifier = struct.unpack_from(">Ii", rest)
            columns.append(RelationColumn(name.decode(), kind, modifier, is_key))
            rest = rest[8:]
        found = Relation(relation, schema.decode() or "pg_catalog", table.decode(), identity.decode(), tuple(columns))
    except (struct.error, ValueError, IndexError) as error:
        raise DecodeError("a relation message ends too early, or has a name that is not UTF-8") from error
    if rest or found.identity not in "dnfi" or not table:
        raise DecodeError(f"a relation message of {found.schema}.{found.name} has excess bytes, or no identity")
    return found


def read_truncate(message: bytes) -> tuple[int, ...]:
    """The relations that are truncated. The options (cascade, restart identity) do not matter here."""
    head, count = struct.calcsize(">cIB"), int.from_bytes(message[1:5], "big")
    if len(message) != head + 4 * count:
        raise DecodeError("a truncate message does not have the number of tables that it states")
    return struct.unpack_from(f">{count}I", message, head)


def described(run: Messages) -> list[Relation]:
    return [read_relation(run.message(index)) for index in np.flatnonzero(run.kinds == _RELATION).tolist()]


def committed(run: Messages) -> int:
    """The number of messages up to the last COMMIT."""
    found = np.flatnonzero(run.kinds == _COMMIT)
    return int(found[-1]) + 1 if len(found) else 0


def without(run: Messages, given: int) -> tuple[Messages, int]:
    """A run up to its first COMMIT, without the first ``given`` of its changes, and how many were left out."""
    commits = np.flatnonzero(run.kinds == _COMMIT)
    run = run[: int(commits[0]) + 1] if len(commits) else run
    is_change = np.isin(run.kinds, CHANGES)
    is_skipped = is_change & (np.cumsum(is_change) <= given)
    return run[~is_skipped], int(is_skipped.sum())


@dataclass(frozen=True, slots=True)
class Layout:
    """How rows of a relation, with the columns of its message, become rows of a table. Without a key, rows match as a
    whole. ``whole_old_rows``: an old row that claims to be full really is; not so if a partition has another identity.
    ``sent``: which columns of the schema the message has, if a column list leaves some out; those are NULL. Empty means
    all."""

    schema: TableSchema
    whole_old_rows: bool = True
    sent: tuple[bool, ...] = ()

    @property
    def width(self) -> int:
        """How many columns a row in the log has."""
        return sum(self.sent) if self.sent else len(self.schema.columns)

    def spread(self, run: Messages, rows: int, values: list[Slices], unsent: list[Mask]) -> None:
        """Insert the columns that are not sent, as NULL; the flow drops them."""
        for index in (index for index, is_sent in enumerate(self.sent) if not is_sent):
            nothing, never = np.zeros(rows, np.int64), np.zeros(rows, dtype=bool)
            values.insert(index, Slices(run.data, nothing, nothing.copy(), never))
            unsent.insert(index, never.copy())

    @property
    def key(self) -> frozenset[int]:
        """Indices of the key columns."""
        return frozenset(index for index, name in enumerate(self.schema.names) if name in self.schema.key)


class Resolved(NamedTuple):
    """What a relation message means. Without a layout, the table is not captured."""

    layout: Layout | None
    announced: Announced = Announced()


@dataclass(frozen=True, slots=True)
class WalPiece:
    """What has arrived: the number of messages from the server, those of the log among them as a run, and what the
    catalog says about the relations in it. ``idle_at``: the server's last message, at ``sent_us`` (its clock, since
    1970), said that the log has nothing more up to there."""

    run: Messages = field(default_factory=join)
    facts: CatalogFacts = field(default_factory=CatalogFacts)
    idle_at: PostgresLsn | None = None
    messages: int = 0
    sent_us: int = 0


def walk(run: Messages, at: Ints, limit: Ints, columns: int) -> tuple[list[Slices], list[Mask], Ints]:
    """The tuples that begin at ``at``: the values of each column, which of them the source did not send (which is not
    NULL), and where the tuples end. DecodeError for anything else, or for a tuple that exceeds its ``limit``."""
    data, counts = run.data, numbers(run.data, at, ">u2")
    if np.any(counts != columns):
        found = int(counts[np.flatnonzero(counts != columns)[0]])
        raise DecodeError(f"a row has {found} columns, its relation message has {columns}")
    values, missing, offset = [], [], at + 2
    for _ in range(columns):
        # The data is padded, and the offset before this column is within the limit, so these bytes exist.
        kinds = data[offset]
        sent, unsent = kinds == _TEXT, kinds == _UNCHANGED
        if not np.all(sent | unsent | (kinds == _NULL)):
            if np.any(kinds == _BINARY):
                raise _BinaryError("a column is in binary form")
            raise DecodeError("a column is neither NULL, unchanged nor text, or its message ends before it")
        lengths = np.where(sent, numbers(data, offset + 1, ">i4"), 0)
        starts = np.where(sent, offset + 5, offset + 1)
        offset = starts + lengths
        if np.any(lengths < 0) or np.any(offset > limit):
            raise DecodeError("a message ends inside a row, or a column has a negative length")
        values.append(Slices(data, starts, lengths, sent))
        missing.append(unsent)
    return values, missing, offset


def _rows(run: Messages, chosen: Ints, order: Ints, codes: Any, layout: Layout, *, before_images: bool) -> Rows:
    """The rows of the messages ``chosen``, all of one relation. Each message occupies ``_PLACES`` order numbers."""
    # 1. The first tuple of each message, and the second one of updates that carry the old row.
    begins, ends, kinds = run.begins[chosen], run.ends[chosen], run.kinds[chosen]
    if np.any(begins + _TUPLE > ends):
        raise DecodeError("a row message ends too early")
    marks, count, width = run.data[begins + _TUPLE - 1], len(chosen), layout.width
    inserts, updates, deletes = kinds == _INSERT, kinds == _UPDATE, kinds == _DELETE
    has_new, has_old = marks == _NEW, (marks == _KEY) | (marks == _OLD)
    if not np.all(inserts & has_new | updates & (has_new | has_old) | deletes & has_old):
        raise DecodeError("a row message lacks the new or the old row that it must have")
    if not layout.schema.key and np.any(~inserts & (marks != _OLD)):
        raise DecodeError(f"{layout.schema.table} has no key, and a change of it lacks the old row")
    values, unsent, stops = walk(run, begins + _TUPLE, ends, width)
    if layout.sent:
        layout.spread(run, count, values, unsent)
    new, moved = np.arange(count), np.zeros(count, dtype=bool)
    twice = np.flatnonzero(updates & has_old)
    if len(twice):
        if np.any(stops[twice] >= ends[twice]) or np.any(run.data[stops[twice]] != _NEW):
            raise DecodeError("an update has an old row but no new one")
        after, after_unsent, stops[twice] = walk(run, stops[twice] + 1, ends[twice], width)
        if layout.sent:
            layout.spread(run, len(twice), after, after_unsent)
        full, changed = (marks[twice] == _OLD) & layout.whole_old_rows, np.full(len(twice), not layout.key)
        for index, own in enumerate(after):
            # Values that were not sent come from the old row: all of them if it is full, otherwise the key's.
            before = values[index].take(twice)
            filled = after_unsent[index] & ~unsent[index][twice] & (full | (index in layout.key))
            own.starts[filled], own.lengths[filled] = before.starts[filled], before.lengths[filled]
            own.valid[filled], after_unsent[index][filled] = before.valid[filled], False
            if index in layout.key:
                is_same: Any = pc.equal(before.binary(), own.binary())
                changed |= ~is_same.fill_null(False).to_numpy(zero_copy_only=False)
            values[index], unsent[index] = values[index].then(own), np.append(unsent[index], after_unsent[index])
        new[twice], moved[twice] = count + np.arange(len(twice)), changed
    if np.any(stops != ends):
        raise DecodeError("a row message has excess bytes")

    # 2. The rows: which message and which of its tuples each comes from, and its operation.
    images = ~inserts & (marks == _OLD) & (before_images and layout.whole_old_rows)
    rows, places = np.nonzero(np.stack((images, deletes | moved, ~deletes), axis=1))
    is_new = places == _PLACES - 1
    new_operations = np.where(inserts | moved, Operation.INSERT, Operation.UPDATE)[rows]
    operations = np.where(is_new, new_operations, np.where(places == 0, Operation.BEFORE, Operation.DELETE))
    if len(twice) or len(rows) > count:
        taken = np.where(is_new, new[rows], rows)
        values, unsent = [one.take(taken) for one in values], [one[taken] for one in unsent]
    replaced: dict[str, int] = {}
    columns, absent = _columns(values, unsent, operations == Operation.DELETE, layout, replaced)
    messages, operations = chosen[rows], operations.astype(np.int8)
    found = Rows(layout.schema, columns, operations, order[messages] + places, codes[messages], absent)
    return replace(found, replaced=replaced_metadata(replaced)) if replaced else found


def _columns(
    values: list[Slices], unsent: list[Mask], deletes: Mask, layout: Layout, replaced: dict[str, int]
) -> tuple[list[Any], Any]:
    """The columns of the rows; and for each row, which columns the source did not send. Adds to ``replaced`` how many
    values of each column its rule replaced."""
    schema, key, columns = layout.schema, layout.key, []
    has_deletes = bool(key) and bool(deletes.any())
    for index, (column, own) in enumerate(zip(schema.columns, values, strict=True)):
        if index in key and not own.valid.all():
            raise DecodeError(f"a row of {schema.table} has no value for the key column {column.name}")
        if index not in key and has_deletes:
            own.valid[deletes] = False  # deletes carry only the key, and none of their columns counts as absent
        before = REPLACED.values
        try:
            columns.append(to_arrow(own.binary(), column.type, column.out_of_range))
        except MisfitError as error:
            raise error.of(column.name) from error
        if REPLACED.values > before:
            replaced[column.name] = REPLACED.values - before
    if not any(one.any() for one in unsent):
        return columns, pa.nulls(len(deletes), _ABSENT)
    if not key:
        raise DecodeError(f"{schema.table} has no key, and a row of it lacks some of its values")
    gaps: Any = np.stack(unsent, axis=1) & ~deletes[:, None]
    rows, places = np.nonzero(gaps)
    offsets: Any = pa.array(np.searchsorted(rows, np.arange(len(gaps) + 1)).astype(np.int32))
    lists = pa.ListArray.from_arrays(offsets, pa.array([schema.names[place] for place in places], pa.string()))
    return columns, pc.if_else(pa.array(gaps.any(axis=1)), lists, pa.nulls(len(gaps), _ABSENT))


class PgoutputDecoder:
    """See ``capture.log.Decoder``. Decodes whole transactions as they arrive. The beginning of a transaction is kept
    until its commit arrives, so that a change set can be cut before it; a large one is returned in parts.

    ``resolve`` says what a relation message means, given the facts of the piece; it does no I/O either."""

    def __init__(self, resolve: Callable[[Relation, CatalogFacts], Resolved], *, before_images: bool = False) -> None:
        self._resolve, self._before_images = resolve, before_images
        self._layouts: dict[int, Layout | None] = {}
        self._begun: list[Messages] = []
        self._facts = CatalogFacts()
        self._open: Transaction | None = None

    def decode(self, piece: WalPiece) -> Decoded[PostgresLsn]:
        """DecodeError if the messages are not what PostgreSQL sends."""
        runs = list[Messages]()
        if piece.facts.tables:
            tables, types = {**self._facts.tables, **piece.facts.tables}, {**self._facts.types, **piece.facts.types}
            self._facts = CatalogFacts(tables, types)
        if whole := committed(piece.run):
            runs, self._begun = [*self._begun, piece.run[:whole]], []
        if whole < len(piece.run):
            self._begun.append(piece.run[whole:])
        if not runs and sum(one.ends[-1] - one.begins[0] for one in self._begun) > PIECE_BYTES:
            runs, self._begun = self._begun, []
        decoded = self._decoded(join(runs)) if runs else Decoded[PostgresLsn]()
        if not self._begun:
            self._facts = CatalogFacts()
            if self._open is None:
                decoded.reached = piece.idle_at
        return decoded

    def _decoded(self, run: Messages) -> Decoded[PostgresLsn]:
        """1. transactions, 2. an order number for every message, 3. relations, truncates and the rows between them."""
        kinds, data, lengths = run.kinds, run.data, run.ends - run.begins
        if np.any(lengths <= 0) or not np.all(_KNOWN[kinds]):
            raise DecodeError("a message is empty, or of an unknown kind")
        for kind, size in ((_BEGIN, 21), (_COMMIT, 26)):
            if np.any(lengths[kinds == kind] != size):
                raise DecodeError(f"a message of kind {chr(kind)!r} has a wrong size")
        begin, commit, truncate = kinds == _BEGIN, kinds == _COMMIT, kinds == _TRUNCATE
        is_row = np.isin(kinds, (_INSERT, _UPDATE, _DELETE))
        depth = int(self._open is not None) + np.cumsum(begin) - np.cumsum(commit)
        if np.any(depth[begin | is_row | truncate] != 1) or np.any(depth[commit] != 0):
            raise DecodeError("messages do not come in whole transactions")
        made = Decoded[PostgresLsn](continues=self._open is not None)
        at = run.begins[begin]
        times, xids = numbers(data, at + 9, ">i8") + EPOCH_US, numbers(data, at + 17, ">u4")
        # The *end* of each commit record: that is the position to resume from.
        ends: list[int] = numbers(data, run.begins[commit] + 10, ">u8", np.uint64).tolist()
        known = [(self._open.time_us, self._open.id)] if self._open is not None else []
        known += zip(times.tolist(), map(str, xids.tolist()), strict=True)
        made.open = len(known) > len(ends)
        for (when, xid), end in zip(known, [*ends, 0], strict=False):
            made.transactions.append(Transaction(PostgresLsn(end), when, xid))
        codes = (np.cumsum(begin) - (not made.continues)).astype(np.int32)
        self._open = made.transactions[-1] if made.open else None

        truncates = {index: read_truncate(run.message(index)) for index in np.flatnonzero(truncate).tolist()}
        widths = np.where(is_row, _PLACES, 0)
        widths[truncate] = [len(relations) for relations in truncates.values()]
        until = np.cumsum(widths)
        made.width, order = int(until[-1]), until - widths

        start = 0
        for index in (*np.flatnonzero((kinds == _RELATION) | truncate).tolist(), len(run)):
            for first in range(start, index, _PIECE_MESSAGES):
                last = min(first + _PIECE_MESSAGES, index)
                self._tables(run, first + np.flatnonzero(is_row[first:last]), order, codes, made)
            for nth, relation in enumerate(truncates.get(index, ())):
                if (layout := self._layout(relation)) is not None:
                    empty = [pa.array([None], column.type) for column in layout.schema.columns]
                    operation, one = np.full(1, int(Operation.TRUNCATE), np.int8), slice(index, index + 1)
                    made.items.append(Rows(layout.schema, empty, operation, order[one] + nth, codes[one]))
            if index < len(run) and index not in truncates:
                table = read_relation(run.message(index))
                self._layouts[table.id], announced = self._resolve(table, self._facts)
                made.items.append(announced)
            start = index + 1
        return made

    def _layout(self, relation: int) -> Layout | None:
        """None if the table is not captured."""
        if relation not in self._layouts:
            raise DecodeError(f"a row of relation {relation} came before its relation message")
        return self._layouts[relation]

    def _tables(self, run: Messages, chosen: Ints, order: Ints, codes: Any, made: Decoded[PostgresLsn]) -> None:
        """Decode the row messages ``chosen``, table by table."""
        if np.any(run.begins[chosen] + 5 > run.ends[chosen]):
            raise DecodeError("a row message ends too early")
        relations = numbers(run.data, run.begins[chosen] + 1, ">u4")
        for relation in np.unique(relations).tolist():
            if (layout := self._layout(relation)) is None:
                continue
            own, schema = chosen[relations == relation], layout.schema
            try:
                made.items.append(_rows(run, own, order, codes, layout, before_images=self._before_images))
            except MisfitError as error:
                made.items.append(Announced(notices=(error.blocked(schema.table),)))
            except _BinaryError:
                notice: TableNotice = RecopyNeeded(schema.table, "PostgreSQL could not print a row of a transaction")
                if np.any(run.ends[own] - run.begins[own] >= LARGE_BYTES):
                    notice = TableBlocked(schema.table, "a row is too large for PostgreSQL to print it", TOO_LARGE)
                made.items.append(Announced(notices=(notice,)))
