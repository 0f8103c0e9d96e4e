"""Repair: reads rows that differ from the source again, and sends them through the journal as a change set of their
own.

So every reader sees an ordinary change, history modes keep their history, and a kill at any moment leaves the same as a
kill between two change sets. Whoever finds the difference asks for a repair (``ask``): a request is a file below
``repairs/``. The process with the lease carries it out, beside the stream, in the steps of an incremental snapshot:

  1 read     read the rows of the keys, on a connection of their own, in reads whose brackets say which commits they
             include: all up to ``low``, none after ``high``
  2 wait     until the journal has passed every ``high``
  3 settle   a key with a change in the journal after the lowest ``low`` has moved: what was read may be older than what
             the lake gets anyway. It is read again in the next turn. Any other key has had one value all the time, so
             what was read is what the source has at the journal's end
  4 append   existing rows as READ, missing keys as DELETE. The change set starts and ends at the journal's end: the
             source's own next change comes after it
  5 answer   write a file that the requester waits for

Steps 3 and 4 belong to the thread that appends the source's changes (``turn``): nothing can enter the journal between
the two, so a repair never overwrites a newer change. A process that was killed between 4 and 5 finds the request's name
in the transaction ids of its journal, and does not repeat it.
"""

from __future__ import annotations

import json
import logging
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from lakefeed.capture.base import ChangeCapture, Chunk
from lakefeed.capture.dialect import Key, key_array, key_rows
from lakefeed.change.batch import (
    ABSENT,
    METADATA,
    OP,
    POSITION,
    SEQ,
    TIME,
    TXN,
    ChangeBatch,
    Operation,
    change_schema,
)
from lakefeed.change.change_set import ChangeSet
from lakefeed.change.position import Position
from lakefeed.change.table import TableId, TableSchema
from lakefeed.change.watermark import Watermark, tag_value, untag_value
from lakefeed.errors import LakefeedError, Retry, StateError
from lakefeed.failpoint import hit
from lakefeed.flow.shape import Shape
from lakefeed.flow.table_state import Phase, TableStates
from lakefeed.journal.commit import Commit
from lakefeed.journal.journal import Journal
from lakefeed.storage.base import Storage
from lakefeed.storage.location import storage_at

log = logging.getLogger(__name__)

FOLDER = "repairs"
_REQUEST, _ANSWER = ".json", ".answer"
_MOST_KEYS = 10_000
"""Keys per change set; more keys take several."""
_TURNS = 20
"""How often rows that keep changing are read again. After that, their own changes bring them to the lake."""
_LOOK_SECONDS, _STORE_LOOK_SECONDS = 0.5, 10.0
_KEPT_SECONDS = 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairRequest:
    """``keys`` of the source table ``source``, as ``dialect.key_rows`` returns them. ``head`` is the journal's head at
    the time of the request."""

    id: str
    source: TableId
    keys: tuple[Key, ...]
    head: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairAnswer:
    """``rows`` were written and ``deleted`` keys deleted, in ``change_sets``. ``moved`` keys changed all the time;
    their own changes bring them. ``error`` and ``remedy``: why nothing more was done, and what to do about it."""

    rows: int = 0
    deleted: int = 0
    moved: int = 0
    change_sets: tuple[int, ...] = ()
    error: str | None = None
    remedy: str | None = None


def ask(root: Storage, source: TableId, keys: Sequence[Key], head: int) -> str:
    """Write a request, durably. Returns its name, for ``answer``."""
    name = f"{int(time.time() * 1000):013d}-{uuid.uuid4().hex[:8]}"
    body = {
        "source": str(source),
        "keys": [[tag_value(one) for one in key] for key in keys],
        "head": head,
    }
    root.below(FOLDER).replace(f"{name}{_REQUEST}", json.dumps(body, ensure_ascii=False).encode())
    return name


def answer(root: Storage, name: str) -> RepairAnswer | None:
    """The result of a request; None until somebody has carried it out."""
    try:
        body = json.loads(root.below(FOLDER).read(f"{name}{_ANSWER}"))
    except FileNotFoundError:
        return None
    return RepairAnswer(**{**body, "change_sets": tuple(body["change_sets"])})


@dataclass(frozen=True, slots=True)
class ReadAgain:
    """What step 1 read: whole rows, and the brackets of all reads. ``began`` is the journal's head before the reads."""

    schema: TableSchema
    rows: tuple[pa.RecordBatch, ...]
    lows: tuple[Position, ...]
    highs: tuple[Position, ...]
    began: int


@dataclass(slots=True)
class _Work:
    """One active request. ``left`` are the keys that are not settled, ``asked`` those of this turn."""

    request: RepairRequest
    left: list[Key]
    turns: int = 0
    asked: tuple[Key, ...] = ()
    read: ReadAgain | None = None
    error: LakefeedError | None = None
    thread: threading.Thread | None = None
    rows: int = 0
    deleted: int = 0
    change_sets: list[int] = field(default_factory=list)


class Repairs:
    """The requests of one pipeline, carried out by the process with its lease. See the module."""

    def __init__(
        self,
        root: Storage,
        capture: ChangeCapture,
        journal: Journal,
        states: TableStates,
        shape: Shape,
    ) -> None:
        self._files = storage_at(root).below(FOLDER)
        self._capture = capture
        self._journal = journal
        self._states = states
        self._shape = shape
        self._work: _Work | None = None
        self._looked_at = float("-inf")

    @property
    def has_work(self) -> bool:
        """Whether a request is active or waiting. Asks the storage."""
        return self._work is not None or bool(self._waiting())

    def turn(self, *, now: bool = False) -> Commit | None:
        """Advance the work without waiting: a thread does whatever takes time. Called between two change sets by the
        thread that appends them. ``now``: look for new requests at once. Returns the change set that was appended, if
        any."""
        if self._work is None:
            pause = _STORE_LOOK_SECONDS if self._files.is_remote else _LOOK_SECONDS
            if not now and time.monotonic() - self._looked_at < pause:
                return None
            self._looked_at = time.monotonic()
            waiting = self._waiting()
            if not waiting:
                return None
            self._work = self._begin(waiting[0])
        work = self._work
        if work is None or (work.thread is not None and work.thread.is_alive()):
            return None
        if work.read is not None:
            end = self._journal.end
            if end is None or not all(end >= high for high in work.read.highs):
                return None  # 2
            return self._append(work, work.read, end)
        try:
            error, work.error = work.error, None
            if error is not None and not (error.retry is Retry.BACKOFF and work.turns < _TURNS):
                raise error  # an unavailable source is asked again
            if work.left and work.turns < _TURNS:
                self._start_reading(work)
            else:
                self._answer(work)
        except LakefeedError as refused:
            self._answer(work, refused)
        return None

    def _waiting(self) -> list[str]:
        names = sorted(self._files.names())
        answered = {name.removesuffix(_ANSWER) for name in names if name.endswith(_ANSWER)}
        for name in answered:
            if (self._files.age_seconds(f"{name}{_ANSWER}", exact=False) or 0.0) > _KEPT_SECONDS:
                self._files.remove([f"{name}{_REQUEST}", f"{name}{_ANSWER}"])
        requests = (name.removesuffix(_REQUEST) for name in names if name.endswith(_REQUEST))
        return [name for name in requests if name not in answered]

    def _begin(self, name: str) -> _Work | None:
        """A request, without the part that a killed process has done. None if its file cannot be read."""
        try:
            body = json.loads(self._files.read(f"{name}{_REQUEST}"))
            keys = [tuple(map(untag_value, key)) for key in body["keys"]]
            request = RepairRequest(
                id=name,
                source=TableId.parse(body["source"]),
                keys=tuple(keys),
                head=body["head"],
            )
        except (OSError, ValueError, KeyError, TypeError, LakefeedError) as error:
            log.warning("the repair %s cannot be read, and is removed: %s", name, error)
            self._files.remove([f"{name}{_REQUEST}"])
            return None
        work = _Work(request, keys)
        first = max(request.head, self._journal.trimmed)
        for commit in self._journal.commits(first) if first < self._journal.head else ():
            if commit.start != commit.end or request.source not in commit.tables:
                continue
            for segment in commit.tables[request.source].segments:
                there = pq.read_table(segment.path, columns=[TXN]).column(TXN)
                if len(there) and str(there[0].as_py()) == _transaction(name):
                    work.change_sets.append(commit.number)
                    done = set(_keys_in(segment.path, self._schema(request.source).key))
                    work.left = [key for key in work.left if key not in done]
        return work

    def _schema(self, source: TableId) -> TableSchema:
        schema = self._journal.latest_schema(source)
        if schema is None:
            raise StateError(f"the journal does not know {source}", remedy="Check the table's name.")
        return schema

    def _start_reading(self, work: _Work) -> None:
        """Step 1, in a thread."""
        source, work.turns = work.request.source, work.turns + 1
        schema = self._schema(source)
        live = [state for state in self._states.in_phase(Phase.LIVE) if state.source == source and not state.leaving]
        if not live:
            raise StateError(f"no lake table of {source} is live", remedy="See `lakefeed status`.")
        if not schema.key or self._shape.masks_key(schema.whole):
            raise StateError(
                f"rows of {source} cannot be found by a key: it has none, or its key is masked before the journal",
                remedy=f"Copy it again: lakefeed rebuild FILE {live[0].table} --from-source, then lakefeed sync FILE",
            )
        work.asked, began = tuple(work.left[:_MOST_KEYS]), self._journal.head

        def read() -> None:
            try:
                plan = self._capture.reread(schema.whole, keys=work.asked)
                work.read = read_again(schema.whole, plan.chunks, began)
            except LakefeedError as error:
                work.error = error
            except Exception as error:  # noqa: BLE001  # a repair must never stop a pipeline
                work.error = StateError(f"rows of {source} could not be read again: {type(error).__name__}: {error}")

        work.thread = threading.Thread(target=read, name="lakefeed-repair", daemon=True)
        work.thread.start()

    def _append(self, work: _Work, read: ReadAgain, end: Position) -> Commit | None:
        """Steps 3 and 4."""
        source, work.read = work.request.source, None
        moved = keys_moved(self._journal, read)
        if moved is None:
            return None  # all keys have moved
        asked = [key for key in work.asked if key not in moved]
        batch, rows = changes_read_again(read, asked, moved, end, _transaction(work.request.id))
        work.left = [key for key in work.left if key in moved or key not in work.asked]
        if batch is None:
            return None
        change_set = ChangeSet(end, end, (batch,), batch.rows)
        hit("repair.before_append")
        commit = self._journal.append(self._shape.change_set(change_set))
        hit("repair.after_append")
        work.rows += rows
        work.deleted += batch.rows - rows
        work.change_sets.append(commit.number)
        log.info("repaired %s rows of %s in change set %s", batch.rows, source, commit.number)
        return commit

    def _answer(self, work: _Work, error: LakefeedError | None = None) -> None:
        """Step 5."""
        found = RepairAnswer(
            rows=work.rows,
            deleted=work.deleted,
            moved=len(work.left),
            change_sets=tuple(work.change_sets),
            error=error.message if error is not None else None,
            remedy=error.remedy if error is not None else None,
        )
        self._files.replace(
            f"{work.request.id}{_ANSWER}",
            json.dumps(asdict(found), ensure_ascii=False).encode(),
        )
        self._work = None


def read_again(schema: TableSchema, chunks: Sequence[Chunk], began: int) -> ReadAgain:
    """Step 1: reads the chunks of a ``ChangeCapture.reread`` plan. ``schema`` is the journal's newest, in the source's
    form: StateError if the source now has other columns."""
    rows: list[pa.RecordBatch] = []
    lows, highs = [], []
    for chunk in chunks:
        with chunk.open() as reader:
            rows += reader
            lows.append(reader.low)
            highs.append(reader.high)
    if any(tuple(batch.schema.names) != schema.names for batch in rows):
        raise StateError(
            f"the columns of {schema.table} are not what the journal has",
            remedy="Try again: the stream brings the change.",
        )
    return ReadAgain(schema, tuple(rows), tuple(lows), tuple(highs), began)


def keys_moved(journal: Journal, read: ReadAgain) -> set[Key] | None:
    """Step 3: keys with a change in the journal that the read may or may not include. None: all of them."""
    after = read.began if any(isinstance(one, Watermark) for one in read.lows) else journal.trimmed
    for commit in journal.commits(journal.trimmed):
        if all(commit.end <= low for low in read.lows):
            after = max(after, commit.number)
    window = journal.window(read.schema.table, after, journal.head)
    versions = {one.schema_version for one in window.segments}
    if window.truncated_at is not None or versions - {window.target.version}:
        return None
    journal.check(window)
    return {key for one in window.segments for key in _keys_in(one.path, read.schema.key)}


def changes_read_again(
    read: ReadAgain,
    asked: Sequence[Key],
    moved: set[Key],
    end: Position,
    transaction: str,
) -> tuple[ChangeBatch | None, int]:
    """Step 4: what was read as changes, READ for existing rows and DELETE for keys of ``asked`` that do not exist; and
    how many of them are rows. None if all have ``moved``."""
    schema = read.schema
    parts: list[Any] = []
    there: set[Key] = set()
    for batch in read.rows:
        keys = key_rows(batch, schema.key)
        there.update(keys)
        parts.append(batch.filter(pa.array([key not in moved for key in keys], pa.bool_())))
    gone = [key for key in asked if key not in there]
    deletes = {
        one.name: key_array([key[index] for key in gone], one.type) for index, one in enumerate(schema.key_columns)
    }
    rows = sum(part.num_rows for part in parts)
    total = rows + len(gone)
    if total == 0:
        return None, 0
    arrays: list[Any] = []
    for column in schema.columns:
        own = [part.column(column.name) for part in parts]
        own.append(deletes.get(column.name, pa.array([None] * len(gone), column.type)))
        arrays.append(pa.concat_arrays([one.cast(column.type) for one in own]))
    operations = np.where(np.arange(total) < rows, int(Operation.READ), int(Operation.DELETE))
    metadata: Mapping[str, Any] = {
        OP: pa.array(operations, pa.int8()),
        SEQ: pa.array(np.arange(total), pa.int64()),
        POSITION: pa.array([end.encode()] * total).dictionary_encode(),
        TIME: pa.array([time.time_ns() // 1000] * total, METADATA.field(TIME).type),
        TXN: pa.array([transaction] * total).dictionary_encode(),
        ABSENT: pa.nulls(total, METADATA.field(ABSENT).type),
    }
    arrays += [metadata[one.name] for one in METADATA]
    return ChangeBatch(schema, pa.RecordBatch.from_arrays(arrays, schema=change_schema(schema))), rows


def _transaction(name: str) -> str:
    return f"lakefeed repair {name}"


def _keys_in(path: str, key: Sequence[str]) -> list[Key]:
    """The keys of a segment's changes."""
    table = pq.read_table(path, columns=[*key])
    return [one for batch in table.to_batches() for one in key_rows(batch, key) if None not in one]
