"""Which commits a read transaction has: under an exported snapshot exactly those up to its position, else a bracket."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import sql

from lakefeed.capture.postgres.catalog import wait_for_commits
from lakefeed.capture.postgres.database import Connection
from lakefeed.capture.postgres.slot import inserted
from lakefeed.change.lsn import PostgresLsn
from lakefeed.errors import SourceUnavailableError

BEGIN = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
_COMMIT_SECONDS = 30.0

# The transaction's snapshot shows pg_class as of then; pg_relation_filenode and pg_partition_tree show it as of now.
_CHANGED = """
WITH RECURSIVE tree(part) AS (
  SELECT %(table)s::regclass::oid
  UNION ALL SELECT i.inhrelid FROM tree t JOIN pg_inherits i ON i.inhparent = t.part
              JOIN pg_class c ON c.oid = t.part AND c.relkind = 'p'),
was AS (SELECT c.oid, c.relfilenode FROM tree t JOIN pg_class c ON c.oid = t.part),
now AS (SELECT oid, coalesce(pg_relation_filenode(oid), 0) AS file
          FROM (SELECT %(table)s::regclass::oid
                UNION SELECT relid::oid FROM pg_partition_tree(%(table)s::regclass)) AS p(oid))
SELECT count(*) FROM was FULL JOIN now USING (oid) WHERE was.relfilenode IS DISTINCT FROM now.file"""


@dataclass(frozen=True, slots=True)
class SnapshotOrigin:
    """The exported snapshot of a plan: its name, what it contains, and where in the log it belongs. Without a name
    there was none, and chunks have brackets."""

    snapshot: str
    content: str
    position: PostgresLsn

    def to_json(self) -> dict[str, str]:
        return {"snapshot": self.snapshot, "content": self.content, "at": self.position.text()}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> SnapshotOrigin:
        return cls(data["snapshot"], data["content"], PostgresLsn.parse(data["at"]))


def import_snapshot(connection: Connection, origin: SnapshotOrigin) -> bool:
    """Begin a read transaction under an exported snapshot, if it is still there and still the same: names are used
    again after a restart. False: no transaction is open."""
    if not origin.snapshot:
        return False
    connection.execute(BEGIN)
    try:
        connection.execute(sql.SQL("SET TRANSACTION SNAPSHOT {}").format(sql.Literal(origin.snapshot)))
        row = connection.execute("SELECT pg_current_snapshot()::text").fetchone()
        if row is not None and row[0] == origin.content:
            return True
    except (
        psycopg.errors.ObjectNotInPrerequisiteState,  # it is of a transaction that is over
        psycopg.errors.InvalidParameterValue,  # no such snapshot
        psycopg.errors.UndefinedObject,
    ):
        pass
    connection.execute("ROLLBACK")
    return False


def shows(connection: Connection, table: str) -> bool:
    """Whether the transaction's snapshot has the rows of a table (its name as SQL) and of its partitions of now. One
    that was rewritten or attached since would be read with the catalog of now and the rows of then: an ALTER TABLE that
    rewrites leaves none to be seen."""
    row = connection.execute(_CHANGED, {"table": table}).fetchone()
    return row is not None and row[0] == 0


def bracketed(connection: Connection) -> tuple[PostgresLsn, PostgresLsn]:
    """Begin a read transaction, and say which commits it has: all up to the first position, none after the second.

    By visibility and not by log position alone (T5): a commit is in the log before its rows become visible. So the
    position that was read first is a low mark only once every transaction that might have been committing at that
    moment is over; the high mark is read after the snapshot. SourceUnavailableError if they do not come to an end.
    """
    low = inserted(connection)
    if not wait_for_commits(connection, _COMMIT_SECONDS):
        raise SourceUnavailableError(
            f"transactions that were active {_COMMIT_SECONDS:.0f} s ago are still active, so a copy cannot be dated",
            remedy="Lakefeed tries again by itself; a long statement in pg_stat_activity is what it waits for.",
        )
    connection.execute(BEGIN)
    connection.execute("SELECT pg_current_snapshot()")  # the first statement takes the snapshot
    return low, inserted(connection)
