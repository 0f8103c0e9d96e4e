"""The seams that a log source implements, besides Dialect and Session (``dialect``): ResumePoint, LogReader, Decoder,
SchemaFacts and a Check. ``LogCapture`` is the ChangeCapture built from them.

Data flows one way: the reader's pieces go through the decoder into the change set builder, which cuts change sets at
commits. Decoding never asks the database: whatever the decoder needs from the catalog travels in the piece. Two threads
run concurrently, on connections of their own: the *stream side* reads, decodes and confirms; the *catalog side*
discovers, prepares and plans copies. Methods that no docstring assigns to one side may be called by both."""

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
"""The source's own kind of position. ``At`` is the same type variable for parameters only."""
Piece = TypeVar("Piece")
"""What the reader returns and the decoder takes: bytes, a run of messages, rows of a log table. ``Raw`` is the same
type variable for parameters only."""
At = TypeVar("At", bound=Position, contravariant=True)
Raw = TypeVar("Raw", contravariant=True)

Choose = Callable[[Mapping[TableId, Refusal | None]], tuple[TableId, ...]]
"""Selects from the tables of a catalog (``Session.tables``) those that the patterns match. ConfigError as in
``select``."""
Check = Callable[[Choose], tuple[Finding, ...]]
"""Preflight, on a connection of its own. Any thread, even before ``open``."""


class Transaction(NamedTuple):
    """One committed transaction: where it ends in the log, its commit time (microseconds since 1970), its id."""

    end: Position
    time_us: int
    id: str | None = None


@dataclass(frozen=True, slots=True)
class Rows:
    """Changes of one table, column by column, in log order.

    ``columns`` are those of ``schema``. ``operations`` (int8) are values of ``Operation``; a truncate is a row of
    NULLs. ``order`` (int64, growing) are offsets in the piece, over all its tables; the piece occupies
    ``Decoded.width`` of them. ``transactions`` (int32) are indices into ``Decoded.transactions``. ``absent`` lists for
    each row the columns that the source did not send; None means that it sent all. ``times`` (int64, microseconds since
    1970); None means the transaction's time. ``replaced`` is ``batch.replaced_metadata``, if a rule replaced values."""

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
    """What the next change set announces about tables: new schemas, and notices."""

    schemas: tuple[TableSchema, ...] = ()
    notices: tuple[TableNotice, ...] = ()


@dataclass(slots=True)
class Decoded(Generic[P]):
    """What one piece of the log decodes to, in log order, column-wise over many transactions.

    ``transactions`` are those that begin in the piece, preceded by the one left open by the previous piece if it goes
    on here (``continues``): that entry replaces the one from the previous piece. ``open``: the last transaction is not
    committed yet, and its end and time may be placeholders. ``reached``: the pieces so far contain everything that the
    source has up to this position; None inside a transaction. An item that is an Iterable yields rows that the decoder
    spilled."""

    transactions: list[Transaction] = field(default_factory=list)
    items: list[Rows | Announced | Iterable[Rows]] = field(default_factory=list)
    width: int = 0
    continues: bool = False
    open: bool = False
    reached: P | None = None


class LogReader(Protocol[At, Piece]):
    """The log strictly after a position, as raw pieces. ``read`` belongs to the stream side. If the server expects
    replies while the consumer is busy, the source wraps its reader in a BackgroundReader. Only that one uses ``size``,
    ``joined``, ``beat``, ``wake`` and ``in_burst``, which means that more is on its way although nothing arrived just
    now."""

    in_burst: bool = False

    def read(self, wait_seconds: float) -> Piece | None:
        """The next piece. None if nothing arrived within about ``wait_seconds`` (sooner if the source can only be
        polled), and after ``close``. If ``wait_seconds`` is 0, None means that the source itself has answered that its
        log had nothing more at the time of the call. SourceUnavailableError if the connection is lost, or silent for
        too long."""

    def size(self, piece: Piece) -> int:  # noqa: ARG002
        """Approximate memory of a piece in bytes: the background reader pauses while too many bytes are unread."""
        return 0

    def joined(self, pieces: Sequence[Piece]) -> Sequence[Piece]:
        """The same log in fewer pieces, for a consumer that has fallen behind: a piece with one row costs it nearly as
        much as one with a thousand. Called with about a megabyte at a time."""
        return pieces

    def beat(self) -> None:
        """Keep the connection alive. Called repeatedly while too many bytes are unread."""
        return

    def wake(self) -> None:
        """Make a waiting ``read`` return now."""
        return

    def confirm(self, position: At) -> None:
        """As ``ResumePoint.confirm``, in-band if the protocol supports that."""

    def close(self) -> None:
        """End the connection. A running ``read`` returns or raises within seconds. Idempotent."""


class ResumePoint(ABC, Generic[P, Piece]):
    """What the source keeps for one pipeline: a replication slot, a change log with a mark, a retained binlog. Each
    call is short, bounded in time and safe to repeat. ``create``, ``origin``, ``copied`` and ``drop`` belong to the
    catalog side, ``start`` and ``confirm`` to the stream side. ``lag`` also works while this is closed."""

    slot: str | None = None
    """See ``ChangeCapture.slot``."""

    def keep_state(self, state: Storage) -> None:
        """See ``ChangeCapture.keep_state``."""

    def open(self) -> None:
        """Called by ``LogCapture.open``, before any other method except ``lag``."""

    def close(self) -> None:
        """Release the connections; whatever runs on them ends within seconds. Idempotent; ``open`` may follow."""

    @abstractmethod
    def find(self) -> P | None:
        """The position before which the source may have forgotten everything; None if there is no resume point."""

    @abstractmethod
    def identity(self) -> str:
        """Identifies this very database. Called only after ``find`` has found a resume point."""

    def take_over(self, known: str, position: P) -> P:  # noqa: ARG002
        """See ``ChangeCapture.take_over``."""
        raise SourceChangedError(f"the journal belongs to {known}, not to {self.identity()}")

    @abstractmethod
    def create(self, tables: Sequence[TableId]) -> P:
        """Create the resume point, or extend it to ``tables``; tables already in it stay. Idempotent. Returns its
        position."""

    @abstractmethod
    def origin(self, table: TableId, delivered: P | None) -> Mapping[str, Any]:
        """What the chunks of a copy of ``table`` pass to ``Session.consistent`` to get a bracket: the name of the log,
        or of an exported snapshot. The copy must include everything up to ``delivered``, the position up to which a
        stream has handed out changes. StateError for a table that was not prepared although it has to be."""

    def exact_at(self, origin: Mapping[str, Any]) -> P | None:  # noqa: ARG002
        """The single state that all reads with ``origin`` see while it exists; None if each read has its own."""
        return None

    def exactly(self, origin: Mapping[str, Any]) -> Mapping[str, Any] | None:  # noqa: ARG002
        """``origin`` for a read whose bracket must be exact; None if the source cannot guarantee that. A table without
        a key needs it: it is read in one chunk, and its rows do not show which changes they already include."""
        return None

    def beside(self) -> Mapping[str, Any] | None:
        """What a read that is not a copy passes to ``Session.consistent`` to get a bracket. Changes nothing. None if
        the source has no such read."""
        return None

    def copied(self, table: TableId) -> None:
        """See ``ChangeCapture.copied``: release what was kept open for ``origin``."""

    @abstractmethod
    def require(self, position: P) -> None:
        """PositionLostError if capture cannot go on strictly after ``position``."""

    @abstractmethod
    def start(self, after: P) -> LogReader[P, Piece]:
        """Read the log strictly after ``after``, on a connection of its own."""

    @abstractmethod
    def confirm(self, position: P) -> None:
        """Let the source forget everything up to ``position``. Never moves back. Called while no reader is open."""

    def ahead_bytes(self, low: P, high: P) -> int:  # noqa: ARG002
        """Approximate bytes of log between two positions; 0 if that is not known."""
        return 0

    def end(self) -> P | None:
        """See ``ChangeCapture.end``."""
        return None

    def lag(self, confirmed_at: float | None) -> Lag:  # noqa: ARG002
        """How far the confirmed position is behind the source. ``confirmed_at``: the commit time of the newest
        confirmed transaction (seconds since 1970, source's clock), if this process delivered it."""
        return Lag()

    @abstractmethod
    def drop(self) -> tuple[str, ...]:
        """Remove what ``create`` made. Returns the names of what was removed."""


def not_prepared() -> SourceSetupError:
    """The error for a stream that has no resume point to start from."""
    remedy = "Run `lakefeed sync`, which prepares it; if it was prepared, this is another database."
    return SourceSetupError("nothing is prepared in this database for the pipeline", remedy=remedy)


class Decoder(Protocol[P, Raw]):
    """Turns raw pieces into rows. Pure and total: no I/O, no catalog; any bytes give Arrow or a DecodeError. Each
    stream has its own decoder, which remembers what the log describes once and refers to later (table maps, relations).
    A value that its column cannot hold blocks that table with a notice, never the stream."""

    def decode(self, piece: Raw) -> Decoded[P]: ...


class SchemaFacts(Generic[P]):
    """What the catalog knows and the log does not contain. This default suits a log that describes its own tables.

    An implementation that finds something out beside the stream (a table that was dropped, a new column without a row
    so far) keeps it until the stream has passed the moment of that finding; then ``due`` returns it. ``discover``,
    ``snapshot`` and ``prepared`` belong to the catalog side; ``due``, ``delivered``, ``begins_again`` and ``rewind`` to
    the stream side."""

    def is_captured(self, table: TableId) -> bool:  # noqa: ARG002
        """Whether this pipeline delivers ``table``. If such a table must now be refused, ``due`` reports it, and
        discovery does not fail."""
        return False

    def discover(self, session: Session, choose: Choose) -> tuple[TableSchema, ...]:
        """The existing tables that ``choose`` selects. Differences from what was delivered become due later."""
        return tuple(one.schema for one in session.describe(choose(session.tables())).values())

    def snapshot(self, session: Session, table: TableId) -> tuple[DescribedTable, TableSchema] | None:
        """The table that a copy reads, and the schema that it is delivered with; that schema counts as delivered from
        now on. None if the table does not exist."""
        described = session.describe([table]).get(table)
        return None if described is None else (described, described.schema)

    def represent(self, choices: Choices) -> None:
        """See ``ChangeCapture.represent``."""

    def recall(self, schemas: Sequence[TableSchema]) -> None:
        """See ``ChangeCapture.recall``."""

    def expect(self, tables: Sequence[TableId]) -> None:
        """The pipeline resumes with these tables."""

    def prepared(self, tables: Sequence[TableId]) -> None:
        """``ResumePoint.create`` was called for these tables; their copies start now."""

    def unsent(self, table: TableId) -> str | None:  # noqa: ARG002
        """See ``ChangeCapture.unsent``."""
        return None

    def due(self, reached: P) -> Sequence[Announced]:  # noqa: ARG002
        """What to announce now that the stream has arrived at ``reached``; each finding once."""
        return ()

    def delivered(self, position: P) -> None:
        """Everything due so far has been handed out, in change sets that ended at ``position`` or before."""

    def begins_again(self) -> bool:
        """Whether the stream must reconnect at the same position because the log reports something only to a new
        connection. True once; asked when everything has been handed out."""
        return False

    def rewind(self, position: P) -> None:
        """A stream starts after ``position``: whatever was handed out there or later is due again."""
