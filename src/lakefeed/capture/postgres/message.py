"""pgoutput, protocol version 1: a run of messages seen as arrays. Pure and total: values or DecodeError.

Format: PostgreSQL documentation, "Logical Replication Message Formats". Integers are big-endian.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lakefeed.capture.postgres.slices import PAD, Bytes, Ints, integers, padded
from lakefeed.errors import DecodeError

BEGIN, COMMIT, INSERT, UPDATE, DELETE = (ord(letter) for letter in "BCIUD")
RELATION, TYPE, TRUNCATE, ORIGIN, MESSAGE = (ord(letter) for letter in "RYTOM")
_KNOWN = np.zeros(256, dtype=bool)
_KNOWN[[BEGIN, COMMIT, INSERT, UPDATE, DELETE, RELATION, TYPE, TRUNCATE, ORIGIN, MESSAGE]] = True
_SIZES = {BEGIN: 21, COMMIT: 26}

EPOCH_MICROSECONDS = 946_684_800_000_000
"""PostgreSQL counts time from 2000, Arrow from 1970."""


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

    def last_commit(self) -> int:
        """Index of the last COMMIT, -1 if there is none."""
        found = np.flatnonzero(self.kinds == COMMIT)
        return int(found[-1]) if len(found) else -1


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


@dataclass(frozen=True, slots=True)
class Begins:
    """Of each BEGIN: commit time (microseconds since 1970) and transaction id."""

    times: Ints
    xids: Ints


def read_begins(run: Run) -> Begins:
    at = _fixed(run, BEGIN)
    times = integers(run.data, at + 9, ">i8") + EPOCH_MICROSECONDS
    return Begins(times, integers(run.data, at + 17, ">u4"))


def read_commits(run: Run) -> Ints:
    """Of each COMMIT: where its record *ends*. That is the place to resume from (T1)."""
    return integers(run.data, _fixed(run, COMMIT) + 10, ">i8")


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


@dataclass(frozen=True, slots=True)
class Truncate:
    relations: tuple[int, ...]
    cascade: bool
    restart_identity: bool


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


def read_truncate(message: bytes) -> Truncate:
    cursor = _Cursor(message)
    count, flags = cursor.integer(4), cursor.integer(1)
    if count * 4 > len(message):
        raise DecodeError("a truncate message names more tables than it holds")
    relations = tuple(cursor.integer(4) for _ in range(count))
    cursor.finish()
    return Truncate(relations, bool(flags & 1), bool(flags & 2))


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
