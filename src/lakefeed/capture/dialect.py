"""The seam to a database that answers SELECT: a dialect says where it is and how its SQL is written, a session is a
connection that answers queries. Polling needs nothing more; a log source uses them for its catalog and its snapshots.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass, field, fields
from datetime import date
from decimal import Decimal
from typing import Any, NamedTuple, Self

import pyarrow as pa

from lakefeed.capture.base import TableSize
from lakefeed.change.choice import Choices
from lakefeed.change.position import Position
from lakefeed.change.table import Column, Comments, TableId, TableSchema
from lakefeed.change.watermark import KeyValue
from lakefeed.errors import SourceSetupError

Key = tuple[KeyValue, ...]


class TableChangedError(Exception):
    """The table is not the one that was described any more. Internal: the snapshot is planned again."""


class Refusal(NamedTuple):
    """Why a table cannot be captured, and the statement that repairs it. Without one it never can be."""

    reason: str
    remedy: str = ""


class Ordering(NamedTuple):
    """The operators, as SQL, of the order in which the database itself sorts a column's values."""

    before: str = "<"
    equal: str = "="
    after: str = ">"


PLAIN = Ordering()


@dataclass(frozen=True, slots=True)
class DescribedTable:
    """A table as the catalog has it now: all columns, and the declared key.

    ``origin`` is what stands behind FROM. ``sql_names`` are names in SQL of columns that are called otherwise there.
    ``unordered`` says of a column why its values cannot be put in order and so cannot be part of a key. ``misfits``
    are conditions in SQL, on the alias ``t``, that are 1 where a column holds a value that its type does not fit.
    ``orderings`` are the operators of columns that are not compared with plain ``<``, ``=`` and ``>``."""

    schema: TableSchema
    origin: str
    sql_names: Mapping[str, str] = field(default_factory=dict)
    unordered: Mapping[str, str] = field(default_factory=dict)
    misfits: Mapping[str, str] = field(default_factory=dict)
    orderings: Mapping[str, Ordering] = field(default_factory=dict)

    @property
    def id(self) -> TableId:
        return self.schema.table

    def to_json(self) -> dict[str, Any]:
        return {one.name: getattr(self, one.name) for one in fields(self)} | {"schema": self.schema.to_json()}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        orderings = {name: Ordering(*operators) for name, operators in data["orderings"].items()}
        return cls(**{**data, "schema": TableSchema.from_json(data["schema"]), "orderings": orderings})


class Horizon(NamedTuple):
    """The source's time, and until when nothing can become visible any more, or None; microseconds since 1970."""

    now_us: int
    settled_us: int | None


class Bracket(NamedTuple):
    """Which commits a consistent read sees: all up to ``low``, none after ``high``. Equal: it is exact."""

    low: Position
    high: Position


class Cuts(NamedTuple):
    """Keys that divide a table into ranges of about equal size, in order, and about how many rows it has."""

    keys: tuple[Key, ...]
    rows: int


@dataclass(slots=True)
class Query:
    """SQL in the making, with the values that its placeholders stand for, in order.

    ``exact`` are columns whose values the database is going to be asked for again: one that can be given in another
    form only than it is stored is a misfit there. ``enough_bytes``: a session may stop once it has given that much.
    ``source`` is the table whose rows are copied: the session checks, once it has its lock, that the consistent read
    sees the rows of that very table, and raises TableChangedError if not. ``ends_read``: nothing else is read in this
    consistent read, so a session whose reads make writers wait may end it before the rows are used."""

    sql: str = ""
    values: list[Any] = field(default_factory=list)
    exact: frozenset[str] = frozenset()
    enough_bytes: int | None = None
    source: DescribedTable | None = None
    ends_read: bool = False


class Dialect(ABC):
    """One database. Picklable and without a connection: chunks carry it to Spark tasks, polls to other threads."""

    default_schema: str
    folds_case: bool  # whether the database compares table names without case

    @abstractmethod
    def connect(self) -> Session:
        """A new connection. It may be used in any thread, one at a time."""

    def represent(self, choices: Choices) -> Dialect:  # noqa: ARG002
        """The same database, described as the lake wants its tables: see ``ChangeCapture.represent``. One that gives
        columns its own types only stays as it is."""
        return self

    @abstractmethod
    def quoted(self, name: str) -> str:
        """A name in SQL."""

    @abstractmethod
    def bound(self, column: Column, value: KeyValue, query: Query) -> str:
        """SQL for a value of ``column``'s own type: a literal, or a placeholder whose value goes to ``query``. Compared
        with the column it must be exact, to the last digit of a second."""

    def described(self, table: TableId) -> DescribedTable:
        """One table as the catalog has it now, on a connection of its own. SourceSetupError if it is not there."""
        with closing(self.connect()) as session:
            return session.described(table)

    def after(self, left: Sequence[str], right: Sequence[str], orderings: Sequence[Ordering]) -> str:
        """SQL that is true where the tuple ``left`` comes after the tuple ``right``, in the order of ORDER BY."""
        return _compared(left, right, orderings, is_after=True)

    def up_to(self, left: Sequence[str], right: Sequence[str], orderings: Sequence[Ordering]) -> str:
        """SQL that is true where ``left`` is ``right`` or comes before it."""
        return _compared(left, right, orderings, is_after=False)


class Session(ABC):
    """An open connection. Errors of the driver come out as Lakefeed's; no call waits for a lock without an end."""

    @abstractmethod
    def identity(self) -> str:
        """Names this very database."""

    @abstractmethod
    def tables(self) -> Mapping[TableId, Refusal | None]:
        """All tables there are → why one cannot be captured, or None."""

    @abstractmethod
    def describe(self, tables: Sequence[TableId]) -> Mapping[TableId, DescribedTable]:
        """What the catalog has of those that are there."""

    def described(self, table: TableId) -> DescribedTable:
        """What the catalog has of one table. SourceSetupError if it is not there."""
        if (found := self.describe([table]).get(table)) is None:
            raise no_table(table)
        return found

    @abstractmethod
    def horizon(self) -> Horizon:
        """Asked before every read, so that what is settled is also visible to it."""

    @abstractmethod
    def read(self, query: Query, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """The rows, with exactly these columns in this order. MisfitError, naming the column, for a value that does
        not fit it, unless the field has a rule for that (``change.choice.rule_of``)."""

    @abstractmethod
    def consistent(self, origin: Mapping[str, Any] | None = None) -> AbstractContextManager[Bracket | None]:
        """Reads inside see one state of the database. ``origin`` is what a snapshot's plan recorded for its reads, as
        JSON of the source's own making: the name of an exported snapshot, say. With it, a database that has a log
        yields between which positions the state is; without it, or without a log, None."""

    def sizes(self, tables: Sequence[TableId]) -> Mapping[TableId, TableSize]:  # noqa: ARG002
        """See ``ChangeCapture.sizes``."""
        return {}

    def comments(self, table: TableId) -> Comments:  # noqa: ARG002
        """See ``ChangeCapture.comments``."""
        return Comments()

    def cuts(self, table: DescribedTable, where: Sequence[str], key: Sequence[Column], rows: int) -> Cuts | None:  # noqa: ARG002
        """Cuts for ranges of about ``rows`` rows, where the database has a cheaper way than to count and to walk the
        index, else None. ``where`` are conditions on the alias ``t``."""
        return None

    @abstractmethod
    def cancel(self) -> None:
        """End what is running on it, from any thread."""

    @abstractmethod
    def close(self) -> None: ...


def no_table(table: TableId) -> SourceSetupError:
    remedy = "Correct source.tables, or create the table; if it was dropped, lakefeed sync notices that."
    return SourceSetupError(f"there is no table {table} in the source", remedy=remedy)


def key_rows(rows: pa.RecordBatch, key: Sequence[str]) -> list[Key]:
    """The key of each row, exactly, in values that JSON can carry (tagged) and ``Dialect.bound`` takes back."""
    columns = [[_key_value(value) for value in rows.column(name).to_pylist()] for name in key]
    return list(zip(*columns, strict=True))


def key_array(values: Sequence[KeyValue], kind: pa.DataType) -> Any:
    """One column of keys as Arrow: the inverse of ``key_rows``."""
    if pa.types.is_boolean(kind):
        return pa.array([bool(value) for value in values], kind)
    if pa.types.is_floating(kind):
        return pa.array([float(str(value)) for value in values], kind)
    if pa.types.is_temporal(kind):
        return pa.array([str(value) for value in values], pa.string()).cast(kind)
    return pa.array(list(values), kind)


def _key_value(value: Any) -> KeyValue:
    match value:
        case bool():
            return int(value)
        case int() | str() | bytes() | Decimal():
            return value
        case float():
            return Decimal(repr(value))
        case date():  # or datetime
            return str(value)
    raise TypeError(f"{value!r} cannot be part of a key")


def _compared(left: Sequence[str], right: Sequence[str], orderings: Sequence[Ordering], *, is_after: bool) -> str:
    """Two tuples, or column by column: operators of different schemas cannot stand between two tuples. The condition on
    the first column follows from the rest, and lets the database begin or end in its index."""
    if all(one == PLAIN for one in orderings):
        return f"({', '.join(left)}) {'>' if is_after else '<='} ({', '.join(right)})"
    *before, (a, b, one) = zip(left, right, orderings, strict=True)
    sql = f"{a} {one.after} {b}" if is_after else f"NOT ({a} {one.after} {b})"
    for a, b, one in reversed(before):
        beyond, within = (one.after, one.before) if is_after else (one.before, one.after)
        sql = f"NOT ({a} {within} {b}) AND ({a} {beyond} {b} OR ({a} {one.equal} {b} AND {sql}))"
    return f"({sql})"
