"""What the lake tables' own commits record, kept in one file, so that a `status` need not read a thousand logs.

The running process writes it now and then. It is right without one, too: each entry names the newest commit that it was
read at, and counts only while that is still the newest one (``TableFormat.newest_commit``). Whatever the file lacks is
asked of the table itself.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Mapping
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
    """Keeps the file of one pipeline up to date. Any thread; a call while another one is at work does nothing."""

    def __init__(self, root: Storage, tables: TableFormat) -> None:
        self._root = root
        self._tables = tables
        self._busy = threading.Lock()
        self._written: Mapping[TableId, Recorded] = {}
        self._due = 0.0

    def update(self, states: Iterable[TableState], *, now: bool = False) -> None:
        """Write what has changed since the last time, if that is ten seconds ago, or at once. Never raises an error."""
        if self._root.is_remote or (not now and time.monotonic() < self._due) or not self._busy.acquire(blocking=False):
            return
        try:
            self._due = time.monotonic() + _EVERY_SECONDS
            found = {state.table: one for state in states if (one := self._read(state)) is not None}
            if found != self._written:
                body = {str(table): asdict(one) for table, one in sorted(found.items())}
                self._root.report(_NAME, pack(body))
                self._written = found
        finally:
            self._busy.release()

    def _read(self, state: TableState) -> Recorded | None:
        """The commit is looked at first: one that comes meanwhile makes the entry too old, and never wrong."""
        if state.phase is not Phase.LIVE:
            return None
        try:
            commit, known = self._tables.newest_commit(state.route), self._written.get(state.table)
            if commit is None or (known is not None and (known.commit, known.generation) == (commit, state.generation)):
                return known if commit is not None else None
            applied = self._tables.table(state.route).applied(state.generation)
        except Exception as error:  # noqa: BLE001  # it is the table's own, and the next sync or status tells it
            log.debug("what %s records cannot be kept for status: %s", state.table, error)
            return None
        return Recorded(commit, state.generation, applied) if applied is not None else None
