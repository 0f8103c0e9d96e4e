"""Triggers into and out of the source. Every function runs inside the caller's write transaction."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass

from lakefeed.capture.sqlite.captured import Captured
from lakefeed.capture.sqlite.catalog import SourceTable
from lakefeed.capture.sqlite.database import quoted
from lakefeed.capture.sqlite.names import EVENTS, Names
from lakefeed.capture.sqlite.triggers import trigger_statements

_FIXED_COLUMNS = 4  # seq, tab, op, ts


@dataclass(frozen=True, slots=True)
class Installed:
    """A trigger that is there: on which table, with which text."""

    table: str
    sql: str


def read_triggers(connection: sqlite3.Connection, names: Names) -> dict[str, Installed]:
    """This pipeline's triggers, by name."""
    rows = connection.execute("SELECT name, tbl_name, sql FROM sqlite_master WHERE type = 'trigger'").fetchall()
    return {name: Installed(table, sql) for name, table, sql in rows if names.is_trigger(name)}


def triggers_of(triggers: Mapping[str, Installed], names: Names, number: int) -> dict[str, Installed]:
    """Those of one captured table, by event."""
    found = {event: triggers.get(names.trigger(number, event)) for event in EVENTS}
    return {event: installed for event, installed in found.items() if installed is not None}


def install(connection: sqlite3.Connection, names: Names, source: SourceTable, captured: Captured) -> None:
    """Make the table's triggers what they should be, and the log wide enough for them."""
    have = len(connection.execute(f"PRAGMA table_info({names.log})").fetchall()) - _FIXED_COLUMNS
    for slot in range(have, captured.next_slot):
        connection.execute(f"ALTER TABLE {names.log} ADD COLUMN c{slot}")
    remove(connection, names, captured.number)
    for statement in trigger_statements(names, source, captured).values():
        connection.execute(statement)


def remove(connection: sqlite3.Connection, names: Names, number: int) -> None:
    for event in EVENTS:
        connection.execute(f"DROP TRIGGER IF EXISTS {quoted(names.trigger(number, event))}")


def uninstall(connection: sqlite3.Connection, names: Names) -> tuple[str, ...]:
    """Remove all that this pipeline has in the source, and nothing else. Returns what was there."""
    triggers = sorted(read_triggers(connection, names))
    tables = connection.execute(
        "SELECT name FROM sqlite_master WHERE type = 'table' AND name IN (?, ?, ?) ORDER BY name", names.tables
    ).fetchall()
    for name in triggers:
        connection.execute(f"DROP TRIGGER {quoted(name)}")
    for statement in names.drop():
        connection.execute(statement)
    return (*triggers, *(name for (name,) in tables))
