"""Full comparisons of a pipeline: which rows of the lake the source no longer has, for captures that see no deletes.

A comparison runs beside the syncs, in any process, without the lease. It changes neither the lake nor the journal: it
passes what it finds to the capture, which reads each row and delivers it like any other change. Steps:
  1. plan      the chunks of the source's keys; durable, so that an interrupted comparison continues with the rest
  2. compare   on Spark, see ``lake.full_diff``
  3. record    the result, for ``status`` and for when the next one is due
"""

from __future__ import annotations

import fcntl
import json
import logging
import shutil
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa

from lakefeed.capture.base import ChangeCapture, Comparable
from lakefeed.capture.poll.source import FullDiff
from lakefeed.change.table import TableId, TableSchema
from lakefeed.durable import make_directory
from lakefeed.errors import ConfigError, JournalDamagedError, LakefeedError, LeaseError, Retry, StateError
from lakefeed.flow.report.listener import Listener
from lakefeed.flow.shape import Shape
from lakefeed.flow.table_state import Phase, TableState, TableStates
from lakefeed.journal.journal import Journal
from lakefeed.lake.base import TableFormat
from lakefeed.lake.full_diff import Comparison, FullDiffResult, full_diff
from lakefeed.lake.spark.error import explained
from lakefeed.storage.base import Storage
from lakefeed.storage.location import storage_at

log = logging.getLogger(__name__)

_PLAN_SECONDS = 86_400.0
"""The oldest plan that a comparison resumes: what was read from the source ages, and finds less and less."""
CHUNK_ROWS = 1_000_000
_CHECK_SECONDS, _AGAIN_SECONDS = 1.0, 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DiffPlan:
    """A comparison that has begun: ``number`` is its start in milliseconds, and names what it leaves on disk.

    ``generation`` is that of the compared lake table, ``chunks`` are what is read from the source.
    """

    number: int
    generation: int
    whole_rows: bool
    schema: TableSchema
    chunks: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """The result of the last comparison of a table. ``at`` is when it ended, in seconds since 1970.

    ``began`` is when it was planned: it may or may not have found what was deleted after that. ``error`` says why it
    was refused or failed, ``remedy`` what to do about it.
    """

    at: float
    began: float
    source_rows: int = 0
    lake_rows: int = 0
    deleted: int = 0
    changed: int = 0
    seconds: float = 0.0
    error: str | None = None
    remedy: str | None = None
    failed: bool = False
    """It did not finish, and is tried again soon. A refusal counts as finished."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DiffRecord:
    plan: DiffPlan | None = None
    last: Compared | None = None


class DiffStore:
    """The records of one pipeline, in its directory ``root``."""

    def __init__(self, root: Path | str | Storage) -> None:
        self._files = storage_at(root).below("full-diff")

    @property
    def directory(self) -> Path:
        """Where comparisons work. ConfigError in an object store: a lock and Spark tasks need a directory."""
        if self._files.directory is None:
            raise ConfigError(
                "a full comparison needs the journal in a directory, and it is in an object store",
                remedy="Set journal.path to a directory of this machine.",
            )
        return self._files.directory

    def work(self, table: TableId) -> Path:
        """Where a comparison keeps what it has read."""
        return self.directory / quote(str(table), safe=" .")

    def load(self, table: TableId) -> DiffRecord:
        if self._files.is_remote:
            return DiffRecord()
        name = self._name(table)
        path = self._files.place(name)
        try:
            body = json.loads(self._files.read(name))
            plan = {**body["plan"], "schema": TableSchema.from_json(body["plan"]["schema"])} if body["plan"] else None
            return DiffRecord(
                plan=DiffPlan(**{**plan, "chunks": tuple(plan["chunks"])}) if plan else None,
                last=Compared(**body["last"]) if body["last"] else None,
            )
        except FileNotFoundError:
            return DiffRecord()
        except (ValueError, KeyError, TypeError) as error:
            remedy = "Remove it: the next comparison then starts from the beginning."
            raise JournalDamagedError(f"the file {path} cannot be read: {error}", remedy=remedy) from error

    def save(self, table: TableId, record: DiffRecord) -> None:
        plan = None
        if record.plan is not None:
            plan = {field.name: getattr(record.plan, field.name) for field in fields(DiffPlan)}
            plan |= {"schema": record.plan.schema.to_json(), "chunks": [dict(chunk) for chunk in record.plan.chunks]}
        body = {"plan": plan, "last": asdict(record.last) if record.last else None}
        self._files.replace(self._name(table), json.dumps(body, indent=1, ensure_ascii=False).encode())

    @contextmanager
    def alone(self, table: TableId) -> Iterator[None]:
        """The right to compare the table, across processes. LeaseError if another process is comparing it."""
        make_directory(self.directory)
        with (self.directory / f".{quote(str(table), safe=' .')}.lock").open("a") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                text = f"table {table} is being compared already"
                raise LeaseError(text, remedy="Wait for it: `lakefeed status` shows its result.") from error
            yield

    def _name(self, table: TableId) -> str:
        return f"{quote(str(table), safe=' .')}.json"


class Interrupted(BaseException):  # nothing is wrong, and no handler of errors is to take it for one
    """The comparison stops here. It continues the next time."""


class FullDiffs:
    """The comparisons of one pipeline. ``of`` raises ConfigError for a capture that has nothing to compare."""

    def __init__(
        self, root: Path | Storage, capture: Comparable, states: TableStates, tables: TableFormat, listener: Listener
    ) -> None:
        self._root = root
        self._capture = capture
        self._states = states
        self._tables = tables
        self._shape = Shape(tables.columns, tables.sensitive, tables.choices)
        self._listener = listener
        self._store = DiffStore(root)

    @classmethod
    def of(
        cls, root: Path | Storage, capture: ChangeCapture, states: TableStates, tables: TableFormat, listener: Listener
    ) -> FullDiffs:
        if not isinstance(capture, Comparable):
            raise ConfigError(
                "this source reports every delete by itself, so there is nothing to find by comparing",
                remedy="Compare tables that are polled (capture: poll); to copy one again: "
                "lakefeed rebuild FILE TABLE --from-source",
            )
        return cls(root, capture, states, tables, listener)

    def chosen(self, names: Sequence[str]) -> list[TableState]:
        """One lake table for each source table named, by either name; all if none is named."""
        found = self._comparable()
        chosen = [] if names else list(found.values())
        for table in map(TableId.parse, names):
            state = found.get(table) or next((one for one in found.values() if one.table == table), None)
            if state is None:
                there = ", ".join(map(str, sorted(found))) or "none yet; run `lakefeed sync` first"
                raise ConfigError(
                    f"the pipeline has no table {table} that can be compared now", remedy=f"Choose one of: {there}."
                )
            chosen.append(state)
        return chosen

    def due(self) -> list[TableState]:
        """Those whose rule says that a comparison is due."""
        found = []
        for state in self._comparable().values():
            rule, last = self._capture.full_diff(state.source), self._store.load(state.source).last
            if rule is None:
                continue
            if last is not None and last.failed:
                due_at = last.at + min(rule.every_seconds, _AGAIN_SECONDS)
            else:  # the copy itself counts as a comparison
                due_at = max(last.began if last is not None else 0.0, state.generation / 1000) + rule.every_seconds
            if due_at <= time.time():
                found.append(state)
        return found

    def compare(
        self,
        state: TableState,
        *,
        max_deleted_share: float | None = None,
        resume: bool = True,
        over: threading.Event | None = None,
    ) -> FullDiffResult:
        """Compare one table now. Step 3 records the result, whatever happens. ``over`` interrupts it.

        ``resume``: continue an interrupted comparison, which finds what was deleted before it began.
        """
        table = state.source
        rule = self._capture.full_diff(table) or FullDiff()
        if max_deleted_share is not None:
            rule = replace(rule, max_deleted_share=max_deleted_share)
        with self._store.alone(table):
            if not resume:
                self._store.save(table, replace(self._store.load(table), plan=None))
            try:
                result = self._compare(state, rule, over)
            except Exception as error:
                failure = explained(error, table)
                # After a transient error, continue with the same plan. Any other error may be the plan's fault.
                plan = self._store.load(table).plan if failure.retry is Retry.BACKOFF else None
                now = time.time()
                last = Compared(at=now, began=now, error=failure.message, remedy=failure.remedy, failed=True)
                self._store.save(table, DiffRecord(plan=plan, last=last))
                raise failure from error
            plan = self._store.load(table).plan
            self._store.save(table, DiffRecord(last=compared(result, plan.number / 1000 if plan else time.time())))
        if result.refused is not None:
            self._listener.table_error(table, result.refused, refusal_remedy(result))
        self._listener.full_diff_done(table, result)
        return result

    def _comparable(self) -> dict[TableId, TableState]:
        """By source table, one live lake table that keeps its current rows."""
        live = [state for state in self._states.in_phase(Phase.LIVE) if state.mode.current_rows() is not None]
        return {state.source: state for state in sorted(live, key=lambda state: state.table, reverse=True)}

    def _compare(self, state: TableState, rule: FullDiff, over: threading.Event | None) -> FullDiffResult:
        """Steps 1 and 2. Continues the plan of an interrupted comparison if it is recent and has the same options."""
        table = state.source
        applied = self._tables.table(state.route).applied(state.generation)
        if applied is None:
            raise StateError(f"lake table {state.table} is gone", remedy="Run `lakefeed sync`: it copies it again.")
        with Journal.read(self._root) as journal:
            schema = journal.schema(table, applied.schema_version)
        if self._shape.masks_key(schema.whole):
            raise StateError(
                f"table {table} cannot be compared: its key is masked before the journal, so rows of the "
                "source cannot be found by it",
                remedy="Mask the key without sensitive, or find deletes by soft_delete.",
            )
        before, now = self._store.load(table), time.time_ns() // 1_000_000
        plan = before.plan
        if (
            plan is None
            or not 0 <= now - plan.number < _PLAN_SECONDS * 1000
            or (plan.generation, plan.whole_rows) != (state.generation, rule.compare_rows)
        ):
            shutil.rmtree(self._store.work(table), ignore_errors=True)
            planned = self._capture.keys(table, known=schema.whole, chunk_rows=CHUNK_ROWS, whole_rows=rule.compare_rows)
            planned = self._shape.planned(planned)
            plan = DiffPlan(
                number=now,
                generation=state.generation,
                whole_rows=rule.compare_rows,
                schema=planned.schema,
                chunks=tuple(chunk.to_json() for chunk in planned.chunks),
            )
            self._store.save(table, replace(before, plan=plan))
        differences = self._capture.differences(table)
        lake = self._tables.table(state.route).current(schema, state.generation)
        if differences is None or lake is None:
            raise StateError(f"table {table} has no directory for its differences, or no current rows")
        names = plan.schema.names if plan.whole_rows else plan.schema.key
        comparison = Comparison(
            table=table,
            number=plan.number,
            key=plan.schema.key,
            schema=pa.schema([plan.schema.arrow.field(name) for name in names]),
            chunks=[self._shape.chunk(chunk, self._capture.chunk) for chunk in plan.chunks],
            work=str(self._store.work(table)),
            findings=str(differences),
            max_deleted_share=rule.max_deleted_share,
        )

        def progress(done: int, total: int) -> None:
            self._listener.full_diff_progress(table, done, total)
            if over is not None and over.is_set():
                raise Interrupted

        return full_diff(lake, comparison, progress)


class FullDiffThread:
    """Compares what is due, in its own thread and Spark sessions, until ``stop``. Never stops a sync."""

    def __init__(self, diffs: FullDiffs | None, listener: Listener) -> None:
        self._diffs = diffs
        self._listener = listener
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        if self._diffs is not None:
            self._thread = threading.Thread(
                target=self._run, args=(self._diffs,), name="lakefeed-full-diff", daemon=True
            )
            self._thread.start()

    def stop(self, seconds: float | None = None) -> bool:
        """End after the current Spark jobs; the rest of the comparison is done the next time.

        Waits for that up to ``seconds``; returns whether it has ended.
        """
        self._over.set()
        if self._thread is not None:
            self._thread.join(seconds)
        return self._thread is None or not self._thread.is_alive()

    def _run(self, diffs: FullDiffs) -> None:
        while not self._over.wait(_CHECK_SECONDS):
            try:
                due = diffs.due()
            except LakefeedError as error:
                log.warning("full comparisons cannot be planned: %s", error)
                continue
            for state in due:
                try:
                    diffs.compare(state, over=self._over)
                except Interrupted:
                    return
                except LeaseError:
                    continue  # somebody is comparing it by hand
                except Exception as error:  # noqa: BLE001  # a comparison must never stop a pipeline
                    log.warning("the comparison of %s failed and is tried again: %s", state.source, error)
                    if isinstance(error, LakefeedError):
                        self._listener.table_error(state.source, error.message, error.remedy)


def compared(result: FullDiffResult, began: float) -> Compared:
    """The part of a result that is kept."""
    return Compared(
        at=time.time(),
        began=began,
        source_rows=result.source_rows,
        lake_rows=result.lake_rows,
        deleted=result.deleted,
        changed=result.changed,
        seconds=round(result.seconds, 3),
        error=result.refused,
        remedy=refusal_remedy(result) if result.refused is not None else None,
    )


def refusal_remedy(result: FullDiffResult) -> str:
    if result.source_rows == 0:
        return (
            "Check the source. If the table really is empty: "
            f"lakefeed rebuild FILE {result.table} --from-source, then lakefeed sync FILE."
        )
    return (
        "Check the source. If the rows really were deleted: "
        f"lakefeed diff FILE {result.table} --max-deleted-share 1, or a larger max_deleted_share in its rule."
    )
