"""The seam between the storm and one database: PostgreSQL, MySQL, MariaDB or SQLite."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.storm.profile import Profile

Row = tuple[bytes | None, ...]


@dataclass(slots=True)
class Action:
    """One decision of one session: statements that run in order."""

    statements: Sequence[str]
    table: str | None = None
    """One of the session's own tables: the model forgets it when its statements fail again and again."""
    done: Callable[[], object] = lambda: None
    """Updates the model; called once every statement has succeeded."""


@dataclass(frozen=True, slots=True)
class Wait:
    """A session of the application that waits at this moment because of a session of Lakefeed."""

    session: str
    statement: str
    blocker: str


@dataclass(frozen=True, slots=True)
class Relation:
    """A table as the database describes it. ``not_followed``: why no capture could follow it, if that is so."""

    name: str
    columns: tuple[str, ...]
    not_followed: str | None = None
    oid: int = field(default=0, compare=False)


class StatementError(Exception):
    """The database refused a statement. ``ours``: what Lakefeed made in the database is the reason; ``passes``: until
    Lakefeed notices."""

    def __init__(self, text: str, *, ours: bool, passes: bool = False) -> None:
        super().__init__(text)
        self.ours = ours
        self.passes = passes


class ConnectionLostError(Exception):
    """The server is being restarted; the action is run again on a new connection."""


class Model(ABC):
    """What one session knows of its tables, and how each kind of action becomes statements."""

    @abstractmethod
    def action(self, kind: str, chance: random.Random) -> Action:
        """The statements of one action. Where nothing fits the kind, those of a kind that fits."""

    @abstractmethod
    def settle(self) -> None:
        """The tables there are now have been copied; see ``Profile.on_settled``."""

    @abstractmethod
    def forget(self, table: str) -> None:
        """Leave a table alone from now on: it is not as the model has it."""


class Session(ABC):
    """One connection of the application. Used by one thread; connects by itself when it has to."""

    @abstractmethod
    def execute(self, statement: str) -> None:
        """Run one statement. Raises StatementError, with the transaction rolled back, or ConnectionLostError."""

    @abstractmethod
    def close(self) -> None: ...


class Database(ABC):
    """A running server (or file) with a database of the storm's own."""

    @abstractmethod
    def source(self) -> dict[str, Any]:
        """The section ``source`` of the configuration."""

    @abstractmethod
    def lake_folder(self) -> str:
        """The folder below ``lake.path`` that has the tables."""

    @abstractmethod
    def create(self, sessions: int) -> None:
        """Make the shared tables, the heartbeat table and the types of each session."""

    @abstractmethod
    def session(self, name: str) -> Session: ...

    @abstractmethod
    def model(self, number: int, profile: Profile) -> Model: ...

    @abstractmethod
    def beat(self, number: int) -> None:
        """Insert row ``number`` into the table heartbeat. Raises as a session does."""

    @abstractmethod
    def waits(self) -> list[Wait]:
        """Who waits for Lakefeed right now. Raises ConnectionLostError."""

    @abstractmethod
    def restart(self, *, crash: bool) -> None: ...

    @abstractmethod
    def settle(self) -> None:
        """End what the sessions left open, such as prepared transactions."""

    @abstractmethod
    def tables(self) -> list[Relation]:
        """Every table that the pattern of the configuration matches."""

    @abstractmethod
    def rows(self, relation: Relation) -> list[Row]:
        """All rows, each value as the database prints it."""

    @abstractmethod
    def close(self, log: Path) -> None:
        """Stop the server, and leave its log at this path."""


def because_of(ours: Mapping[int, str], blocked: Mapping[int, Collection[int]]) -> dict[int, str]:
    """Sessions that wait because of ours, which are named with what they do. ``blocked``: session → its blockers.

    A session waits because of us if it would not wait without us: each of its blockers is a session of ours, or waits
    itself because of us.
    """
    because: dict[int, str] = {}
    while True:
        found = {
            session: "; ".join(sorted({ours.get(one) or because[one] for one in blockers}))
            for session, blockers in blocked.items()
            if session not in because and all(one in ours or one in because for one in blockers)
        }
        if not found:
            return because
        because |= found
