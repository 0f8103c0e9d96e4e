"""The partitions that have the rows of partitioned tables, and what their comings and goings do to a copy.

A partitioned table is published as one table, and the stream has the rows that are written. Partitions that leave,
come with rows in them or are emptied on their own say nothing there: that is found by comparing two looks at the
catalog.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import psycopg

from lakefeed.capture.postgres.database import Connection
from lakefeed.capture.postgres.names import quoted

# Rows of transactions from before ``seen`` were there at the look, and are in a file that was made since only if that
# was made of them: by VACUUM FULL or CLUSTER, which keep what a row says of its transaction. Frozen rows are of old.
_KEPT = """
SELECT bool_or(age(xmin) > pg_snapshot_xmax(pg_current_snapshot())::text::int8 - {seen})
  FROM (SELECT xmin FROM ONLY {name} LIMIT 1000) AS r"""

# ``joined`` is newer than the table itself where one that was there before was attached. Of the table's catalog rows
# those of its system columns are never written again, so they tell when it was made.
_LEAVES = """
WITH RECURSIVE tree(root, leaf, joined) AS (
  SELECT c.oid, i.inhrelid, age(i.xmin) FROM pg_class c JOIN pg_inherits i ON i.inhparent = c.oid
   WHERE c.relkind = 'p' AND NOT c.relispartition AND NOT i.inhdetachpending
  UNION ALL
  SELECT t.root, i.inhrelid, least(t.joined, age(i.xmin))
    FROM tree t JOIN pg_inherits i ON i.inhparent = t.leaf WHERE NOT i.inhdetachpending)
SELECT t.root::int8, c.oid::int8, n.nspname, c.relname, c.relreplident::text, c.relfilenode::int8,
       t.joined < age(a.xmin), pg_snapshot_xmin(pg_current_snapshot())::text::int8
  FROM tree t JOIN pg_class c ON c.oid = t.leaf JOIN pg_namespace n ON n.oid = c.relnamespace
  JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = -1
 WHERE c.relkind <> 'p' ORDER BY 1, 3, 4"""


@dataclass(frozen=True, slots=True)
class Leaf:
    """A partition that has rows itself. ``file`` is another one after TRUNCATE, and after whatever rewrites it.

    ``seen``: transactions before this one were over when it was looked at.
    """

    oid: int
    name: str
    """As SQL."""
    identity: str
    file: int
    attached: bool
    """It was a table of its own before."""
    seen: int


def read_leaves(connection: Connection) -> Mapping[int, tuple[Leaf, ...]]:
    """By the oid of the partitioned table at the top."""
    found: dict[int, list[Leaf]] = {}
    for root, oid, schema, name, identity, file, attached, seen in connection.execute(_LEAVES):
        leaf = Leaf(oid, f"{quoted(schema)}.{quoted(name)}", identity, file, attached, seen)
        found.setdefault(root, []).append(leaf)
    return {root: tuple(leaves) for root, leaves in found.items()}


def unseen(connection: Connection, before: Iterable[Leaf], now: Sequence[Leaf]) -> str | None:
    """What happened to rows between two looks that the stream does not tell; None if nothing did."""
    there, known = {leaf.oid: leaf for leaf in now}, {leaf.oid for leaf in before}
    for leaf in before:
        if leaf.oid not in there:
            return f"its partition {leaf.name} was dropped or detached"
        if there[leaf.oid].file != leaf.file and not _has_kept(connection, there[leaf.oid], leaf.seen):
            return f"its partition {leaf.name} was truncated"
    for leaf in now:
        if leaf.oid not in known and leaf.attached and _has_rows(connection, leaf):
            return f"the table {leaf.name} was attached to it as a partition, with rows"
    return None


def _has_kept(connection: Connection, leaf: Leaf, seen: int) -> bool:
    """Some of its rows were there before: it was rewritten and not truncated. False where that cannot be told."""
    try:
        row = connection.execute(_KEPT.format(name=leaf.name, seen=int(seen)).encode()).fetchone()
    except (psycopg.errors.InsufficientPrivilege, psycopg.errors.UndefinedTable):
        return False
    return row is not None and row[0] is True


def _has_rows(connection: Connection, leaf: Leaf) -> bool:
    """One that was attached while it was empty has its rows from the stream."""
    row = connection.execute("SELECT pg_relation_size(%s::oid::regclass)", (leaf.oid,)).fetchone()
    return row is not None and row[0] is not None and row[0] > 0
