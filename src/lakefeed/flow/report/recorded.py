"""What the lake tables' own commits record, kept in one file, so that a `status` need not read a thousand logs.

The running process writes it now and then. It is right without one, too: each entry names the newest commit that it was
read at, and counts only while that is still the newest one (``TableFormat.newest_commit``). Whatever the file lacks is
asked of the table itself.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass

from lakefeed.change.table import TableId
from lakefeed.durable import pack, unpack
from lakefeed.errors import LakefeedError
from lakefeed.flow.table_state import Phase, TableState
from lakefeed.lake.base import Applied, TableFormat
from lakefeed.storage.base import Storage

log = logging.getLogger(__name__)

_NAME = "recorded.json"
_EVERY_SECONDS = 10.0
_AT_A_TIME_SECONDS, _NOW_SECONDS = 1.0, 10.0
"""How long an update may take: in a `run` merges wait for it, and at the end of a `sync` nothing does."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """``applied`` is what a table of this generation recorded while ``commit`` was its newest."""

    commit: str
    generation: int
    applied: Applied

    def ask(self, tables: TableFormat, state: TableState) -> Applied | None:
        """What the table records now; the table itself is asked if it has another commit since."""
        if (self.generation, self.commit) == (state.generation, tables.newest_commit(state.route)):
            return self.applied
        return tables.table(state.route).applied(state.generation)


def load_recorded(root: Storage) -> dict[TableId, Recorded]:
    """Nothing if the file is damaged or lacks: the tables are asked then."""
    try:
        body = unpack(root.read(_NAME), root.place(_NAME))
        return {
            TableId.parse(name): Recorded(one["commit"], one["generation"], Applied(**one["applied"]))
            for name, one in body.items()
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError, LakefeedError):
        return {}


class RecordedFile:
    """Keeps the file of one pipeline up to date. Any thread; a call while another one is at work does nothing.

    It begins with what the file says, so that a restart need not ask every table again. The tables take turns: an
    update goes on behind the table at which the last one ended.
    """

    def __init__(self, root: Storage, tables: TableFormat) -> None:
        self._root = root
        self._tables = tables
        self._busy = threading.Lock()
        self._written = {} if root.is_remote else load_recorded(root)
        self._entries = dict(self._written)
        self._newest: dict[TableId, str | None] = {}  # by where it is stored: the newest commit at the last check
        self._last: TableId | None = None  # the table that was checked last
        self._due = 0.0

    def update(
        self, states: Iterable[TableState], *, now: bool = False, goes_on: Callable[[], bool] = lambda: True
    ) -> None:
        """Write what has changed since the last time, if that is ten seconds ago, or at once. Raises no error.

        Works for a second, or ten with ``now``, and as long as ``goes_on`` says so, which it asks before each table.
        Without ``now``, a table whose commit is new waits for the next update: where commits come all the time, the
        entry would be too old before anybody reads it.
        """
        if self._root.is_remote or (not now and time.monotonic() < self._due) or not self._busy.acquire(blocking=False):
            return
        try:
            until = time.monotonic() + (_NOW_SECONDS if now else _AT_A_TIME_SECONDS)
            self._due = time.monotonic() + _EVERY_SECONDS
            live = {state.table: state for state in states if state.phase is Phase.LIVE}
            self._entries = {table: one for table, one in self._entries.items() if table in live}
            newest: dict[TableId, str | None] = {}
            for state in self._in_turn(live.values()):
                if not goes_on():
                    break
                stored = state.route.stored  # the parts of a union have one log
                if stored not in newest:
                    newest[stored] = self._tables.newest_commit(state.route)
                if now or newest[stored] == self._newest.get(stored):
                    self._keep(state, newest[stored])
                self._last = state.table
                if time.monotonic() >= until:
                    break
            self._newest |= newest
            if self._entries != self._written:
                body = {str(table): asdict(one) for table, one in sorted(self._entries.items())}
                self._root.report(_NAME, pack(body))
                self._written = dict(self._entries)
        finally:
            self._busy.release()

    def _in_turn(self, states: Iterable[TableState]) -> list[TableState]:
        last = self._last
        return sorted(states, key=lambda state: (last is not None and state.table <= last, state.table))

    def _keep(self, state: TableState, commit: str | None) -> None:
        """``commit`` was looked at before: one that comes meanwhile makes the entry too old, and never wrong."""
        known = self._entries.get(state.table)
        if commit is not None and known is not None and (known.commit, known.generation) == (commit, state.generation):
            return
        self._entries.pop(state.table, None)
        if commit is None:
            return
        try:
            applied = self._tables.table(state.route).applied(state.generation)
        except Exception as error:  # noqa: BLE001  # it is the table's own, and the next sync or status tells it
            log.debug("what %s records cannot be kept for status: %s", state.table, error)
            return
        if applied is not None:
            self._entries[state.table] = Recorded(commit, state.generation, applied)
