"""The seams that one log source fills in, beside Dialect and Session (``dialect``): ResumePoint, LogReader, Decoder,
SchemaFacts and a Check. ``LogCapture`` is the ChangeCapture that is built from them.

The flow is one way: the reader's pieces go through the decoder into the change set builder, which cuts change sets at
commits. Nothing asks the database in the middle of decoding: what the decoder needs of the catalog travels in the
piece. Two threads work beside each other, on connections of their own: the *stream side* reads, decodes and confirms,
the *catalog side* discovers, prepares and plans copies. What no docstring gives to one side may be called by both."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from lakefeed.capture.base import Finding, Lag
from lakefeed.capture.dialect import DescribedTable, Refusal, Session
from lakefeed.change.change_set import TableNotice
from lakefeed.change.choice import Choices
from lakefeed.change.position import Position
from lakefeed.change.table import TableId, TableSchema
from lakefeed.errors import SourceChangedError, SourceSetupError
from lakefeed.storage.base import Storage

P = TypeVar("P", bound=Position)
"""The source's own kind of position. ``At`` is the same, where it is only taken."""
Piece = TypeVar("Piece")
"""What the reader gives and the decoder takes: bytes, a run of messages, rows of a log table. ``Raw`` is the same."""
At = TypeVar("At", bound=Position, contravariant=True)
Raw = TypeVar("Raw", contravariant=True)

Choose = Callable[[Mapping[TableId, Refusal | None]], tuple[TableId, ...]]
"""Tables of a catalog (``Session.tables``) → those that the patterns match. ConfigError as in ``select``."""
Check = Callable[[Choose], tuple[Finding, ...]]
"""Preflight, on a connection of its own. Any thread, also before ``open``."""


class Transaction(NamedTuple):
    """One committed transaction: where it ends in the log, when it was committed (microseconds since 1970), its id."""

    end: Position
    time_us: int
    id: str | None = None


@dataclass(frozen=True, slots=True)
class Rows:
    """Changes of one table, column by column, in the order of the log.

    ``columns`` are those of ``schema``. ``operations`` (int8) are values of ``Operation``; a truncate is a row of
    NULLs. ``order`` (int64, growing) are offsets in the piece, over all its tables; it uses ``Decoded.width`` of them.
    ``transactions`` (int32) are indices into ``Decoded.transactions``. ``absent`` lists, for each row, columns that the
    source did not send; None: it sent all. ``times`` (int64, microseconds since 1970): None means the transaction's.
    ``replaced`` is ``batch.replaced_metadata``, where a rule has replaced values."""

    schema: TableSchema
    columns: Sequence[Any]
    operations: Any
    order: Any
    transactions: Any
    absent: Any = None
    times: Any = None
    replaced: Any = None


@dataclass(frozen=True, slots=True)
class Announced:
    """What the next change set announces of tables: new shapes, and notices."""

    schemas: tuple[TableSchema, ...] = ()
    notices: tuple[TableNotice, ...] = ()


@dataclass(slots=True)
class Decoded(Generic[P]):
    """What one piece of the log came to, in the order of the log, column-wise over many transactions.

    ``transactions`` are those that begin in the piece, and, first, the one that was open before it if it goes on
    (``continues``): that one replaces what the piece before has given for it. ``open``: the last of them is not
    committed yet; its end and time may be placeholders. ``reached``: all that the source has up to here is in the
    pieces so far; None inside a transaction. An item that is an Iterable has rows that a decoder has spilled."""

    transactions: list[Transaction] = field(default_factory=list)
    items: list[Rows | Announced | Iterable[Rows]] = field(default_factory=list)
    width: int = 0
    continues: bool = False
    open: bool = False
    reached: P | None = None


class LogReader(Protocol[At, Piece]):
    """The log strictly after a position, as raw pieces. ``read`` belongs to the stream side. Where the server wants
    answers while the consumer is busy, the source wraps its reader in a BackgroundReader. That one alone uses ``size``,
    ``joined``, ``beat``, ``wake`` and ``in_burst``: there is more, although nothing comes for a moment."""

    in_burst: bool = False

    def read(self, wait_seconds: float) -> Piece | None:
        """The next piece; None if nothing has come within about ``wait_seconds``, sooner if the source can only be
        polled, or after ``close``. Without a wait, None means that the source itself has answered that nothing more was
        in the log at the time of the call. SourceUnavailableError where the connection is lost or silent too long."""

    def size(self, piece: Piece) -> int:  # noqa: ARG002
        """About how many bytes of memory a piece needs: the background reader waits while too many are unread."""
        return 0

    def joined(self, pieces: Sequence[Piece]) -> Sequence[Piece]:
        """The same log in fewer pieces, for a consumer that has fallen behind: one row costs it nearly as much as a
        thousand in one piece. It is asked for about a megabyte at a time."""
        return pieces

    def beat(self) -> None:
        """Keep the connection alive: called every moment while too many pieces are unread."""
        return

    def wake(self) -> None:
        """Make a ``read`` that waits return now."""
        return

    def confirm(self, position: At) -> None:
        """As ``ResumePoint.confirm``, in-band where the protocol has that."""

    def close(self) -> None:
        """End the connection; a ``read`` under way returns or raises within seconds. Idempotent."""


class ResumePoint(ABC, Generic[P, Piece]):
    """What the source keeps for one pipeline: a replication slot, a change log with a mark, a retained binlog. Each
    call is short, bounded in time and safe to repeat. ``create``, ``origin``, ``copied`` and ``drop`` belong to the
    catalog side, ``start`` and ``confirm`` to the stream side. ``lag`` works also while this is closed."""

    slot: str | None = None
    """See ``ChangeCapture.slot``."""

    def keep_state(self, state: Storage) -> None:
        """See ``ChangeCapture.keep_state``."""

    def open(self) -> None:
        """Called by ``LogCapture.open`` before everything but ``lag``."""

    def close(self) -> None:
        """Let go of connections; what runs on them ends within seconds. Idempotent; ``open`` may follow."""

    @abstractmethod
    def find(self) -> P | None:
        """Where the source may have forgotten everything before; None if there is no resume point."""

    @abstractmethod
    def identity(self) -> str:
        """Names this very database. Asked only where ``find`` has found something."""

    def take_over(self, known: str, position: P) -> P:  # noqa: ARG002
        """See ``ChangeCapture.take_over``."""
        raise SourceChangedError(f"the journal belongs to {known}, not to {self.identity()}")

    @abstractmethod
    def create(self, tables: Sequence[TableId]) -> P:
        """Make it, or widen it to ``tables``; others stay. Idempotent. Returns where it is."""

    @abstractmethod
    def origin(self, table: TableId, delivered: P | None) -> Mapping[str, Any]:
        """What the chunks of a copy of ``table`` give to ``Session.consistent``, so that it yields a bracket: the name
        of the log, of an exported snapshot. The copy must have everything up to ``delivered``, which a stream has
        handed out. StateError for a table that had to be prepared first and was not."""

    def exact_at(self, origin: Mapping[str, Any]) -> P | None:  # noqa: ARG002
        """The one state that all reads with ``origin`` see while it is there; None if each has a state of its own."""
        return None

    def exactly(self, origin: Mapping[str, Any]) -> Mapping[str, Any] | None:  # noqa: ARG002
        """``origin`` for a read whose bracket must be exact: a table without a key is one chunk, and nothing tells
        which of its changes the rows have already. None if the source cannot promise that."""
        return None

    def beside(self) -> Mapping[str, Any] | None:
        """What a read that is no copy gives to ``Session.consistent``, so that it yields a bracket. Touches nothing.
        None if the source has no such read."""
        return None

    def copied(self, table: TableId) -> None:
        """See ``ChangeCapture.copied``: what was kept open for ``origin`` may go."""

    @abstractmethod
    def require(self, position: P) -> None:
        """PositionLostError if capture cannot go on strictly after ``position``."""

    @abstractmethod
    def start(self, after: P) -> LogReader[P, Piece]:
        """Read the log strictly after ``after``, on a connection of its own."""

    @abstractmethod
    def confirm(self, position: P) -> None:
        """The source may forget everything up to ``position``. Never moves back. Called while no reader is open."""

    def ahead_bytes(self, low: P, high: P) -> int:  # noqa: ARG002
        """About how many bytes of log are between two positions; 0 where nobody knows."""
        return 0

    def end(self) -> P | None:
        """See ``ChangeCapture.end``."""
        return None

    def lag(self, confirmed_at: float | None) -> Lag:  # noqa: ARG002
        """How far the confirmed position trails the source. ``confirmed_at``: when the newest confirmed transaction was
        committed (seconds since 1970, the source's clock), if this process has delivered it."""
        return Lag()

    @abstractmethod
    def drop(self) -> tuple[str, ...]:
        """Remove what ``create`` made. Returns the names of what was removed."""


def not_prepared() -> SourceSetupError:
    """Where there is no resume point, although a stream is to begin."""
    remedy = "Run `lakefeed sync`, which prepares it; if it was prepared, this is another database."
    return SourceSetupError("nothing is prepared in this database for the pipeline", remedy=remedy)


class Decoder(Protocol[P, Raw]):
    """Raw pieces → rows. Pure and total: no I/O, no catalog; Arrow or DecodeError for whatever bytes there are. Each
    stream has its own, which keeps what a log describes once and refers to later (table maps, relations). A value that
    its column cannot hold blocks that table by a notice and never the stream."""

    def decode(self, piece: Raw) -> Decoded[P]: ...


class SchemaFacts(Generic[P]):
    """What the catalog knows and the log does not have. This default is for a log that describes its own tables.

    One that finds something beside the stream (a table that was dropped, a column with no row since) keeps it until the
    stream has passed the moment of the finding: ``due`` gives it then. ``discover``, ``snapshot`` and ``prepared``
    belong to the catalog side, ``due``, ``delivered``, ``begins_again`` and ``rewind`` to the stream side."""

    def is_captured(self, table: TableId) -> bool:  # noqa: ARG002
        """Whether ``table`` is delivered by this pipeline. Refused now, it is reported by ``due``; it stops nobody."""
        return False

    def discover(self, session: Session, choose: Choose) -> tuple[TableSchema, ...]:
        """The tables that ``choose`` takes of those there are. What differs from what was delivered is due later."""
        return tuple(one.schema for one in session.describe(choose(session.tables())).values())

    def snapshot(self, session: Session, table: TableId) -> tuple[DescribedTable, TableSchema] | None:
        """What a copy of ``table`` is read from, and the schema that it is delivered with, which counts as delivered
        from now on. None: there is no such table."""
        described = session.describe([table]).get(table)
        return None if described is None else (described, described.schema)

    def represent(self, choices: Choices) -> None:
        """See ``ChangeCapture.represent``."""

    def recall(self, schemas: Sequence[TableSchema]) -> None:
        """See ``ChangeCapture.recall``."""

    def expect(self, tables: Sequence[TableId]) -> None:
        """The pipeline resumes with these tables."""

    def prepared(self, tables: Sequence[TableId]) -> None:
        """``ResumePoint.create`` has been called for these tables: they are copied from now on."""

    def unsent(self, table: TableId) -> str | None:  # noqa: ARG002
        """See ``ChangeCapture.unsent``; of a table that was discovered."""
        return None

    def due(self, reached: P) -> Sequence[Announced]:  # noqa: ARG002
        """What is to be announced now that the stream has come to ``reached``; each finding once."""
        return ()

    def delivered(self, position: P) -> None:
        """What was due so far has been handed out, with a change set that ended at ``position`` at the latest."""

    def begins_again(self) -> bool:
        """Whether the stream has to be left and begun again at the same position, since the log reports something only
        to a new connection. True once; asked when everything was handed out."""
        return False

    def rewind(self, position: P) -> None:
        """A stream begins after ``position``: what was handed out there or later is due again."""
