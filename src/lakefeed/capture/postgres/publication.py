"""What the source publishes for one pipeline, and what it should publish: two publications, compared with the tables.

The first one has the tables with a replica identity. The second one, named ``…_inserts``, has those without one for
which a rule says ``keyless: inserts``: it publishes only inserts and truncates, so that PostgreSQL never refuses the
application's UPDATE and DELETE on them. It is created only if a rule asks for it. Up to PostgreSQL 17, a stream cannot
read changes from before the creation of a publication that it names; so a comment on the second one has the position
from which on a stream may name it.

With ``column_lists``, a table of which the lake takes only some columns is published with a column list: the other
columns never leave the server. That excludes tables with REPLICA IDENTITY FULL, whose UPDATEs PostgreSQL would refuse.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import psycopg

from lakefeed.capture.postgres.catalog import FULL, SourceTable, sql_name
from lakefeed.capture.postgres.database import Connection, Names, quoted
from lakefeed.capture.postgres.slot import inserted
from lakefeed.change.choice import NOTHING_CHOSEN, Choices
from lakefeed.change.lsn import PostgresLsn
from lakefeed.change.table import TableId

log = logging.getLogger(__name__)

_KINDS = ("insert", "update", "delete", "truncate")
_PENDING, _SINCE = "lakefeed: being made", re.compile(r"lakefeed: since ([0-9A-F]+/[0-9A-F]+)")

# With the columns that a column list leaves out, of those that a stream could have.
_PUBLISHED = """
SELECT t.schemaname, t.tablename, coalesce(r.oid, p.oid)::int8, r.prqual IS NOT NULL, r.prattrs IS NOT NULL,
       CASE WHEN r.prattrs IS NOT NULL THEN ARRAY(
         SELECT a.attname::text FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
            AND a.attgenerated = '' AND a.attnum <> ALL (r.prattrs::int2[])) ELSE '{}' END,
       EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attgenerated = 's')
  FROM pg_publication p JOIN pg_publication_tables t ON t.pubname = p.pubname
  JOIN pg_namespace n ON n.nspname = t.schemaname JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = t.tablename
  LEFT JOIN pg_publication_rel r ON r.prpubid = p.oid AND r.prrelid = c.oid
 WHERE p.pubname = %s ORDER BY 1, 2"""


class Shortcoming(NamedTuple):
    """Why a publication does not publish everything, or publishes something that a copy does not have, with the
    statement that repairs it. ``table`` is the table concerned; None means all. ``misses``: changes of the table are
    not published. ``is_list``: the problem is a column list, which the pipeline recreates if it makes them itself."""

    problem: str
    remedy: str
    table: TableId | None = None
    misses: bool = True
    is_list: bool = False


@dataclass(frozen=True, slots=True)
class Wanted:
    """What one pipeline wants to be published."""

    names: Names
    choices: Choices = NOTHING_CHOSEN
    column_lists: bool = False

    def columns(self, source: SourceTable) -> tuple[str, ...]:
        """The column list of a table, whose columns must have been read; empty means all columns."""
        if not self.column_lists or source.identity == FULL or any(leaf.identity == FULL for leaf in source.leaves):
            return ()
        choice, names = self.choices.of(source.id), [column.name for column in source.columns]
        taken = tuple(name for name in names if name in source.key or choice.takes(name))
        return taken if len(taken) < len(names) else ()

    @property
    def has_inserts(self) -> bool:
        """Whether a rule asks for the second publication."""
        return any(rule.inserts_only for _, rule in self.choices.rules)


class Coverage(NamedTuple):
    """What a publication publishes at one moment. ``members`` are its tables, each with a number that changes if the
    table is removed and added again or the publication is recreated; None if there is no publication. ``hidden`` has,
    by table, the columns that a column list leaves out. ``since``: from which position on a stream may name it."""

    name: str
    kinds: tuple[str, ...] = _KINDS
    members: Mapping[TableId, int] | None = None
    shortcomings: tuple[Shortcoming, ...] = ()
    hidden: Mapping[TableId, tuple[str, ...]] = {}  # never written to
    since: PostgresLsn | None = None
    is_pending: bool = False

    def gap(self, table: TableId) -> str | None:
        """Why changes of a table are not published; None if they are."""
        if self.members is None:
            return f"the publication {self.name} was dropped"
        if table not in self.members:
            return "it is no longer published"
        return next((one.problem for one in self.shortcomings if one.misses and one.table in (None, table)), None)

    def member(self, table: TableId) -> int | None:
        return (self.members or {}).get(table)

    def refuses(self, source: SourceTable) -> bool:
        """Whether the table has a column list that makes PostgreSQL refuse its UPDATE and DELETE."""
        hidden = self.hidden.get(source.id)
        is_full = source.identity == FULL or any(leaf.identity == FULL for leaf in source.leaves)
        return hidden is not None and (is_full or bool(set(hidden) & set(source.key)))

    def removal(self, table: TableId) -> str:
        return f"ALTER PUBLICATION {quoted(self.name)} DROP TABLE ONLY {sql_name(table)}"

    def statement(self, wanted: Mapping[TableId, tuple[str, ...]]) -> str | None:
        """The SQL that makes the publication cover the tables ``wanted``, with their column lists; None if it already
        does."""
        lists = {one.table for one in self.shortcomings if one.is_list}
        missing = sorted(table for table in wanted if self.member(table) is None or table in lists)
        # ONLY: otherwise its children are published, too, and UPDATEs of a child without an identity would fail.
        tables = ", ".join(_listed(table, wanted[table]) for table in missing)
        if self.members is None:
            of, publish = f" FOR TABLE {tables}" if tables else "", ""
            if self.kinds != _KINDS:
                publish = f"publish = '{', '.join(self.kinds)}', "
            return f"CREATE PUBLICATION {quoted(self.name)}{of} WITH ({publish}publish_via_partition_root = true)"
        again = "".join(f"{self.removal(table)}; " for table in missing if table in self.members)
        return f"{again}ALTER PUBLICATION {quoted(self.name)} ADD TABLE {tables}" if tables else None


class Publications(NamedTuple):
    """Both publications at one moment, and which of them a table belongs to."""

    wanted: Wanted
    main: Coverage
    inserts: Coverage

    def of(self, source: SourceTable) -> Coverage:
        return self.inserts if source.follows_inserts(self.wanted.choices) else self.main

    def gap(self, source: SourceTable) -> str | None:
        return self.of(source).gap(source.id)

    def member(self, source: SourceTable) -> int | None:
        """The numbers of both publications are oids, so they never collide."""
        return self.of(source).member(source.id)

    def is_refused(self, source: SourceTable) -> bool:
        """Whether PostgreSQL refuses UPDATE and DELETE on a table that could be published in another way: only its
        inserts, or without a column list."""
        is_left = self.of(source) is self.inserts and self.main.member(source.id) is not None
        return is_left or self.main.refuses(source)

    @property
    def shortcomings(self) -> tuple[Shortcoming, ...]:
        """Without those that the pipeline repairs itself when it publishes the table."""
        found = (*self.main.shortcomings, *self.inserts.shortcomings)
        return tuple(one for one in found if not (one.is_list and self.wanted.column_lists))

    def statements(self, sources: Iterable[SourceTable]) -> tuple[str, ...]:
        """The SQL that publishes these tables, whose columns must have been read."""
        found = list[str]()
        for coverage in (self.main, self.inserts):
            own = [source for source in sources if self.of(source) is coverage]
            statement = coverage.statement({one.id: self.wanted.columns(one) for one in own})
            found += [statement] if statement is not None and (own or coverage is self.main) else []
        return tuple(found)


def read_publications(connection: Connection, wanted: Wanted, there: Mapping[TableId, SourceTable]) -> Publications:
    """Both publications as they are now. ``there`` are the tables of the database."""
    main = _coverage(connection, wanted.names.publication, _KINDS, wanted, there)
    inserts = _coverage(connection, wanted.names.inserts, ("insert", "truncate"), wanted, there)
    return Publications(wanted, main, inserts)


def _coverage(
    connection: Connection, name: str, kinds: tuple[str, ...], wanted: Wanted, there: Mapping[TableId, SourceTable]
) -> Coverage:
    query = "SELECT to_jsonb(p), obj_description(p.oid, 'pg_publication') FROM pg_publication p WHERE pubname = %s"
    row = connection.execute(query, (name,)).fetchone()
    if row is None:
        return Coverage(name, kinds)
    options: dict[str, Any] = row[0]  # as JSON, because the columns differ between versions of PostgreSQL
    comment = str(row[1] or "")
    publication, alter = f"publication {quoted(name)}", f"ALTER PUBLICATION {quoted(name)}"
    found, members, hidden = list[Shortcoming](), dict[TableId, int](), dict[TableId, tuple[str, ...]]()
    published = {kind for kind in _KINDS if options[f"pub{kind}"]}
    if published != set(kinds):
        remedy = f"{alter} SET (publish = '{', '.join(kinds)}');"
        what = "leaves out some kinds of changes" if not set(kinds) <= published else "publishes updates or deletes"
        found.append(Shortcoming(f"{publication} {what}", remedy))
    if not options["pubviaroot"]:
        remedy = f"{alter} SET (publish_via_partition_root = true);"
        found.append(Shortcoming(f"{publication} publishes partitions under their own names", remedy, misses=False))
    rows = [row for row in connection.execute(_PUBLISHED, (name,)) if "." not in row[0]]
    for schema, table_name, number, is_filtered, has_list, left_out, has_generated in rows:
        table = TableId(schema, table_name)
        members[table] = number
        if has_generated and options.get("pubgencols", "n") != "n":
            problem = f"{publication} publishes generated columns of {table}, which a copy does not have"
            found.append(Shortcoming(problem, f"{alter} SET (publish_generated_columns = none);", table))
        choice, source = wanted.choices.of(table), there.get(table)
        key = source.key if source is not None else ()
        lacks = any(choice.takes(column) or column in key for column in left_out)
        if has_list:
            hidden[table] = tuple(left_out)
        if is_filtered or lacks or (has_list and not choice.columns):  # the last one would lack columns added later
            problem = f"{publication} has a column list or a row filter for {table}"
            columns = wanted.columns(source) if source is not None and source.attributes else ()
            remedy = f"{alter} DROP TABLE ONLY {sql_name(table)}; {alter} ADD TABLE {_listed(table, columns)};"
            found.append(Shortcoming(problem, remedy, table, is_list=not is_filtered))
    since = _SINCE.fullmatch(comment)
    at = PostgresLsn.parse(since[1]) if since is not None else None
    return Coverage(name, kinds, members, tuple(found), hidden, at, is_pending=comment == _PENDING)


def _listed(table: TableId, columns: Iterable[str]) -> str:
    names = ", ".join(map(quoted, columns))
    return f"ONLY {sql_name(table)}{f' ({names})' if names else ''}"


def at_once(connection: Connection, statement: str) -> None:
    """Run a statement. LockNotAvailable instead of a wait: Lakefeed may hold a snapshot meanwhile."""
    with connection.transaction():
        connection.execute("SET LOCAL lock_timeout = '50ms'")
        connection.execute(statement.encode())


def make_inserts(connection: Connection, inserts: Coverage) -> None:
    """Create the second publication, and note a position after its creation, from which on a stream may name it."""
    name = quoted(inserts.name)
    if inserts.members is None:
        at_once(connection, f"{inserts.statement({})}; COMMENT ON PUBLICATION {name} IS '{_PENDING}'")
    if inserts.members is None or inserts.is_pending:
        since = inserted(connection).text()
        connection.execute(f"COMMENT ON PUBLICATION {name} IS 'lakefeed: since {since}'".encode())


def withdraw(connection: Connection, coverage: Coverage, table: TableId) -> bool:
    """Remove a table that has lost its identity from the publication: while it is in there, PostgreSQL refuses the
    application's UPDATEs and DELETEs on it. False if that is not possible now; it never waits."""
    try:
        at_once(connection, coverage.removal(table))
    except psycopg.Error as error:
        log.warning("%s cannot be removed from the publication now: %s", table, error)
        return False
    log.warning("%s was removed from the publication: it no longer has a usable replica identity", table)
    return True
