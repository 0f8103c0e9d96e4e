"""Rebuild: makes a lake table again, in another mode if the configuration says so, without touching the source.

Its rows come from a lake table of the same source table (possibly the very table that is replaced, in its old form), at
the oldest version from which the journal still has every change; the journal does the rest. The order is crash-safe:
the new generation is staged first, so an interrupted rebuild ends as a table that the next start copies from the
source.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from lakefeed.change.table import TableId
from lakefeed.errors import ConfigError, JournalError, LakeError, LakefeedError
from lakefeed.flow.report.listener import Listener
from lakefeed.flow.status import BlockedSource
from lakefeed.flow.table_state import Phase, TableState, TableStates
from lakefeed.journal.journal import Journal
from lakefeed.lake.base import ChunkSource, TableCopy, TableFormat, TableVersion
from lakefeed.lake.route import Route, settled
from lakefeed.lake.window import first_time


@dataclass(frozen=True, slots=True, kw_only=True)
class Rebuilt:
    """What a rebuild did. ``start`` is the change set whose state it started from, ``donor`` the table that had it.

    Both are None for a table that the next sync will copy from the source.
    """

    table: TableId
    start: int | None = None
    donor: TableId | None = None
    rows: int = 0


@dataclass(frozen=True, slots=True)
class _Donor:
    table_state: TableState
    version: TableVersion
    number: int
    chunks: tuple[ChunkSource, ...]


class Rebuild:
    """Works while no process runs the pipeline; ``journal`` is open, so the caller has the lease.

    ``blocked`` are source tables that would feed a lake table with the rows of another one.
    """

    def __init__(
        self,
        journal: Journal,
        states: TableStates,
        tables: TableFormat,
        listener: Listener,
        blocked: Sequence[BlockedSource] = (),
    ) -> None:
        self._blocked = blocked
        self._journal = journal
        self._states = states
        self._tables = tables
        self._listener = listener

    def run(self, table: TableId, *, from_source: bool = False) -> Rebuilt:
        """Rebuild ``table`` as configured. ConfigError for a table that the pipeline does not have.

        LakeError if no lake table can provide the rows; then nothing has changed.
        """
        # A table keeps the source table that feeds it. One that has none any more gets the source table waiting for it.
        states = self._states.all().values()
        waiting = {one.source for one in self._blocked}
        routes: dict[TableId, Route] = {}
        for sources in (
            {state.source for state in states if state.phase is not Phase.DROPPED and not state.leaving} | waiting,
            {state.source for state in states},
        ):
            every = (route for source in sources for route in self._tables.routes(source))
            chosen, clashes = settled(every, self._states.fed())
            left = {clash.second.table: clash.second for clash in reversed(clashes) if clash.is_left}
            routes = {**chosen, **left, **routes}
        parts = sorted(one.table for one in routes.values() if one.part is not None and one.part.table == table)
        if parts and from_source:  # the whole union
            for part in parts:
                self.run(part, from_source=True)
            return Rebuilt(table=table)
        if table not in routes:
            raise ConfigError(
                f"the pipeline has no lake table {table}",
                remedy=f"Choose one of: {', '.join(map(str, sorted(routes))) or 'none, it has never run'}.",
            )
        route = routes[table]
        if from_source:
            self._states.stage(route, reason="rebuilt by hand", renewed=True)
            return Rebuilt(table=table)
        wrong: list[LakefeedError] = []
        same = [one for one in self._states.in_phase(Phase.LIVE, Phase.DROPPED) if one.source == route.source]
        donors = [donor for state in same if (donor := self._oldest(state, wrong)) is not None]
        if not donors:
            why = f"; the last one that was tried: {wrong[-1].message}" if wrong else ""
            raise LakeError(
                f"no lake table of {route.source} has a state from which the journal still has every change "
                f"(it has change sets {self._journal.trimmed + 1} to {self._journal.head}){why}",
                remedy=f"Copy it from the source: lakefeed rebuild FILE {table} --from-source.",
            ) from (wrong[-1] if wrong else None)
        donor = min(donors, key=lambda donor: donor.number)
        started = time.monotonic()
        now = self._tables.table(donor.table_state.route).applied(donor.table_state.generation)
        estimate = now.rows if now is not None and now.rows is not None else donor.table_state.rows
        self._listener.snapshot_started(table, estimate)
        schema = self._journal.schema(route.source, donor.version.schema_version)
        state = self._states.stage(route, reason="rebuilt by hand")
        # The rows of an older state are from before the changes that are replayed on them.
        replayed = self._journal.window(route.source, donor.number, self._journal.head)
        copy = TableCopy(
            schema=schema,
            as_of=first_time(replayed),
            generation=state.generation,
            base=donor.number,
            position=donor.version.position,
            chunks=donor.chunks,
        )
        progress = self._listener.snapshot_progress
        loaded = self._tables.table(route).load(copy, lambda rows: progress(table, rows))
        self._states.update(table, phase=Phase.LIVE, schema=schema, base=copy.base, rows=loaded.rows)
        self._listener.snapshot_done(table, loaded.rows, time.monotonic() - started)
        return Rebuilt(table=table, start=copy.base, donor=donor.table_state.table, rows=loaded.rows)

    def _oldest(self, state: TableState, wrong: list[LakefeedError]) -> _Donor | None:
        """The oldest version of one lake table that can still be read and that the journal still leads on from.

        What the others lack is added to ``wrong``. A table may have thousands of versions, and each costs a check of
        its files. Files are cleaned up oldest first: where the oldest version cannot be read and the newest can, the
        first that can is between them, by bisection.
        """
        try:
            versions = self._tables.table(state.route).states(state.generation)
        except LakeError as error:
            wrong.append(error)
            return None
        versions = tuple(one for one in versions if self._number(state, one) >= self._journal.trimmed)
        donor = self._opened(state, versions[0], wrong) if versions else None
        if donor is not None or len(versions) < 2:
            return donor
        donor = self._opened(state, versions[-1], wrong)
        unread, read = 0, len(versions) - 1
        while donor is not None and read - unread > 1:
            middle = (unread + read) // 2
            older = self._opened(state, versions[middle], wrong)
            donor, unread, read = (older, unread, middle) if older is not None else (donor, middle, read)
        return donor

    def _opened(self, state: TableState, version: TableVersion, wrong: list[LakefeedError]) -> _Donor | None:
        try:
            schema = self._journal.schema(state.source, version.schema_version)
            chunks = self._tables.table(state.route).chunks(version, schema)
        except (JournalError, LakeError) as error:
            wrong.append(error)
            return None
        return _Donor(state, version, self._number(state, version), chunks) if chunks is not None else None

    def _number(self, state: TableState, version: TableVersion) -> int:
        """Up to where the version is complete: its own number, or more if nothing for it came after that."""
        return max(version.number, state.complete_at_trim if version.number == state.recorded_at_trim else 0)
