"""Rebuild: a lake table made anew, in another mode if the configuration says so, without touching the source.

Its rows come from a lake table of the same source table (it may be the very table that is replaced, as it was before),
at the oldest state from which the journal still has every change; the journal does the rest. The order is crash-safe:
the new life is staged first, so that an interrupted rebuild ends as a table that the next start copies from the source.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from lakefeed.change.table import TableId
from lakefeed.errors import ConfigError, JournalError, LakeError, LakefeedError
from lakefeed.flow.listener import Listener
from lakefeed.flow.table_state import Phase, TableState, TableStates
from lakefeed.journal.journal import Journal
from lakefeed.lake.base import ChunkSource, TableCopy, TableFormat, TableVersion
from lakefeed.lake.route import Route


@dataclass(frozen=True, slots=True, kw_only=True)
class Rebuilt:
    """What a rebuild did. ``start`` is the change set whose state it began with, ``donor`` the table that had it.

    Both are None for a table that is staged to be copied from the source by the next sync.
    """

    table: TableId
    start: int | None = None
    donor: TableId | None = None
    rows: int = 0


@dataclass(frozen=True, slots=True)
class _Donor:
    record: TableState
    state: TableVersion
    number: int
    chunks: tuple[ChunkSource, ...]


class Rebuild:
    """Works while no process runs the pipeline; ``journal`` is open, so the caller has the lease."""

    def __init__(self, journal: Journal, states: TableStates, tables: TableFormat, listener: Listener) -> None:
        self._journal = journal
        self._states = states
        self._tables = tables
        self._listener = listener

    def run(self, table: TableId, *, from_source: bool = False) -> Rebuilt:
        """Make ``table`` anew as the configuration says. ConfigError for a table that the pipeline does not have.

        LakeError if no lake table can give the rows; then nothing has changed.
        """
        route = self._route(table)
        if from_source:
            self._states.stage(route, reason="rebuilt by hand")
            return Rebuilt(table=table)
        donor = self._donor(route)
        started = time.monotonic()
        self._listener.snapshot_started(table, self._rows_estimate(donor.record))
        schema = self._journal.schema(route.source, donor.state.schema_version)
        record = self._states.stage(route, reason="rebuilt by hand")
        copy = TableCopy(
            schema=schema,
            generation=record.generation,
            base=donor.number,
            position=donor.state.position,
            chunks=donor.chunks,
        )
        progress = self._listener.snapshot_progress
        loaded = self._tables.table(route).load(copy, lambda rows: progress(table, rows))
        self._states.update(table, phase=Phase.LIVE, schema=schema, base=copy.base, rows=loaded.rows)
        self._listener.snapshot_done(table, loaded.rows, time.monotonic() - started)
        return Rebuilt(table=table, start=copy.base, donor=donor.record.table, rows=loaded.rows)

    def _route(self, table: TableId) -> Route:
        sources = {record.source for record in self._states.all().values()}
        routes = {route.table: route for source in sources for route in self._tables.routes(source)}
        if table not in routes:
            raise ConfigError(
                f"the pipeline has no lake table {table}",
                remedy=f"Choose one of: {', '.join(map(str, sorted(routes))) or 'none, it has never run'}.",
            )
        return routes[table]

    def _donor(self, route: Route) -> _Donor:
        """The oldest state that the journal still leads on from, over all lake tables of the source table."""
        wrong: list[LakefeedError] = []
        records = [one for one in self._states.in_phase(Phase.LIVE, Phase.DROPPED) if one.source == route.source]
        found = [donor for record in records if (donor := self._oldest(record, wrong)) is not None]
        if found:
            return min(found, key=lambda donor: donor.number)
        why = f"; the last one that was tried: {wrong[-1].message}" if wrong else ""
        raise LakeError(
            f"no lake table of {route.source} has a state from which the journal still has every change "
            f"(it has change sets {self._journal.trimmed + 1} to {self._journal.head}){why}",
            remedy=f"Copy it from the source: lakefeed rebuild FILE {route.table} --from-source.",
        ) from (wrong[-1] if wrong else None)

    def _oldest(self, record: TableState, wrong: list[LakefeedError]) -> _Donor | None:
        """The oldest state of one lake table that can still be read; what the others lack is added to ``wrong``.

        A table may have thousands of states, and each costs a look at its files. Files are cleaned up oldest first:
        where the oldest state cannot be read and the newest can, the first that can is between them, by halves.
        """
        try:
            states = [one for one in self._versions(record) if self._number(record, one) >= self._journal.trimmed]
        except LakeError as error:
            wrong.append(error)
            return None
        donor = self._opened(record, states[0], wrong) if states else None
        if donor is not None or len(states) < 2:
            return donor
        donor = self._opened(record, states[-1], wrong)
        unread, read = 0, len(states) - 1
        while donor is not None and read - unread > 1:
            middle = (unread + read) // 2
            older = self._opened(record, states[middle], wrong)
            donor, unread, read = (older, unread, middle) if older is not None else (donor, middle, read)
        return donor

    def _opened(self, record: TableState, state: TableVersion, wrong: list[LakefeedError]) -> _Donor | None:
        try:
            schema = self._journal.schema(record.source, state.schema_version)
            chunks = self._tables.table(record.route).chunks(state, schema)
        except (JournalError, LakeError) as error:
            wrong.append(error)
            return None
        return _Donor(record, state, self._number(record, state), chunks) if chunks is not None else None

    def _rows_estimate(self, record: TableState) -> int:
        """The donor's rows of now; what its copy had where its statistics do not say."""
        applied = self._tables.table(record.route).applied(record.generation)
        return applied.rows if applied is not None and applied.rows is not None else record.rows

    def _versions(self, record: TableState) -> tuple[TableVersion, ...]:
        return self._tables.table(record.route).states(record.generation)

    def _number(self, record: TableState, state: TableVersion) -> int:
        """Up to where the state is complete: its own number, or more where nothing for it came after that."""
        return max(state.number, record.complete_at_trim if state.number == record.recorded_at_trim else 0)
