"""``prepare``: publication first, then the slot, so that the slot's first change already finds its table published."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import psycopg

from lakefeed.capture.postgres.catalog import SourceTable
from lakefeed.capture.postgres.creation import create_slot
from lakefeed.capture.postgres.database import Connection, Database
from lakefeed.capture.postgres.hold import Hold
from lakefeed.capture.postgres.names import Names
from lakefeed.capture.postgres.publication import publication_statements, published, shortcomings
from lakefeed.capture.postgres.slot import inserted, slot_statement, usable_slot
from lakefeed.change.lsn import PostgresLsn
from lakefeed.change.table import TableId
from lakefeed.errors import ConfigError, SourceSetupError

_MISSED = (
    " Changes made meanwhile were not told: a table that is not copied anew by itself then needs `lakefeed rebuild`."
)


class Preparation:
    """Publication and slot of one pipeline. Belongs to one thread at a time."""

    def __init__(self, database: Database, names: Names, *, provision: bool) -> None:
        self._database = database
        self._names = names
        self._provision = provision
        self._since: dict[TableId, tuple[int, PostgresLsn]] = {}

    def prepare(self, connection: Connection, tables: Sequence[SourceTable]) -> Hold | None:
        """Idempotent. Returns the snapshot of a slot that was made just now, None if there was one already."""
        for table in tables:
            if table.refusal is not None:
                reason, remedy = table.refusal
                raise SourceSetupError(f"{table.id} cannot be captured: {reason}", remedy=remedy)
        wanted = [table.id for table in tables]
        slot = usable_slot(connection, self._names.slot)
        for one in shortcomings(connection, self._names.publication):
            remedy = one.remedy + (_MISSED if slot is not None else "")
            raise ConfigError(f"{one.problem}, so that changes would be missing or differ", remedy=remedy)
        try:
            if self._provision:
                self._publish(connection, wanted)
            else:
                self._require_provided(connection, wanted, slot=slot is not None)
        finally:
            self._note(connection, wanted)
        if slot is not None:
            return None
        made = create_slot(self._database, self._names.slot, temporary=False)
        return Hold.take_over(self._database, self._names, made)

    def since(self, table: TableId) -> PostgresLsn:
        """Up to here a table may have had transactions under way that began before it was published, so that the
        stream does not have them. A copy with the snapshot of a slot that was made later has: making it waits for
        them."""
        return self._since.get(table, (0, PostgresLsn(0)))[1]

    def _publish(self, connection: Connection, wanted: Sequence[TableId]) -> None:
        """All at once; one by one if some may not be. The others then are published before the slot is made, and one
        snapshot does for all."""
        there = published(connection, self._names.publication)
        for statement in publication_statements(self._names.publication, there, wanted):
            try:
                connection.execute(statement.encode())
            except psycopg.errors.InsufficientPrivilege as error:
                for table in wanted if len(wanted) > 1 else ():
                    with suppress(SourceSetupError):
                        self._publish(connection, [table])
                raise SourceSetupError(
                    f"this role may not prepare the source: {error}", remedy=f"Run as the tables' owner: {statement};"
                ) from error

    def _require_provided(self, connection: Connection, wanted: Sequence[TableId], *, slot: bool) -> None:
        """Somebody else makes publication and slot. Without them nothing goes; a table that is not published is its
        own problem."""
        there = published(connection, self._names.publication)
        statements = publication_statements(self._names.publication, there, wanted)
        if there is not None and slot and not statements:
            return
        missing = [*statements, *([] if slot else [slot_statement(self._names.slot)])]
        kind = SourceSetupError if there is not None and slot else ConfigError
        raise kind(
            "source.provision is off, and the publication or the slot is not ready",
            remedy=f"Run: {'; '.join(missing)};",
        )

    def _note(self, connection: Connection, wanted: Sequence[TableId]) -> None:
        """Remember where the log was when tables were first seen as published, also those that others published."""
        there = published(connection, self._names.publication) or {}
        at = inserted(connection)
        for table in wanted:
            if table in there and self._since.get(table, (None, at))[0] != there[table]:
                self._since[table] = (there[table], at)
