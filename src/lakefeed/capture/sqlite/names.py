"""The objects that one pipeline has in the source: their names, and how its log and meta tables are made.

    _lakefeed_<pipeline>_log          the change log, all tables in one order
    _lakefeed_<pipeline>_pending      index over its few unresolved candidates (see triggers)
    _lakefeed_<pipeline>_meta         key → value: identity, format, confirmed sequence, captured tables
    _lakefeed_<pipeline>_vacuum       one row with a high rowid and no key: VACUUM renumbers it, which tells of VACUUM
    _lakefeed_<pipeline>_<n>_<event>  the triggers of captured table number n

Two pipelines can live in one database. No name can belong to two of them: a trigger's name ends in number and event,
so that pipelines ``a`` and ``a_1`` stay apart.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from lakefeed.capture.sqlite.database import quoted

EVENTS = ("bi", "bu", "bd", "ai", "au", "ad")
"""before insert, before update, before delete, after insert, after update, after delete"""

CANDIDATE = 0
"""Operation in the log: the key of a row that REPLACE may be about to remove. Never delivered."""
OLD_ROW = 7
"""Operation in the log: a row that is about to be changed. Its change makes it a before image; never delivered else."""
MARK = 9
"""Operation in the log: a schema or notice to announce at this place, as JSON in c0, or just a place (NULL)."""

NOW = "CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)"
"""Milliseconds since 1970 in SQL that every supported SQLite knows."""


@dataclass(frozen=True, slots=True)
class Names:
    """All names are quoted where they are used as SQL."""

    pipeline: str

    @property
    def log_name(self) -> str:
        return f"_lakefeed_{self.pipeline}_log"

    @property
    def meta_name(self) -> str:
        return f"_lakefeed_{self.pipeline}_meta"

    @property
    def vacuum_name(self) -> str:
        return f"_lakefeed_{self.pipeline}_vacuum"

    @property
    def tables(self) -> tuple[str, ...]:
        return (self.log_name, self.meta_name, self.vacuum_name)

    @property
    def log(self) -> str:
        return quoted(self.log_name)

    @property
    def meta(self) -> str:
        return quoted(self.meta_name)

    @property
    def vacuum(self) -> str:
        return quoted(self.vacuum_name)

    @property
    def pending(self) -> str:
        return quoted(f"_lakefeed_{self.pipeline}_pending")

    def trigger(self, number: int, event: str) -> str:
        return f"_lakefeed_{self.pipeline}_{number}_{event}"

    def is_trigger(self, name: str) -> bool:
        return re.fullmatch(rf"_lakefeed_{re.escape(self.pipeline)}_\d+_({'|'.join(EVENTS)})", name) is not None

    def create(self) -> tuple[str, ...]:
        """Statements for an empty log and meta.

        The log's columns have no type, so that values are kept exactly as they are. There is no AUTOINCREMENT, which
        would leave sqlite_sequence behind for ever; instead the newest row is never pruned, so that numbers only grow.
        """
        return (
            f"CREATE TABLE {self.meta} (key TEXT PRIMARY KEY, value) WITHOUT ROWID",
            f"CREATE TABLE {self.log} (seq INTEGER PRIMARY KEY, tab INTEGER, op INTEGER, ts INTEGER, c0)",
            f"CREATE INDEX {self.pending} ON {self.log} (tab) WHERE op = {CANDIDATE}",
            f"CREATE TABLE {self.vacuum} (x)",
        )

    def drop(self) -> tuple[str, ...]:
        return tuple(f"DROP TABLE IF EXISTS {quoted(name)}" for name in self.tables)
