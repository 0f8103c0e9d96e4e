"""Does a lake table equal its source table, while both are in use? No lease, no pause, no false alarm.

One look:
  1 read      read the source's rows as Spark tasks, in the chunks of a copy, each in one consistent read whose bracket
              says which commits it includes: all up to ``low``, none after ``high`` (``ChangeCapture.reread``)
  2 wait      until the journal has passed every ``high``; bounded
  3 lake      take the table at a change set at or after that: a version of it, with changes from the journal on top if
              need be (``reading.moment``)
  4 compare   digests, then rows where these differ (``reading.compare``). A key with a change in the journal between
              the lowest ``low`` and that change set has *moved*: the two sides may show it at different times. Any
              other key has had one value all the time: if it differs now, it really differs

Keys that moved and differ are looked at again, by key, which takes milliseconds instead of minutes, so that few of them
move again meanwhile. A row that does is right if what was read is one of the states that it had according to the
journal; a row for which that cannot be decided after several looks is reported, and not called equal.

A source that polls has no bracket. There, keys with changes since the look began count as moved, and the journal must
pass the time of the newest row that was read.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from lakefeed.capture.base import ChangeCapture, SnapshotPlan
from lakefeed.capture.dialect import Key, key_rows
from lakefeed.capture.registry import VerifyReader
from lakefeed.change.batch import ABSENT, OP, Operation
from lakefeed.change.position import Position
from lakefeed.change.segment import Window
from lakefeed.change.table import TableSchema
from lakefeed.change.watermark import Watermark
from lakefeed.errors import LakeError
from lakefeed.flow.report.verified import load_verified
from lakefeed.flow.shape import Shape
from lakefeed.flow.table_state import TableState, TableStates
from lakefeed.journal.journal import Journal
from lakefeed.journal.lease import lease_holder
from lakefeed.journal.pin import Pin
from lakefeed.lake.base import TableFormat
from lakefeed.lake.loader import ChunkFile
from lakefeed.lake.schema.decision import Decisions, decisions_file
from lakefeed.lake.schema.policy import Policy
from lakefeed.reading.compare import (
    MOST_MOVED,
    AsInLake,
    Looked,
    PacedChunk,
    changed_rows,
    look,
    sampled_keys,
    stage_chunks,
    staged_keys,
    staged_rows,
)
from lakefeed.reading.moment import ReadLake, ReadPipeline
from lakefeed.storage.base import Storage
from lakefeed.storage.location import storage_at
from lakefeed.verify.columns import Columns
from lakefeed.verify.compare import Comparison, Progress, TableShape, not_compared
from lakefeed.verify.made import MadeRows
from lakefeed.verify.staging import Staging

_PIN_SECONDS = 6 * 3600.0
_GROUP = 8
LAST = "last"
_SAMPLE_CHUNK_ROWS = 1_000
_RECENT = 20
"""How many change sets before a read count as recent: the row may have been read before it changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveOptions:
    """``wait_seconds``: how long the journal may take to pass what was read. ``looks``: how often moved rows are looked
    at. ``max_rate``: rows read from the source per second. ``most_keys``: how many keys of differing rows are kept for
    a repair; ``shown`` of them are reported with their values. ``sample``: compare only about this many rows, half of
    them chosen in the lake and half in the source. ``since``: compare only rows that have a change in the journal after
    this position; LAST is where the table was last found equal."""

    wait_seconds: float = 120.0
    looks: int = 8
    chunk_rows: int = 250_000
    max_rate: float | None = None
    most_keys: int = 100_000
    shown: int = 20
    sample: int | None = None
    since: str | None = None


class NotComparedError(Exception):
    """Why a table could not be compared. The text is for people."""


class MovedOnError(Exception):
    """The table changed its columns, or all its rows, during a look: another look is needed."""


@dataclass(slots=True)
class _Found:
    """What the looks have found so far."""

    source_rows: int = 0
    lake_rows: int = 0
    differing: int = 0
    sentences: list[str] = field(default_factory=list)
    keys: list[Key] = field(default_factory=list)
    faults: tuple[str, ...] = ()

    def add(self, looked: Looked) -> None:
        self.differing += looked.differing
        self.sentences += map(str, looked.differences)
        self.keys += looked.keys
        self.faults = (*self.faults, *looked.faults)


@dataclass(frozen=True, slots=True)
class _Look:
    looked: Looked
    columns: Columns
    change_set: int
    position: Position | None


@dataclass(frozen=True, kw_only=True)
class LiveTable:
    """One lake table to compare. ``spark`` is a session, ``lake`` what the user gave, ``tables`` the pipeline's form of
    it. ``reader`` says which columns the source has now."""

    spark: Any
    lake: Any
    tables: TableFormat
    name: str
    state: Storage
    capture: ChangeCapture
    record: TableState
    reader: VerifyReader
    sync: str
    options: LiveOptions = field(default_factory=LiveOptions)
    over: Callable[[], bool] = lambda: False

    def compare(self, progress: Progress) -> Comparison:
        """Never raises for what concerns only this table: then it is not compared, with the reason."""
        record, found = self.record, _Found()
        with ExitStack() as stack:
            stack.enter_context(Pin.make(self.state, _PIN_SECONDS))
            work = stack.enter_context(Staging(self.state, record.table))
            try:
                partial, keys = self._some(work, progress)
                first = self._look(work, keys, progress) if keys is not None else self._whole(work, progress)
                found.source_rows, found.lake_rows = first.looked.source_rows, first.looked.lake_rows
                found.add(first.looked)
                moved = first.looked.moved
                for turn in range(self.options.looks):
                    if not moved:
                        break
                    last = self._look(work, moved, progress, explains=turn > 0)
                    found.add(last.looked)
                    moved = last.looked.moved
            except (NotComparedError, MovedOnError) as error:
                return not_compared(record.table, str(error))
        differences = [*first.columns.differences]
        if found.differing:
            are = "row differs" if found.differing == 1 else "rows differ"
            differences.append(f"{found.differing:,} {are} from the source")
            differences += found.sentences[: self.options.shown]
            if found.differing > self.options.shown:
                differences.append(f"… and {found.differing - self.options.shown:,} more")
        differences += found.faults
        if moved is None or moved:
            count = "many" if moved is None else f"{len(moved):,}"
            differences.append(
                f"not compared: {count} rows changed during each of {self.options.looks + 1} looks at them"
            )
        return Comparison(
            table=record.table,
            source_rows=found.source_rows,
            lake_rows=found.lake_rows,
            differences=tuple(differences),
            chosen=first.columns.chosen,
            keys=tuple(found.keys),
            differing=found.differing,
            change_set=first.change_set,
            position=first.position,
            only_rows=not first.columns.differences and not found.faults and moved == (),
            partial=partial,
        )

    def _some(self, work: Staging, progress: Progress) -> tuple[str | None, tuple[Key, ...] | None]:
        """Which rows to compare, in words, and their keys; None means all."""
        options, record = self.options, self.record
        if options.sample is None and options.since is None:
            return None, None
        journal = Journal.read(self.state)
        schema = journal.latest_schema(record.source)
        if schema is None:
            raise NotComparedError(f"the journal does not know the table yet. Remedy: {self.sync}")
        pipeline = ReadPipeline(ReadLake.of(self.spark, self.lake), self.name, journal, TableStates(self.state))
        try:
            rows = pipeline.at(record.table, journal.head)
            since, after = options.since, journal.head
            if since == LAST:
                last = load_verified(self.state).get(record.table)
                if last is None or last.through is None or last.through.position is None:
                    raise NotComparedError("it has never been found equal: compare all of it first")
                since = last.through.position
            if since is not None:
                after = pipeline.change_set(since)
        except LakeError as error:
            raise NotComparedError(f"{error.message.rstrip('.')}. Remedy: {error.remedy}") from error
        shape, _ = self._shape(schema, rows.columns)
        if not shape.key or not shape.key_is_plain:
            raise NotComparedError("a table that has no key, or a masked one, can only be compared as a whole")
        if since is not None:
            window = journal.window(record.source, after, journal.head)
            if window.truncated_at is not None:
                raise NotComparedError(f"it was truncated since {since}: compare all of it")
            keys = staged_keys(shape, changed_rows(self.spark, window), rows) if window.segments else ()
            if len(keys) > MOST_MOVED:
                raise NotComparedError(f"more than {MOST_MOVED:,} rows changed since {since}: compare all of it")
            return f"{len(keys):,} rows that changed since {since}", keys
        wanted = min(options.sample or 0, MOST_MOVED)
        seed = time.time_ns() % 2**31
        own = sampled_keys(shape, rows, -(-wanted // 2), seed)
        plan = Shape(self.tables.columns, self.tables.sensitive, self.tables.choices).planned(
            self.capture.reread(schema.whole, chunk_rows=_SAMPLE_CHUNK_ROWS)
        )
        count = min(len(plan.chunks), -(-wanted // 2 // _SAMPLE_CHUNK_ROWS) or 1)
        picked = random.Random(seed).sample(list(plan.chunks), count)  # noqa: S311  # a sample is no secret
        staged = self._stage(picked, plan.schema, work, progress)
        files = [f"{work.place}/{one.file.name}" for one in staged if one.file is not None]
        theirs = staged_keys(shape, staged_rows(self.spark, files, plan.schema), rows)
        keys = tuple(dict.fromkeys((*own, *theirs[: -(-wanted // 2)])))
        return f"a sample of {len(keys):,} of about {plan.rows_estimate:,} rows", keys

    def compare_keys(self, keys: Sequence[Key]) -> tuple[int, tuple[Key, ...]]:
        """Compares the rows with these keys: how many differ, and which, including those that changed during every
        look."""
        found, moved = _Found(), tuple(keys)
        with Pin.make(self.state, _PIN_SECONDS), Staging(self.state, self.record.table) as work:
            for turn in range(self.options.looks):
                looked = self._look(work, moved, lambda _side, _rows: None, explains=turn > 0).looked
                found.add(looked)
                moved = looked.moved or ()
                if not moved:
                    break
        return found.differing + len(moved), (*found.keys, *moved)

    def _whole(self, work: Staging, progress: Progress) -> _Look:
        """A look at all rows. It is repeated if the table changed its columns, or all of its rows, meanwhile."""
        for left in reversed(range(self.options.looks)):
            try:
                found = self._look(work, None, progress)
            except MovedOnError as error:
                if not left:
                    raise NotComparedError(f"{error}, during each of {self.options.looks} looks") from error
                time.sleep(1.0)
                continue
            if found.looked.moved is not None or not left:
                return found
        raise NotComparedError("it was not looked at")  # not reached: the last turn returns or raises

    def _look(self, work: Staging, keys: Sequence[Key] | None, progress: Progress, *, explains: bool = False) -> _Look:
        """The four steps. MovedOnError if they must be repeated, NotComparedError if they are impossible.

        ``explains``: a moved row is settled if what was read is a state that it had according to the journal.
        """
        record, options = self.record, self.options
        journal = Journal.read(self.state)
        began, schema = journal.head, journal.latest_schema(record.source)
        if schema is None:
            raise NotComparedError(f"the journal does not know the table yet. Remedy: {self.sync}")
        shape = Shape(self.tables.columns, self.tables.sensitive, self.tables.choices)
        known: list[ChunkFile | None] | None = None
        asked = {"generation": record.generation, "schema": schema.to_json(), "trimmed": journal.trimmed}
        if keys is None and (known := work.resumed(asked)) is not None:
            began, taken = work.began, shape.planned(SnapshotPlan(schema.whole, (), 0)).schema
            plan = SnapshotPlan(taken, tuple(shape.chunk(one, self.capture.chunk) for one in work.chunks), 0)
        else:
            plan = shape.planned(self.capture.reread(schema.whole, keys=keys, chunk_rows=options.chunk_rows))
            if keys is None:
                work.begin(asked, [dict(one.to_json()) for one in plan.chunks], began)
        staged = self._stage(plan.chunks, plan.schema, work, progress, known, keeps=keys is None)  # 1
        lows = [one.low for one in staged if one.low is not None]
        after = began if any(isinstance(one, Watermark) for one in lows) else journal.trimmed
        for commit in journal.commits():
            if lows and all(commit.end <= low for low in lows):
                after = max(after, commit.number)
        number = self._reach(journal, [one.high for one in staged])  # 2
        lake_table = self.tables.table(record.route)
        applied = lake_table.applied(record.generation)
        if applied is None:
            raise NotComparedError(f"there is no table at {lake_table.location}")
        if applied.number > journal.head:
            journal.refresh()
        number = min(max(number, applied.number), journal.head)
        if journal.version_at(record.source, number) != schema.version:
            raise MovedOnError("its columns were changed")
        window = journal.window(record.source, after, number)
        if window.truncated_at is not None:
            raise MovedOnError("it was truncated")
        if applied.schema_version != schema.version:
            raise MovedOnError("the lake table does not have the newest columns yet")
        lake = ReadLake.of(self.spark, self.lake)
        pipeline = ReadPipeline(lake, self.name, journal, TableStates(self.state))
        try:
            rows = pipeline.at(record.table, number)  # 3
        except LakeError as error:
            raise NotComparedError(f"{error.message.rstrip('.')}. Remedy: {error.remedy}") from error
        as_in_lake, columns = self._shape(schema, rows.columns)
        files = [f"{work.place}/{one.file.name}" for one in staged if one.file is not None]
        source = staged_rows(self.spark, files, plan.schema)
        found = look(  # 4
            self.spark, as_in_lake, source, rows, window, keys=keys, most=options.most_keys, shown=options.shown
        )
        if explains and found.moved:
            recent = journal.window(record.source, max(journal.trimmed, after - _RECENT), number)
            told = explained_keys(files, plan.schema, recent)
            found = replace(found, moved=tuple(key for key in found.moved if key not in told))
        for one in files:
            Path(one).unlink(missing_ok=True)
        if keys is None:
            work.drop_plan()
        progress("lake", found.lake_rows)
        return _Look(found, columns, number, journal.position(number))

    def _stage(
        self,
        chunks: Sequence[Any],
        schema: TableSchema,
        work: Staging,
        progress: Progress,
        known: Sequence[ChunkFile | None] | None = None,
        *,
        keeps: bool = False,
    ) -> list[ChunkFile]:
        """Read chunks into files, except those that are ``known``. ``keeps``: finished ones survive a kill."""
        staged: list[ChunkFile | None] = list(known) if known is not None else [None] * len(chunks)
        left = [index for index, one in enumerate(staged) if one is None]
        for start in range(0, len(left), _GROUP):
            group = left[start : start + _GROUP]
            reads: list[Any] = [chunks[index] for index in group]
            if self.options.max_rate is not None:
                reads = [PacedChunk(one, self.options.max_rate / len(group)) for one in reads]
            for index, one in zip(group, stage_chunks(self.spark, reads, schema, str(work.place)), strict=True):
                staged[index] = one
                if keeps:
                    work.done(index, one)
            if keeps:
                work.save()
            progress("source", sum(one.rows for one in staged if one is not None))
            if self.over():
                raise NotComparedError("it was interrupted")
        return [one for one in staged if one is not None]

    def _reach(self, journal: Journal, highs: Sequence[Position]) -> int:
        """The first change set that includes everything that was read. Waits for it, but not for ever."""
        until, asked, is_run = time.monotonic() + self.options.wait_seconds, 0.0, True
        while True:
            journal.refresh()
            end = journal.end
            missing = [high for high in highs if end is None or not end >= high]
            if not missing:
                break
            if time.monotonic() >= asked:  # asking for the lease costs an access to the disk or the store
                is_run, asked = lease_holder(self.state) is not None, time.monotonic() + 2.0
            if time.monotonic() > until or not is_run or self.over():
                why = f"not within {self.options.wait_seconds:.0f} s" if is_run else "and no process runs the pipeline"
                raise NotComparedError(
                    f"the rows were read at {missing[0]}, which the journal has not reached, {why}. Remedy: {self.sync}"
                )
            time.sleep(0.1)
        passed = [one.number for one in journal.commits() if all(one.end >= high for high in highs)]
        return min(passed, default=journal.head)

    def _shape(self, schema: TableSchema, stored: Sequence[str]) -> tuple[AsInLake, Columns]:
        """How the source's rows become the lake table's, and which columns are compared."""
        record = self.record
        decisions = decisions_file(storage_at(self.lake.path), self.name, record.table)
        mapping = Decisions(Policy(record.table, record.mode), decisions).at(schema, record.generation)
        made = self.tables.table(record.route).made_by(schema, mapping, record.generation)
        rows = None
        if made is not None:
            rule, ruled, evaluate = made
            rows = MadeRows(rule=rule, ruled=ruled, schema=schema, mapping=mapping, evaluate=evaluate)
            if record.part is not None:  # the table also has the columns of the union's other parts
                own_names = record.mode.schema(ruled.schema).names
                stored = [name for name in stored if name in own_names]
        known = TableShape(table=record.table, mode=record.mode, mapping=mapping, schema=schema, made=rows)
        own = {column.name for column in record.mode.added_columns()}
        there = self.reader.columns()
        if any(name not in schema.whole.names for name in there):
            raise MovedOnError("the source has a column that the journal does not have yet")
        columns = known.columns([name for name in stored if name not in own], there)
        if not columns.pairs:
            raise NotComparedError("there is no column that both have")
        key = known.key
        if record.part is not None:  # within a part, the column with their origin does not distinguish rows
            key = tuple(name for name in key if name != record.part.column)
        if not set(key) <= set(columns.lake) or (schema.key and not key):
            raise NotComparedError("the lake table does not have the whole key")
        ruled_by = made[1] if made is not None and not made[0].is_plain else None
        return AsInLake(record.mode, columns.lake, key, mapping, schema, ruled_by), columns


def explained_keys(files: Sequence[str], schema: TableSchema, window: Window) -> set[Key]:
    """For rows that change all the time: the keys whose row, as it was read, is a state that it had in the window
    according to the journal. Columns that a change did not carry are not compared."""
    if any(one.schema_version != window.target.version for one in window.segments):
        return set()
    read: dict[Key, tuple[str, ...]] = {}
    for file in files:
        for batch in pq.read_table(file).to_batches():
            values = [list(map(repr, batch.column(name).to_pylist())) for name in schema.names]
            read |= dict(zip(key_rows(batch, schema.key), zip(*values, strict=True), strict=True))
    found: set[Key] = set()
    for segment in window.segments:
        for batch in pq.read_table(segment.path).to_batches():
            values = [list(map(repr, batch.column(name).to_pylist())) for name in schema.names]
            metadata = (batch.column(OP).to_pylist(), batch.column(ABSENT).to_pylist())
            rows = zip(key_rows(batch, schema.key), zip(*values, strict=True), *metadata, strict=True)
            for key, row, operation, absent in rows:
                if operation == int(Operation.DELETE):
                    found.update({key} if key not in read else ())
                elif (seen := read.get(key)) is not None and all(
                    one == other or name in (absent or ())
                    for name, one, other in zip(schema.names, seen, row, strict=True)
                ):
                    found.add(key)
    return found
