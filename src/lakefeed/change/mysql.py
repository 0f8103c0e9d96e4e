"""Positions of MySQL and MariaDB: an offset in the binary log, or the set of transactions that a server has executed.

How GTID sets compare: a position means "all of these transactions have been seen", so ``a <= b`` means that everything
seen at ``a`` has also been seen at ``b``. Sets that each contain something the other lacks (two servers of one group,
a restored backup that diverged) are not ordered: ``compare`` returns None, and neither may replace the other in a
checkpoint. The text is kept exactly as given; equality and order compare the transactions, so that ``1-3`` and
``1-2:3``, or two spellings of one uuid, are the same position. MySQL's and MariaDB's GTIDs have only the name in
common.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import ClassVar

from lakefeed.change.position import Position, number, order, order_by_inclusion
from lakefeed.errors import CheckpointError

# The server prints the sequence number with %06: six digits, or more without a leading zero, up to 2^31 - 1. Anything
# else is a damaged name, for example one that includes the checksum bytes of MariaDB's artificial ROTATE event.
_FILE = re.compile(r"[^\s:/\\]+\.([0-9]{6}|[1-9][0-9]{6,9})")


@dataclass(frozen=True, slots=True)
class MysqlBinlog(Position):
    """``file:offset``. Files are ordered by their number, not by their text: …1000000 comes after …999999.

    Files with different base names are not ordered: the log was renamed, or it belongs to another server.
    """

    kind: ClassVar[str] = "binlog"
    file: str
    offset: int

    def __post_init__(self) -> None:
        if not _is_file(self.file):
            raise CheckpointError(f"'{self.file}' is not a binlog file name; it must read like mysql-bin.000003")
        if not 0 <= self.offset < 1 << 64:
            raise CheckpointError(f"{self.offset} is not an offset in the binlog file {self.file}")

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

    def has(self, end: MysqlBinlog) -> bool:
        """Whether the transaction that ends at ``end`` has been seen."""
        return end <= self

    def including(self, end: MysqlBinlog) -> MysqlBinlog:
        """The position after the transaction that ends at ``end``."""
        return end

    def _compare(self, other: MysqlBinlog) -> int | None:
        if self.base != other.base:
            return None
        return order(self.sequence, other.sequence) or order(self.offset, other.offset)


def _is_file(name: str) -> bool:
    return _FILE.fullmatch(name) is not None and name.isprintable()


Interval = tuple[int, int]
"""First and last transaction number, both included."""
Origin = tuple[str, str]
"""A server's uuid and a tag (MySQL 8.3 and later; empty without one), in lower case."""
IntervalSet = tuple[tuple[Origin, tuple[Interval, ...]], ...]

_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_TAG = re.compile(r"[a-z_][a-z0-9_]{0,31}")
_LAST_TRANSACTION = (1 << 63) - 2


@dataclass(frozen=True, slots=True)
class MysqlGtid(Position):
    """A MySQL GTID set: ``uuid:1-5:7``, several of them separated by commas, tags as in ``uuid:tag:1-3``.

    ``a <= b`` if ``a`` is a subset of ``b``. The empty text is the empty set, which is below all others. White space
    around the parts is allowed: the server prints ``@@gtid_executed`` with line breaks.
    """

    kind: ClassVar[str] = "mysql_gtid"
    given: str = field(compare=False)
    intervals: IntervalSet = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "intervals", _parse_mysql(self.given))

    def text(self) -> str:
        return self.given

    @classmethod
    def parse(cls, text: str) -> MysqlGtid:
        return cls(text)

    @classmethod
    def of(cls, intervals: IntervalSet) -> MysqlGtid:
        """The set with these intervals, which must be sorted and merged. Faster than parsing; called per commit."""
        made = object.__new__(cls)
        object.__setattr__(made, "intervals", intervals)
        parts = [
            f"{uuid}{':' + tag if tag else ''}:" + ":".join(f"{a}-{b}" if a != b else str(a) for a, b in ranges)
            for (uuid, tag), ranges in intervals
        ]
        object.__setattr__(made, "given", ",".join(parts))
        return made

    def has(self, origin: Origin, number: int) -> bool:
        """Whether a transaction has been seen."""
        return any(low <= number <= high for one, found in self.intervals if one == origin for low, high in found)

    def including(self, origin: Origin, number: int) -> MysqlGtid:
        """The set plus one transaction, which is usually the next one of its origin."""
        for index, (one, found) in enumerate(self.intervals):
            if one == origin and found[-1][1] + 1 == number:
                longer = (one, (*found[:-1], (found[-1][0], number)))
                return MysqlGtid.of((*self.intervals[:index], longer, *self.intervals[index + 1 :]))
        return self.union(MysqlGtid.of(((origin, ((number, number),)),)))

    def union(self, other: MysqlGtid) -> MysqlGtid:
        """The transactions that either set has."""
        found = {origin: list(intervals) for origin, intervals in self.intervals}
        for origin, intervals in other.intervals:
            found.setdefault(origin, []).extend(intervals)
        return MysqlGtid.of(tuple((origin, _merge(intervals)) for origin, intervals in sorted(found.items())))

    def without(self, other: MysqlGtid) -> MysqlGtid:
        """The transactions of this set that ``other`` does not have."""
        theirs, missing = dict(other.intervals), dict[Origin, list[Interval]]()
        for origin, intervals in self.intervals:
            for low, high in intervals:
                at = low
                for first, last in (*theirs.get(origin, ()), (high + 1, high + 1)):
                    if first > at and at <= high:
                        missing.setdefault(origin, []).append((at, min(first - 1, high)))
                    at = max(at, last + 1)
        return MysqlGtid.of(tuple((origin, tuple(found)) for origin, found in missing.items()))

    def _compare(self, other: MysqlGtid) -> int | None:
        mine, theirs = dict(self.intervals), dict(other.intervals)
        return order_by_inclusion(_is_subset(mine, theirs), _is_subset(theirs, mine))


@dataclass(frozen=True, slots=True)
class MariadbGtid(Position):
    """A MariaDB GTID position: ``domain-server-sequence``, at most one per domain, separated by commas.

    ``a <= b`` if ``b`` has every domain of ``a`` with the same or a later sequence number; numbers grow within a domain
    whichever server writes. The same number from two servers belongs to two histories, which are not ordered. The empty
    text is the position before everything.
    """

    kind: ClassVar[str] = "mariadb_gtid"
    given: str = field(compare=False)
    domains: tuple[tuple[int, int, int], ...] = field(init=False, repr=False)
    """(domain, server, sequence), sorted by domain."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "domains", _parse_mariadb(self.given))

    def text(self) -> str:
        return self.given

    @classmethod
    def parse(cls, text: str) -> MariadbGtid:
        return cls(text)

    @classmethod
    def of(cls, domains: Iterable[tuple[int, int, int]]) -> MariadbGtid:
        """The position with these (domain, server, sequence), at most one for each domain."""
        made, known = object.__new__(cls), tuple(sorted(domains))
        object.__setattr__(made, "domains", known)
        object.__setattr__(made, "given", ",".join(f"{a}-{b}-{c}" for a, b, c in known))
        return made

    def has(self, domain: int, server: int, sequence: int) -> bool:  # noqa: ARG002  # numbers grow, whoever writes
        """Whether a transaction has been seen."""
        return any(one == domain and sequence <= last for one, _, last in self.domains)

    def including(self, domain: int, server: int, sequence: int) -> MariadbGtid:
        """The position after one more transaction."""
        others = [one for one in self.domains if one[0] != domain]
        return MariadbGtid.of([*others, (domain, server, sequence)])

    def without(self, other: MariadbGtid) -> MariadbGtid:
        """The domains in which ``other`` is behind this position, or has another history."""
        theirs = {domain: (server, sequence) for domain, server, sequence in other.domains}
        return MariadbGtid.of(
            (domain, server, sequence)
            for domain, server, sequence in self.domains
            if domain not in theirs or not (sequence < theirs[domain][1] or (server, sequence) == theirs[domain])
        )

    def _compare(self, other: MariadbGtid) -> int | None:
        return order_by_inclusion(not self.without(other).domains, not other.without(self).domains)


def _parse_mysql(text: str) -> IntervalSet:
    found: dict[Origin, list[Interval]] = {}
    for item in _items(text):
        uuid, *parts = (part.strip().lower() for part in item.split(":"))
        if not _UUID.fullmatch(uuid):
            raise _not_a_set(text)
        for origin, interval in _tagged(text, uuid, parts):
            found.setdefault(origin, []).append(interval)
    return tuple((origin, _merge(intervals)) for origin, intervals in sorted(found.items()))


def _tagged(text: str, uuid: str, parts: list[str]) -> Iterator[tuple[Origin, Interval]]:
    """The intervals after one uuid. A tag applies to the intervals that follow it, and at least one must."""
    tag, complete = "", False
    for part in parts:
        if _TAG.fullmatch(part):
            if tag and not complete:
                raise _not_a_set(text)
            tag, complete = part, False
        else:
            yield (uuid, tag), _interval(text, part)
            complete = True
    if not complete:
        raise _not_a_set(text)


def _interval(text: str, part: str) -> Interval:
    first, dash, last = part.partition("-")
    low = number(first.strip())
    high = number(last.strip()) if dash else low
    if low is None or high is None or not 1 <= low <= high <= _LAST_TRANSACTION:
        raise _not_a_set(text)
    return low, high


def _merge(intervals: Iterable[Interval]) -> tuple[Interval, ...]:
    """Sorted, without overlapping or adjacent intervals, so that each set has exactly one form."""
    merged: list[Interval] = []
    for low, high in sorted(intervals):
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(high, merged[-1][1]))
        else:
            merged.append((low, high))
    return tuple(merged)


def _is_subset(small: dict[Origin, tuple[Interval, ...]], big: dict[Origin, tuple[Interval, ...]]) -> bool:
    return all(_covers(big.get(origin, ()), intervals) for origin, intervals in small.items())


def _covers(big: tuple[Interval, ...], small: tuple[Interval, ...]) -> bool:
    """One pass over both, since merged intervals are sorted: a small one can only lie in the first big one that ends at
    or after its own end."""
    candidates = iter(big)
    current = next(candidates, None)
    for low, high in small:
        while current is not None and current[1] < high:
            current = next(candidates, None)
        if current is None or current[0] > low:
            return False
    return True


def _parse_mariadb(text: str) -> tuple[tuple[int, int, int], ...]:
    domains = sorted(_mariadb_gtid(text, item) for item in _items(text))
    if any(a[0] == b[0] for a, b in pairwise(domains)):
        raise CheckpointError(f"'{text}' is not a MariaDB GTID position; it names a domain twice")
    return tuple(domains)


def _mariadb_gtid(text: str, item: str) -> tuple[int, int, int]:
    match item.split("-"):
        case [first, second, third]:
            domain, server, sequence = number(first, bits=32), number(second, bits=32), number(third)
            if domain is not None and server is not None and sequence is not None:
                return domain, server, sequence
    raise CheckpointError(f"'{text}' is not a MariaDB GTID position; it must read like 0-1-100,1-2-50")


def _items(text: str) -> list[str]:
    """The parts between commas; an empty text has none."""
    return [item.strip() for item in text.split(",")] if text.strip() else []


def _not_a_set(text: str) -> CheckpointError:
    return CheckpointError(
        f"'{text}' is not a MySQL GTID set; it must read like 3e11fa47-71ca-11e1-9e33-c80aa9429562:1-5:7"
    )
