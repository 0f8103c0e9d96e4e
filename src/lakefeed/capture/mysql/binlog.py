"""BinlogDecoder: turns events of the binlog into rows and announcements. Pure and total.

A transaction consists of everything from its GTID to its commit. Its end is the set of all GTIDs up to it, or an offset
in a file. An unknown event that could carry rows stops the stream with an error that names it.
"""

from __future__ import annotations

import re
import struct
import uuid
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from lakefeed.capture.fit import MisfitError
from lakefeed.capture.log import Announced, Decoded, Rows, Transaction
from lakefeed.capture.mysql import events
from lakefeed.capture.mysql.columns import Bytes, Ints, Mask, begin_with, gathered, padded
from lakefeed.capture.mysql.events import Effect, Place, Statement, read_statement
from lakefeed.capture.mysql.history import Gtid, LogPlace, StreamNotes
from lakefeed.capture.mysql.packets import Packets
from lakefeed.capture.mysql.rows import Lanes, Layout, TableMap, counts_years, decode_lanes, read_table_map
from lakefeed.capture.mysql.xa import Prepared, PreparedTransactions, Xid
from lakefeed.change.batch import Operation
from lakefeed.change.change_set import RecopyNeeded, TableBlocked, TableNotice
from lakefeed.change.mysql import MariadbGtid, MysqlBinlog, MysqlGtid
from lakefeed.change.table import TableId
from lakefeed.errors import CheckpointError, DecodeError

_STOPS = {events.INCIDENT: "an incident event (changes may be missing from it)", 164: "an encrypted part"}
_IGNORABLE = 0x80
_STANDALONE, _PREPARED_XA = 1, 64
_HEADER_BYTES = events.HEADER.size
_BLOCK, _FEW = 2_048, 16
"""How many events are classified together. Fewer than _FEW events of one table are handled singly, which is faster."""
_IS_ROW = np.isin(np.arange(256), (23, 24, 25, 30, 31, 32))
_OPERATIONS = np.array([events.ROWS.get(code, 0) for code in range(256)])


ROW_IMAGE = (
    "SET GLOBAL binlog_row_image = 'FULL'; then have applications reconnect, and run "
    "`lakefeed rebuild FILE {table} --from-source`."
)
PARTIAL_JSON = (
    "SET GLOBAL binlog_row_value_options = ''; then have applications reconnect, and run "
    "`lakefeed rebuild FILE {table} --from-source`."
)
_XID = re.compile(r"X'((?:[0-9A-Fa-f]{2})*)',X'((?:[0-9A-Fa-f]{2})*)',([0-9]{1,10})\b")


@dataclass(slots=True)
class Gulp:
    """The events of one buffer: their offsets and type codes and, for row events and table maps, the table number.

    ``first`` is where the rows of an event begin, ``owners`` the transaction they belong to; -1 while not known.
    ``is_regular``: the event needs no individual handling. ``has_offsets``: positions are offsets in a file. ``tail``
    is the size of a checksum; ``ends`` excludes it as soon as the event has an owner."""

    data: bytes
    view: Bytes
    starts: Ints
    ends: Ints
    codes: Bytes
    numbers: Ints
    first: Ints
    owners: Ints
    is_regular: Mask
    is_inner: bool
    has_offsets: bool
    tail: int = 0

    @classmethod
    def of(cls, data: bytes, starts: Ints, ends: Ints, *, is_inner: bool, has_offsets: bool) -> Gulp:
        view, unknown = padded(data, int(ends[-1])), np.full(len(starts), -1, np.int64)
        numbers = gathered(view, starts + _HEADER_BYTES, "<i8") & 0xFFFF_FFFF_FFFF
        codes, is_regular = view[starts + 4], np.zeros(len(starts), bool)
        return cls(
            data, view, starts, ends.copy(), codes, numbers, unknown, unknown.copy(), is_regular, is_inner,
            has_offsets and not is_inner,
        )  # fmt: skip


class Resolved(NamedTuple):
    """What a table map means: a layout, or None for a table that is not captured; and what to announce."""

    layout: Layout | None
    announced: Announced = Announced()


@dataclass(frozen=True, slots=True)
class BinlogPiece:
    """Packets of a stream that delivers what comes after ``after``. The stream may start earlier, after ``begin``: it
    reads that part, which has been delivered, again for the XA transactions in it. ``place`` is where the piece
    ends."""

    after: Gtid
    packets: Packets | None = None
    begin: Gtid | None = None
    place: LogPlace | None = None


class BinlogDecoder:
    """See ``capture.log.Decoder``. ``resolve`` says what a table map means, ``apply`` what a statement does to captured
    tables; neither does any I/O."""

    def __init__(
        self,
        resolve: Callable[[TableMap], Resolved],
        apply: Callable[[Statement], Announced],
        is_captured: Callable[[TableId], bool],
        prepared: PreparedTransactions | None = None,
        notes: StreamNotes | None = None,
        *,
        before_images: bool = False,
    ) -> None:
        self._resolve, self._apply, self._is_captured = resolve, apply, is_captured
        self._before_images = before_images
        self._prepared, self._notes = prepared or PreparedTransactions(), notes or StreamNotes()
        self._position: Gtid = MysqlGtid("")  # all transactions up to here have been delivered
        self._has_begun = False
        self._again: Gtid | None = None  # how far a delivered part has been read again, while that lasts
        self._place = Place()
        self._maps: dict[int, tuple[bytes, Layout | None, TableId]] = {}
        self._gtid: Any = None  # arguments of ``Gtid.including`` for the open transaction: origin and number, say
        self._id: str | None = None
        self._time_us = 0
        self._in_group = self._is_skipped = False
        self._xa: Prepared | None = None
        self._heads: dict[tuple[int, int], tuple[Layout, bytes]] = {}  # of row events, by table number and type code
        self._touched: set[int] = set()  # table numbers in the open transaction
        self._index: int | None = None
        self._has_checksums = self._counts_years = False
        self._is_changed = False  # whether the classification of the block may have become wrong
        self._made: Decoded[Any] = Decoded()

    def decode(self, piece: BinlogPiece) -> Decoded[Any]:
        """DecodeError if the bytes are not events that a server sends."""
        if not self._has_begun:
            self._has_begun, self._position = True, piece.after
            if piece.begin is not None and piece.begin != piece.after:
                self._again = piece.begin
        made = self._made = Decoded(continues=self._index is not None)
        if self._index is not None:
            made.transactions.append(Transaction(self._position, self._time_us, self._id))
            self._index = 0
        if piece.packets is not None:
            packets = piece.packets
            try:
                self._events(packets.data, packets.starts + 1, packets.ends)
            except (struct.error, IndexError, OverflowError, zlib.error, pa.ArrowException) as error:
                raise DecodeError(f"an event of the binlog cannot be read ({type(error).__name__}: {error})") from error
        made.open = self._index is not None
        made.reached = None if made.open else self._position
        if piece.place is not None and not made.open:
            self._notes.note(self._position, piece.place)
        return made

    def _events(self, data: bytes, starts: Ints, ends: Ints, *, inner: bool = False) -> None:
        """``inner``: events from a compressed one, which have no checksums and no offsets of their own."""
        if not len(starts):
            return
        gulp = Gulp.of(data, starts, ends, is_inner=inner, has_offsets=isinstance(self._position, MysqlBinlog))
        for low in range(0, len(starts), _BLOCK):
            high = min(low + _BLOCK, len(starts))
            gulp.tail = 4 if self._has_checksums and not inner else 0
            counts = self._regular(gulp, low, high)
            self._is_changed, at = False, low
            for index in [*(np.flatnonzero(~gulp.is_regular[low:high]) + low).tolist(), high]:
                if counts[index - low] > counts[at - low] or self._xa is not None:
                    self._take(gulp, at, index)
                if index < high:
                    self._event(gulp, index)
                at = index + 1
                if self._is_changed:
                    break
            for index in range(at, high):
                self._event(gulp, index)
            if gulp.has_offsets:
                self._move(gulp, high - 1)  # a regular event: its header has only 32 bits, so no wrap may be missed
        self._flush(gulp)

    def _regular(self, gulp: Gulp, low: int, high: int) -> list[int]:
        """Find the events that need no individual handling: table maps that repeat what is known, and row events whose
        head is the same as that of an earlier one of their table. Returns, for each event, how many such row events
        precede it."""
        starts, ends = gulp.starts[low:high], gulp.ends[low:high] - gulp.tail
        codes, numbers, body = gulp.codes[low:high], gulp.numbers[low:high], starts + events.HEADER.size + 8
        regular, first = gulp.is_regular[low:high], gulp.first[low:high]
        is_map, is_row = codes == events.TABLE_MAP, _IS_ROW[codes] & (body <= ends)
        members = np.flatnonzero(is_map | is_row)
        members = members[np.argsort(numbers[members], kind="stable")]
        edges = np.flatnonzero(np.diff(numbers[members])) + 1
        for one in np.split(members, edges) if len(members) >= _FEW else ():
            known = self._maps.get(int(numbers[one[0]])) if len(one) >= _FEW else None
            if known is None or (known[1] is not None) != self._is_captured(known[2]):
                continue  # the table was prepared or dropped since
            raw, layout, _ = known
            maps, rows = one[is_map[one]], one[is_row[one]]
            if np.any(ends[maps] - body[maps] != len(raw)) or not begin_with(gulp.view, body[maps], raw).all():
                continue
            regular[maps] = True
            if layout is None:
                regular[rows] = True
                continue
            for code in np.unique(codes[rows]).tolist():
                head = self._heads.get((int(numbers[one[0]]), code))
                if head is not None and head[0] is layout:
                    alike = rows[codes[rows] == code]
                    alike = alike[body[alike] + len(head[1]) <= ends[alike]]
                    alike = alike[begin_with(gulp.view, body[alike], head[1])]
                    regular[alike], first[alike] = True, body[alike] + len(head[1])
        return [0, *np.cumsum(first >= 0).tolist()]

    def _take(self, gulp: Gulp, low: int, high: int) -> None:
        """Take in regular events, whose rows belong to the open transaction."""
        if self._xa is not None:
            for index in range(low, high):
                if gulp.codes[index] != events.TABLE_MAP:
                    self._rows(gulp, index)
        elif not self._is_skipped:
            gulp.owners[low:high] = self._transaction()
            gulp.ends[low:high] -= gulp.tail

    def _move(self, gulp: Gulp, index: int) -> None:
        at = int(gulp.starts[index])
        offset = events.HEADER.unpack_from(gulp.data, at)[4]
        self._place.move(gulp.data, at, int(gulp.ends[index]), int(gulp.codes[index]), offset)

    def _event(self, gulp: Gulp, index: int) -> None:
        data, at, whole = gulp.data, int(gulp.starts[index]), int(gulp.ends[index])
        end = whole - 4 if self._has_checksums and not gulp.is_inner else whole
        if end - at < events.HEADER.size:
            raise DecodeError("an event of the binlog is shorter than its header")
        code, body = data[at + 4], at + events.HEADER.size
        if gulp.has_offsets or (code == events.ROTATE and not gulp.is_inner):
            self._move(gulp, index)
        if code == events.TABLE_MAP:
            self._table_map(gulp, body, end)
        elif code in (30, 31, 32, 23, 24, 25, events.PARTIAL):
            self._rows(gulp, index)
        elif code == events.FORMAT:
            self._has_checksums, self._is_changed = data[whole - 5] == 1, True
            self._counts_years = counts_years(data[body + 2 : body + 52])
        elif code == events.XID:
            self._commit()
        elif code == events.XA_PREPARE:
            self._prepare(gulp, body)
        elif code in (events.QUERY, events.EXECUTE_LOAD, events.QUERY_COMPRESSED):
            length, status = data[body + 8], struct.unpack_from("<H", data, body + 11)[0]
            text = body + 13 + (13 if code == events.EXECUTE_LOAD else 0) + status + length + 1
            sql = events.inflated(data[text:end]) if code == events.QUERY_COMPRESSED else data[text:end]
            schema = data[text - length - 1 : text - 1].decode(errors="replace")
            self._statement(gulp, sql.decode(errors="replace"), schema)
        elif code in (events.GTID, events.ANONYMOUS, events.TAGGED, events.MARIADB_GTID):
            when, _, server, *_ = events.HEADER.unpack_from(data, at)
            self._begin(gulp, code, when, server, body, end)
        elif code in (*events.PLAIN_OF, events.PAYLOAD):
            self._flush(gulp)
            if code == events.PAYLOAD:
                packed, edges = events.transaction_payload(data, body, end)
            else:  # the head of the event is not compressed; the rows after it are
                _, _, first = events.columns_present(data, code, body)
                head = data[at : at + 4] + bytes([events.PLAIN_OF[code]]) + data[at + 5 : first]
                packed = head + events.inflated(data[first:end])
                edges = [0, len(packed)]
            self._events(packed, np.array(edges[:-1], np.int64), np.array(edges[1:], np.int64), inner=True)
        elif code not in events.HARMLESS and not events.HEADER.unpack_from(data, at)[5] & _IGNORABLE:
            name = _STOPS.get(code, f"an event of the kind {code}")
            at_end = f"{self._place.name}:{events.HEADER.unpack_from(data, at)[4]}"
            raise DecodeError(
                f"the binlog event that ends at {at_end} is {name}, which is not supported", remedy=_REMEDY
            )
        if gulp.has_offsets and self._gtid is None and self._place.name and (here := self._here()) > self._position:
            self._position = here  # an idle server still rotates its files, and purges old ones

    def _here(self) -> MysqlBinlog:
        try:
            return MysqlBinlog(self._place.name, self._place.offset)
        except CheckpointError as error:
            raise DecodeError(f"the binlog has no file {self._place}") from error

    def _begin(self, gulp: Gulp, code: int, when: int, server: int, body: int, end: int) -> None:
        """A GTID begins a transaction. MySQL gives its commit time in microseconds, MariaDB in seconds."""
        data, position = gulp.data, self._position
        self._time_us, self._touched, self._in_group, self._xa = when * 1_000_000, set(), False, None
        if (code == events.MARIADB_GTID) != isinstance(position, MariadbGtid):
            raise DecodeError("the binlog has a GTID of the other kind of server")
        if code == events.MARIADB_GTID:
            sequence, domain, flags = struct.unpack_from("<QIB", data, body)
            self._gtid, self._id = (domain, server, sequence), f"{domain}-{server}-{sequence}"
            self._in_group = not flags & _STANDALONE
            if flags & _PREPARED_XA:
                self._flush(gulp)
                self._xa = Prepared(self._again or self._position)
        elif code == events.TAGGED:
            origin, number, self._time_us = events.tagged_gtid(data, body, end)
            self._gtid, self._id = (origin, number), f"{':'.join(filter(None, origin))}:{number}"
        else:
            server_uuid, number = struct.unpack_from("<x16sQ", data, body)
            origin = (str(uuid.UUID(bytes=server_uuid)), "")
            self._gtid, self._id = (origin, number), f"{origin[0]}:{number}"
            if end - body >= 49 and data[body + 25] == 2:
                immediate = int.from_bytes(data[body + 42 : body + 49], "little")
                if immediate >> 55 and end - body >= 56:  # followed by the commit time on the original server
                    immediate = int.from_bytes(data[body + 49 : body + 56], "little")
                self._time_us = (immediate & ((1 << 55) - 1)) or self._time_us
        if isinstance(position, MysqlBinlog):
            self._gtid, self._id = (self._here(),), None if code == events.ANONYMOUS else self._id
        elif code == events.ANONYMOUS:
            raise DecodeError("the binlog has a transaction without a GTID", remedy=_ANONYMOUS_REMEDY)
        self._is_skipped = self._again is not None and position.has(*self._gtid)

    def _commit(self) -> None:
        """The end of a transaction: its changes count from here on."""
        if self._gtid is None:
            raise DecodeError("the binlog has the end of a transaction, but not its beginning", remedy=_REMEDY)
        one = (self._here(),) if isinstance(self._position, MysqlBinlog) else self._gtid
        if not self._is_skipped:
            self._position = self._position.including(*one)
        if self._again is not None:
            self._again = self._again.including(*one)
            if self._again >= self._position:
                self._again = None
                self._prepared.caught_up()
        if self._index is not None:
            self._made.transactions[self._index] = Transaction(self._position, self._time_us, self._id)
        self._gtid = self._index = self._xa = None
        self._in_group = self._is_skipped = False

    def _transaction(self) -> int:
        """The index of the open transaction, which has something for the lake."""
        if self._index is None:
            if self._gtid is None:
                raise DecodeError("the binlog has rows outside of a transaction")
            self._index = len(self._made.transactions)
            self._made.transactions.append(Transaction(self._position, self._time_us, self._id))
        return self._index

    def _table_map(self, gulp: Gulp, body: int, end: int) -> None:
        number = int.from_bytes(gulp.data[body : body + 6], "little")
        known, raw = self._maps.get(number), gulp.data[body + 8 : end]
        if known is not None and known[0] == raw and (known[1] is not None) == self._is_captured(known[2]):
            return  # otherwise the table was prepared or dropped since
        if self._is_skipped and self._xa is None:
            if self._notes.retyped:
                self._notes.retyped.pop(read_table_map(raw, counts_years=self._counts_years).table, None)
            return
        found = read_table_map(raw, counts_years=self._counts_years)
        self._flush(gulp)  # rows from before the announcement come first
        resolved = self._resolve(found)
        self._maps[number] = (raw, resolved.layout, found.table)
        self._announce(resolved.announced)

    def _rows(self, gulp: Gulp, index: int) -> None:
        number, code, body = int(gulp.numbers[index]), int(gulp.codes[index]), int(gulp.starts[index]) + _HEADER_BYTES
        end = int(gulp.ends[index]) - (4 if self._has_checksums and not gulp.is_inner else 0)
        if number == 0xFFFFFF or (self._is_skipped and self._xa is None):  # a dummy event ends a statement without rows
            return None
        if number not in self._maps:
            raise DecodeError(f"the binlog has rows of table {number} before its table map")
        _, layout, table = self._maps[number]
        if layout is None:
            if self._xa is not None:
                self._xa.left_out.add(table)
            return None
        if code == events.PARTIAL:
            reason = "the log has only parts of its JSON values (binlog_row_value_options = PARTIAL_JSON)"
            return self._block(gulp, table, reason, PARTIAL_JSON.format(table=table))
        width, bitmaps, first = events.columns_present(gulp.data, code, body)
        if width != len(layout.columns) or first > end:
            given = f"{width} columns instead of {len(layout.columns)}"
            raise DecodeError(f"the binlog has rows of {table} with {given}")
        if any(one != (1 << width) - 1 for one in bitmaps):
            reason = "its row events lack columns, because binlog_row_image is not FULL"
            return self._block(gulp, table, reason, ROW_IMAGE.format(table=table))
        self._heads[number, code] = (layout, gulp.data[body + 8 : first])
        gulp.first[index], gulp.ends[index] = first, end
        gulp.owners[index] = self._transaction() if self._xa is None else 0
        return None

    def _flush(self, gulp: Gulp) -> None:
        """Decode the collected rows, table by table: the more at once, the faster."""
        chosen = np.flatnonzero((gulp.owners >= 0) & (gulp.first >= 0))
        if not len(chosen):
            return
        numbers, first = gulp.numbers[chosen], gulp.first[chosen]
        part, take = (self._made, self._made.items.append) if self._xa is None else (self._xa, self._xa.add)
        origin, width = int(first[0]), part.width
        part.width += 2 * (int(gulp.ends[chosen[-1]]) - origin) + 2
        if self._index is not None:
            self._touched.update(np.unique(numbers[gulp.owners[chosen] == self._index]).tolist())
        for number in dict.fromkeys(numbers.tolist()):
            own = chosen[numbers == number]
            layout = self._maps[number][1]
            assert layout is not None  # noqa: S101  # rows of other tables are not collected
            operations, owners = _OPERATIONS[gulp.codes[own]], gulp.owners[own]
            lanes = Lanes(layout, gulp.first[own], gulp.ends[own], operations, owners, origin, width)
            try:
                take(decode_lanes(gulp.view, lanes, before_images=self._before_images))
            except MisfitError as error:
                self._notify(error.blocked(layout.schema.table))
        gulp.owners[chosen] = -1

    def _prepare(self, gulp: Gulp, body: int) -> None:
        """XA PREPARE: the rows since XA START wait for XA COMMIT. XA COMMIT ONE PHASE: they count at once."""
        data = gulp.data
        is_one_phase, form, first, second = struct.unpack_from("<BIII", data, body)
        at, xa = body + 13, self._xa
        self._flush(gulp)
        if xa is None:
            raise DecodeError("the binlog has an XA PREPARE without its XA START")
        if not is_one_phase:
            self._prepared.open[form, data[at : at + first], data[at + first : at + first + second]] = xa
        elif not self._is_skipped:
            self._deliver(xa)
        self._commit()

    def _deliver(self, xa: Prepared) -> None:
        """Deliver the rows of an XA transaction as part of the transaction that commits it."""
        reason = "a distributed transaction (XA) changed it before it was captured, and was committed later"
        late = sorted(filter(self._is_captured, xa.left_out))
        self._notify(*(RecopyNeeded(table, reason) for table in late))
        if xa.width:
            self._made.items.append(xa.rows(self._transaction(), self._made.width))
            self._made.width += xa.width

    def _statement(self, gulp: Gulp, sql: str, schema: str) -> None:
        statement = Statement(Effect.BEGIN) if sql == "BEGIN" else read_statement(sql, schema)
        effect = statement.effect
        if effect is Effect.BEGIN:
            self._in_group = True
            return None
        if effect is Effect.COMMIT:
            return self._commit()
        self._flush(gulp)
        self._is_changed = True
        if effect is Effect.XA_START:
            self._in_group, self._xa = True, Prepared(self._again or self._position)
        elif effect in (Effect.XA_COMMIT, Effect.XA_ROLLBACK):
            match = _XID.search(sql)
            if match is None:
                raise DecodeError("the binlog has the end of a distributed transaction without its name")
            xid: Xid = (int(match[3]), bytes.fromhex(match[1]), bytes.fromhex(match[2]))
            xa = self._prepared.open.get(xid)
            if effect is Effect.XA_COMMIT and not self._is_skipped:
                if xa is None:
                    self._announce(self._apply(statement))
                else:
                    self._deliver(xa)
            self._commit()
            self._prepared.end(xid, self._position)
            return None
        elif self._is_skipped:  # what it announces was delivered
            if effect is Effect.ALTER:
                self._apply(statement)
        elif effect in (Effect.ROLLBACK, Effect.ROLLBACK_TO):
            reason = "the log has changes of a transaction that was rolled back"
            self._notify(*(RecopyNeeded(one, reason) for one in sorted({self._maps[one][2] for one in self._touched})))
        elif effect is Effect.TRUNCATE:
            for table in filter(self._is_captured, statement.tables):
                # Search backwards: after an ALTER the table has a new number, and the old table map is still known.
                maps = reversed(self._maps.values())
                layout = next((one for _, one, _ in maps if one is not None and one.schema.table == table), None)
                if layout is None:  # no row of it has been seen yet
                    self._notify(RecopyNeeded(table, "it was emptied"))
                    continue
                empty = [pa.array([None], column.type) for column in layout.schema.columns]
                kinds, order = np.full(1, int(Operation.TRUNCATE), np.int8), np.full(1, self._made.width, np.int64)
                codes = np.full(1, self._transaction(), np.int32)
                self._made.items.append(Rows(layout.schema, empty, kinds, order, codes))
                self._made.width += 2
        elif effect is Effect.CHANGE:
            self._announce(self._apply(replace(statement, database=schema)))
        elif effect is not Effect.OTHER:
            self._announce(self._apply(statement))
        if effect is Effect.ROLLBACK or not self._in_group:
            self._commit()
        return None

    def _block(self, gulp: Gulp, table: TableId, reason: str, remedy: str) -> None:
        self._flush(gulp)  # earlier rows are still delivered
        self._notify(TableBlocked(table, reason, remedy))

    def _announce(self, announced: Announced) -> None:
        if announced.schemas or announced.notices:
            self._made.items.append(announced)

    def _notify(self, *notices: TableNotice) -> None:
        self._announce(Announced(notices=notices))


_ANONYMOUS_REMEDY = "SET GLOBAL gtid_mode = ON on the server, and copy every table again."
_REMEDY = (
    "Correct the server's settings as `lakefeed check` says, then move the pipeline's state directory away: every "
    "table is copied again."
)
