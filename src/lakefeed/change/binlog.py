"""A place in a MySQL or MariaDB binary log."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar

from lakefeed.change.position import Position, number, order
from lakefeed.errors import CheckpointError

# The server prints the sequence number with %06: six digits, or more without a leading zero, up to 2^31 - 1. Anything
# else is a damaged name, such as one that kept the checksum bytes of MariaDB's artificial ROTATE event.
_FILE = re.compile(r"[^\s:/\\]+\.([0-9]{6}|[1-9][0-9]{6,9})")


@dataclass(frozen=True, slots=True)
class MysqlBinlog(Position):
    """``file:offset``. Files are ordered by their number, not their text: after …999999 comes …1000000.

    Two files of different base names are not ordered: the log was renamed or belongs to another server.
    """

    kind: ClassVar[str] = "binlog"
    file: str
    offset: int

    def __post_init__(self) -> None:
        if not _is_file(self.file):
            raise CheckpointError(f"'{self.file}' is not a binlog file name; it must read like mysql-bin.000003")
        if not 0 <= self.offset < 1 << 64:
            raise CheckpointError(f"{self.offset} is not a place in the binlog file {self.file}")

    @property
    def base(self) -> str:
        return self.file.rpartition(".")[0]

    @property
    def sequence(self) -> int:
        return int(self.file.rpartition(".")[2])

    def text(self) -> str:
        return f"{self.file}:{self.offset}"

    @classmethod
    def parse(cls, text: str) -> MysqlBinlog:
        file, _, rest = text.partition(":")
        offset = number(rest)
        if offset is None or not _is_file(file):
            raise CheckpointError(f"'{text}' is not a binlog position; it must read like mysql-bin.000003:12345")
        return cls(file, offset)

    def _compare(self, other: MysqlBinlog) -> int | None:
        if self.base != other.base:
            return None
        return order(self.sequence, other.sequence) or order(self.offset, other.offset)


def _is_file(name: str) -> bool:
    return _FILE.fullmatch(name) is not None and name.isprintable()
