"""BinlogDecoder: events of the binlog → rows and announcements. Pure and total.

A transaction is everything between its GTID and its commit. Its end is the set of all GTIDs up to it, or its offset in
a file. An event that could carry rows and is not understood stops the stream with its name.
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
from lakefeed.capture.mysql.columns import Bytes, padded
from lakefeed.capture.mysql.events import Effect, Place, Statement, read_statement
from lakefeed.capture.mysql.history import Gtid, LogPlace, LogPlaces
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


ROW_IMAGE = (
    "SET GLOBAL binlog_row_image = 'FULL'; then let applications connect again, and run "
    "`lakefeed rebuild FILE {table} --from-source`."
)
PARTIAL_JSON = (
    "SET GLOBAL binlog_row_value_options = ''; then let applications connect again, and run "
    "`lakefeed rebuild FILE {table} --from-source`."
)
_XID = re.compile(r"X'((?:[0-9A-Fa-f]{2})*)',X'((?:[0-9A-Fa-f]{2})*)',([0-9]{1,10})\b")


class Resolved(NamedTuple):
    """What a table map means: a layout, None for a table that is not captured; and what is to be announced."""

    layout: Layout | None
    announced: Announced = Announced()


@dataclass(frozen=True, slots=True)
class BinlogPiece:
    """Packets of a stream that delivers what comes after ``after``. It may have begun earlier, after ``begin``: what
    lies between was delivered, and is read again for the distributed transactions in it. ``place`` is its end."""

    after: Gtid
    packets: Packets | None = None
    begin: Gtid | None = None
    place: LogPlace | None = None


class BinlogDecoder:
    """See ``capture.log.Decoder``. ``resolve`` says what a table map means and ``apply`` what a statement does to
    captured tables; neither asks anybody."""

    def __init__(
        self,
        resolve: Callable[[TableMap], Resolved],
        apply: Callable[[Statement], Announced],
        is_captured: Callable[[TableId], bool],
        prepared: PreparedTransactions | None = None,
        places: LogPlaces | None = None,
        *,
        before_images: bool = False,
    ) -> None:
        self._resolve, self._apply, self._is_captured = resolve, apply, is_captured
        self._before_images = before_images
        self._prepared, self._places = prepared or PreparedTransactions(), places or LogPlaces()
        self._position: Gtid = MysqlGtid("")  # all transactions up to here
        self._has_begun = False
        self._again: Gtid | None = None  # how far it has come, while what was delivered before is read again
        self._place = Place()
        self._maps: dict[int, tuple[bytes, Layout | None, TableId]] = {}
        self._gtid: Any = None  # what the kind of position takes for one transaction: origin and number, say
        self._id: str | None = None
        self._time_us = 0
        self._in_group = self._is_skipped = False
        self._xa: Prepared | None = None
        self._heads: dict[tuple[int, int], tuple[Layout, bytes]] = {}  # of row events, by table and kind
        self._touched: set[int] = set()
        self._index: int | None = None
        self._has_checksums = self._counts_years = False
        self._data = b""
        self._view: Bytes | None = None
        self._pending: dict[int, Lanes] = {}
        self._made: Decoded[Any] = Decoded()

    def decode(self, piece: BinlogPiece) -> Decoded[Any]:
        """DecodeError if the events are not what a server sends."""
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
                self._events(packets.data, [(a + 1, b) for a, b in zip(packets.starts, packets.ends, strict=True)])
            except (struct.error, IndexError, OverflowError, zlib.error, pa.ArrowException) as error:
                raise DecodeError(f"an event of the binlog cannot be read ({type(error).__name__}: {error})") from error
        made.open = self._index is not None
        made.reached = None if made.open else self._position
        if piece.place is not None and not made.open:
            self._places.note(self._position, piece.place)
        return made

    def _events(self, data: bytes, spans: list[tuple[int, int]], *, inner: bool = False) -> None:
        """``inner``: what was compressed has no checksums and no offsets of its own."""
        self._data, self._view = data, None
        by_file = isinstance(self._position, MysqlBinlog) and not inner
        for at, whole in spans:
            end = whole - 4 if self._has_checksums and not inner else whole
            if end - at < events.HEADER.size:
                raise DecodeError("an event of the binlog is shorter than its header")
            code, body = data[at + 4], at + events.HEADER.size
            if by_file or (code == events.ROTATE and not inner):
                self._place.move(data, at, whole, code, events.HEADER.unpack_from(data, at)[4])
            if code == events.TABLE_MAP:
                self._table_map(data, body, end)
            elif code in (30, 31, 32, 23, 24, 25, events.PARTIAL):
                self._rows(data, code, body, end)
            elif code == events.FORMAT:
                self._has_checksums = data[whole - 5] == 1
                self._counts_years = counts_years(data[body + 2 : body + 52])
            elif code == events.XID:
                self._commit()
            elif code == events.XA_PREPARE:
                self._prepare(data, body)
            elif code in (events.QUERY, events.EXECUTE_LOAD, events.QUERY_COMPRESSED):
                length, status = data[body + 8], struct.unpack_from("<H", data, body + 11)[0]
                text = body + 13 + (13 if code == events.EXECUTE_LOAD else 0) + status + length + 1
                sql = events.inflated(data[text:end]) if code == events.QUERY_COMPRESSED else data[text:end]
                schema = data[text - length - 1 : text - 1].decode(errors="replace")
                self._statement(sql.decode(errors="replace"), schema)
            elif code in (events.GTID, events.ANONYMOUS, events.TAGGED, events.MARIADB_GTID):
                when, _, server, *_ = events.HEADER.unpack_from(data, at)
                self._begin(data, code, when, server, body, end)
            elif code in (*events.PLAIN_OF, events.PAYLOAD):
                self._flush()
                if code == events.PAYLOAD:
                    packed, inside = events.transaction_payload(data, body, end)
                else:  # the head of the event as it is, and the rows behind it
                    _, _, first = events.columns_present(data, code, body)
                    head = data[at : at + 4] + bytes([events.PLAIN_OF[code]]) + data[at + 5 : first]
                    packed = head + events.inflated(data[first:end])
                    inside = [(0, len(packed))]
                self._events(packed, inside, inner=True)
                self._data, self._view = data, None
            elif code not in events.HARMLESS and not events.HEADER.unpack_from(data, at)[5] & _IGNORABLE:
                name = _STOPS.get(code, f"an event of the kind {code}")
                place = f"{self._place.name}:{events.HEADER.unpack_from(data, at)[4]}"  # where it ends
                raise DecodeError(f"the binlog has {name} at {place}, which is not understood", remedy=_REMEDY)
            if by_file and self._gtid is None and self._place.name and (here := self._here()) > self._position:
                self._position = here  # an idle source rotates its files, and purges them
        self._flush()

    def _here(self) -> MysqlBinlog:
        try:
            return MysqlBinlog(self._place.name, self._place.offset)
        except CheckpointError as error:
            raise DecodeError(f"the binlog has no file {self._place}") from error

    def _begin(self, data: bytes, code: int, when: int, server: int, body: int, end: int) -> None:
        """A GTID begins a transaction. MySQL tells its commit in microseconds, MariaDB in seconds."""
        position = self._position
        self._time_us, self._touched, self._in_group, self._xa = when * 1_000_000, set(), False, None
        if (code == events.MARIADB_GTID) != isinstance(position, MariadbGtid):
            raise DecodeError("the binlog has a GTID of another kind of server")
        if code == events.MARIADB_GTID:
            sequence, domain, flags = struct.unpack_from("<QIB", data, body)
            self._gtid, self._id = (domain, server, sequence), f"{domain}-{server}-{sequence}"
            self._in_group = not flags & _STANDALONE
            if flags & _PREPARED_XA:
                self._flush()
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
                if immediate >> 55 and end - body >= 56:  # the original server's own time follows
                    immediate = int.from_bytes(data[body + 49 : body + 56], "little")
                self._time_us = (immediate & ((1 << 55) - 1)) or self._time_us
        if isinstance(position, MysqlBinlog):
            self._gtid, self._id = (self._here(),), None if code == events.ANONYMOUS else self._id
        elif code == events.ANONYMOUS:
            raise DecodeError("the binlog has a transaction without a GTID", remedy=_ANONYMOUS_REMEDY)
        self._is_skipped = self._again is not None and position.has(*self._gtid)

    def _commit(self) -> None:
        """The end of a transaction: what came with it counts from here on."""
        if self._gtid is None:
            raise DecodeError("the binlog has the end of a transaction without its beginning", remedy=_REMEDY)
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
        """The index of the transaction that is open, which has something for the lake."""
        if self._index is None:
            if self._gtid is None:
                raise DecodeError("the binlog has rows outside of a transaction")
            self._index = len(self._made.transactions)
            self._made.transactions.append(Transaction(self._position, self._time_us, self._id))
        return self._index

    def _table_map(self, data: bytes, body: int, end: int) -> None:
        number = int.from_bytes(data[body : body + 6], "little")
        known = self._maps.get(number)
        if (
            known is not None
            and len(known[0]) == end - body - 8
            and data.startswith(known[0], body + 8)
            and (known[1] is not None) == self._is_captured(known[2])
        ):
            return  # else it was prepared or dropped since
        if self._is_skipped and self._xa is None:
            return
        raw = data[body + 8 : end]
        found = read_table_map(raw, counts_years=self._counts_years)
        self._flush()  # what is announced comes behind the rows from before it
        resolved = self._resolve(found)
        self._maps[number] = (raw, resolved.layout, found.table)
        self._announce(resolved.announced)

    def _rows(self, data: bytes, code: int, body: int, end: int) -> None:
        number = int.from_bytes(data[body : body + 6], "little")
        if number == 0xFFFFFF or (self._is_skipped and self._xa is None):  # the end of a statement without rows
            return None
        if number not in self._maps:
            raise DecodeError(f"the binlog has rows of table {number} before its description")
        _, layout, table = self._maps[number]
        if layout is None:
            if self._xa is not None:
                self._xa.left_out.add(table)
            return None
        self._touched.add(number)
        head = self._heads.get((number, code))
        if head is not None and head[0] is layout and data.startswith(head[1], body + 8):
            first = body + 8 + len(head[1])  # as the last one of this table, so all its columns are there
            if first > end:
                raise DecodeError(f"the binlog has an event of {table} that ends too early")
        elif code == events.PARTIAL:
            reason = "the log has only parts of its JSON values (binlog_row_value_options = PARTIAL_JSON)"
            return self._block(table, reason, PARTIAL_JSON.format(table=table))
        else:
            width, bitmaps, first = events.columns_present(data, code, body)
            if width != len(layout.columns) or first > end:
                given = f"{width} columns instead of {len(layout.columns)}"
                raise DecodeError(f"the binlog has rows of {table} with {given}")
            if any(one != (1 << width) - 1 for one in bitmaps):
                reason = "the log leaves out columns of its rows, because binlog_row_image is not FULL"
                return self._block(table, reason, ROW_IMAGE.format(table=table))
            self._heads[number, code] = (layout, data[body + 8 : first])
        lanes = self._pending.get(number)
        if lanes is None or lanes.layout is not layout:
            lanes = self._pending[number] = Lanes(layout, [], [], [], [], [])
        part = self._made if self._xa is None else self._xa
        lanes.starts.append(first)
        lanes.ends.append(end)
        lanes.operations.append(events.ROWS[code])
        lanes.transactions.append(self._transaction() if self._xa is None else 0)
        lanes.shifts.append(part.width // 2 - first)
        part.width += 2 * (end - first) + 2
        return None

    def _flush(self) -> None:
        """Decode the rows that were gathered, table by table: the more at once, the faster."""
        pending, self._pending = self._pending, {}
        if pending and self._view is None:
            self._view = padded(self._data)
        data, take = self._view, self._made.items.append if self._xa is None else self._xa.add
        for lanes in pending.values():
            try:
                assert data is not None  # noqa: S101  # something is pending
                take(decode_lanes(data, lanes, before_images=self._before_images))
            except MisfitError as error:
                self._notify(error.blocked(lanes.layout.schema.table))

    def _prepare(self, data: bytes, body: int) -> None:
        """XA PREPARE: the rows since XA START wait from here on. XA COMMIT ONE PHASE: they count at once."""
        is_one_phase, form, first, second = struct.unpack_from("<BIII", data, body)
        at, xa = body + 13, self._xa
        self._flush()
        if xa is None:
            raise DecodeError("the binlog has an XA PREPARE without its XA START")
        if not is_one_phase:
            self._prepared.open[form, data[at : at + first], data[at + first : at + first + second]] = xa
        elif not self._is_skipped:
            self._deliver(xa)
        self._commit()

    def _deliver(self, xa: Prepared) -> None:
        """The rows of a distributed transaction, as those of the one that ends it."""
        reason = "a distributed transaction (XA) changed it before it was captured, and was committed later"
        late = sorted(filter(self._is_captured, xa.left_out))
        self._notify(*(RecopyNeeded(table, reason) for table in late))
        if xa.width:
            self._made.items.append(xa.rows(self._transaction(), self._made.width))
            self._made.width += xa.width

    def _statement(self, sql: str, schema: str) -> None:
        statement = Statement(Effect.BEGIN) if sql == "BEGIN" else read_statement(sql, schema)
        effect = statement.effect
        if effect is Effect.BEGIN:
            self._in_group = True
            return None
        if effect is Effect.COMMIT:
            return self._commit()
        self._flush()
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
        elif self._is_skipped:
            pass
        elif effect in (Effect.ROLLBACK, Effect.ROLLBACK_TO):
            reason = "a transaction was rolled back whose changes are in the log"
            self._notify(*(RecopyNeeded(one, reason) for one in sorted({self._maps[one][2] for one in self._touched})))
        elif effect is Effect.TRUNCATE:
            for table in filter(self._is_captured, statement.tables):
                layouts = (one for _, one, _ in self._maps.values() if one is not None and one.schema.table == table)
                layout = next(layouts, None)
                if layout is None:  # no row of it has come yet
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

    def _block(self, table: TableId, reason: str, remedy: str) -> None:
        self._flush()  # rows from before it are delivered
        self._notify(TableBlocked(table, reason, remedy))

    def _announce(self, announced: Announced) -> None:
        if announced.schemas or announced.notices:
            self._made.items.append(announced)

    def _notify(self, *notices: TableNotice) -> None:
        self._announce(Announced(notices=notices))


_ANONYMOUS_REMEDY = "SET GLOBAL gtid_mode = ON on the server, and copy every table again."
_REMEDY = (
    "Correct the server's setting as `lakefeed check` tells, then move the pipeline's state directory away: every "
    "table is copied again."
)
