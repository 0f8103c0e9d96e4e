"""BinlogDecoder: events of the binlog → rows and announcements. Pure and total.

A transaction is everything between its GTID and its commit. Its end is the set of all GTIDs up to it. An event that
could carry rows and is not understood stops the stream with its name.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from lakefeed.capture.fit import MisfitError
from lakefeed.capture.log import Announced, Decoded, Rows, Transaction
from lakefeed.capture.mysql.columns import Bytes, ZeroDates, padded
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
from lakefeed.change.batch import Operation
from lakefeed.change.change_set import RecopyNeeded, TableBlocked
from lakefeed.change.mysql import Interval, MariadbGtid, MysqlGtid, Origin
from lakefeed.change.table import TableId
from lakefeed.errors import DecodeError

Gtid = MysqlGtid | MariadbGtid

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
_STOPS = {
    _INCIDENT: "an incident event (changes may be missing from it)", _ANONYMOUS: "a transaction without a GTID",
    _PARTIAL: "partial updates of JSON (binlog_row_value_options = PARTIAL_JSON)", 164: "an encrypted part",
}  # fmt: skip
_IGNORABLE = 0x80
_STANDALONE, _COMMIT_ID, _PREPARED_XA = 1, 2, 64
_ZSTD, _STORED = 0, 255

ROW_IMAGE = (
    "SET GLOBAL binlog_row_image = 'FULL'; then let applications connect again, and run `lakefeed rebuild {table}`."
)
XA = "a distributed transaction (XA) changed it, whose end the log tells later than its rows"


class Resolved(NamedTuple):
    """What a table map means: a layout, None for a table that is not captured; and what is to be announced."""

    layout: Layout | None
    announced: Announced = Announced()


@dataclass(frozen=True, slots=True)
class BinlogPiece:
    """Packets of the stream that began after ``after``."""

    after: Gtid
    packets: Packets | None = None


class Executed:
    """The GTIDs up to here: grows by one with each commit, and gives the position."""

    def __init__(self, after: Gtid) -> None:
        self._domains: dict[int, tuple[int, int]] = {}
        self._sets: dict[Origin, list[Interval]] = {}
        self._is_mysql = isinstance(after, MysqlGtid)
        if isinstance(after, MysqlGtid):
            self._sets = {origin: list(intervals) for origin, intervals in after.intervals}
        else:
            self._domains = {domain: (server, sequence) for domain, server, sequence in after.domains}

    def add_mysql(self, origin: Origin, number: int) -> None:
        intervals = self._sets.setdefault(origin, [])
        if intervals and intervals[-1][1] + 1 == number:
            intervals[-1] = (intervals[-1][0], number)
        elif not any(low <= number <= high for low, high in intervals):
            intervals.append((number, number))
            found = MysqlGtid.of(((origin, tuple(intervals)),)).union(MysqlGtid(""))
            self._sets[origin] = list(found.intervals[0][1])

    def add_mariadb(self, domain: int, server: int, sequence: int) -> None:
        self._domains[domain] = (server, sequence)

    def position(self) -> Gtid:
        if self._is_mysql:
            return MysqlGtid.of(tuple((origin, tuple(self._sets[origin])) for origin in sorted(self._sets)))
        return MariadbGtid.of((domain, *rest) for domain, rest in self._domains.items())


class BinlogDecoder:
    """See ``capture.log.Decoder``. ``resolve`` says what a table map means and ``apply`` what a statement does to
    captured tables; neither asks anybody."""

    def __init__(
        self,
        resolve: Callable[[TableMap], Resolved],
        apply: Callable[[Statement], Announced],
        is_captured: Callable[[TableId], bool],
        *,
        zero_dates: ZeroDates = ZeroDates.STOP,
        before_images: bool = False,
    ) -> None:
        self._resolve, self._apply, self._is_captured = resolve, apply, is_captured
        self._zero_dates, self._before_images = zero_dates, before_images
        self._executed: Executed | None = None
        self._position: Gtid | None = None
        self._maps: dict[int, tuple[bytes, Layout | None, TableId]] = {}
        self._gtid: tuple[Any, ...] | None = None
        self._id, self._time_us = "", 0
        self._in_group = self._is_standalone = self._is_xa = False
        self._touched: set[TableId] = set()
        self._index: int | None = None
        self._has_checksums = self._counts_years = False
        self._data = b""
        self._view: Bytes | None = None
        self._pending: dict[int, Lanes] = {}
        self._made: Decoded[Any] = Decoded()

    def decode(self, piece: BinlogPiece) -> Decoded[Any]:
        """DecodeError if the events are not what a server sends."""
        if self._executed is None:
            self._executed, self._position = Executed(piece.after), piece.after
        made = self._made = Decoded(continues=self._index is not None)
        if self._index is not None:
            made.transactions.append(Transaction(self._position or piece.after, self._time_us, self._id))
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

    def _events(self, data: bytes, spans: list[tuple[int, int]], *, inner: bool = False) -> None:
        """``inner``: what was compressed has no checksums of its own."""
        self._data, self._view = data, None
        for at, whole in spans:
            end = whole - 4 if self._has_checksums and not inner else whole
            if end - at < HEADER.size:
                raise DecodeError("an event of the binlog is shorter than its header")
            when, code, server, _, _, flags = HEADER.unpack_from(data, at)
            body = at + HEADER.size
            if code == FORMAT:
                self._has_checksums = data[whole - 5] == 1
                self._counts_years = counts_years(data[body + 2 : body + 52])
            elif code in (30, 31, 32, 23, 24, 25):
                self._rows(data, code, body, end)
            elif code == TABLE_MAP:
                self._table_map(data, body, end)
            elif code in (XID, _XA_PREPARE):
                self._commit()
            elif code in (QUERY, _EXECUTE_LOAD, _QUERY_COMPRESSED):
                length, status = data[body + 8], struct.unpack_from("<H", data, body + 11)[0]
                text = body + 13 + (13 if code == _EXECUTE_LOAD else 0) + status + length + 1
                sql = _mariadb(data[text:end]) if code == _QUERY_COMPRESSED else data[text:end]
                schema = data[text - length - 1 : text - 1].decode(errors="replace")
                self._statement(sql.decode(errors="replace"), schema)
            elif code in (_GTID, _TAGGED, _MARIADB_GTID):
                self._begin(data, code, when, server, body, end)
            elif code in (*_PLAIN_OF, _PAYLOAD):
                self._flush()
                self._inflate(data, code, at, body, end)
                self._data, self._view = data, None
            elif code not in _HARMLESS and not flags & _IGNORABLE:
                name = _STOPS.get(code, f"an event of the kind {code}")
                raise DecodeError(f"the binlog has {name}, which Lakefeed does not understand", remedy=_REMEDY)
        self._flush()

    def _begin(self, data: bytes, code: int, when: int, server: int, body: int, end: int) -> None:
        """A GTID begins a transaction. MySQL tells its commit in microseconds, MariaDB in seconds."""
        self._time_us, self._touched = when * 1_000_000, set()
        self._in_group = self._is_standalone = self._is_xa = False
        if code == _MARIADB_GTID:
            sequence, domain, flags = struct.unpack_from("<QIB", data, body)
            self._gtid, self._id = (domain, server, sequence), f"{domain}-{server}-{sequence}"
            self._is_standalone, self._is_xa = bool(flags & _STANDALONE), bool(flags & _PREPARED_XA)
            self._in_group = not self._is_standalone
            return
        if code == _TAGGED:
            raise DecodeError("the binlog has a tagged GTID, which Lakefeed does not understand yet", remedy=_REMEDY)
        uuid = data[body + 1 : body + 17].hex()
        (number,) = struct.unpack_from("<Q", data, body + 17)
        server_uuid = f"{uuid[:8]}-{uuid[8:12]}-{uuid[12:16]}-{uuid[16:20]}-{uuid[20:]}"
        self._gtid, self._id = ((server_uuid, ""), number), f"{server_uuid}:{number}"
        if end - body >= 49 and data[body + 25] == 2:
            immediate = int.from_bytes(data[body + 42 : body + 49], "little")
            if immediate >> 55 and end - body >= 56:  # the original server's own time follows
                immediate = int.from_bytes(data[body + 49 : body + 56], "little")
            self._time_us = (immediate & ((1 << 55) - 1)) or self._time_us

    def _commit(self) -> None:
        """The end of a transaction: what came with it counts from here on."""
        executed, gtid = self._executed, self._gtid
        if executed is None or gtid is None:
            raise DecodeError(
                "the binlog has a transaction without a GTID",
                remedy="SET GLOBAL gtid_mode = ON on the server, and copy every table again.",
            )
        if len(gtid) == 2:
            executed.add_mysql(*gtid)
        else:
            executed.add_mariadb(*gtid)
        self._position = executed.position()
        if self._index is not None:
            self._made.transactions[self._index] = Transaction(self._position, self._time_us, self._id)
        self._gtid = self._index = None
        self._in_group = False

    def _transaction(self) -> int:
        """The index of the transaction that is open, which has something for the lake."""
        if self._index is None:
            if self._gtid is None:
                raise DecodeError("the binlog has rows outside of a transaction")
            self._index = len(self._made.transactions)
            self._made.transactions.append(Transaction(self._position, self._time_us, self._id))  # type: ignore[arg-type]
        return self._index

    def _table_map(self, data: bytes, body: int, end: int) -> None:
        number = int.from_bytes(data[body : body + 6], "little")
        raw = data[body + 8 : end]
        known = self._maps.get(number)
        if known is not None and known[0] == raw and (known[1] is not None) == self._is_captured(known[2]):
            return  # else it was prepared or dropped since
        found = read_table_map(raw, counts_years=self._counts_years)
        self._flush()  # what is announced comes behind the rows from before it
        resolved = self._resolve(found)
        self._maps[number] = (raw, resolved.layout, found.table)
        self._announce(resolved.announced)

    def _rows(self, data: bytes, code: int, body: int, end: int) -> None:
        number = int.from_bytes(data[body : body + 6], "little")
        if number not in self._maps:
            if number == 0xFFFFFF:  # the end of a statement without rows
                return None
            raise DecodeError(f"the binlog has rows of table {number} before its description")
        layout = self._maps[number][1]
        if layout is None:
            return None
        table = layout.schema.table
        width, bitmaps, first = _columns_present(data, code, body)
        if width != len(layout.columns) or first > end:
            raise DecodeError(f"the binlog has rows of {table} with {width} columns instead of {len(layout.columns)}")
        self._touched.add(table)
        if any(one != (1 << width) - 1 for one in bitmaps):
            reason = "the log leaves out columns of its rows, because binlog_row_image is not FULL"
            return self._block(table, reason, ROW_IMAGE.format(table=table))
        if self._is_xa:
            return self._block(table, XA, f"After XA COMMIT or XA ROLLBACK, run `lakefeed rebuild {table}`.")
        lanes = self._pending.get(number)
        if lanes is None or lanes.layout is not layout:
            lanes = self._pending[number] = Lanes(layout, [], [], [], [], [])
        lanes.starts.append(first)
        lanes.ends.append(end)
        lanes.operations.append(_ROWS[code])
        lanes.transactions.append(self._transaction())
        lanes.shifts.append(self._made.width // 2 - first)
        self._made.width += 2 * (end - first) + 2
        return None

    def _flush(self) -> None:
        """Decode the rows that were gathered, table by table: the more at once, the faster."""
        pending, self._pending = self._pending, {}
        if pending and self._view is None:
            self._view = padded(self._data)
        data = self._view
        for lanes in pending.values():
            try:
                assert data is not None  # noqa: S101  # something is pending
                self._made.items.append(decode_lanes(data, lanes, self._zero_dates, before_images=self._before_images))
            except MisfitError as error:
                self._announce(Announced(notices=(error.blocked(lanes.layout.schema.table),)))

    def _statement(self, sql: str, schema: str) -> None:
        statement = Statement(Effect.BEGIN) if sql == "BEGIN" else read_statement(sql, schema)
        effect = statement.effect
        if effect in (Effect.BEGIN, Effect.XA_START):
            self._in_group, self._is_xa = True, self._is_xa or effect is Effect.XA_START
            return None
        if effect is Effect.COMMIT:
            return self._commit()
        self._flush()
        if effect in (Effect.ROLLBACK, Effect.ROLLBACK_TO):
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
            statement = Statement(effect, words=statement.words, database=schema)
            self._announce(self._apply(statement))
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


_REMEDY = (
    "Correct the server's setting as `lakefeed check` tells, then move the pipeline's state directory away: every "
    "table is copied again."
)
