"""The publication of one pipeline: which tables it has, the SQL that makes it, and what may be wrong with it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from lakefeed.capture.postgres.catalog import sql_name
from lakefeed.capture.postgres.database import Connection
from lakefeed.capture.postgres.names import quoted
from lakefeed.change.table import TableId

_NARROWED = """
SELECT n.nspname, c.relname FROM pg_publication_rel r
  JOIN pg_publication p ON p.oid = r.prpubid JOIN pg_class c ON c.oid = r.prrelid
  JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE p.pubname = %s AND (r.prattrs IS NOT NULL OR r.prqual IS NOT NULL) ORDER BY 1, 2"""


def published(connection: Connection, name: str) -> frozenset[TableId] | None:
    """The tables of the publication; None if there is no publication."""
    row = connection.execute("SELECT oid FROM pg_publication WHERE pubname = %s", (name,)).fetchone()
    if row is None:
        return None
    rows = connection.execute("SELECT schemaname, tablename FROM pg_publication_tables WHERE pubname = %s", (name,))
    return frozenset(TableId(schema, table) for schema, table in rows if "." not in schema)


def publication_statements(name: str, there: frozenset[TableId] | None, wanted: Iterable[TableId]) -> Sequence[str]:
    """The SQL that makes the publication cover ``wanted``."""
    missing = sorted(set(wanted) - (there or frozenset()))
    tables = ", ".join(map(sql_name, missing))
    if there is None:
        of = f" FOR TABLE {tables}" if tables else ""
        return [f"CREATE PUBLICATION {quoted(name)}{of} WITH (publish_via_partition_root = true)"]
    return [f"ALTER PUBLICATION {quoted(name)} ADD TABLE {tables}"] if tables else []


def shortcomings(connection: Connection, name: str) -> Iterator[tuple[str, str]]:
    """Why a publication that is there does not tell everything, each with the statement that repairs it."""
    query = "SELECT pubinsert AND pubupdate AND pubdelete AND pubtruncate, pubviaroot FROM pg_publication"
    row = connection.execute(f"{query} WHERE pubname = %s".encode(), (name,)).fetchone()
    publication = f"publication {quoted(name)}"
    if row is not None and not row[0]:
        remedy = f"ALTER PUBLICATION {quoted(name)} SET (publish = 'insert, update, delete, truncate');"
        yield f"{publication} leaves out some kinds of changes", remedy
    if row is not None and not row[1]:
        remedy = f"ALTER PUBLICATION {quoted(name)} SET (publish_via_partition_root = true);"
        yield f"{publication} publishes partitions under their own names", remedy
    for schema, table in connection.execute(_NARROWED, (name,)).fetchall():
        place = f"{quoted(schema)}.{quoted(table)}"
        remedy = (
            f"ALTER PUBLICATION {quoted(name)} DROP TABLE {place}; ALTER PUBLICATION {quoted(name)} ADD TABLE {place};"
        )
        yield f"{publication} has a column list or a row filter for {schema}.{table}", remedy
