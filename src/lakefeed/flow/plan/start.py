"""What a start of the pipeline would do, found out without changing anything: no slot, no trigger, no file.

1 the tables that the source offers, as the rules want them, with their approximate sizes
2 the lake tables that they feed, and the state of each
3 where the configuration differs from the stored state, so that only a rebuild applies it
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from lakefeed.capture.base import ChangeCapture, TableSize
from lakefeed.change.choice import TableChoice
from lakefeed.change.mask import masked_type
from lakefeed.change.table import OutOfRange, TableId, TableSchema
from lakefeed.errors import TableStoppedError
from lakefeed.flow.copies import wanted_of_source
from lakefeed.flow.shape import Shape
from lakefeed.flow.table_state import Phase, TableState, TableStates
from lakefeed.journal.journal import Journal
from lakefeed.lake.base import TableFormat
from lakefeed.lake.route import Route, settled
from lakefeed.lake.rule.rows import RowRule
from lakefeed.lake.spark.type import spark_type
from lakefeed.storage.base import Storage


class Action(StrEnum):
    """COPY: its rows are read from the source. FOLLOW: it continues with the changes. STOP: it waits for a person, or
    the whole start does. LEAVE: it stays as it is, and gets no more changes."""

    COPY = "copy"
    FOLLOW = "follow"
    STOP = "stop"
    LEAVE = "leave"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedColumn:
    """``lake_type`` is Spark's name of the type; None: the column is left out. The type of an ``expression`` is known
    only to Spark. ``source_type`` is empty for a new column. ``note``: what happens to its values."""

    name: str
    source_type: str
    lake_type: str | None
    lake_name: str | None = None
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedTable:
    """One lake table. ``rows`` and ``bytes`` are the source's estimates. ``rules`` are the patterns that match it,
    ``made_by`` what they do with its rows. ``remedy`` is how to get what the start would refuse."""

    table: TableId
    source: TableId
    mode: str
    action: Action
    reason: str
    remedy: str = ""
    rows: int | None = None
    bytes: int | None = None
    key: tuple[str, ...] = ()
    columns: tuple[PlannedColumn, ...] = ()
    rules: tuple[str, ...] = ()
    made_by: str = ""

    def to_dict(self) -> dict[str, Any]:
        made = asdict(self) | {"table": str(self.table), "source": str(self.source), "action": str(self.action)}
        return made | {"columns": [asdict(column) for column in self.columns]}


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """``unused_rules``: parts of ``lake.tables`` that match nothing, as sentences; a start is refused."""

    tables: tuple[PlannedTable, ...]
    unused_rules: tuple[str, ...] = ()

    @property
    def is_refused(self) -> bool:
        return bool(self.unused_rules) or any(table.action is Action.STOP for table in self.tables)

    def to_dict(self) -> dict[str, Any]:
        return {"tables": [table.to_dict() for table in self.tables], "unused_rules": list(self.unused_rules)}


def make_plan(capture: ChangeCapture, tables: TableFormat, root: Storage) -> Plan:
    """``capture`` is not open, neither before nor after."""
    states, journal = TableStates(root), Journal.read(root) if root.has_folder("commits") else None
    try:
        capture.represent(tables.choices if journal is None else wanted_of_source(tables.choices, journal, states))
        capture.open()
        try:
            offered = {schema.table: schema for schema in capture.discover()}  # 1
        finally:
            capture.close()
        sizes = capture.sizes(list(offered))
        every = (route for source in offered for route in tables.routes(source))
        routes, clashes = settled(every, states.fed())  # 2
        found, known = [], list(offered.values())
        for route in routes.values():
            delivered = journal.latest_schema(route.source) if journal is not None else None
            if delivered is not None:
                known.append(delivered.whole)
            state = states.get(route.table)
            found.append(_planned(tables, route, state, offered[route.source], delivered, sizes))  # 3
        found += (
            PlannedTable(
                table=clash.second.table, source=clash.second.source, mode=clash.second.mode.describe(),
                action=Action.STOP, reason=clash.problem, remedy=clash.remedy,
            )
            for clash in clashes
        )  # fmt: skip
        found += _left(states, routes, offered)
    finally:
        if journal is not None:
            journal.close()
    planned = tuple(sorted(found, key=lambda one: (one.table, one.source)))
    return Plan(tables=planned, unused_rules=tables.unused(known))


def _planned(
    tables: TableFormat, route: Route, state: TableState | None, schema: TableSchema, delivered: TableSchema | None,
    sizes: Mapping[TableId, TableSize],
) -> PlannedTable:  # fmt: skip
    choice, size = tables.choices.of(route.source), sizes.get(route.source, TableSize())
    action, reason, remedy = _action(route, state)
    taken, unfit = Shape(tables.columns, tables.sensitive, tables.choices).schema(schema), choice.unfit(schema)
    lake_table = tables.table(route)
    rule = lake_table.rule()
    if action is Action.FOLLOW and state is not None and delivered is not None:
        rebuild = f"lakefeed rebuild FILE {route.table} --from-source"
        try:
            lake_table.rule(state.generation)
            changed = "; ".join(_changed(delivered, taken, choice))
        except TableStoppedError as error:
            changed = error.message.removeprefix(f"table {route.table}: ")
        if changed:
            action, reason = Action.STOP, changed
            remedy = f"Put the configuration back, or copy the table again: {rebuild}"
        if action is Action.FOLLOW:
            differences = (one.with_command(route.table) for one in lake_table.laid_out_otherwise())
            reason = "; ".join((reason, *differences))
    if choice.inserts_only and not schema.key:
        reason += "; by inserts alone (keyless: inserts), so that updates and deletes are not seen"
    if unfit is not None and action is not Action.LEAVE:
        action, reason, remedy = Action.STOP, f"in its rule, {unfit[0]}", f"Correct lake.tables. {unfit[1]}"
    return PlannedTable(
        table=route.table, source=route.source, mode=route.mode.describe(), action=action, reason=reason, remedy=remedy,
        rows=size.rows, bytes=size.bytes, key=schema.key, columns=tuple(_columns(schema, taken, rule)),
        rules=tables.matching(route.source), made_by="" if rule.is_empty else rule.describe(),
    )  # fmt: skip


def _action(route: Route, state: TableState | None) -> tuple[Action, str, str]:
    """What a start does with a lake table in this state, with the reason and a remedy."""
    if state is None:
        return Action.COPY, "new in the pipeline", ""
    if state.route != route:
        reason = f"it was made as {state.mode.describe()} of {state.source}; the configuration now says "
        reason += f"{route.mode.describe()} of {route.source}"
        return Action.STOP, reason, f"Put the configuration back, or: lakefeed rebuild FILE {route.table}"
    match state.phase:
        case Phase.STAGED:
            return Action.COPY, state.reason, ""
        case Phase.COPYING:
            return Action.COPY, "its copy goes on where it stopped", ""
        case Phase.BLOCKED:
            return Action.COPY, f"tried again after: {state.reason}", state.remedy
        case Phase.DROPPED:
            return Action.COPY, "the source table is there again", ""
    return Action.FOLLOW, "its changes are applied", ""


def _changed(delivered: TableSchema, wanted: TableSchema, choice: TableChoice) -> Iterator[str]:
    """Where the configuration differs from when the table was made. Changes of the source itself are not included: they
    are followed."""
    if gone := [name for name in delivered.names if name not in wanted.names and not choice.takes(name)]:
        yield f"the rule now leaves out {', '.join(gone)}"
    left_out = [column.name for _, column in delivered.left_out]
    if added := [name for name in wanted.names if name in left_out and name not in delivered.names]:
        yield f"the rule now takes {', '.join(added)}"
    was = {column.name: column for column in delivered.columns}
    for column in wanted.columns:
        old = was.get(column.name)
        if old is None or old.source_type != column.source_type:
            continue
        if old.type != column.type:
            yield f"{column.name} was {spark_type(old.type)}; by the configuration it is now {spark_type(column.type)}"
        elif old.out_of_range not in (column.out_of_range, OutOfRange.STOP):
            yield f"out_of_range of {column.name} was {old.out_of_range}; now it is {column.out_of_range}"


def _columns(whole: TableSchema, taken: TableSchema, rule: RowRule) -> Iterator[PlannedColumn]:
    """The source's columns, with what the rules do with them; then new ones, which expressions make."""
    masks, early, expressions = dict(rule.mask), dict(rule.early), dict(rule.transform)
    for column in whole.columns:
        if column.name not in taken.names:
            yield PlannedColumn(name=column.name, source_type=column.source_type, lake_type=None, note="left out")
            continue
        kind, notes = taken.column(column.name).type, list[str]()
        if column.out_of_range is not OutOfRange.STOP:
            notes.append(f"out of range: {column.out_of_range}")
        if (mask := masks.get(column.name)) is not None:
            kind = masked_type(kind, mask)
            notes.append(f"mask: {mask}")
        if column.name in early:
            notes.append(f"mask before the journal: {early[column.name]}")
        if column.name in expressions:
            notes.append("by expression")
        lake_type = "expression" if column.name in expressions else spark_type(kind) or str(kind)
        yield PlannedColumn(
            name=column.name, source_type=column.source_type, lake_type=lake_type, lake_name=rule.name(column.name),
            note=", ".join(notes),
        )  # fmt: skip
    for name in expressions:
        if name not in whole.names:
            yield PlannedColumn(
                name=name, source_type="", lake_type="expression", lake_name=name, note="new, by expression"
            )


def _left(
    states: TableStates, routes: Mapping[TableId, Route], offered: Mapping[TableId, TableSchema]
) -> Iterator[PlannedTable]:
    """Lake tables that the start does not continue."""
    for state in states.in_phase(Phase.STAGED, Phase.COPYING, Phase.LIVE, Phase.BLOCKED):
        if state.table not in routes:
            is_there = state.source in offered
            reason = "it is no longer in the configuration" if is_there else "the source does not offer its table"
            yield PlannedTable(
                table=state.table, source=state.source, mode=state.mode.describe(), action=Action.LEAVE, reason=reason
            )
