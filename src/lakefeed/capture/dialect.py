"""The seam to a database that is polled. A user's own database adds one Dialect and nothing else.

A connector says where the database is and how its SQL is written; a session is a connection that answers queries. All
that polling needs beyond SELECT is the catalog (names, types, key) and the time by the source's clock.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

import pyarrow as pa

from lakefeed.change.table import Column, TableId, TableSchema
from lakefeed.change.watermark import KeyValue


class MisfitError(Exception):
    """A value that its column's type cannot hold, and text can: the column becomes text. Internal to polling."""

    def __init__(self, column: str) -> None:
        super().__init__(column)
        self.column = column


@dataclass(frozen=True, slots=True)
class DescribedTable:
    """A table as the catalog has it now: all columns, and the declared key.

    ``origin`` is what stands behind FROM. ``sql_names`` are names in SQL of columns that are called otherwise there.
    ``unordered`` says of a column why its values cannot be put in order and so cannot be part of a key. ``misfits``
    are conditions in SQL, on the alias ``t``, that are 1 where a column holds a value that its type does not fit.
    """

    schema: TableSchema
    origin: str
    sql_names: Mapping[str, str] = field(default_factory=dict)
    unordered: Mapping[str, str] = field(default_factory=dict)
    misfits: Mapping[str, str] = field(default_factory=dict)

    @property
    def id(self) -> TableId:
        return self.schema.table


@dataclass(frozen=True, slots=True)
class Horizon:
    """The source's time, and up to which time nothing can become visible any more; microseconds since 1970.

    ``settled_us`` has not been lowered by the safety lag yet. None: nothing is known to be settled now.
    """

    now_us: int
    settled_us: int | None


@dataclass(slots=True)
class Query:
    """SQL in the making, with the values that its placeholders stand for, in order.

    ``exact`` are columns whose values the database is going to be asked for again: one that can be given in another
    form only than it is stored is a misfit there. ``enough_bytes``: a session may stop once it has given that much.
    """

    sql: str = ""
    values: list[Any] = field(default_factory=list)
    exact: frozenset[str] = frozenset()
    enough_bytes: int | None = None


class Dialect(Protocol):
    """One database. Picklable and without a connection: chunks carry it to Spark tasks, polls to other threads."""

    @property
    def default_schema(self) -> str: ...

    @property
    def folds_case(self) -> bool:
        """Whether the database compares table names without case."""

    def connect(self) -> Session:
        """A new connection. It may be used in any thread, one at a time."""

    def quoted(self, name: str) -> str:
        """A name in SQL."""

    def bound(self, column: Column, value: KeyValue, query: Query) -> str:
        """SQL for a value of ``column``'s own type: a literal, or a placeholder whose value goes to ``query``.

        Comparing it with the column must be exact, to the last digit of a second.
        """

    def after(self, left: Sequence[str], right: Sequence[str]) -> str:
        """SQL that is true where the tuple ``left`` comes after the tuple ``right``, in the database's own order."""


class Session(Protocol):
    """An open connection. Errors of the driver come out as Lakefeed's."""

    def identity(self) -> str:
        """Names this very database."""

    def tables(self) -> Mapping[TableId, str | None]:
        """All tables there are → why one cannot be polled, or None."""

    def describe(self, tables: Sequence[TableId]) -> Mapping[TableId, DescribedTable]:
        """What the catalog says of those that are there."""

    def horizon(self) -> Horizon:
        """Asked before every read, so that what is settled is also visible to it."""

    def read(self, query: Query, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """The rows, with exactly these columns in this order. MisfitError, or TableStoppedError, for a bad value."""

    def consistent(self) -> AbstractContextManager[None]:
        """Reads inside see one state of the database."""

    def cancel(self) -> None:
        """End what is running on it, from any thread."""

    def close(self) -> None: ...
