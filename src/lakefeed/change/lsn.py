"""Log sequence numbers: PostgreSQL's and SQL Server's. Both are totally ordered."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar

from lakefeed.change.position import Position
from lakefeed.errors import CheckpointError

_POSTGRES = re.compile(r"([0-9A-Fa-f]{1,8})/([0-9A-Fa-f]{1,8})")
_SQLSERVER = re.compile(r"0x([0-9A-Fa-f]{20})")
_SQLSERVER_BYTES = 10


@dataclass(frozen=True, slots=True)
class PostgresLsn(Position):
    """A byte position in PostgreSQL's write-ahead log: 64 bits, written as two hexadecimal halves.

    A position to resume from is the *end* of a commit record: logical decoding skips whole transactions by the location
    of their commit record, so any earlier position would deliver the last transaction again.
    """

    kind: ClassVar[str] = "postgres"
    value: int

    def __post_init__(self) -> None:
        if not 0 <= self.value < 1 << 64:
            raise CheckpointError(f"{self.value} is not a PostgreSQL LSN; it must fit 64 bits without a sign")

    def text(self) -> str:
        """Upper case, without padding, as ``%X/%X`` prints it."""
        return f"{self.value >> 32:X}/{self.value & 0xFFFFFFFF:X}"

    @classmethod
    def parse(cls, text: str) -> PostgresLsn:
        """Accepts what the type pg_lsn accepts: either case, and leading zeros (PostgreSQL 19 prints them)."""
        match = _POSTGRES.fullmatch(text)
        if match is None:
            raise CheckpointError(f"'{text}' is not a PostgreSQL LSN; it must read like 1/12345678")
        return cls(int(match[1], 16) << 32 | int(match[2], 16))

    @property
    def rank(self) -> int:
        return self.value


@dataclass(frozen=True, slots=True)
class SqlServerLsn(Position):
    """A position in SQL Server's transaction log: binary(10), ordered byte by byte (virtual file, block, slot)."""

    kind: ClassVar[str] = "sqlserver"
    value: bytes

    def __post_init__(self) -> None:
        if len(self.value) != _SQLSERVER_BYTES:
            raise CheckpointError(f"a SQL Server LSN has {_SQLSERVER_BYTES} bytes, not {len(self.value)}")

    def text(self) -> str:
        return f"0x{self.value.hex().upper()}"

    @classmethod
    def parse(cls, text: str) -> SqlServerLsn:
        match = _SQLSERVER.fullmatch(text)
        if match is None:
            raise CheckpointError(f"'{text}' is not a SQL Server LSN; it must read 0x and 20 hexadecimal digits")
        return cls(bytes.fromhex(match[1]))

    @property
    def rank(self) -> int:
        return int.from_bytes(self.value)
