"""The seam to a database that answers SELECT. A Dialect knows where the database is and how to write its SQL; a Session
is a connection that runs queries. Polling needs nothing else; a log source uses them for its catalog and its snapshots.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
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
    """The table is no longer the one that was described. Internal: the snapshot is planned again."""


class Refusal(NamedTuple):
    """Why a table cannot be captured, and the statement that repairs it. Without a remedy it never can be."""

    reason: str
    remedy: str = ""


class Ordering(NamedTuple):
    """The SQL operators of the order in which the database itself sorts a column's values."""

    before: str = "<"
    equal: str = "="
    after: str = ">"


PLAIN = Ordering()


@dataclass(frozen=True, slots=True)
class DescribedTable:
    """A table as the catalog has it now: all columns, and the declared key.

    ``origin`` is the SQL that follows FROM. ``sql_names`` maps columns to their names in SQL, where these differ.
    ``unordered`` says why the values of a column cannot be ordered, so that it cannot be part of a key. ``misfits`` are
    SQL conditions on the alias ``t`` that are 1 if a column holds a value that does not fit its type. ``orderings`` has
    the operators of columns that are not compared with plain ``<``, ``=`` and ``>``."""

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
    """Microseconds since 1970. ``now_us`` is the source's time. No row with a time up to ``settled_us`` can become
    visible any more; None if there is no such time."""

    now_us: int
    settled_us: int | None


class Bracket(NamedTuple):
    """Which commits a consistent read sees: all up to ``low`` and none after ``high``. If equal, the read is exact."""

    low: Position
    high: Position


class Cuts(NamedTuple):
    """Keys that cut a table into ranges of about equal size, in order, and its approximate number of rows."""

    keys: tuple[Key, ...]
    rows: int


@dataclass(slots=True)
class Query:
    """SQL under construction, with the values of its placeholders in order.

    ``exact`` are columns whose values go into later queries: a value that cannot be returned exactly as stored is a
    misfit there. ``enough_bytes``: a session may stop after returning that much. ``source`` is the table that is being
    copied: once the session holds its lock, it checks that the consistent read sees the rows of that very table, and
    raises TableChangedError if not. ``ends_read``: this consistent read has no further query, so a session whose reads
    block writers may end it before the rows are consumed."""

    sql: str = ""
    values: list[Any] = field(default_factory=list)
    exact: frozenset[str] = frozenset()
    enough_bytes: int | None = None
    source: DescribedTable | None = None
    ends_read: bool = False


class Dialect(ABC):
    """One database. Picklable and without a connection: chunks carry it to Spark tasks, polls to other threads."""

    default_schema: str
    folds_case: bool  # whether the database ignores case in table names

    @abstractmethod
    def connect(self) -> Session:
        """A new connection. Any thread may use it, one at a time."""

    def represent(self, choices: Choices) -> Dialect:  # noqa: ARG002
        """The same database, described as the lake wants its tables (see ``ChangeCapture.represent``). A dialect that
        cannot vary its column types returns itself."""
        return self

    @abstractmethod
    def quoted(self, name: str) -> str:
        """``name`` quoted for SQL."""

    @abstractmethod
    def bound(self, column: Column, value: KeyValue, query: Query) -> str:
        """SQL for a value of ``column``'s type: a literal, or a placeholder whose value is added to ``query``. It must
        compare exactly with the column, down to the last digit of a second."""

    def described(self, table: TableId) -> DescribedTable:
        """One table as the catalog has it now, read on a connection of its own. SourceSetupError if there is none."""
        with closing(self.connect()) as session:
            return session.described(table)

    def after(self, left: Sequence[str], right: Sequence[str], orderings: Sequence[Ordering]) -> str:
        """SQL that is true if the tuple ``left`` comes after the tuple ``right`` in the order of ORDER BY."""
        return _compared(left, right, orderings, is_after=True)

    def up_to(self, left: Sequence[str], right: Sequence[str], orderings: Sequence[Ordering]) -> str:
        """SQL that is true if ``left`` equals ``right`` or comes before it."""
        return _compared(left, right, orderings, is_after=False)


class Session(ABC):
    """An open connection. It raises Lakefeed's errors, not the driver's, and never waits for a lock without a limit."""

    @abstractmethod
    def identity(self) -> str:
        """Identifies this very database."""

    @abstractmethod
    def tables(self) -> Mapping[TableId, Refusal | None]:
        """All existing tables, each with the reason why it cannot be captured, or None."""

    @abstractmethod
    def describe(self, tables: Sequence[TableId]) -> Mapping[TableId, DescribedTable]:
        """The catalog's description of those of ``tables`` that exist."""

    def described(self, table: TableId) -> DescribedTable:
        """The catalog's description of one table. SourceSetupError if it does not exist."""
        if (found := self.describe([table]).get(table)) is None:
            raise no_table(table)
        return found

    @abstractmethod
    def horizon(self) -> Horizon:
        """Called before every read, so that the read sees everything that is settled."""

    @abstractmethod
    def read(self, query: Query, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """The rows, with exactly these columns in this order. A MisfitError names the column of a value that does not
        fit, unless the field has a rule for such values (``change.choice.rule_of``)."""

    @abstractmethod
    def consistent(self, origin: Mapping[str, Any] | None = None) -> AbstractContextManager[Bracket | None]:
        """A context in which all reads see one state of the database. ``origin`` is JSON of the source's own making
        that the plan of a snapshot recorded for its reads, such as the name of an exported snapshot. With it, a
        database that has a log yields the positions between which that state lies; otherwise the context yields
        None."""

    def sizes(self, tables: Sequence[TableId]) -> Mapping[TableId, TableSize]:  # noqa: ARG002
        """See ``ChangeCapture.sizes``."""
        return {}

    def comments(self, table: TableId) -> Comments:  # noqa: ARG002
        """See ``ChangeCapture.comments``."""
        return Comments()

    def cuts(self, table: DescribedTable, where: Sequence[str], key: Sequence[Column], rows: int) -> Cuts | None:  # noqa: ARG002
        """Cuts for ranges of about ``rows`` rows, if the database has a cheaper way than counting rows and walking the
        index; otherwise None. ``where`` are conditions on the alias ``t``."""
        return None

    def is_reusable(self) -> bool:
        """Whether it may be kept for a later, unrelated read, because to connect costs much more. Asked before each."""
        return False

    @abstractmethod
    def cancel(self) -> None:
        """End the running call, from any thread."""

    @abstractmethod
    def close(self) -> None: ...


class SpareSessions:
    """Sessions of one dialect that are lent for a block and kept for the next one, if they are reusable.

    Any thread; nobody waits: simultaneous uses have a session each. Before ``keep``, and after ``close``, none is kept.
    Pickled, it is one that keeps none.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards the two below; never held across a call to the database
        self._idle: list[tuple[Dialect, Session]] = []
        self._keeps = False

    def __reduce__(self) -> tuple[type[SpareSessions], tuple[()]]:
        return SpareSessions, ()

    def keep(self) -> None:
        self._keeps = True

    @contextmanager
    def use(self, dialect: Dialect) -> Iterator[Session]:
        with self._lock:
            found, idle = self._idle.pop() if self._idle else None, None
        if found is not None:
            if found[0] == dialect and found[1].is_reusable():
                idle = found[1]
            else:
                found[1].close()
        session, is_sound = idle or dialect.connect(), False  # after an error it may be in any state
        try:
            yield session
            is_sound = True
        finally:
            is_kept = False
            if is_sound and session.is_reusable():
                with self._lock:
                    if is_kept := self._keeps:
                        self._idle.append((dialect, session))
            if not is_kept:
                session.close()

    def close(self) -> None:
        """Idempotent. A session that is lent is closed by its own use."""
        with self._lock:
            self._keeps, idle, self._idle = False, self._idle, []
        for _, session in idle:
            session.close()


def no_table(table: TableId) -> SourceSetupError:
    remedy = "Correct source.tables, or create the table; if it was dropped, lakefeed sync notices that."
    return SourceSetupError(f"there is no table {table} in the source", remedy=remedy)


def key_rows(rows: pa.RecordBatch, key: Sequence[str]) -> list[Key]:
    """The exact key of each row, in values that JSON can carry (tagged) and that ``Dialect.bound`` accepts."""
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
    """Compares tuples, or column by column where operators differ: operators of different schemas cannot compare
    tuples. The condition on the first column is redundant, but lets the database start or stop in its index."""
    if all(one == PLAIN for one in orderings):
        return f"({', '.join(left)}) {'>' if is_after else '<='} ({', '.join(right)})"
    *before, (a, b, one) = zip(left, right, orderings, strict=True)
    sql = f"{a} {one.after} {b}" if is_after else f"NOT ({a} {one.after} {b})"
    for a, b, one in reversed(before):
        beyond, within = (one.after, one.before) if is_after else (one.before, one.after)
        sql = f"NOT ({a} {within} {b}) AND ({a} {beyond} {b} OR ({a} {one.equal} {b} AND {sql}))"
    return f"({sql})"
