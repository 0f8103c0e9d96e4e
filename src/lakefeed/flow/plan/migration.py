"""What a migration of the source would mean for each lake table, found out on a scratch database.

1 the scratch database has the tables of the source but none of its rows; the capture prepares them, as at a start
2 the migration runs there
3 the capture reports what it would report for the source: changed schemas, dropped tables, rows that may be stale
4 the policy, the rule and the format of each lake table judge that, as they would in a sync

Statements that change rows change none here; in the source, they cost the changes that they make.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from lakefeed.capture.base import ChangeCapture
from lakefeed.change.change_set import RecopyNeeded, TableBlocked, TableNotice
from lakefeed.change.schema_change import AddColumn, ChangeKey, DropColumn, RenameColumn, RetypeColumn, diff
from lakefeed.change.segment import StaleReason
from lakefeed.change.table import TableId, TableSchema
from lakefeed.errors import RebuildNeededError, TableStoppedError
from lakefeed.flow.shape import Shape
from lakefeed.lake.base import TableFormat
from lakefeed.lake.route import Route, settled
from lakefeed.lake.schema.evolve import evolved
from lakefeed.lake.schema.mapping import ColumnMapping
from lakefeed.lake.schema.policy import Policy

_TRIES, _WAIT_SECONDS = 20, 0.1
"""A log is at its end when it has returned nothing for two seconds."""


class Outcome(StrEnum):
    """METADATA: columns change in the table's metadata. REWRITE: the lake rewrites its rows. COPY: they are read from
    the source again. STOP: it waits for a person. LEAVE: it stays as it is, and gets no more changes."""

    NOTHING = "nothing"
    METADATA = "metadata"
    REWRITE = "rewrite"
    COPY = "copy"
    STOP = "stop"
    LEAVE = "leave"


@dataclass(frozen=True, slots=True, kw_only=True)
class MigratedTable:
    """One lake table after the migration. ``changes`` are those of the source, as sentences."""

    table: TableId
    source: TableId
    outcome: Outcome
    reason: str = ""
    remedy: str = ""
    changes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        made = asdict(self) | {"table": str(self.table), "source": str(self.source), "outcome": str(self.outcome)}
        return made | {"changes": list(self.changes)}


def plan_migration(capture: ChangeCapture, tables: TableFormat, migrate: Callable[[], None]) -> list[MigratedTable]:
    """``capture`` belongs to a scratch database and is not open; ``migrate`` runs the migration there."""
    capture.represent(tables.choices)
    capture.open()
    try:
        before = {schema.table: schema for schema in capture.discover()}
        start = capture.prepare(sorted(before))  # 1
        before = {table: capture.snapshot(table).schema for table in before}
        capture.recall(list(before.values()))
        for table in before:
            capture.copied(table)
        migrate()  # 2
        after, notices, quiet = dict(before), list[TableNotice](), 0
        for change_set in capture.live(start, wait_seconds=_WAIT_SECONDS):  # 3
            after |= {schema.table: schema for schema in change_set.schemas}
            notices += change_set.notices
            capture.confirm(change_set.end)
            quiet = quiet + 1 if change_set.is_heartbeat else 0
            if quiet == _TRIES:
                break
        there = {schema.table: schema for schema in capture.discover()}
    finally:
        capture.close()
    after = {table: schema for table, schema in after.items() if table in there} | {
        table: schema for table, schema in there.items() if table not in before
    }
    routes = {table: tables.routes(table) for table in {**before, **after}}
    chosen, clashes = settled((one for every in routes.values() for one in every), {})
    found = [
        MigratedTable(
            table=one.second.table,
            source=one.second.source,
            outcome=Outcome.STOP,
            reason=one.problem,
            remedy=one.remedy,
        )
        for one in clashes
    ]
    found += (_judged(tables, route, before, after, notices) for route in chosen.values())  # 4
    return sorted(found, key=lambda one: (one.table, one.source))


def _judged(
    tables: TableFormat,
    route: Route,
    before: Mapping[TableId, TableSchema],
    after: Mapping[TableId, TableSchema],
    notices: Sequence[TableNotice],
) -> MigratedTable:
    source, lake_table = route.source, tables.table(route)

    def outcome(what: Outcome, reason: str = "", remedy: str = "", changes: Sequence[str] = ()) -> MigratedTable:
        return MigratedTable(
            table=route.table, source=source, outcome=what, reason=reason, remedy=remedy, changes=tuple(changes)
        )

    if source not in after:
        return outcome(Outcome.LEAVE, "the source table is dropped or renamed: the lake table stays as it is")
    if source not in before:
        return outcome(Outcome.COPY, "new in the pipeline")
    mine = [one for one in notices if one.table == source]
    for one in mine:
        if isinstance(one, TableBlocked):
            return outcome(Outcome.STOP, one.reason, one.remedy)
    shape = Shape(tables.columns, tables.sensitive, tables.choices)
    old, new = shape.schema(before[source]).at_version(1), shape.schema(after[source]).at_version(2)
    changes = tuple(_told(old, new))
    stale = [StaleReason(2, one.reason, one.columns) for one in mine if isinstance(one, RecopyNeeded)]
    if not changes and not stale:
        return outcome(Outcome.NOTHING)
    try:
        policy = Policy(route.table, route.mode, tables.evolution(route))
        plain = ColumnMapping.plain(old)
        mapping = evolved(plain, [old, new], policy, stale)
        route.mode.check_evolution(route.table, plain, mapping, [old, new])
        lake_table.check(mapping.schema(new), plain.schema(old))
    except RebuildNeededError as error:
        return outcome(Outcome.COPY, error.message, changes=changes)
    except TableStoppedError as error:
        return outcome(Outcome.STOP, error.message, error.remedy, changes)
    if lake_table.is_in_place([plain.schema(old), mapping.schema(new)]):
        return outcome(Outcome.METADATA, changes=changes)
    if route.part is None:
        return outcome(Outcome.REWRITE, "all rows of the lake table are written again, in one commit", changes=changes)
    if route.mode.equals_source:
        return outcome(Outcome.COPY, "a part of a union is copied again", changes=changes)
    reason = "a part of a union cannot be changed in place, and a new copy would begin a new history"
    return outcome(Outcome.STOP, reason, f"lakefeed rebuild FILE {route.table} --from-source", changes)


def _told(old: TableSchema, new: TableSchema) -> Iterator[str]:
    for change in diff(old, new):
        match change:
            case AddColumn(column):
                default = f" with the default {column.default!r}" if column.default is not None else ""
                yield f"column {column.name} ({column.source_type or column.type}) is added{default}"
            case DropColumn(name):
                yield f"column {name} is dropped"
            case RenameColumn(was, name):
                yield f"column {was} is renamed to {name}"
            case RetypeColumn(name, was, now):
                yield f"column {name} changes from {was} to {now}"
            case ChangeKey(was, now):
                yield f"the key changes from ({', '.join(was)}) to ({', '.join(now)})"
