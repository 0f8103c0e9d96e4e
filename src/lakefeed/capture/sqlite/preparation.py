"""``prepare``: the durable resume point for tables, idempotent."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from lakefeed.capture.sqlite.captured import State
from lakefeed.capture.sqlite.catalog import SourceTable, read_table
from lakefeed.capture.sqlite.database import transaction
from lakefeed.capture.sqlite.drift import follow_schema, recapture
from lakefeed.capture.sqlite.install import remove
from lakefeed.capture.sqlite.meta import (
    Meta,
    add_mark,
    create_meta,
    forget_table,
    load_meta,
    put_table,
    put_verified,
    read_head,
    schema_version,
)
from lakefeed.capture.sqlite.names import Names
from lakefeed.capture.sqlite.shape import as_text, mixed_columns
from lakefeed.change.position import SqliteSequence
from lakefeed.change.table import TableId
from lakefeed.errors import SourceSetupError


def prepare_tables(
    connection: sqlite3.Connection, names: Names, tables: Sequence[TableId], verified: int, *, before_images: bool
) -> SqliteSequence:
    """Capture ``tables`` from here on, those that are captured already as before. Returns the log's head.

    A blocked table starts anew. Writes nothing if there is nothing to do.
    """
    meta = load_meta(connection, names)
    missing = [table for table in tables if not _is_live(meta, table)]
    version = schema_version(connection)
    if meta is not None and not missing and meta.is_right(version, before_images=before_images):
        return read_head(connection, names)
    mixed, seen = _looked_through(connection, missing)  # reads whole tables, so it comes before the lock
    with transaction(connection, "IMMEDIATE"):
        if load_meta(connection, names) is None:
            create_meta(connection, names)
        _bring_up_to_date(connection, names, verified, before_images=before_images)
        for table in missing:
            _capture(connection, names, table, mixed[table], before_images=before_images)
        put_verified(connection, names)
        head, is_same = read_head(connection, names), _data_version(connection) == seen
    if missing and not is_same:
        _look_again(connection, names, missing)
    return head


def _looked_through(
    connection: sqlite3.Connection, tables: Sequence[TableId]
) -> tuple[dict[TableId, frozenset[str]], int]:
    """The columns of each table that hold values of several types, and the state of the database that shows them."""
    with transaction(connection, "DEFERRED"):
        mixed = {table: mixed_columns(connection, _source(connection, table)) for table in tables}
        return mixed, _data_version(connection)


def _look_again(connection: sqlite3.Connection, names: Names, tables: Sequence[TableId]) -> None:
    """Somebody wrote between the look and the triggers: a value of then is in no log, and the copy would stumble on it.

    From the triggers on every value is in the log, so that now one look is enough, and it needs no lock.
    """
    mixed, _ = _looked_through(connection, tables)
    if not any(mixed.values()):
        return
    with transaction(connection, "IMMEDIATE"):
        meta = load_meta(connection, names)
        for table, wrong in mixed.items():
            captured = meta.captured(table) if meta else None
            if captured is not None and (new := as_text(captured, wrong)) != captured:
                put_table(connection, names, new)
                add_mark(connection, names, schema=new.schema)


def _data_version(connection: sqlite3.Connection) -> int:
    """Another number after every commit of another connection."""
    return int(connection.execute("PRAGMA data_version").fetchone()[0])


def _bring_up_to_date(connection: sqlite3.Connection, names: Names, verified: int, *, before_images: bool) -> None:
    meta = load_meta(connection, names)
    if meta is not None and not meta.is_right(schema_version(connection), before_images=before_images):
        follow_schema(connection, names, meta, max(meta.verified, verified), before_images=before_images)


def _capture(
    connection: sqlite3.Connection, names: Names, table: TableId, mixed: frozenset[str], *, before_images: bool
) -> None:
    meta = load_meta(connection, names)
    if _is_live(meta, table):
        return  # following the schema has just done it
    for old in meta.tables if meta else ():
        if old.table == table:
            remove(connection, names, old.number)
            forget_table(connection, names, old.number)
    recapture(connection, names, _source(connection, table), mixed, before_images=before_images)
    add_mark(connection, names)


def _is_live(meta: Meta | None, table: TableId) -> bool:
    captured = meta.captured(table) if meta else None
    return captured is not None and captured.state is State.LIVE


def _source(connection: sqlite3.Connection, table: TableId) -> SourceTable:
    source = read_table(connection, table.name)
    if source is None:
        raise SourceSetupError(f"there is no table {table} that can be captured", remedy="Correct source.tables.")
    return source
