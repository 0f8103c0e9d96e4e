"""``prepare``: publication first, then the slot, so that the slot's first change already finds its table published."""

from __future__ import annotations

from collections.abc import Sequence

import psycopg

from lakefeed.capture.postgres.catalog import SourceTable
from lakefeed.capture.postgres.database import Connection, Database
from lakefeed.capture.postgres.hold import Hold
from lakefeed.capture.postgres.names import Names
from lakefeed.capture.postgres.slot import create_slot, publication_statements, published, usable_slot
from lakefeed.errors import SourceSetupError


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
    statements = publication_statements(
        names.publication, published(connection, names.publication), [table.id for table in tables]
    )
    slot = usable_slot(connection, names.slot)
    if not provision and (statements or slot is None):
        missing = [
            *statements,
            *([] if slot else [f"SELECT pg_create_logical_replication_slot('{names.slot}', 'pgoutput')"]),
        ]
        raise SourceSetupError(
            "the publication or the slot is not ready, and source.provision is off", remedy="; ".join(missing) + ";"
        )
    for statement in statements:
        _run(connection, statement)
    if slot is not None:
        return None
    return Hold.take_over(database, names, create_slot(database, names.slot, temporary=False))


def _run(connection: Connection, statement: str) -> None:
    try:
        connection.execute(statement.encode())
    except psycopg.errors.InsufficientPrivilege as error:
        raise SourceSetupError(
            f"this role may not prepare the source: {error}", remedy=f"Run as the tables' owner: {statement};"
        ) from error
