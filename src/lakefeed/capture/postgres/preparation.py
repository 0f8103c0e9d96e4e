"""``prepare``: publication first, then the slot, so that the slot's first change already finds its table published."""

from __future__ import annotations

from collections.abc import Sequence

import psycopg

from lakefeed.capture.postgres.catalog import SourceTable
from lakefeed.capture.postgres.creation import create_slot
from lakefeed.capture.postgres.database import Connection, Database
from lakefeed.capture.postgres.hold import Hold
from lakefeed.capture.postgres.names import Names
from lakefeed.capture.postgres.publication import publication_statements, published, shortcomings
from lakefeed.capture.postgres.slot import slot_statement, usable_slot
from lakefeed.errors import ConfigError, SourceSetupError


def prepare_tables(
    connection: Connection, database: Database, names: Names, tables: Sequence[SourceTable], *, provision: bool
) -> Hold | None:
    """Idempotent. Returns the snapshot of a slot that was made just now, None if there was one already.

    A table that comes to a publication that is there already may have transactions under way, which began before it
    was published: its copy begins with a slot of its own, and making that waits for them.
    """
    for table in tables:
        if table.refusal is not None:
            reason, remedy = table.refusal
            raise SourceSetupError(f"{table.id} cannot be captured: {reason}", remedy=remedy)
    for problem, remedy in shortcomings(connection, names.publication):
        raise ConfigError(f"{problem}, so that changes would be missing", remedy=remedy)
    there = published(connection, names.publication)
    statements = publication_statements(names.publication, there, [table.id for table in tables])
    slot = usable_slot(connection, names.slot)
    if not provision:
        _require_provided(names, statements, publication=there is not None, slot=slot is not None)
    for statement in statements:
        _run(connection, statement)
    if slot is not None:
        return None
    return Hold.take_over(database, names, create_slot(database, names.slot, temporary=False))


def _require_provided(names: Names, statements: Sequence[str], *, publication: bool, slot: bool) -> None:
    """Somebody else makes publication and slot. Without them nothing goes; a table that is not published is its own
    problem."""
    if publication and slot and not statements:
        return
    missing = [*statements, *([] if slot else [slot_statement(names.slot)])]
    kind = SourceSetupError if publication and slot else ConfigError
    raise kind(
        "source.provision is off, and the publication or the slot is not ready", remedy=f"Run: {'; '.join(missing)};"
    )


def _run(connection: Connection, statement: str) -> None:
    try:
        connection.execute(statement.encode())
    except psycopg.errors.InsufficientPrivilege as error:
        raise SourceSetupError(
            f"this role may not prepare the source: {error}", remedy=f"Run as the tables' owner: {statement};"
        ) from error
