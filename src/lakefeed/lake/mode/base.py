"""Mode: what a lake table is. A mode owns its columns, its step, its defaults, its JSON form and its current rows.

Code outside this folder never asks which mode it has: it asks the mode. To add a mode, add a file here and a line in
``registry``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from lakefeed.change.batch import Operation
from lakefeed.change.table import Column, TableId, TableSchema
from lakefeed.errors import ConfigError, TableStoppedError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lakefeed.change.segment import Window
    from lakefeed.lake.base import TableCopy
    from lakefeed.lake.schema.mapping import ColumnMapping
    from lakefeed.lake.store import Step, TableStore

INSTANT = pa.timestamp("us", tz="UTC")
COMMITTED_AT, OPERATION = "_lakefeed_committed_at", "_lakefeed_operation"
UNKNOWN_TIME = "TIMESTAMP'1970-01-01 00:00:00+00:00'"
"""The time, in Spark SQL, of a change for which the source gave none. Unlike a clock it is the same at every replay."""


@dataclass(frozen=True, slots=True)
class CurrentRows:
    """Which rows of a lake table are the source's: all, or those whose ``column`` is true (or NULL)."""

    column: str | None = None
    null: bool = False

    def of(self, rows: Any) -> Any:
        """The current rows of a pyarrow Table or RecordBatch."""
        if self.column is None:
            return rows
        values = rows.column(self.column)
        return rows.filter(pc.is_null(values) if self.null else values)


class Interval(Protocol):
    """The names of a history table's columns that say when a version was valid."""

    @property
    def valid_from(self) -> str: ...

    @property
    def valid_to(self) -> str: ...

    @property
    def is_current(self) -> str: ...


class Mode(ABC):
    """An immutable value: equal modes make equal tables. The defaults here suit most modes."""

    __slots__ = ()

    name: ClassVar[str]
    """Its name in the configuration."""
    uses_key: ClassVar[bool] = True
    """The mode matches changes with rows by the key, so a changed key needs a new copy."""
    equals_source: ClassVar[bool] = False
    """The rows must equal the source's, so stale ones need a new copy. Other modes keep what was captured."""
    one_schema_per_window: ClassVar[bool] = False
    """A window ends where the schema changes, so the mode sees changes under the columns of their time."""
    drop_column: ClassVar[str] = "evolve"
    """What the table does when the source drops a column, unless the configuration says."""

    @abstractmethod
    def added_columns(self) -> tuple[Column, ...]:
        """The mode's own columns. They come after the source's."""

    @abstractmethod
    def copied_values(self, copy: TableCopy, planned: datetime) -> dict[str, Any]:
        """For each added column the value in every copied row; ``planned`` is when the copy was planned."""

    @abstractmethod
    def current_rows(self) -> CurrentRows | None:
        """Which of the table's rows are the source's; None for a mode that keeps changes instead of rows."""

    @abstractmethod
    def step(self, session: SparkSession, window: Window, store: TableStore) -> Step:
        """What one commit does to bring the table to the window's end. The table has the window's target schema."""

    def interval(self) -> Interval | None:
        """The columns with the versions' times, for a mode that keeps versions of rows."""
        return None

    def check_columns(self, schema: TableSchema) -> None:  # noqa: B027  # most modes have no such options
        """TableStoppedError if the mode's options name a column that the source table does not have."""

    def check_evolution(  # noqa: B027  # as above
        self, table: TableId, before: ColumnMapping, after: ColumnMapping, path: Sequence[TableSchema]
    ) -> None:
        """TableStoppedError if the mode's options name a column that the path renames or drops.

        The lake table has the columns ``before`` at the first schema of ``path``, and gets ``after`` at the last.
        """

    def copied(self, copy: TableCopy) -> dict[str, Any]:
        """See ``copied_values``. The generation is the time when the copy was planned, in milliseconds."""
        return self.copied_values(copy, copy.as_of or datetime.fromtimestamp(copy.generation / 1000, UTC))

    def schema(self, source: TableSchema) -> TableSchema:
        """The lake table's schema for a source schema, with its version. TableStoppedError if names collide."""
        added = self.added_columns()
        taken = {name.lower() for name in source.names}
        for column in added:
            if column.name.lower() in taken:
                raise TableStoppedError(
                    f"table {source.table} has a column '{column.name}', which mode {self.name} needs for itself",
                    remedy="Give the column another name in the lake with rename; or name the mode's own column "
                    "otherwise, if the mode has an option for that.",
                    table=str(source.table),
                )
        return replace(source, columns=(*source.columns, *added))

    def options(self) -> dict[str, Any]:
        """The options by their names in the configuration."""
        return asdict(self)  # type: ignore[call-overload, no-any-return]  # every mode is a dataclass

    def describe(self) -> str:
        """The name, and the options that differ from their defaults. Equal texts mean equal tables."""
        plain = type(self)().options()
        given = {name: value for name, value in self.options().items() if value != plain[name]}
        listed = ", ".join(f"{name}={value!r}" for name, value in sorted(given.items()))
        return f"{self.name}({listed})" if listed else self.name

    def to_json(self) -> dict[str, Any]:
        """The inverse of ``registry.mode_from_json``."""
        return {"name": self.name, **self.options()}


def check_name(mode: str, option: str, given: object, *, such_as: str) -> None:
    """ConfigError if an option is not a column name."""
    if not isinstance(given, str) or not given:
        raise ConfigError(
            f"mode {mode}: {option} is the name of a column, not {given!r}",
            remedy=f'Write a name, in quotes if need be: {option}: "{such_as}".',
        )


def checked_names(mode: str, option: str, given: object) -> tuple[str, ...]:
    """The names in a tuple or list. ConfigError for a text: its letters would count as names."""
    if isinstance(given, list | tuple) and all(isinstance(name, str) and name for name in given):
        return tuple(given)
    example = given if isinstance(given, str) and given else "a"
    raise ConfigError(
        f"mode {mode}: {option} is a list of names, not {given!r}",
        remedy=f'Write {option}: ["{example}"], or from Python {option}=("{example}",).',
    )


def operation_text(column: str) -> str:
    """The SQL for an operation's name in lower case."""
    names = ", ".join(f"'{operation.name.lower()}'" for operation in Operation)
    return f"elt(CAST({column} AS INT), {names})"
