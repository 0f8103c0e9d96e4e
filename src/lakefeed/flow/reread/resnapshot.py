"""Resnapshot: reads a table, or a part of it, again beside the live stream, chunk by chunk, through the journal.

For rows that a repair cannot name: a source that was changed behind its log, or a lake table that nobody trusts. Each
chunk takes the steps of a repair (``repair``): it is read in a bracket, the journal passes that, keys with a change in
the journal from there on are left to their own changes, and the other rows become a change set of their own. Rows that
only the lake has stay, since no chunk has them. ``lakefeed verify --repair`` finds and deletes those.

The progress is in a file of its own, ``resnapshots/<table>.json``, written after each chunk: a process that takes the
pipeline over continues with the next one. What a person wants is in another file (``ask``), with a growing number:

    start ──▶ running ──all chunks──▶ done        stop ──▶ stopped        an error that no retry helps ──▶ failed
                 │  ▲
            pause ▼  │ resume
               paused

``generation`` counts the resnapshots of a table. Its chunks are numbered, and the transaction ids in the journal
contain both numbers: a chunk that was written before a kill is not written twice.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any
from urllib.parse import quote

import pyarrow.parquet as pq

from lakefeed.capture.base import ChangeCapture
from lakefeed.change.batch import TXN
from lakefeed.change.change_set import ChangeSet
from lakefeed.change.table import TableId, TableSchema
from lakefeed.errors import ConfigError, LakefeedError, Retry, StateError
from lakefeed.failpoint import hit
from lakefeed.flow.reread.repair import ReadAgain, changes_read_again, keys_moved, read_again
from lakefeed.flow.shape import Shape
from lakefeed.flow.table_state import Phase, TableStates
from lakefeed.journal.commit import Commit
from lakefeed.journal.journal import Journal
from lakefeed.storage.base import Storage
from lakefeed.storage.location import storage_at

log = logging.getLogger(__name__)

FOLDER = "resnapshots"
CHUNK_ROWS = 20_000
_RECORD, _ASKED = ".json", ".asked"
_LOOK_SECONDS, _STORE_LOOK_SECONDS = 0.5, 10.0
_TRIES = 20
START, PAUSE, RESUME, STOP = "start", "pause", "resume", "stop"
RUNNING, PAUSED, STOPPED, DONE, FAILED = (
    "running",
    "paused",
    "stopped",
    "done",
    "failed",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Resnapshot:
    """The progress of one resnapshot. ``number`` is that of the newest request it has followed. ``head`` is the
    journal's head when its next chunk became due; ``moved`` rows came by their own changes."""

    source: str
    generation: int
    number: int
    state: str = RUNNING
    where: str | None = None
    chunks: tuple[Mapping[str, Any], ...] = ()
    next: int = 0
    rows: int = 0
    moved: int = 0
    head: int = 0
    at: float = 0.0
    error: str | None = None
    remedy: str | None = None

    @property
    def is_over(self) -> bool:
        return self.state in (STOPPED, DONE, FAILED)


def ask(root: Storage, source: TableId, what: str, where: str | None = None) -> int:
    """Write what a person wants from a table's resnapshot. Returns the number of the request. ConfigError if it makes
    no sense now."""
    files, now = root.below(FOLDER), load(root, source)
    if what == START and now is not None and not now.is_over:
        raise ConfigError(
            f"a resnapshot of {source} is {now.state}",
            remedy="Stop it first, or resume it.",
        )
    if what != START and (now is None or now.is_over):
        raise ConfigError(
            f"no resnapshot of {source} is under way",
            remedy=f"See `lakefeed resnapshot FILE {source}`.",
        )
    number = int(time.time() * 1000)
    body = {"source": str(source), "what": what, "where": where, "number": number}
    files.replace(f"{_name(source)}{_ASKED}", json.dumps(body, ensure_ascii=False).encode())
    return number


def load(root: Storage, source: TableId) -> Resnapshot | None:
    """The progress of the newest resnapshot of a table; None if there never was one."""
    return _load(root.below(FOLDER), _name(source))


@dataclass(slots=True)
class _Reading:
    """A chunk that is being read."""

    record: Resnapshot
    thread: threading.Thread | None = None
    read: ReadAgain | None = None
    error: LakefeedError | None = None
    plan: tuple[Mapping[str, Any], ...] | None = None


@dataclass(slots=True)
class _Seen:
    """What this process knows about the files."""

    looked_at: float = float("-inf")
    records: dict[str, Resnapshot] = field(default_factory=dict)
    checked: set[tuple[str, int]] = field(default_factory=set)
    failures: dict[str, int] = field(default_factory=dict)


class Resnapshots:
    """The resnapshots of one pipeline, carried out by the process with its lease. See the module."""

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
        self._seen = _Seen()
        self._reading: _Reading | None = None

    @property
    def has_work(self) -> bool:
        """Whether a chunk should be read now. Asks the storage."""
        self._look(now=True)
        return self._reading is not None or any(one.state == RUNNING for one in self._seen.records.values())

    def turn(self, *, now: bool = False) -> Commit | None:
        """As ``Repairs.turn``: one step of a chunk, without waiting."""
        self._look(now=now)
        reading = self._reading
        if reading is None:
            running = next(
                (one for _, one in sorted(self._seen.records.items()) if one.state == RUNNING),
                None,
            )
            if running is not None:
                self._start(running)
            return None
        if reading.thread is not None and reading.thread.is_alive():
            return None
        record = self._seen.records.get(_name(TableId.parse(reading.record.source)), reading.record)
        if record.state != RUNNING or record.generation != reading.record.generation:
            self._reading = None  # paused or stopped: the chunk is read again, if at all
            return None
        if reading.error is not None:
            self._reading = None
            failures = self._seen.failures[record.source] = self._seen.failures.get(record.source, 0) + 1
            if reading.error.retry is not Retry.BACKOFF or failures > _TRIES:
                error = reading.error
                self._save(replace(record, state=FAILED, error=error.message, remedy=error.remedy))
            return None
        if reading.plan is not None:  # the chunks are planned; save that before the first one is read
            self._reading = None
            self._save(replace(record, chunks=reading.plan, head=self._journal.head))
            return None
        end, read = self._journal.end, reading.read
        if read is None or end is None or not all(end >= high for high in read.highs):
            return None
        self._reading = None
        moved = keys_moved(self._journal, read)
        if moved is None:
            return None  # all rows have moved: read it again
        name = f"{record.generation} of {record.source}, chunk {record.next}"
        batch, rows = changes_read_again(read, (), moved, end, _transaction(name))
        commit = None
        if batch is not None:
            hit("repair.before_append")
            commit = self._journal.append(self._shape.change_set(ChangeSet(end, end, (batch,), batch.rows)))
            hit("repair.after_append")
        left = sum(one.num_rows for one in read.rows) - rows
        self._step(replace(record, rows=record.rows + rows, moved=record.moved + left))
        return commit

    def _step(self, record: Resnapshot) -> None:
        """The chunk is in the journal: the next one is due."""
        following = record.next + 1
        state = DONE if following >= len(record.chunks) else RUNNING
        self._seen.failures.pop(record.source, None)
        self._save(replace(record, next=following, state=state, head=self._journal.head))

    def _look(self, *, now: bool) -> None:
        """Follow new requests."""
        pause = _STORE_LOOK_SECONDS if self._files.is_remote else _LOOK_SECONDS
        if not now and time.monotonic() - self._seen.looked_at < pause:
            return
        self._seen.looked_at = time.monotonic()
        for file in sorted(self._files.names()):
            if file.endswith(_RECORD) and (name := file.removesuffix(_RECORD)) not in self._seen.records:
                record = _load(self._files, name)
                if record is not None:
                    self._seen.records[name] = record
        for file in sorted(self._files.names()):
            if not file.endswith(_ASKED):
                continue
            name = file.removesuffix(_ASKED)
            try:
                asked = json.loads(self._files.read(file))
                number, what, where, source = (
                    asked["number"],
                    asked["what"],
                    asked["where"],
                    asked["source"],
                )
            except (OSError, ValueError, KeyError, TypeError):
                continue
            known = self._seen.records.get(name)
            if known is not None and known.number >= number:
                continue
            if what == START:
                generation = known.generation + 1 if known is not None else 1
                self._save(Resnapshot(source=source, generation=generation, number=number, where=where))
            elif known is not None and not known.is_over:
                state = {PAUSE: PAUSED, RESUME: RUNNING, STOP: STOPPED}.get(what, known.state)
                self._save(replace(known, state=state, number=number))

    def _start(self, record: Resnapshot) -> None:
        """Read the next chunk, or plan all of them, in a thread."""
        source = TableId.parse(record.source)
        reading = self._reading = _Reading(record)
        schema = self._journal.latest_schema(source)
        live = any(state.source == source and not state.leaving for state in self._states.in_phase(Phase.LIVE))
        if schema is None or not live:
            reading.error = StateError(f"no lake table of {source} is live", remedy="See `lakefeed status`.")
            return
        if not schema.key or self._shape.masks_key(schema.whole):
            reading.error = StateError(
                f"{source} cannot be read again in parts: it has no key, or its key is masked",
                remedy="Copy the lake table again: lakefeed rebuild FILE TABLE --from-source, then lakefeed sync FILE",
            )
            return
        if record.chunks and self._is_written(record, source):
            self._reading = None
            self._step(record)
            return
        whole, began = schema.whole, self._journal.head
        reading.thread = threading.Thread(
            target=self._read,
            args=(reading, record, whole, began),
            name="lakefeed-resnapshot",
            daemon=True,
        )
        reading.thread.start()

    def _read(self, reading: _Reading, record: Resnapshot, whole: TableSchema, began: int) -> None:
        try:
            if not record.chunks:
                where = (record.where,) if record.where else ()
                plan = self._capture.reread(whole, chunk_rows=CHUNK_ROWS, where=where)
                reading.plan = tuple(dict(one.to_json()) for one in plan.chunks)
                return
            chunk = self._capture.chunk(record.chunks[record.next])
            reading.read = read_again(whole, [chunk], began)
        except LakefeedError as error:
            reading.error = error
        except Exception as error:  # noqa: BLE001  # it must never stop a pipeline
            reading.error = StateError(f"{whole.table} could not be read again: {type(error).__name__}: {error}")

    def _is_written(self, record: Resnapshot, source: TableId) -> bool:
        """Whether a process that was killed has written this very chunk. Each process asks once."""
        if (record.source, record.generation) in self._seen.checked:
            return False
        self._seen.checked.add((record.source, record.generation))
        wanted = _transaction(f"{record.generation} of {record.source}, chunk {record.next}")
        first = max(record.head, self._journal.trimmed)
        for commit in self._journal.commits(first) if first < self._journal.head else ():
            if commit.start == commit.end and source in commit.tables:
                for segment in commit.tables[source].segments:
                    there = pq.read_table(segment.path, columns=[TXN]).column(TXN)
                    if len(there) and str(there[0].as_py()) == wanted:
                        return True
        return False

    def _save(self, record: Resnapshot) -> None:
        record = replace(record, at=time.time())
        name = _name(TableId.parse(record.source))
        self._files.replace(f"{name}{_RECORD}", json.dumps(asdict(record), ensure_ascii=False).encode())
        self._seen.records[name] = record


def _load(files: Storage, name: str) -> Resnapshot | None:
    try:
        body = json.loads(files.read(f"{name}{_RECORD}"))
        return Resnapshot(**{**body, "chunks": tuple(body["chunks"])})
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        log.warning(
            "the record of a resnapshot, %s, cannot be read: %s",
            files.place(name),
            error,
        )
        return None


def _name(source: TableId) -> str:
    return quote(str(source), safe=" .")


def _transaction(name: str) -> str:
    return f"lakefeed resnapshot {name}"
