"""TableFacts: derives the layout of a table from what the stream and the catalog say, and finds what the stream omits.

The stream has names, types and the replica identity as of that position of the log; column numbers, NOT NULL and the
primary key come from the catalog, which was read later. ``match_columns`` nearly always finds out which column is
which; if it cannot, the table is copied again. The stream describes a table only before a row of it. So tables that
were dropped, that changed with no row since, or whose changes or partitions the stream leaves out are found by reading
the catalog (``discover``), even if it happened while no process ran.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from lakefeed.capture.base import Statement
from lakefeed.capture.dialect import DescribedTable, Session
from lakefeed.capture.log import Announced, Choose
from lakefeed.capture.postgres import catalog
from lakefeed.capture.postgres.catalog import FULL, CatalogFacts, SourceColumn, SourceTable, one_reading, read_tables
from lakefeed.capture.postgres.database import Connection, Connections, Names
from lakefeed.capture.postgres.dialect import described
from lakefeed.capture.postgres.pgoutput import Layout, Relation, RelationColumn, Resolved
from lakefeed.capture.postgres.publication import Publications, Wanted, read_publications, withdraw
from lakefeed.capture.postgres.slot import head, inserted
from lakefeed.capture.postgres.values import SourceType
from lakefeed.capture.schema import DeliveredSchemas, Stated
from lakefeed.change.change_set import RecopyNeeded, TableDropped
from lakefeed.change.choice import Choices
from lakefeed.change.lsn import PostgresLsn
from lakefeed.change.table import TableId, TableSchema

# A commit that nobody waits for (synchronous_commit = off) is visible up to 3 * wal_writer_delay before it is streamed.
_FLUSH_SECONDS = 1.0
_HIDDEN = 0  # no type: marks a column that a column list leaves out


class _Captured(NamedTuple):
    """A captured table at the last reading. ``member``: its number in the publication; None if its changes were not
    published. ``source``: the table; None if it did not exist, or this process has not read it yet, in which case its
    fingerprint is used."""

    member: int | None
    source: SourceTable | None


class TableFacts(DeliveredSchemas[PostgresLsn]):
    """See ``SchemaFacts``. ``resolve`` belongs to the stream's thread and does no I/O."""

    def __init__(
        self, connections: Connections, names: Names, text_columns: Sequence[str], *, provision: bool,
        column_lists: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        self._connections, self._names, self._provision = connections, names, provision
        self._column_lists = column_lists
        self._delivered_at: PostgresLsn | None = None
        self.is_short: Callable[[PostgresLsn], bool] = lambda _: False
        """Whether the stream, at a position, must start again: see ``PostgresResumePoint.is_short``."""
        self.choices = Choices(text_columns=tuple(text_columns))
        self._newest: dict[int, SourceTable] = {}
        self._not_whole: dict[TableId, list[str]] = {}
        self._captured: dict[TableId, _Captured] = {}
        self._ahead: dict[TableId, PostgresLsn] = {}  # tables whose schema was read ahead of the stream, until where
        self._renamed: dict[int, TableId] = {}  # partitioned tables, with the name that the stream uses for them

    def recall(self, schemas: Sequence[TableSchema]) -> None:
        """Schemas that an earlier process delivered. Column ids contain the oid of the relation."""
        for schema in schemas:
            if schema.columns and (first := schema.columns[0].id):
                self.learn(schema.table, int(first.partition(".")[0]), schema.at_version(0))

    def represent(self, choices: Choices) -> None:
        self.choices = replace(choices, text_columns=self.choices.text_columns)

    def wanted(self) -> Wanted:
        """What the pipeline wants to be published."""
        return Wanted(self._names, self.choices, self._column_lists)

    def _last(self, table: TableId, oid: int) -> TableSchema | None:
        """The schema that this very relation was last delivered with."""
        known = self.known(table)
        return known.schema if known is not None and known.life == oid else None

    def snapshot(self, session: Session, table: TableId) -> tuple[DescribedTable, TableSchema] | None:  # noqa: ARG002
        with self._connections.connection() as connection, one_reading(connection):
            there = read_tables(connection)
            sources = catalog.with_columns(connection, [there[table]] if table in there else [])
            found, at = described(connection, sources, self.choices), inserted(connection)
        return (found[table], self._learn_source(sources[0], at)) if found else None

    def _learn_source(self, source: SourceTable, at: PostgresLsn) -> TableSchema:
        """``at`` is after the reading: up to there the stream may have rows with an older schema."""
        schema = replace(source.schema(self.choices), fingerprint=catalog.fingerprint(source))
        with self._lock:
            self._newest[source.oid] = source
            self.learn(source.id, source.oid, schema)
            self._ahead[source.id] = at
        return schema

    def resolve(self, relation: Relation, facts: CatalogFacts) -> Resolved:
        """What a relation message means. Uses the newest reading of the catalog, which may be that of a copy."""
        if "." in relation.schema:
            return Resolved(None)
        table = TableId(relation.schema, relation.name)
        moment, source = facts.tables.get(relation.id, (catalog.NEVER, None))
        if (newest := self._newest.get(relation.id)) is not None and newest.snapshot > moment:
            source = newest
        last = self._last(table, relation.id)
        relation, sent = self._with_hidden(relation, source, last)
        names = [column.name for column in relation.columns]
        if source is None and last is not None and tuple(names) == last.names:
            return Resolved(Layout(last, sent=sent))  # dropped since, but its last rows are still to come
        numbers, stale_reason = match_columns(names, last, source)
        by_number = {column.number: column for column in source.attributes} if source is not None else {}
        columns = []
        for column, number in zip(relation.columns, numbers, strict=True):
            kind = facts.types.get((column.type, column.modifier), SourceType(column.type, column.modifier))
            known = by_number.get(number, SourceColumn(number, column.name, not_null=False, type=kind))
            kind = known.type if column.type == _HIDDEN else kind
            columns.append(
                SourceColumn(
                    number, column.name, known.not_null, kind, missing=known.missing, dimensions=known.dimensions
                )
            )
        of_catalog = source.key if source is not None else ()
        key = tuple(column.name for column in relation.columns if column.in_identity)
        if relation.identity == FULL:  # marks every column as key, so the key comes from the catalog
            key = of_catalog if set(of_catalog) <= set(names) else ()
        elif set(of_catalog) == set(key):  # the catalog has its order
            key = of_catalog
        stated = SourceTable(relation.id, table, relation.identity, "p", "r", key, tuple(columns))
        schema = stated.schema(self.choices)
        # The stream has the identity of the partitioned table, but rows are logged by that of their partition.
        leaves = source.leaves if source is not None else ()
        whole = relation.identity != FULL or all(leaf.identity == FULL for leaf in leaves)
        if last is not None and table in self._ahead and source is not None:
            was, now = _shape(last), _shape(source.schema(self.choices))
            is_newer = max(numbers, default=0) > catalog.width_of(last.fingerprint)
            if was == now != _shape(schema) and not is_newer:  # from before the copy was planned: keep what is known
                notice = RecopyNeeded(table, "its columns changed while it was being copied")
                return Resolved(Layout(schema, whole, sent), Announced(notices=(notice,)))
        refusal = source.refusal(self.choices) if source is not None else None
        delivered, announced = self.change(Stated(relation.id, schema, refusal, stale_reason, _not_known(source)))
        if announced.schemas and source is not None and last is not None and last.fingerprint:
            # Whatever must be noticed up to that reading of the catalog is reported here, so the reading is remembered.
            stale = [notice for notice in announced.notices if isinstance(notice, RecopyNeeded)]
            reported = {name for notice in stale for name in (names if notice.columns is None else notice.columns)}
            _, suspects = catalog.altered(None, last.fingerprint, source)
            if all(column.name in reported for column in delivered.columns if column.id in suspects):
                delivered = replace(delivered, fingerprint=catalog.fingerprint(source))
                self.deliver(relation.id, delivered)
                announced = replace(announced, schemas=(delivered,))
        return Resolved(Layout(delivered, whole, sent), announced)

    def _with_hidden(
        self, relation: Relation, source: SourceTable | None, last: TableSchema | None
    ) -> tuple[Relation, tuple[bool, ...]]:
        """A relation with the columns that a column list leaves out inserted, each after the one that it follows in the
        catalog; and which of its columns are sent, empty if all are. Only columns that the lake does not take can be
        hidden."""
        choice, columns = self.choices.of(TableId(relation.schema, relation.name)), list(relation.columns)
        shown = source.columns if source is not None else last.columns if last is not None else ()
        before: str | None = None
        for one in shown:
            names = [column.name for column in columns]
            if one.name not in names and choice.columns and not choice.takes(one.name):
                at = names.index(before) + 1 if before is not None else 0
                columns.insert(at, RelationColumn(one.name, _HIDDEN, -1, in_identity=False))
            elif one.name not in names:
                continue
            before = one.name
        if len(columns) == len(relation.columns):
            return relation, ()
        return relation._replace(columns=tuple(columns)), tuple(one.type != _HIDDEN for one in columns)

    def expect(self, tables: Sequence[TableId]) -> None:
        """Find tables that have missed changes because the publication left them out, and tables that are gone. What
        was known about a table before a connection was lost stays: ``discover`` compares with it."""
        with self._connections.connection() as connection:
            with one_reading(connection):
                there = read_tables(connection)
                published = read_publications(connection, self.wanted(), there)
            for table in tables:
                if table not in self._captured:
                    self._begin(table, None, there.get(table), published)
                if table in there and (gap := published.gap(there[table])) is not None:
                    self._captured[table] = self._captured[table]._replace(member=None)
                    # A refused table is blocked, and was removed from the publication for that reason.
                    if there[table].refusal(self.choices) is None:
                        self.later(_flushed(connection), RecopyNeeded(table, gap))
            self._find_dropped(connection, there)

    def prepared(self, tables: Sequence[TableId]) -> None:
        """Copies of these tables start now: drop everything that was still to be reported about them."""
        with self._connections.connection() as connection, one_reading(connection):
            there = read_tables(connection)
            sources = catalog.with_columns(connection, [there[table] for table in tables if table in there])
            published, at = read_publications(connection, self.wanted(), there), inserted(connection)
        for source in sources:
            self._learn_source(source, at)
            self._begin(source.id, source, source, published)

    def discover(self, session: Session, choose: Choose) -> tuple[TableSchema, ...]:  # noqa: ARG002  # a copy's limits
        """Compare all tables, the columns of the chosen ones, and what is published with the previous reading."""
        earlier = self.all_known()
        with self._connections.connection() as connection:
            with one_reading(connection):
                there = read_tables(connection)
                self._not_whole = {name: one.not_whole for name, one in there.items()}
                chosen = choose({table: source.refusal(self.choices) for table, source in there.items()})
                known = [table for table in there.keys() - set(chosen) if self.known(table) is not None]
                sources = catalog.with_columns(connection, [there[table] for table in (*chosen, *known)])
                there |= {source.id: source for source in sources}
                published = read_publications(connection, self.wanted(), there)
            self._compare(connection, there, published)
            stated = []
            for source in sources:
                schema, before = source.schema(self.choices), self._last(source.id, source.oid)
                _, stale_reason = match_columns(schema.names, before, source)
                is_other, reasons = True, dict[str, str]()
                if before is not None and before.fingerprint:
                    is_other, reasons = catalog.altered(connection, before.fingerprint, source)
                    is_other |= schema.names != before.names
                schema = replace(schema, fingerprint=catalog.fingerprint(source) if is_other else "")
                refusal = source.refusal(self.choices)
                stated.append(Stated(source.oid, schema, refusal, stale_reason, _not_known(source), reasons))
            self.observe(stated, earlier, lambda: _flushed(connection))
        return tuple(one.schema for one in stated[: len(chosen)] if one.life not in self._renamed)

    def unsent(self, table: TableId) -> Statement | None:
        altered = [f"ALTER TABLE {one} REPLICA IDENTITY FULL;" for one in self._not_whole.get(table, ())]
        return Statement(" ".join(altered)) if altered else None

    def _compare(self, connection: Connection, there: Mapping[TableId, SourceTable], published: Publications) -> None:
        """Find captured tables that are gone, whose changes the publication leaves out, or that lost partitions; and
        remove from the publication what must no longer be in it."""
        # After a partitioned table is renamed (seen with 15 and 18), its changes arrive under the old name for as long
        # as the connection lives. So once the old name is reported as dropped, the stream starts again; until then the
        # new name is not offered, since its copy might be from before that.
        partitioned = {source.oid for source in there.values() if source.kind == catalog.PARTITIONED}
        with self._lock:
            gone = {one.life: table for table, one in self._known.items() if table not in there}
            self._renamed |= {life: table for life, table in gone.items() if life in partitioned}
        self._find_dropped(connection, there)
        for table, before in self._captured.items():
            source, gap = there[table], published.gap(there[table])
            now = _Captured(published.member(source) if gap is None else None, source)
            if gap is None and before.member not in (None, now.member):
                gap = "it was removed from the publication and added again"
            reason = gap if before.member is not None else None
            was, last = before.source, self._last(table, source.oid)
            if was is None and last is not None and last.fingerprint:
                was = catalog.as_remembered(source, last.fingerprint)
            if reason is None and was is not None and was.oid == source.oid:
                reason = catalog.unseen(connection, was, source)
            if gap is None and source.refusal(self.choices) is not None and self._provision:
                now = now._replace(member=None) if withdraw(connection, published.main, table) else now
            elif self._provision and published.is_refused(source) and withdraw(connection, published.main, table):
                now = now._replace(member=None)
                reason = reason or "it has another replica identity, so it is published in another way"
            self._captured[table] = now
            if reason is not None and not self.is_due_later(table):
                # Only after the reading: an earlier copy would lack what a new partition has.
                self.later(_flushed(connection), RecopyNeeded(table, reason))

    def _begin(
        self, table: TableId, read: SourceTable | None, source: SourceTable | None, published: Publications
    ) -> None:
        is_published = source is not None and published.gap(source) is None
        self._captured[table] = _Captured(published.member(source) if source and is_published else None, read)
        self.begin(table)

    def _find_dropped(self, connection: Connection, there: Mapping[TableId, SourceTable]) -> None:
        """The stream does not report that a table was dropped."""
        for table in [table for table in self._captured if table not in there]:
            del self._captured[table]
            self.later(_flushed(connection), TableDropped(table))

    def due(self, reached: PostgresLsn) -> Sequence[Announced]:
        if self._ahead:
            with self._lock:
                self._ahead = {table: at for table, at in self._ahead.items() if reached < at}
        return super().due(reached)

    def delivered(self, position: PostgresLsn) -> None:
        super().delivered(position)
        self._delivered_at = position

    def begins_again(self) -> bool:
        if self._delivered_at is not None and self.is_short(self._delivered_at):
            return True
        with self._lock:
            left = {oid: table for oid, table in self._renamed.items() if table in self._due or table in self._known}
            is_over, self._renamed = len(left) < len(self._renamed), left
        return is_over

    def rewind(self, position: PostgresLsn) -> None:
        super().rewind(position)
        with self._lock:
            self._renamed = {oid: table for oid, table in self._renamed.items() if table in self._due}


def match_columns(
    names: Sequence[str], before: TableSchema | None, source: SourceTable | None
) -> tuple[tuple[int, ...], str | None]:
    """The attribute number of each column; and why existing rows may have other values than these numbers suggest.
    ``before`` is the last delivered schema of the same relation, ``source`` the catalog as it was read, before or after
    ``names`` were in force. PostgreSQL numbers columns upwards, never reuses a number, and keeps dropped ones. So a
    column that the catalog does not show yet has the next number; if that turns out wrong, the table is copied
    again."""
    was = {column.name: int((column.id or ".0").partition(".")[2]) for column in before.columns} if before else {}
    if source is None:
        unknown = itertools.count(max(was.values(), default=0) + 1)
        return tuple(was[name] if name in was else next(unknown) for name in names), None
    now = {column.name: column.number for column in source.columns}
    as_before, as_now = list(names) == list(was), list(names) == list(now)
    numbers = tuple(now.values()) if as_now else tuple(was.values()) if as_before else _guessed(names, source)
    if not was:
        return numbers, None
    found = dict(zip(names, numbers, strict=True))
    if list(found) == list(was) and list(found.values()) != list(was.values()):
        return numbers, "a column was dropped and added again under the same name"
    newest = max(was.values(), default=0)
    gone = [one.number for one in source.attributes if one.dropped and one.number > newest]
    for name, number in found.items():
        swapped = name in was and was[name] != number and list(found) != list(now)
        replaced = name not in was and number in now.values() and any(one < number for one in gone)
        if swapped or (replaced and number > newest):
            return numbers, f"it is no longer known which column {name} was when its rows were written"
    return numbers, None


def _guessed(names: Sequence[str], source: SourceTable) -> tuple[int, ...]:
    """By name first, the rest by order. Only names with ascending numbers count: one that moved to another column does
    not ascend."""
    live = {column.name: column.number for column in source.columns}
    by_name, last = list[int | None](), 0
    for name in names:
        by_name.append(live[name] if live.get(name, 0) > last else None)
        last = by_name[-1] or last
    free = [column.number for column in source.attributes if column.number not in by_name]
    found: list[int] = []
    for number in by_name:
        low = found[-1] if found else 0
        found.append(number or next((one for one in free if one > low), max(low, source.width) + 1))
    return tuple(found)


def _shape(schema: TableSchema) -> tuple[Any, ...]:
    """What both the stream and the catalog state about a table."""
    return tuple((one.id, one.name, one.type, one.source_type) for one in schema.columns), schema.key


def _not_known(source: SourceTable | None) -> dict[str, str]:
    """Columns whose values in existing rows cannot be derived: the default is not stored as a value, or the column is
    NOT NULL without a default, so that rows were rewritten, as for an identity column."""
    if source is None:
        return {}
    unknown = [one for one in source.attributes if one.missing is not None or one.has_default or one.not_null]
    reason = "existing rows have values in the new column {}, by its default"
    return {f"{source.oid}.{one.number}": reason.format(one.name) for one in unknown}


def _flushed(connection: Connection) -> PostgresLsn:
    """A position after every commit that is visible now, at the end of a record: the stream reports no other ones."""
    written = inserted(connection)
    until = time.monotonic() + _FLUSH_SECONDS
    while (flushed := head(connection)) < written and time.monotonic() < until:
        time.sleep(0.02)
    return min(written, flushed)
