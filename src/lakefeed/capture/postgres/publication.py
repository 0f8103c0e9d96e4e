"""The publication of one pipeline: which tables it has, the SQL that makes it, and what may be wrong with it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lakefeed.capture.postgres.catalog import sql_name
from lakefeed.capture.postgres.database import Connection
from lakefeed.capture.postgres.names import quoted
from lakefeed.change.table import TableId

_PUBLISHED = """
SELECT t.schemaname, t.tablename, coalesce(r.oid, p.oid)::int8
  FROM pg_publication p JOIN pg_publication_tables t ON t.pubname = p.pubname
  JOIN pg_namespace n ON n.nspname = t.schemaname
  JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = t.tablename
  LEFT JOIN pg_publication_rel r ON r.prpubid = p.oid AND r.prrelid = c.oid
 WHERE p.pubname = %s"""

_NARROWED = """
SELECT n.nspname, c.relname FROM pg_publication_rel r
  JOIN pg_publication p ON p.oid = r.prpubid JOIN pg_class c ON c.oid = r.prrelid
  JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE p.pubname = %s AND (r.prattrs IS NOT NULL OR r.prqual IS NOT NULL) ORDER BY 1, 2"""

_GENERATED = """
SELECT t.schemaname, t.tablename FROM pg_publication_tables t JOIN pg_namespace n ON n.nspname = t.schemaname
  JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = t.tablename
 WHERE t.pubname = %s AND EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attgenerated = 's')
 ORDER BY 1, 2"""

_KINDS = ("pubinsert", "pubupdate", "pubdelete", "pubtruncate")


@dataclass(frozen=True, slots=True)
class Shortcoming:
    """Why a publication does not tell everything, with the statement that repairs it.

    ``table`` is the one it concerns, None for all. Not ``misses``: tables in question are not published at all.
    """

    problem: str
    remedy: str
    table: TableId | None = None
    misses: bool = True


@dataclass(frozen=True, slots=True)
class Coverage:
    """What a publication tells of at one moment; ``members`` as ``published`` says them."""

    name: str
    members: Mapping[TableId, int] | None
    shortcomings: tuple[Shortcoming, ...]

    def gap(self, table: TableId) -> str | None:
        """Why changes of a table are not told, None if they are."""
        if self.members is None:
            return f"the publication {self.name} was dropped"
        if table not in self.members:
            return "it is not published any more"
        return next((one.problem for one in self.shortcomings if one.misses and one.table in (None, table)), None)

    def member(self, table: TableId) -> int | None:
        return (self.members or {}).get(table)


def read_coverage(connection: Connection, name: str) -> Coverage:
    return Coverage(name, published(connection, name), tuple(shortcomings(connection, name)))


def published(connection: Connection, name: str) -> Mapping[TableId, int] | None:
    """The tables of the publication; None if there is no publication.

    Each with a number that is another one if the table was taken out and put back, or the publication made anew.
    """
    row = connection.execute("SELECT oid FROM pg_publication WHERE pubname = %s", (name,)).fetchone()
    if row is None:
        return None
    rows = connection.execute(_PUBLISHED, (name,))
    return {TableId(schema, table): number for schema, table, number in rows if "." not in schema}


def publication_statements(name: str, there: Collection[TableId] | None, wanted: Iterable[TableId]) -> Sequence[str]:
    """The SQL that makes the publication cover ``wanted``."""
    missing = sorted(set(wanted) - set(there or ()))
    tables = ", ".join(map(sql_name, missing))
    if there is None:
        of = f" FOR TABLE {tables}" if tables else ""
        return [f"CREATE PUBLICATION {quoted(name)}{of} WITH (publish_via_partition_root = true)"]
    return [f"ALTER PUBLICATION {quoted(name)} ADD TABLE {tables}"] if tables else []


def shortcomings(connection: Connection, name: str) -> Iterator[Shortcoming]:
    """Why a publication that is there does not tell everything, or tells something else than a copy has."""
    row = connection.execute("SELECT to_jsonb(p) FROM pg_publication p WHERE pubname = %s", (name,)).fetchone()
    if row is None:
        return
    options: dict[str, Any] = row[0]  # as JSON, because each version of PostgreSQL has other columns there
    publication, alter = f"publication {quoted(name)}", f"ALTER PUBLICATION {quoted(name)}"
    if not all(options[kind] for kind in _KINDS):
        remedy = f"{alter} SET (publish = 'insert, update, delete, truncate');"
        yield Shortcoming(f"{publication} leaves out some kinds of changes", remedy)
    if not options["pubviaroot"]:
        remedy = f"{alter} SET (publish_via_partition_root = true);"
        yield Shortcoming(f"{publication} publishes partitions under their own names", remedy, misses=False)
    if options.get("pubgencols", "n") != "n":
        remedy = f"{alter} SET (publish_generated_columns = none);"
        for schema, table in connection.execute(_GENERATED, (name,)).fetchall():
            problem = f"{publication} publishes generated columns of {schema}.{table}, which a copy does not have"
            yield Shortcoming(problem, remedy, _table(schema, table))
    for schema, table in connection.execute(_NARROWED, (name,)).fetchall():
        place = f"{quoted(schema)}.{quoted(table)}"
        remedy = f"{alter} DROP TABLE {place}; {alter} ADD TABLE {place};"
        problem = f"{publication} has a column list or a row filter for {schema}.{table}"
        yield Shortcoming(problem, remedy, _table(schema, table))


def _table(schema: str, name: str) -> TableId | None:
    return TableId(schema, name) if "." not in schema else None
