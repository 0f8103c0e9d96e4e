"""Hold: an exported snapshot with the exact place in the log that it belongs to, kept alive for chunk readers.

A replication slot is the only thing that knows both. For a copy that starts later than the pipeline's own slot, a
temporary one is made; its snapshot is taken over by a plain transaction at once, so that the slot holds no log back.
"""

from __future__ import annotations

import secrets
import time
from contextlib import suppress

import psycopg

from lakefeed.capture.postgres.creation import create_slot
from lakefeed.capture.postgres.database import Connection, Database
from lakefeed.capture.postgres.names import Names
from lakefeed.change.lsn import PostgresLsn

_FILES = """
WITH RECURSIVE tree(part) AS (
  SELECT %s::oid UNION ALL SELECT i.inhrelid FROM tree t JOIN pg_inherits i ON i.inhparent = t.part)
SELECT c.oid::int8, c.relfilenode::int8 FROM tree t JOIN pg_class c ON c.oid = t.part"""

IDLE_SECONDS = 300.0
"""How long a snapshot is kept while nobody reads from it. Losing it is no error: chunks then read under their own."""


class Hold:
    """``snapshot`` can be imported until ``close``; ``content`` tells whether what was imported is the same one."""

    def __init__(self, transaction: Connection, position: PostgresLsn) -> None:
        self._transaction = transaction
        self.position = position
        row = transaction.execute("SELECT pg_export_snapshot(), pg_current_snapshot()::text").fetchone()
        assert row is not None  # noqa: S101  # functions always answer
        self.snapshot, self.content = str(row[0]), str(row[1])
        self._used_at = time.monotonic()

    @classmethod
    def take_over(cls, database: Database, names: Names, made: tuple[Connection, PostgresLsn, str]) -> Hold:
        """The snapshot of a slot that was just made; the slot's connection is closed."""
        connection, position, snapshot = made
        try:
            transaction = database.connect(names.slot)
            try:
                with database.errors():
                    transaction.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
                    transaction.execute(f"SET TRANSACTION SNAPSHOT '{snapshot}'")
                    return cls(transaction, position)
            except BaseException:
                transaction.close()
                raise
        finally:
            connection.close()

    @classmethod
    def now(cls, database: Database, names: Names) -> Hold:
        """A snapshot of this moment."""
        name = f"{names.slot[:46]}_tmp_{secrets.token_hex(6)}"
        return cls.take_over(database, names, create_slot(database, name, temporary=True))

    def shows(self, connection: Connection, table: int) -> bool:
        """Whether a table, by its oid, and its partitions are still those of the snapshot.

        One that was rewritten or attached since would be read with the catalog of now and the rows of then: an ALTER
        TABLE that rewrites leaves none to be seen.
        """
        try:
            then = set(self._transaction.execute(_FILES, (table,)))
        except psycopg.Error:
            return False  # the snapshot is gone with its connection
        return then == set(connection.execute(_FILES, (table,)))

    def is_idle(self, connection: Connection, names: Names) -> bool:
        """Nobody has read chunks for a while, as far as pg_stat_activity tells."""
        query = "SELECT count(*) FROM pg_stat_activity WHERE application_name = %s"
        row = connection.execute(query, (names.readers,)).fetchone()
        if row is not None and row[0] > 0:
            self._used_at = time.monotonic()
        return time.monotonic() - self._used_at > IDLE_SECONDS

    def close(self) -> None:
        with suppress(psycopg.Error):
            self._transaction.close()
