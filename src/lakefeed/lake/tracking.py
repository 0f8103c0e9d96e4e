"""Tracking: the columns of a temporal table whose changes open versions. Pure.

The configuration names columns; a name that the table does not have would leave a history out in silence, and a column
that gets another name in the source would lose its own. Both stop the table.
"""

from __future__ import annotations

from collections.abc import Sequence

from lakefeed.change.table import TableId, TableSchema
from lakefeed.errors import TableStoppedError
from lakefeed.lake.followed import Followed
from lakefeed.lake.mode import Mode, Temporal
from lakefeed.lake.projection import lineage


def tracked_columns(mode: Temporal, schema: TableSchema) -> tuple[str, ...]:
    """The columns whose changes open a version. The key needs no tracking: another key is another row."""
    refuse_unknown(mode, schema)
    wanted = schema.names if mode.track is None else mode.track
    return tuple(
        name for name in schema.names if name in wanted and name not in mode.track_except and name not in schema.key
    )


def refuse_unknown(mode: Mode, schema: TableSchema) -> None:
    """TableStoppedError if the mode is to track a column that the table does not have.

    One in ``track_except`` need not be there, so that a rule can cover many tables; it may not differ only in case.
    """
    if not isinstance(mode, Temporal):
        return
    lower = {name.lower() for name in schema.names}
    missing = [name for name in mode.track or () if name not in schema.names]
    missing += [name for name in mode.track_except if name not in schema.names and name.lower() in lower]
    if missing:
        option = "track" if mode.track is not None else "track_except"
        raise TableStoppedError(
            f"table {schema.table} does not have all columns that its {option} names: not {', '.join(missing)}",
            remedy=f"Correct {option}, or give {schema.table} a rule of its own; its columns are "
            f"{', '.join(schema.names)}.",
            table=str(schema.table),
        )


def refuse_loss(mode: Mode, table: TableId, before: Followed, after: Followed, path: Sequence[TableSchema]) -> None:
    """TableStoppedError if a column that the mode names gets another name on the way, or a tracked one goes.

    The lake table has the columns ``before`` at the first schema of ``path`` and is to have ``after`` at the last.
    """
    if not isinstance(mode, Temporal):
        return
    became = {was: name for name, was in lineage(path).items() if was is not None}
    stays = {fed.column.id for fed in after.columns}
    for fed in before.live.values():
        name = fed.column.name
        if name not in (*(mode.track or ()), *mode.track_except):
            continue
        now = after.live.get(became.get(fed.source, ""))
        if now is not None and now.column.name != name:
            raise _renamed(mode, table, name, now.column.name)
        if now is None and fed.column.id not in stays and mode.track is not None:
            raise _dropped(table, name)


def _renamed(mode: Temporal, table: TableId, name: str, now: str) -> TableStoppedError:
    option = "track" if mode.track is not None else "track_except"
    return TableStoppedError(
        f"table {table}: column '{name}', which its {option} names, is called '{now}' from here on",
        remedy=f"Put '{now}' in its place in {option} and copy the table anew: {_rebuild(table)}.",
        table=str(table),
    )


def _dropped(table: TableId, name: str) -> TableStoppedError:
    return TableStoppedError(
        f"table {table}: column '{name}' was dropped, and its track names it",
        remedy="Set evolution.drop_column to keep and start again: the table then goes on, and keeps the column. Or "
        f"take '{name}' out of track and copy the table anew: {_rebuild(table)}.",
        table=str(table),
    )


def _rebuild(table: TableId) -> str:
    return f"lakefeed rebuild FILE {table} --from-source"
