"""Does the lake of one pipeline equal its source? Compares every table that should be there, or says why it does not.

  1 what should be there: the tables that the source offers for the configured patterns, and the lake tables they feed
  2 what is there: the table states that the pipeline has written
  3 compare each live table; anything else that should be live is a difference, with reason and remedy

So a pipeline that ended half-way is never "equal": a table that it has not reached, an unfinished copy and a run that
ended with an error all count. A table that a pattern matches and that the source cannot offer (no key, unlogged, no
privilege to read it) is named with the reason; the pipeline is complete without it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from lakefeed.capture.base import ChangeCapture
from lakefeed.capture.poll.config import SourceConfig
from lakefeed.change.table import TableId
from lakefeed.errors import ConfigError, JournalError, LakefeedError, Retry
from lakefeed.flow.copies import wanted_of_source
from lakefeed.flow.report.verified import Verified, save_verified
from lakefeed.flow.status import Liveness
from lakefeed.flow.table_state import Phase, TableState, TableStates
from lakefeed.journal.journal import Journal
from lakefeed.journal.lease import lease_holder
from lakefeed.lake.base import Lake
from lakefeed.lake.mode import Mode
from lakefeed.lake.reader import PartRows, StoredRows
from lakefeed.lake.route import settled
from lakefeed.lake.schema.decision import Decisions, decisions_file
from lakefeed.lake.schema.policy import Policy
from lakefeed.storage.base import Storage
from lakefeed.storage.location import storage_at
from lakefeed.verify.compare import Comparison, Progress, TableShape, compare_table, missing_table, not_compared
from lakefeed.verify.live import LiveOptions, LiveTable
from lakefeed.verify.made import MadeRows


class ReadableLake(Lake, Protocol):
    """A lake whose tables can be read without Spark."""

    def rows(self, table: TableId) -> StoredRows | None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """What was found. ``problems`` concern the whole pipeline; ``not_followed`` are source tables, with the reason."""

    tables: tuple[tuple[Mode, Comparison], ...]
    problems: tuple[str, ...] = ()
    not_followed: Mapping[TableId, str] = field(default_factory=dict)

    @property
    def equal(self) -> bool:
        return not self.problems and all(comparison.equal for _, comparison in self.tables)


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineVerification:
    """One pipeline to verify. ``sync`` is the command that brings it up to date, for remedies."""

    name: str
    state: Path | Storage
    capture: ChangeCapture
    source: SourceConfig
    lake: ReadableLake
    sync: str = "lakefeed sync FILE"
    storage_options: Mapping[str, str] = field(default_factory=dict)
    session: Callable[[], Any] | None = None
    options: LiveOptions = field(default_factory=LiveOptions)
    over: Callable[[], bool] = lambda: False

    @property
    def is_run(self) -> bool:
        """Whether a process has the pipeline's lease right now."""
        return lease_holder(self.state) is not None

    def run(
        self, progress: Callable[[TableId], Progress], *, live: bool | None = None, tables: Sequence[str] = ()
    ) -> Verification:
        """Compare everything, or only the named lake ``tables``. Needs no lease.

        ``live``: both sides may be in use, see ``verify.live``; needs ``session``, which returns a Spark session.
        Otherwise nothing may be writing to the source, and other readers than the pipeline's are used. None: live if a
        process runs the pipeline. Changes neither lake nor source. The results are kept with the state, for ``status``.
        """
        live = self.is_run if live is None else live
        records = TableStates(self.state).all()
        if not records:
            raise ConfigError(
                f"there is nothing to compare: pipeline {self.name} has no tables below {self.lake.path}",
                remedy=f"Run {self.sync} first; if it has run, correct pipeline or lake.path.",
            )
        problems = []
        if (liveness := Liveness.read(self.state)).error is not None:
            error = liveness.error.rstrip(".")
            problems.append(f"the last run ended with an error: {error}. Remedy: {liveness.remedy} Then {self.sync}")
        offered, not_followed = frozenset[TableId](), dict[TableId, str]()
        try:
            offered, not_followed = self._source_tables()
        except ConfigError as error:
            problems.append(f"{error.message.rstrip('.')}. Remedy: {error.remedy}")
        routes = self.lake.bind(self.name).routes
        fed = {table: record.route for table, record in records.items()}
        expected, clashes = settled((route for table in sorted(offered) for route in routes(table)), fed)
        problems += [f"{one.problem}. Remedy: {one.remedy}" for one in clashes]
        followed = {table: record for table, record in records.items() if record.phase is not Phase.DROPPED}
        wanted = self._wanted(tables, {*followed, *expected})
        followed = {table: record for table, record in followed.items() if table in wanted}
        found = [
            (route.mode, not_compared(table, f"the pipeline has not reached the table yet. Remedy: {self.sync}"))
            for table, route in expected.items()
            if table not in followed and table in wanted
        ]
        if not followed and not found:
            raise ConfigError(
                f"there is nothing to compare: all tables of pipeline {self.name} are dropped",
                remedy=f"Correct source.tables if they should be followed, then run {self.sync}",
            )
        found += [(record.mode, self._compared(record, progress, live)) for record in followed.values()]
        found.sort(key=lambda one: one[1].table)
        self._keep([comparison for _, comparison in found], followed)
        return Verification(tables=tuple(found), problems=tuple(problems), not_followed=not_followed)

    def _wanted(self, names: Sequence[str], there: Collection[TableId]) -> Collection[TableId]:
        """The named lake tables, all if none is named. ConfigError for one that does not exist."""
        chosen = {TableId.parse(name) for name in names}
        for table in chosen:
            if table not in there:
                listed = ", ".join(map(str, sorted(there)))
                raise ConfigError(f"the pipeline has no lake table {table}", remedy=f"It has {listed}.")
        return chosen or there

    def _keep(self, found: Sequence[Comparison], followed: Mapping[TableId, TableState]) -> None:
        """Save the results for ``status``. A read-only directory is no reason to fail: the comparison is done."""
        lake, journal = self.lake.bind(self.name), Journal.read(self.state)
        results: dict[TableId, Verified] = {}
        with closing(journal):
            for one in found:
                if one.partial is not None and one.equal:
                    continue  # some rows do not prove anything about the table
                record = followed.get(one.table)
                number, position = one.change_set, one.position
                if record and one.compared and number is None:
                    applied = lake.table(record.route).applied(record.generation)
                    number = applied.number if applied else None
                    position = journal.position(min(number, journal.head)) if number is not None else None
                results[one.table] = Verified(
                    at=time.time(),
                    equal=one.equal,
                    source_rows=one.source_rows if one.compared else None,
                    lake_rows=one.lake_rows if one.compared else None,
                    change_set=number,
                    position=position.encode() if position else None,
                    difference=one.differences[0] if one.differences else None,
                )
        with suppress(JournalError):
            save_verified(self.state, results)

    def _source_tables(self) -> tuple[frozenset[TableId], dict[TableId, str]]:
        """The tables that the source offers, and those that a pattern matches and it does not offer, with the reason.

        ConfigError for a pattern without a match.
        """
        self.capture.open()
        try:
            offered = frozenset(schema.table for schema in self.capture.discover())
        finally:
            self.capture.close()
        with closing(self.source.dialect().connect()) as session:
            there = session.tables()
        reasons = {
            one.table: f"{one.problem.removeprefix(f'{one.table}: ').removeprefix('left out: ')}. Remedy: {one.remedy}"
            for one in self.capture.check()
            if one.table
        }
        left_out = {
            table: reasons.get(table) or (refusal.reason if refusal else "the source does not offer it")
            for table, refusal in sorted(there.items())
            if table not in offered and self.capture.wants(table) and not self.source.is_internal(table)
        }
        return offered, left_out

    def _compared(self, record: TableState, progress: Callable[[TableId], Progress], live: bool) -> Comparison:
        reason = f", {record.reason.rstrip('.')}" if record.reason else ""
        if record.leaving:
            return not_compared(record.table, f"the table is leaving{reason}. Remedy: {self.sync}")
        if record.phase is not Phase.LIVE:
            return not_compared(
                record.table, f"the table is {record.phase}{reason}. Remedy: {record.remedy or self.sync}"
            )
        report = progress(record.table)
        lake_table = self.lake.bind(self.name).table(record.route)
        try:
            if live:
                return self.live_table(record).compare(report)
            stored, applied = self.lake.rows(record.route.stored), lake_table.applied(record.generation)
            if stored is None or applied is None:
                return missing_table(record.table, lake_table.location)
            schema = Journal.read(self.state).schema(record.source, applied.schema_version)
            decisions = decisions_file(storage_at(self.lake.path, self.storage_options), self.name, record.table)
            mapping = Decisions(Policy(record.table, record.mode), decisions).at(schema, record.generation)
            made = lake_table.made_by(schema, mapping, record.generation)
            if made is not None:
                rule, ruled, evaluate = made
                made_rows = MadeRows(rule=rule, ruled=ruled, schema=schema, mapping=mapping, evaluate=evaluate)
                if record.part is not None:
                    stored = PartRows(stored, record.part, record.mode.schema(ruled.schema).names)
            known = TableShape(
                table=record.table,
                mode=record.mode,
                mapping=mapping,
                schema=schema,
                made=made_rows if made is not None else None,
            )
            found = compare_table(known, stored, self.source.verify_reader(record.source), report)
            if found.equal or schema.key or not self.lake.bind(self.name).choices.of(record.source).inserts_only:
                return found
            unseen = "updates and deletes of the table are not followed (keyless: inserts)"
            again = f"lakefeed rebuild FILE {record.table} --from-source, then {self.sync}"
            return replace(found, differences=(*found.differences, f"{unseen}. Remedy: {again}"))
        except LakefeedError as error:
            if error.retry is Retry.BACKOFF:
                raise
            return not_compared(record.table, f"{error.message.rstrip('.')}. Remedy: {error.remedy}")

    def live_table(self, record: TableState) -> LiveTable:
        """One table, to be compared beside whoever runs the pipeline. ConfigError without a Spark session."""
        if self.session is None:
            raise ConfigError("a comparison beside a running pipeline needs Spark", remedy="Give session.")
        tables = self.lake.bind(self.name)
        self.capture.represent(wanted_of_source(tables.choices, Journal.read(self.state), TableStates(self.state)))
        return LiveTable(
            spark=self.session(),
            lake=self.lake,
            tables=tables,
            name=self.name,
            state=storage_at(self.state),
            capture=self.capture,
            record=record,
            reader=self.source.verify_reader(record.source),
            sync=self.sync,
            options=self.options,
            over=self.over,
        )
