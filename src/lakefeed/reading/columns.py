"""How rows of one schema version become rows of another, planned once per version.

Older rows are converted to the target: columns are renamed, added ones have their default, dropped ones are removed.
Rows newer than the target occur in a stream, whose columns are fixed when it starts: renames are reversed, added
columns are left out, and a dropped column or one with an unreadable type stops the stream. A value is never changed to
make it fit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa

from lakefeed.change.table import TableSchema
from lakefeed.errors import LakeError, TableStoppedError
from lakefeed.lake.schema.projection import lineage, steps
from lakefeed.lake.schema.widening import holds
from lakefeed.reading.shape import readable_type

Default = int | float | str | None


@dataclass(frozen=True, slots=True)
class ReadColumn:
    """A column of the target: its name in a segment, or its value for segments that do not have it."""

    name: str
    type: pa.DataType
    origin: str | None
    default: Default = None


def read_columns(schemas: Mapping[int, TableSchema], version: int, target: TableSchema) -> tuple[ReadColumn, ...]:
    """The target's columns for rows of ``version``. TableStoppedError, with the remedy, if that is impossible."""
    if version <= target.version:  # older rows: a column that was added later has its default
        origin = _origins(schemas, version, target.version, target)
        for name, was in origin.items():
            if was is not None:
                _refuse_retyped(schemas[version], was, target, name)
        return tuple(
            ReadColumn(column.name, readable_type(column.type), origin[column.name], column.default)
            for column in target.columns
        )
    newer = _origins(schemas, target.version, version, target)
    became = {was: name for name, was in newer.items() if was is not None}
    for name in target.names:
        if name not in became:
            raise _stopped(target, f"column '{name}' is gone since schema version {version}")
        _refuse_retyped(schemas[version], became[name], target, name)
    return tuple(ReadColumn(column.name, readable_type(column.type), became[column.name]) for column in target.columns)


def _origins(schemas: Mapping[int, TableSchema], start: int, end: int, target: TableSchema) -> Mapping[str, str | None]:
    try:
        return lineage(steps(schemas, start, end))
    except LakeError as error:
        raise TableStoppedError(
            f"table {target.table}: {error.message}",
            remedy="The journal no longer has old schema versions; read only change sets that are newer than that.",
            table=str(target.table),
        ) from error


def _refuse_retyped(given: TableSchema, was: str, target: TableSchema, name: str) -> None:
    """A type must be the same or hold all values of the other: no value is rounded, cut or parsed."""
    before, after = given.column(was).type, target.column(name).type
    if not holds(after, before):
        raise _stopped(
            target, f"column '{name}' is {after} in schema version {target.version}, but {before} in {given.version}"
        )


def _stopped(target: TableSchema, problem: str) -> TableStoppedError:
    return TableStoppedError(
        f"table {target.table} cannot be read under its schema version {target.version}: {problem}",
        remedy="Restart the query: a stream then reads on with the columns of today, from where it stopped. If the "
        "error stays, read the change sets before and after the change apart, with 'start' and 'end'.",
        table=str(target.table),
    )
