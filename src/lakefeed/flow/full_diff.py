"""Full comparisons of a pipeline: which rows of the lake the source no longer has, for captures that see no deletes.

A comparison runs beside the syncs, in any process, without the lease. It changes neither the lake nor the journal: what
it finds is handed to the capture, which looks each row up and delivers it like every other change. Steps:
  1. plan      the chunks of the source's keys; durable, so that an interrupted comparison goes on with what is missing
  2. compare   on Spark, see ``lake.full_diff``
  3. record    how it went, for ``status`` and for the next time that it is due
"""

from __future__ import annotations

import logging
import shutil
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from lakefeed.capture.base import ChangeCapture
from lakefeed.capture.compare import Comparable
from lakefeed.capture.poll.rule import FullDiff
from lakefeed.change.table import TableId, TableSchema
from lakefeed.errors import ConfigError, LakefeedError, LeaseError, Retry, StateError
from lakefeed.flow.full_diff_record import Compared, DiffPlan, DiffRecord, DiffStore
from lakefeed.flow.listener import Listener
from lakefeed.flow.table_state import Phase, TableState, TableStates
from lakefeed.journal.journal import Journal
from lakefeed.lake.base import TableFormat
from lakefeed.lake.full_diff import Comparison, FullDiffResult, full_diff
from lakefeed.lake.mode import Append
from lakefeed.lake.outcome import explained

log = logging.getLogger(__name__)

_PLAN_SECONDS = 86_400.0
"""How old a plan may be that is gone on with: what was read of the source gets older, and finds less and less."""
CHUNK_ROWS = 1_000_000
_LOOK_SECONDS, _AGAIN_SECONDS = 1.0, 300.0


class Interrupted(BaseException):  # nothing is wrong, and no handler of errors is to take it for one
    """The comparison was told to stop. It goes on the next time."""


class FullDiffs:
    """The comparisons of one pipeline. ConfigError from ``of`` for a capture that has nothing to compare."""

    def __init__(
        self, root: Path, capture: Comparable, states: TableStates, tables: TableFormat, listener: Listener
    ) -> None:
        self._root = root
        self._capture = capture
        self._states = states
        self._tables = tables
        self._listener = listener
        self._store = DiffStore(root)

    @classmethod
    def of(
        cls, root: Path, capture: ChangeCapture, states: TableStates, tables: TableFormat, listener: Listener
    ) -> FullDiffs:
        if not isinstance(capture, Comparable):
            raise ConfigError(
                "this source tells every delete by itself, so that there is nothing to find by comparing",
                remedy="Compare tables that are polled (capture: poll); to copy one anew: lakefeed rebuild.",
            )
        return cls(root, capture, states, tables, listener)

    def chosen(self, names: Sequence[str]) -> list[TableState]:
        """One lake table for each source table that is named, by either name; all without a name."""
        found = self._comparable()
        if not names:
            return list(found.values())
        return [self._named(name, found) for name in names]

    def due(self) -> list[TableState]:
        """Those whose rule says that they are to be compared by now."""
        now = time.time()
        return [record for record in self._comparable().values() if self._due_at(record) <= now]

    def compare(
        self,
        record: TableState,
        *,
        max_deleted_share: float | None = None,
        resume: bool = True,
        over: threading.Event | None = None,
    ) -> FullDiffResult:
        """Compare one table now. Its record says how it went, whatever happens. ``over`` interrupts it.

        ``resume``: go on with an interrupted comparison, which finds what was deleted before that one began.
        """
        table = record.source
        rule = self._capture.full_diff(table) or FullDiff()
        if max_deleted_share is not None:
            rule = replace(rule, max_deleted_share=max_deleted_share)
        with self._store.alone(table):
            if not resume:
                self._store.save(table, replace(self._store.load(table), plan=None))
            try:
                result = self._compare(record, rule, over)
            except Exception as error:
                told = explained(error, table)
                self._failed(table, told)
                raise told from error
            plan = self._store.load(table).plan
            self._store.save(table, DiffRecord(last=compared(result, plan.number / 1000 if plan else time.time())))
        if result.refused is not None:
            self._listener.table_error(table, result.refused, refusal_remedy(result))
        self._listener.full_diff_done(table, result)
        return result

    def _comparable(self) -> dict[TableId, TableState]:
        """By source table, one live lake table that keeps its current rows."""
        live = [record for record in self._states.in_phase(Phase.LIVE) if not isinstance(record.mode, Append)]
        return {record.source: record for record in sorted(live, key=lambda record: record.table, reverse=True)}

    def _named(self, name: str, found: dict[TableId, TableState]) -> TableState:
        table = TableId.parse(name)
        record = found.get(table) or next((one for one in found.values() if one.table == table), None)
        if record is None:
            raise ConfigError(
                f"the pipeline has no table {table} that can be compared now",
                remedy=f"Choose one of: {', '.join(map(str, sorted(found))) or 'none yet; run `lakefeed sync` first'}.",
            )
        return record

    def _due_at(self, record: TableState) -> float:
        """The copy itself was a comparison: its time counts like one."""
        rule = self._capture.full_diff(record.source)
        if rule is None:
            return float("inf")
        last = self._store.load(record.source).last
        if last is not None and last.failed:
            return last.at + min(rule.every_seconds, _AGAIN_SECONDS)
        return max(last.began if last is not None else 0.0, record.generation / 1000) + rule.every_seconds

    def _compare(self, record: TableState, rule: FullDiff, over: threading.Event | None) -> FullDiffResult:
        table = record.source
        schema = self._lake_schema(record)
        plan = self._plan(record, rule, schema)
        findings = self._capture.differences(table)
        lake = self._tables.table(record.route).current(schema, record.generation)
        if findings is None or lake is None:
            raise StateError(f"table {table} has no place for findings, or no current rows")
        names = plan.schema.names if plan.whole_rows else plan.schema.key
        comparison = Comparison(
            table=table,
            number=plan.number,
            key=plan.schema.key,
            schema=pa.schema([plan.schema.arrow.field(name) for name in names]),
            chunks=[self._capture.chunk(chunk) for chunk in plan.chunks],
            work=str(self._store.work(table)),
            findings=str(findings),
            max_deleted_share=rule.max_deleted_share,
        )

        def progress(done: int, total: int) -> None:
            self._listener.full_diff_progress(table, done, total)
            if over is not None and over.is_set():
                raise Interrupted

        return full_diff(lake, comparison, progress)

    def _lake_schema(self, record: TableState) -> TableSchema:
        applied = self._tables.table(record.route).applied(record.generation)
        if applied is None:
            raise StateError(f"lake table {record.table} is gone", remedy="Run `lakefeed sync`: it copies it anew.")
        with Journal.read(self._root) as journal:
            return journal.schema(record.source, applied.schema_version)

    def _plan(self, record: TableState, rule: FullDiff, known: TableSchema) -> DiffPlan:
        """Step 1: the one that was interrupted, or a new one."""
        before, now = self._store.load(record.source), time.time_ns() // 1_000_000
        if before.plan is not None and self._fits(before.plan, record, rule, now):
            return before.plan
        shutil.rmtree(self._store.work(record.source), ignore_errors=True)
        planned = self._capture.keys(record.source, known=known, chunk_rows=CHUNK_ROWS, whole_rows=rule.compare_rows)
        plan = DiffPlan(
            number=now,
            generation=record.generation,
            whole_rows=rule.compare_rows,
            schema=planned.schema,
            chunks=tuple(chunk.to_json() for chunk in planned.chunks),
        )
        self._store.save(record.source, replace(before, plan=plan))
        return plan

    def _fits(self, plan: DiffPlan, record: TableState, rule: FullDiff, now: int) -> bool:
        is_young = 0 <= now - plan.number < _PLAN_SECONDS * 1000
        return is_young and plan.generation == record.generation and plan.whole_rows == rule.compare_rows

    def _failed(self, table: TableId, error: LakefeedError) -> None:
        """What may pass goes on with the same plan. Anything else may be the plan's fault: the next try makes one."""
        before = self._store.load(table)
        last = Compared(at=time.time(), began=time.time(), error=error.message, remedy=error.remedy, failed=True)
        self._store.save(table, DiffRecord(plan=before.plan if error.retry is Retry.BACKOFF else None, last=last))


class FullDiffThread:
    """Compares what is due, in a thread and Spark sessions of its own, until ``stop``. Never stops a sync."""

    def __init__(self, diffs: FullDiffs | None, listener: Listener) -> None:
        self._diffs = diffs
        self._listener = listener
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lakefeed-full-diff", daemon=True)

    def start(self) -> None:
        if self._diffs is not None:
            self._thread.start()

    def stop(self) -> None:
        """Waits for the Spark jobs under way; what is left of the comparison is done the next time."""
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        assert self._diffs is not None  # noqa: S101  # start has looked
        while not self._over.wait(_LOOK_SECONDS):
            for record in self._due():
                try:
                    self._diffs.compare(record, over=self._over)
                except Interrupted:
                    return
                except LeaseError:
                    continue  # somebody does it by hand right now
                except Exception as error:  # noqa: BLE001  # a comparison is never worth stopping a pipeline for
                    log.warning("the comparison of %s failed and is tried again: %s", record.source, error)
                    if isinstance(error, LakefeedError):
                        self._listener.table_error(record.source, error.message, error.remedy)

    def _due(self) -> list[TableState]:
        assert self._diffs is not None  # noqa: S101
        try:
            return self._diffs.due()
        except LakefeedError as error:
            log.warning("full comparisons cannot be planned: %s", error)
            return []


def compared(result: FullDiffResult, began: float) -> Compared:
    """What is kept of a result."""
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
            "Look at the source. If the table really is empty: "
            f"lakefeed rebuild FILE {result.table} --from-source, then lakefeed sync FILE."
        )
    return (
        "Look at the source. If the rows really were deleted: "
        f"lakefeed diff FILE {result.table} --max-deleted-share 1, or a larger max_deleted_share in its rule."
    )
