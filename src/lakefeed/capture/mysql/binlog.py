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
from lakefeed.capture.mysql.columns import Bytes, ZeroDates, padded
from lakefeed.capture.mysql.history import Gtid
from lakefeed.capture.mysql.packets import Packets
from lakefeed.capture.mysql.rows import (
    DELETE,
    UPDATE,
    WRITE,
    Lanes,
    Layout,
    TableMap,
    counts_years,
    decode_lanes,
    read_table_map,
)
from lakefeed.capture.mysql.statement import Effect, Statement, read_statement
from lakefeed.capture.mysql.xa import Prepared, PreparedTransactions, Xid
from lakefeed.change.batch import Operation
from lakefeed.change.change_set import RecopyNeeded, TableBlocked
from lakefeed.change.mysql import Interval, MariadbGtid, MysqlBinlog, MysqlGtid, Origin
from lakefeed.change.table import TableId
from lakefeed.errors import CheckpointError, DecodeError

HEADER = struct.Struct("<IBIIIH")
QUERY, ROTATE, FORMAT, XID, TABLE_MAP, HEARTBEAT = 2, 4, 15, 16, 19, 27
_INCIDENT, _EXECUTE_LOAD, _GTID, _ANONYMOUS, _XA_PREPARE, _PARTIAL, _PAYLOAD, _TAGGED = 26, 18, 33, 34, 38, 39, 40, 42
_MARIADB_GTID, _QUERY_COMPRESSED = 162, 165
_ROWS = {
    23: WRITE, 24: UPDATE, 25: DELETE, 30: WRITE, 31: UPDATE, 32: DELETE,
    166: WRITE, 167: UPDATE, 168: DELETE, 169: WRITE, 170: UPDATE, 171: DELETE,
}  # fmt: skip
_WITH_EXTRA = (30, 31, 32, 169, 170, 171)
_PLAIN_OF = {166: 23, 167: 24, 168: 25, 169: 30, 170: 31, 171: 32}
_HARMLESS = {
    0, 3, 5, 9, 11, 13, 14, 17, 28, 29, 35, 36, 37, 41, 160, 161, 163, ROTATE, FORMAT, HEARTBEAT,
}  # fmt: skip
"""Stop, variables of a statement, files of LOAD DATA, comments, previous GTIDs, views of a group, checkpoints."""
_STOPS = {_INCIDENT: "an incident event (changes may be missing from it)", 164: "an encrypted part"}
_IGNORABLE = 0x80
_STANDALONE, _PREPARED_XA = 1, 64
_ZSTD, _STORED = 0, 255

ROW_IMAGE = (
    "SET GLOBAL binlog_row_image = 'FULL'; then let applications connect again, and run "
    "`lakefeed rebuild FILE {table} --from-source`."
)
PARTIAL_JSON = (
    "SET GLOBAL binlog_row_value_options = ''; then let applications connect again, and run "
    "`lakefeed rebuild FILE {table} --from-source`."
)
_FILE = re.compile(rb"[^\x00-\x1f/\\]+\.([0-9]{6,10})")
_XID = re.compile(r"X'((?:[0-9A-Fa-f]{2})*)',X'((?:[0-9A-Fa-f]{2})*)',([0-9]{1,10})\b")


class Resolved(NamedTuple):
    """What a table map means: a layout, None for a table that is not captured; and what is to be announced."""

    layout: Layout | None
    announced: Announced = Announced()


@dataclass(frozen=True, slots=True)
class BinlogPiece:
    """Packets of a stream that delivers what comes after ``after``. It may have begun earlier, after ``begin``: what
    lies between was delivered, and is read again for the distributed transactions in it."""

    after: Gtid
    packets: Packets | None = None
    begin: Gtid | None = None


@dataclass(slots=True)
class Place:
    """Where in the server's log a stream is: a file, its number, and the offset behind the newest event."""

    name: str = ""
    number: int = 0
    offset: int = 0

    def move(self, data: bytes, at: int, end: int, code: int, offset: int) -> None:
        """Behind the event in ``data[at:end]``, whose header says ``offset``: 32 bits of it, or 0."""
        if code == ROTATE:
            # Some of these events end in a checksum, whose bytes must not become part of the name (T16).
            is_summed = zlib.crc32(memoryview(data)[at : end - 4]) == int.from_bytes(data[end - 4 : end], "little")
            match = _FILE.fullmatch(data, at + HEADER.size + 8, end - 4 if is_summed else end)
            if match is None:
                raise DecodeError("the binlog rotates to a file without a name")
            self.name, self.number = match[0].decode(errors="replace"), int(match[1])
            (self.offset,) = struct.unpack_from("<Q", data, at + HEADER.size)
        elif offset:
            wraps = offset < self.offset & 0xFFFF_FFFF and code != FORMAT
            self.offset = (self.offset >> 32 << 32) + offset + (wraps << 32)

    def __str__(self) -> str:
        return f"{self.name}:{self.offset}"


class Executed:
    """The transactions up to here: grows by one with each commit, and gives the position. One is known by its origin
    and number (MySQL), by domain, server and sequence (MariaDB), or by where it is in the log."""

    def __init__(self, after: Gtid) -> None:
        self.position = after
        self._domains: dict[int, tuple[int, int]] = {}
        self._sets: dict[Origin, list[Interval]] = {}
        if isinstance(after, MysqlGtid):
            self._sets = {origin: list(intervals) for origin, intervals in after.intervals}
        elif isinstance(after, MariadbGtid):
            self._domains = {domain: (server, sequence) for domain, server, sequence in after.domains}

    def has(self, one: Any) -> bool:
        if isinstance(self.position, MysqlGtid):
            return any(low <= one[1] <= high for low, high in self._sets.get(one[0], ()))
        if isinstance(self.position, MariadbGtid):
            return bool(one[2] <= self._domains.get(one[0], (0, -1))[1])
        return bool(one <= self.position)

    def add(self, one: Any) -> None:
        if isinstance(self.position, MysqlBinlog):
            self.position = one
        elif isinstance(self.position, MariadbGtid):
            domain, *rest = one
            self._domains[domain] = (rest[0], rest[1])
            self.position = MariadbGtid.of((domain, *rest) for domain, rest in self._domains.items())
        else:
            origin, number = one
            intervals = self._sets.setdefault(origin, [])
            if intervals and intervals[-1][1] + 1 == number:
                intervals[-1] = (intervals[-1][0], number)
            elif not self.has(one):
                found = MysqlGtid.of(((origin, (*intervals, (number, number))),)).union(MysqlGtid(""))
                self._sets[origin] = list(found.intervals[0][1])
            self.position = MysqlGtid.of(tuple((origin, tuple(self._sets[origin])) for origin in sorted(self._sets)))


class BinlogDecoder:
    """See ``capture.log.Decoder``. ``resolve`` says what a table map means and ``apply`` what a statement does to
    captured tables; neither asks anybody."""

    def __init__(
        self,
        resolve: Callable[[TableMap], Resolved],
        apply: Callable[[Statement], Announced],
        is_captured: Callable[[TableId], bool],
        prepared: PreparedTransactions | None = None,
        *,
        zero_dates: ZeroDates = ZeroDates.STOP,
        before_images: bool = False,
    ) -> None:
        self._resolve, self._apply, self._is_captured = resolve, apply, is_captured
        self._zero_dates, self._before_images = zero_dates, before_images
        self._prepared = prepared or PreparedTransactions()
        self._executed = Executed(MysqlGtid(""))
        self._has_begun = False
        self._again: Executed | None = None  # what was delivered before, while it is read again
        self._place = Place()
        self._maps: dict[int, tuple[bytes, Layout | None, TableId]] = {}
        self._gtid: Any = None
        self._id: str | None = None
        self._time_us = 0
        self._in_group = self._is_skipped = False
        self._xa: Prepared | None = None
        self._touched: set[TableId] = set()
        self._index: int | None = None
        self._has_checksums = self._counts_years = False
        self._data = b""
        self._view: Bytes | None = None
        self._pending: dict[int, Lanes] = {}
        self._made: Decoded[Any] = Decoded()

    def decode(self, piece: BinlogPiece) -> Decoded[Any]:
        """DecodeError if the events are not what a server sends."""
        if not self._has_begun:
            self._has_begun, self._executed = True, Executed(piece.after)
            if piece.begin is not None and piece.begin != piece.after:
                self._again = Executed(piece.begin)
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
        return made

    @property
    def _position(self) -> Gtid:
        return self._executed.position

    def _events(self, data: bytes, spans: list[tuple[int, int]], *, inner: bool = False) -> None:
        """``inner``: what was compressed has no checksums and no offsets of its own."""
        self._data, self._view = data, None
        by_file = isinstance(self._position, MysqlBinlog) and not inner
        for at, whole in spans:
            end = whole - 4 if self._has_checksums and not inner else whole
            if end - at < HEADER.size:
                raise DecodeError("an event of the binlog is shorter than its header")
            when, code, server, _, offset, flags = HEADER.unpack_from(data, at)
            body = at + HEADER.size
            if by_file:
                self._place.move(data, at, whole, code, offset)
            if code == FORMAT:
                self._has_checksums = data[whole - 5] == 1
                self._counts_years = counts_years(data[body + 2 : body + 52])
            elif code in (30, 31, 32, 23, 24, 25, _PARTIAL):
                self._rows(data, code, body, end)
            elif code == TABLE_MAP:
                self._table_map(data, body, end)
            elif code == XID:
                self._commit()
            elif code == _XA_PREPARE:
                self._prepare(data, body)
            elif code in (QUERY, _EXECUTE_LOAD, _QUERY_COMPRESSED):
                length, status = data[body + 8], struct.unpack_from("<H", data, body + 11)[0]
                text = body + 13 + (13 if code == _EXECUTE_LOAD else 0) + status + length + 1
                sql = _mariadb(data[text:end]) if code == _QUERY_COMPRESSED else data[text:end]
                schema = data[text - length - 1 : text - 1].decode(errors="replace")
                self._statement(sql.decode(errors="replace"), schema)
            elif code in (_GTID, _ANONYMOUS, _TAGGED, _MARIADB_GTID):
                self._begin(data, code, when, server, body, end)
            elif code in (*_PLAIN_OF, _PAYLOAD):
                self._flush()
                self._inflate(data, code, at, body, end)
                self._data, self._view = data, None
            elif code not in _HARMLESS and not flags & _IGNORABLE:
                name = _STOPS.get(code, f"an event of the kind {code}")
                raise DecodeError(f"the binlog has {name}, which Lakefeed does not understand", remedy=_REMEDY)
            if by_file and self._gtid is None and self._place.name and (here := self._here()) > self._position:
                self._executed.add(here)  # an idle source rotates its files, and purges them
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
        if (code == _MARIADB_GTID) != isinstance(position, MariadbGtid):
            raise DecodeError("the binlog has a GTID of another kind of server")
        if code == _MARIADB_GTID:
            sequence, domain, flags = struct.unpack_from("<QIB", data, body)
            self._gtid, self._id = (domain, server, sequence), f"{domain}-{server}-{sequence}"
            self._in_group = not flags & _STANDALONE
            if flags & _PREPARED_XA:
                self._flush()
                self._xa = Prepared((self._again or self._executed).position)
        elif code == _TAGGED:
            origin, number, self._time_us = _tagged(data, body, end)
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
            self._gtid, self._id = self._here(), None if code == _ANONYMOUS else self._id
        elif code == _ANONYMOUS:
            raise DecodeError("the binlog has a transaction without a GTID", remedy=_ANONYMOUS_REMEDY)
        self._is_skipped = self._again is not None and self._executed.has(self._gtid)

    def _commit(self) -> None:
        """The end of a transaction: what came with it counts from here on."""
        executed, one = self._executed, self._gtid
        if one is None:
            raise DecodeError("the binlog has the end of a transaction without its beginning", remedy=_REMEDY)
        if isinstance(executed.position, MysqlBinlog):
            one = self._here()
        if not self._is_skipped:
            executed.add(one)
        if self._again is not None:
            self._again.add(one)
            if self._again.position >= executed.position:
                self._again = None
                self._prepared.caught_up()
        if self._index is not None:
            self._made.transactions[self._index] = Transaction(executed.position, self._time_us, self._id)
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
        raw = data[body + 8 : end]
        known = self._maps.get(number)
        if known is not None and known[0] == raw and (known[1] is not None) == self._is_captured(known[2]):
            return  # else it was prepared or dropped since
        if self._is_skipped and self._xa is None:
            return
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
        self._touched.add(table)
        if code == _PARTIAL:
            reason = "the log has only parts of its JSON values (binlog_row_value_options = PARTIAL_JSON)"
            return self._block(table, reason, PARTIAL_JSON.format(table=table))
        width, bitmaps, first = _columns_present(data, code, body)
        if width != len(layout.columns) or first > end:
            raise DecodeError(f"the binlog has rows of {table} with {width} columns instead of {len(layout.columns)}")
        if any(one != (1 << width) - 1 for one in bitmaps):
            reason = "the log leaves out columns of its rows, because binlog_row_image is not FULL"
            return self._block(table, reason, ROW_IMAGE.format(table=table))
        lanes = self._pending.get(number)
        if lanes is None or lanes.layout is not layout:
            lanes = self._pending[number] = Lanes(layout, [], [], [], [], [])
        part = self._made if self._xa is None else self._xa
        lanes.starts.append(first)
        lanes.ends.append(end)
        lanes.operations.append(_ROWS[code])
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
                take(decode_lanes(data, lanes, self._zero_dates, before_images=self._before_images))
            except MisfitError as error:
                self._announce(Announced(notices=(error.blocked(lanes.layout.schema.table),)))

    def _prepare(self, data: bytes, body: int) -> None:
        """XA PREPARE: the rows since XA START wait from here on. XA COMMIT ONE PHASE: they count at once."""
        is_one_phase, form, first, second = struct.unpack_from("<BIII", data, body)
        at, xa = body + 13, self._xa
        self._flush()
        if xa is None:
            raise DecodeError("the binlog has an XA PREPARE without its XA START")
        if not is_one_phase:
            self._prepared.add((form, data[at : at + first], data[at + first : at + first + second]), xa)
        elif not self._is_skipped:
            self._deliver(xa)
        self._commit()

    def _deliver(self, xa: Prepared) -> None:
        """The rows of a distributed transaction, as those of the one that ends it."""
        reason = "a distributed transaction (XA) changed it before it was captured, and was committed later"
        late = sorted(filter(self._is_captured, xa.left_out))
        self._announce(Announced(notices=tuple(RecopyNeeded(table, reason) for table in late)))
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
            self._in_group, self._xa = True, Prepared((self._again or self._executed).position)
        elif effect in (Effect.XA_COMMIT, Effect.XA_ROLLBACK):
            match = _XID.search(sql)
            if match is None:
                raise DecodeError("the binlog has the end of a distributed transaction without its name")
            xid: Xid = (int(match[3]), bytes.fromhex(match[1]), bytes.fromhex(match[2]))
            xa = self._prepared.find(xid)
            if effect is Effect.XA_COMMIT and not self._is_skipped:
                if xa is None:
                    self._announce(self._apply(statement))
                else:
                    self._deliver(xa)
            self._commit()
            self._prepared.remove(xid, self._position)
            return None
        elif self._is_skipped:
            pass
        elif effect in (Effect.ROLLBACK, Effect.ROLLBACK_TO):
            reason = "a transaction was rolled back whose changes are in the log"
            self._announce(Announced(notices=tuple(RecopyNeeded(one, reason) for one in sorted(self._touched))))
        elif effect is Effect.TRUNCATE:
            for table in filter(self._is_captured, statement.tables):
                layouts = (one for _, one, _ in self._maps.values() if one is not None and one.schema.table == table)
                layout = next(layouts, None)
                if layout is None:  # no row of it has come yet
                    self._announce(Announced(notices=(RecopyNeeded(table, "it was emptied"),)))
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
        self._announce(Announced(notices=(TableBlocked(table, reason, remedy),)))

    def _announce(self, announced: Announced) -> None:
        if announced.schemas or announced.notices:
            self._made.items.append(announced)

    def _inflate(self, data: bytes, code: int, at: int, body: int, end: int) -> None:
        """What is compressed is decoded as if it stood there plainly."""
        if code == _PAYLOAD:  # fields of type, length and value, then the events
            fields, spans, start = dict[int, int](), [], 0
            kind, body = _lenenc(data, body)
            while kind:
                length, body = _lenenc(data, body)
                fields[kind], _ = _lenenc(data, body)
                kind, body = _lenenc(data, body + length)
            inner = data[body : min(end, body + fields.get(1, end))]
            if fields.get(2, _ZSTD) != _STORED:
                size = fields.get(3)
                if size is None or size > 1 << 31:
                    raise DecodeError("a compressed transaction does not tell its size, or more than 2 GiB")
                inner = pa.decompress(inner, size, codec="zstd", asbytes=True)
            while start < len(inner):
                if len(inner) - start < HEADER.size:
                    raise DecodeError("a compressed transaction ends too early")
                size = HEADER.unpack_from(inner, start)[3]
                if size < HEADER.size or start + size > len(inner):
                    raise DecodeError("a compressed transaction ends too early")
                spans.append((start, start + size))
                start += size
            return self._events(inner, spans, inner=True)
        _, _, first = _columns_present(data, code, body)
        header = bytearray(data[at:first])
        header[4] = _PLAIN_OF[code]
        whole = bytes(header) + _mariadb(data[first:end])
        return self._events(whole, [(0, len(whole))], inner=True)


def _columns_present(data: bytes, code: int, body: int) -> tuple[int, list[int], int]:
    """The head of a row event: how many columns, which of them its rows have (old, new), and where the rows begin."""
    at = body + 8
    if code in _WITH_EXTRA:
        at += struct.unpack_from("<H", data, at)[0]
    width, at = data[at], at + 1
    if width >= 0xFB:
        width, at = struct.unpack_from("<H", data, at)[0], at + 2
    size, whole = (width + 7) // 8, (1 << width) - 1
    first = at + size * (2 if _ROWS[code] == UPDATE else 1)
    starts = range(at, first, size or 1)
    return width, [int.from_bytes(data[one : one + size], "little") & whole for one in starts], first


def _tagged(data: bytes, at: int, end: int) -> tuple[Origin, int, int]:
    """A tagged GTID event (MySQL 8.3): origin, number, and when it was committed. Fields in the order of their numbers,
    each behind its number. A number says how long it is by the ones at the end of its first byte."""

    def number() -> int:
        nonlocal at
        size = 1
        while size < 9 and data[at] >> (size - 1) & 1:
            size += 1
        if at + size > end:
            raise DecodeError("a tagged GTID ends too early")
        whole, at = int.from_bytes(data[at : at + size], "little"), at + size
        return whole >> min(size, 8)

    for _ in range(3):  # the version of this form, the size, the last field that must be understood
        number()
    server, tag, gno, when = b"", "", 0, 0
    while at < end:
        field = number()
        if field == 1:
            server = bytes(number() & 0xFF for _ in range(16))
        elif field == 2:
            gno = number() >> 1  # the lowest bit is the sign
        elif field == 3:
            length = number()
            tag, at = data[at : at + length].decode("ascii", "replace"), at + length
        else:
            value = number()
            when = value if field in (6, 7) else when  # here, and on the server where it began
    if len(server) != 16 or not gno:
        raise DecodeError("a tagged GTID has no server or no number")
    return (str(uuid.UUID(bytes=server)), tag), gno, when


def _lenenc(data: bytes, at: int) -> tuple[int, int]:
    first = data[at]
    if first < 0xFB:
        return first, at + 1
    width = {0xFC: 2, 0xFD: 3, 0xFE: 8}[first] if first != 0xFB and first != 0xFF else 8
    return int.from_bytes(data[at + 1 : at + 1 + width], "little"), at + 1 + width


def _mariadb(data: bytes) -> bytes:
    """MariaDB's compression: one byte with the algorithm and the width of the length, the length, and zlib."""
    width = data[0] & 7
    size = int.from_bytes(data[1 : 1 + width], "big")
    if data[0] & 0x80 == 0 or data[0] & 0x70:
        raise DecodeError("an event is compressed in a way that is not known")
    inflater = zlib.decompressobj()
    found = inflater.decompress(data[1 + width :], size + 1)
    if len(found) != size:
        raise DecodeError("a compressed event has another length than it tells")
    return found


_ANONYMOUS_REMEDY = "SET GLOBAL gtid_mode = ON on the server, and copy every table again."
_REMEDY = (
    "Correct the server's setting as `lakefeed check` tells, then move the pipeline's state directory away: every "
    "table is copied again."
)
