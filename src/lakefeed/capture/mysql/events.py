"""Single events of the binlog: their type codes, their location, and the content of those with a format of their own.
Pure; malformed bytes raise DecodeError, IndexError, zlib.error, ArrowException or struct.error.

Statements are not parsed: ``read_statement`` knows RENAME, DROP, TRUNCATE and the first words of everything else, and
lists the names that follow.
"""

from __future__ import annotations

import re
import struct
import uuid
import zlib
from dataclasses import dataclass
from enum import Enum

import pyarrow as pa

from lakefeed.capture.mysql.columns import ByteReader
from lakefeed.capture.mysql.rows import DELETE, UPDATE, WRITE
from lakefeed.change.mysql import Origin
from lakefeed.change.table import TableId
from lakefeed.errors import DecodeError

HEADER = struct.Struct("<IBIIIH")
QUERY, ROTATE, FORMAT, XID, TABLE_MAP, HEARTBEAT = 2, 4, 15, 16, 19, 27
INCIDENT, EXECUTE_LOAD, GTID, ANONYMOUS, XA_PREPARE, PARTIAL, PAYLOAD, TAGGED = 26, 18, 33, 34, 38, 39, 40, 42
MARIADB_GTID, QUERY_COMPRESSED = 162, 165
ROWS = {
    23: WRITE, 24: UPDATE, 25: DELETE, 30: WRITE, 31: UPDATE, 32: DELETE,
    166: WRITE, 167: UPDATE, 168: DELETE, 169: WRITE, 170: UPDATE, 171: DELETE,
}  # fmt: skip
_WITH_EXTRA = (30, 31, 32, 169, 170, 171)
PLAIN_OF = {166: 23, 167: 24, 168: 25, 169: 30, 170: 31, 171: 32}
HARMLESS = {
    0, 3, 5, 9, 11, 13, 14, 17, 28, 29, 35, 36, 37, 41, 160, 161, 163, ROTATE, FORMAT, HEARTBEAT,
}  # fmt: skip
"""Stop, variables of a statement, files of LOAD DATA, comments, previous GTIDs, group views, checkpoints."""
_ZSTD, _STORED = 0, 255
_FILE = re.compile(rb"[^\x00-\x1f/\\]+\.([0-9]{6,10})")


@dataclass(slots=True)
class Place:
    """A stream's location in the server's log: file name, file number, and the offset after the newest event."""

    name: str = ""
    number: int = 0
    offset: int = 0

    def move(self, data: bytes, at: int, end: int, code: int, offset: int) -> None:
        """Move past the event in ``data[at:end]``. ``offset`` is the one in its header: 32 bits of the offset, or 0."""
        if code == ROTATE:
            # Some ROTATE events end in a checksum, whose bytes must not become part of the name.
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


def columns_present(data: bytes, code: int, body: int) -> tuple[int, list[int], int]:
    """The head of a row event: the number of columns, bitmaps of those present (old row, new row), and where rows
    begin."""
    at = body + 8
    if code in _WITH_EXTRA:
        at += struct.unpack_from("<H", data, at)[0]
    width, at = data[at], at + 1
    if width >= 0xFB:
        width, at = struct.unpack_from("<H", data, at)[0], at + 2
    size, whole = (width + 7) // 8, (1 << width) - 1
    first = at + size * (2 if ROWS[code] == UPDATE else 1)
    starts = range(at, first, size or 1)
    return width, [int.from_bytes(data[one : one + size], "little") & whole for one in starts], first


def tagged_gtid(data: bytes, at: int, end: int) -> tuple[Origin, int, int]:
    """A tagged GTID event (MySQL 8.3): origin, number and commit time. It has numbered fields in ascending order, each
    after its field number. The trailing one bits of a number's first byte give the number's length."""

    def number() -> int:
        nonlocal at
        size = 1
        while size < 9 and data[at] >> (size - 1) & 1:
            size += 1
        if at + size > end:
            raise DecodeError("a tagged GTID ends too early")
        whole, at = int.from_bytes(data[at : at + size], "little"), at + size
        return whole >> min(size, 8)

    for _ in range(3):  # format version, size, last field that must be understood
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
            when = value if field in (6, 7) else when  # commit time here, and on the original server
    if len(server) != 16 or not gno:
        raise DecodeError("a tagged GTID has no server or no number")
    return (str(uuid.UUID(bytes=server)), tag), gno, when


def transaction_payload(data: bytes, at: int, end: int) -> tuple[bytes, list[int]]:
    """The events inside a compressed transaction (MySQL), and where each begins, followed by where the last one ends.
    The payload has fields of type, length and value, then the events."""
    reader, fields, edges, start = ByteReader(data[at:end]), dict[int, int](), [0], 0
    while kind := reader.number():
        fields[kind] = ByteReader(reader.text()).number()
    inner = reader.rest()[: fields.get(1)]
    if fields.get(2, _ZSTD) != _STORED:
        size = fields.get(3)
        if size is None or size > 1 << 31:
            raise DecodeError("a compressed transaction does not state its size, or exceeds 2 GiB")
        inner = pa.decompress(inner, size, codec="zstd", asbytes=True)
    while start < len(inner):
        size = HEADER.unpack_from(inner, start)[3] if len(inner) - start >= HEADER.size else 0
        if size < HEADER.size or start + size > len(inner):
            raise DecodeError("a compressed transaction ends too early")
        start += size
        edges.append(start)
    return inner, edges


def inflated(data: bytes) -> bytes:
    """MariaDB's compression: a byte with the algorithm and the width of the length, the length, then zlib data."""
    width = data[0] & 7
    size = int.from_bytes(data[1 : 1 + width], "big")
    if data[0] & 0x80 == 0 or data[0] & 0x70:
        raise DecodeError("an event is compressed with an unknown algorithm")
    inflater = zlib.decompressobj()
    found = inflater.decompress(data[1 + width :], size + 1)
    if len(found) != size:
        raise DecodeError("a compressed event does not have the length that it states")
    return found


_TOKEN = re.compile(
    r"\s+|--[^\n]*|\#[^\n]*|/\*(?![!M]).*?\*/"  # white space and comments; what is in /*! … */ is executed
    r"|/\*M?!\d*|\*/|(?P<quoted>`(?:[^`]|``)*`|\"(?:[^\"]|\"\")*\")|(?P<text>'(?:[^'\\]|\\.|'')*')"
    r"|(?P<word>[\w$\x80-\U0010ffff]+)|(?P<mark>.)",
    re.DOTALL,
)
_LONGEST = 100_000
"""How many characters of a statement are read: names of tables are at its beginning."""


class Effect(Enum):
    """What a statement does."""

    BEGIN = "begin"
    COMMIT = "commit"
    ROLLBACK = "rollback"
    ROLLBACK_TO = "rollback to a savepoint"
    XA_START = "xa start"
    XA_COMMIT = "xa commit"
    XA_ROLLBACK = "xa rollback"
    DROP = "drop"
    DROP_DATABASE = "drop database"
    TRUNCATE = "truncate"
    RENAME = "rename"
    REPLACED = "rows replaced"
    ALTER = "alter"
    CHANGE = "change rows"
    OTHER = "other"


_OF_TABLES = {"DROP": Effect.DROP, "TRUNCATE": Effect.TRUNCATE, "RENAME": Effect.RENAME, "ALTER": Effect.ALTER}
_BEFORE_NAMES = {"TABLE", "TABLES", "IF", "EXISTS", "NOT", "OR", "REPLACE", "IGNORE", "ONLINE"}
_CHANGES = {"INSERT", "UPDATE", "DELETE", "REPLACE", "LOAD", "WITH", "CALL", "DO", "SELECT"}
_XA = {
    "START": Effect.XA_START, "BEGIN": Effect.XA_START, "COMMIT": Effect.XA_COMMIT, "ROLLBACK": Effect.XA_ROLLBACK,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Statement:
    """``tables`` are the tables it concerns; for RENAME they alternate: from, to, from, to. ``words`` are all names and
    words in it, in lower case, among them the columns that an ALTER adds."""

    effect: Effect
    tables: tuple[TableId, ...] = ()
    words: tuple[str, ...] = ()
    database: str = ""


def read_statement(sql: str, schema: str) -> Statement:  # noqa: C901  # one kind of statement after another
    """Classify a statement. ``schema`` is its default database."""
    tokens: list[tuple[str, bool]] = []  # with whether it is a quoted name
    for match in _TOKEN.finditer(sql[:_LONGEST]):
        if match["quoted"]:
            mark = match["quoted"][0]
            tokens.append((match["quoted"][1:-1].replace(mark * 2, mark), True))
        elif match["word"] or match["mark"]:
            tokens.append((match["word"] or match["mark"], False))
    plain = [text.upper() if not is_quoted else "" for text, is_quoted in tokens]
    words = tuple(text.lower() for text, _ in tokens)
    start = next((index for index, text in enumerate(plain) if text != "("), 0)
    if plain[start : start + 2] == ["SET", "STATEMENT"] and "FOR" in plain:  # MariaDB: variables for one statement
        start = plain.index("FOR") + 1
    first, second = [*plain[start : start + 2], "", ""][:2]
    if first == "BEGIN" or (first == "START" and second == "TRANSACTION"):
        return Statement(Effect.BEGIN)
    if first == "COMMIT":
        return Statement(Effect.COMMIT)
    if first == "ROLLBACK":
        return Statement(Effect.ROLLBACK_TO if "TO" in plain else Effect.ROLLBACK)
    if first == "XA":
        return Statement(_XA.get(second, Effect.OTHER))
    if first == "DROP" and second in ("DATABASE", "SCHEMA"):
        at = start + (4 if plain[start + 2 : start + 4] == ["IF", "EXISTS"] else 2)
        return Statement(Effect.DROP_DATABASE, database=tokens[at][0] if at < len(tokens) else "")
    if "TEMPORARY" in plain[start : start + 4]:
        return Statement(Effect.OTHER)
    if first in _CHANGES:
        return Statement(Effect.CHANGE, words=words)
    effect = _OF_TABLES.get(first)
    if first == "CREATE" and "REPLACE" in plain[start : start + 3] and "TABLE" in plain[start : start + 4]:
        effect = Effect.DROP
    if effect is None or (first != "TRUNCATE" and not {"TABLE", "TABLES"} & set(plain[start : start + 5])):
        return Statement(Effect.OTHER)
    at = start + 1
    while at < len(plain) and plain[at] in _BEFORE_NAMES:
        at += 1
    tables = []
    while at < len(tokens):
        name, dot = tokens[at][0], plain[at + 1 : at + 2] == ["."]
        schema_of, name = (name, tokens[at + 2][0]) if dot and at + 2 < len(tokens) else (schema, name)
        if schema_of and name and "." not in schema_of:
            tables.append(TableId(schema_of, name))
        at += 3 if dot else 1
        if at < len(plain) and plain[at] in (",", "TO") and effect in (Effect.DROP, Effect.RENAME):
            at += 1
        elif effect is Effect.RENAME and at < len(plain) and plain[at] in ("WAIT", "NOWAIT"):
            at += 1 + (plain[at] == "WAIT")  # RENAME TABLE a NOWAIT TO b
            at += at < len(plain) and plain[at] == "TO"
        else:
            break
    if effect is Effect.ALTER:
        rest = plain[at:]
        behind = rest[rest.index("RENAME") + 1 :][:1] if "RENAME" in rest else []
        partitions = "PARTITION" in rest and {"DROP", "TRUNCATE", "EXCHANGE", "IMPORT", "CONVERT"} & set(rest)
        tablespace = "TABLESPACE" in rest and {"IMPORT", "DISCARD"} & set(rest)
        if (behind and behind[0] not in ("COLUMN", "INDEX", "KEY")) or partitions or tablespace:
            effect = Effect.REPLACED  # the whole table is renamed, or rows change that the log does not have
    return Statement(effect, tuple(tables), words)
