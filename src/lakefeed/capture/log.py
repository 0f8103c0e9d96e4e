"""The seams that one log source fills in. ``LogCapture`` is the ChangeCapture that is built from them.

    Dialect, Session    how SQL is written, how rows become Arrow                      (``dialect``)
    ResumePoint         what the source keeps so that capture can go on
    LogReader           raw pieces of the log, strictly after a position
    Decoder             raw pieces → events; pure and total
    SchemaFacts         what the catalog knows of a table and the log does not say
    checks              preflight findings, each with the statement that repairs it

The flow is one way: the reader's pieces go through the decoder into the change set builder, which cuts change sets at
commits. Nothing below asks the database in the middle of decoding: what the catalog has to say is read beside the
stream, by the session, and is there when it is needed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from lakefeed.capture.base import Lag
from lakefeed.change.change_set import TableNotice
from lakefeed.change.position import Position
from lakefeed.change.table import TableId, TableSchema

P = TypeVar("P", bound=Position)
"""The source's own kind of position."""
At = TypeVar("At", bound=Position, contravariant=True)
"""The same, where it is only taken."""
Piece = TypeVar("Piece")
"""What the reader gives and the decoder takes: bytes, a run of messages, rows of a log table."""
Raw = TypeVar("Raw", contravariant=True)
"""The same, where it is only taken."""


@dataclass(frozen=True, slots=True)
class Transaction:
    """One committed transaction: where it ends in the log, when it was committed (microseconds since 1970), its id."""

    end: Position
    time_us: int
    id: str | None = None


@dataclass(frozen=True, slots=True)
class Begin:
    """Everything up to the next Commit belongs to one transaction. Its time and id may be known only at the end."""


@dataclass(frozen=True, slots=True)
class Commit:
    """The transaction is complete. A change set may be cut behind it, and nowhere else."""

    transaction: Transaction


@dataclass(frozen=True, slots=True)
class Rows:
    """Changes of one table, column by column, in the order of the log.

    ``columns`` are those of ``schema``. ``operations`` (int8) are values of ``Operation``; a truncate is a row of
    NULLs. ``order`` (int64, growing) are offsets in the piece that was decoded, so that changes of several tables keep
    their order; ``width`` in ``Decoded`` says how many offsets the whole piece has used. ``transactions`` (int32) are
    indices into ``Decoded.transactions``. ``absent`` lists, for each row, columns that the source did not send; None
    where it sent all of all. ``times`` (int64, microseconds since 1970): of each row, where that is not its
    transaction's; else None.
    """

    schema: TableSchema
    columns: Sequence[Any]
    operations: Any
    order: Any
    transactions: Any
    absent: Any = None
    times: Any = None


@dataclass(frozen=True, slots=True)
class Announced:
    """What is said of tables with the next change set: new shapes, and notices."""

    schemas: tuple[TableSchema, ...] = ()
    notices: tuple[TableNotice, ...] = ()


@dataclass(slots=True)
class Decoded(Generic[P]):
    """What one piece of the log came to, in the order of the log, column-wise over many transactions.

    ``transactions`` are those that begin in the piece, and, first, the one that was open before it if it goes on
    (``continues``). ``open``: the last of them is not committed yet; its end and time are not known. ``reached``: the
    source has nothing more up to here that is not in the piece; None inside a transaction.
    """

    transactions: list[Transaction] = field(default_factory=list)
    items: list[Rows | Announced] = field(default_factory=list)
    width: int = 0
    continues: bool = False
    open: bool = False
    reached: P | None = None


class ResumePoint(Protocol[P]):
    """What the source keeps for one pipeline: a replication slot, a change log with a mark, a retained binlog.

    Each call is short, bounded in time, and safe to repeat.
    """

    def find(self) -> P | None:
        """Where the source may have forgotten everything before; None if there is no resume point."""

    def create(self, tables: Sequence[TableId]) -> P:
        """Make it, or widen it to ``tables``; others stay. Idempotent. Returns where it is."""

    def require(self, position: P) -> None:
        """PositionLostError if capture cannot go on strictly after ``position``."""

    def confirm(self, position: P) -> None:
        """The source may forget everything up to ``position``. Never moves back."""

    def lag(self) -> Lag:
        """How far the confirmed position trails the source, on a connection of its own. Any thread."""

    def drop(self) -> tuple[str, ...]:
        """Remove what ``create`` made. Returns the names of what was removed."""


class LogReader(Protocol[At, Piece]):
    """The log strictly after a position, as raw pieces. Belongs to the thread that the background reader gives it."""

    def read(self, wait_seconds: float) -> Piece | None:
        """What has come; None if nothing did within ``wait_seconds``. SourceUnavailableError where the connection is
        lost. With ``wait_seconds`` 0, None means that nothing more is in the log up to its head of now; a reader that
        does not know that yet may return a piece with nothing in it. Returns within about a second."""

    def size(self, piece: Piece) -> int:
        """About how many bytes of memory a piece needs: the background reader waits while too many are unread."""

    def beat(self) -> None:
        """Keep the connection alive while nobody reads: called every moment while too many pieces are unread."""

    def wake(self) -> None:
        """Make a ``read`` that waits return now. Any thread."""

    def confirm(self, position: At) -> None:
        """Tell the server in-band, where the protocol has that. Any thread."""

    def close(self) -> None:
        """End the connection. Any thread; ``read`` then returns or raises within seconds."""


class Decoder(Protocol[P, Raw]):
    """Raw pieces → events. Pure and total: no I/O, no catalog; Arrow or DecodeError for whatever bytes there are.

    It keeps what a log describes once and refers to later (table maps, relations). A value that its column cannot hold
    blocks that table by a notice and never the stream.
    """

    def decode(self, piece: Raw) -> Decoded[P]: ...


class SchemaFacts(Protocol):
    """What the catalog knows and the log does not say. Read in one query for all tables, beside the stream."""

    def read(self, tables: Iterable[TableId] | None = None) -> object:
        """Facts of these tables, or of all that are captured, as of now. Any thread, on a connection of its own."""
