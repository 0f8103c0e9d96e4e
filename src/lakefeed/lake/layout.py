"""Layout: a lake table's partitions, sort order, properties and file size. Pure values.

A partition is a column, or a function of one: ``days(created_at)``, ``months``, ``years``, ``hours``, ``bucket(16,
id)`` or ``truncate(4, code)``. Iceberg has them all as partition fields. Delta partitions by columns alone: there the
table's rule makes a column for the function, called ``created_at_day`` and so on.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lakefeed.errors import ConfigError

_FUNCTION = re.compile(r"(\w+)\((?:(\d+)\s*,\s*)?(.+)\)")
_TIMES = {"years": "year", "months": "month", "days": "day", "hours": "hour"}
_COUNTED = ("bucket", "truncate")


@dataclass(frozen=True, slots=True)
class Partition:
    """``kind`` is ``identity`` or a function's name; ``number`` the buckets, or the width of truncated values."""

    column: str
    kind: str = "identity"
    number: int | None = None

    @classmethod
    def parse(cls, text: str) -> Partition:
        """The partition that a user writes. ConfigError for a function that neither format has."""
        found = _FUNCTION.fullmatch(text.strip())
        if found is None:
            return cls(text)
        kind, number, column = found[1].lower(), found[2], found[3].strip()
        kind = kind if kind in (*_TIMES, *_COUNTED) else f"{kind}s"
        if kind not in (*_TIMES, *_COUNTED) or (kind in _COUNTED) != (number is not None):
            raise ConfigError(
                f"partition_by: '{text}' is not a partition",
                remedy="Write a column, years(c), months(c), days(c), hours(c), bucket(16, c) or truncate(4, c).",
            )
        return cls(column, kind, int(number) if number is not None else None)

    @property
    def name(self) -> str:
        """The column with the partition's values, for a format that partitions by columns."""
        return self.column if self.kind == "identity" else f"{self.column}_{_TIMES.get(self.kind, self.kind)}"

    def sql(self, value: str, *, is_instant: bool) -> str:
        """That column's value in Spark SQL, from ``value``. Timestamps with a zone count in UTC."""
        if self.kind == "bucket":
            return f"CAST(pmod(xxhash64({value}), {self.number}) AS INT)"
        if self.kind == "truncate":
            return f"left(CAST({value} AS STRING), {self.number})"
        if is_instant:
            value = f"to_timestamp_ntz(date_format({value}, 'yyyy-MM-dd HH:mm:ss'))"
        if self.kind == "days":
            return f"CAST({value} AS DATE)"
        form = {"years": "yyyy", "months": "yyyy-MM", "hours": "yyyy-MM-dd-HH"}[self.kind]
        return f"date_format({value}, '{form}')"

    def __str__(self) -> str:
        if self.kind == "identity":
            return self.column
        return f"{self.kind}({f'{self.number}, ' if self.number is not None else ''}{self.column})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """None leaves the choice to others. ``properties`` are the table format's own. Columns have their lake names."""

    partition_by: tuple[str, ...] | None = None
    cluster_by: tuple[str, ...] | None = None
    properties: tuple[tuple[str, str], ...] = ()
    file_bytes: int | None = None

    def __post_init__(self) -> None:
        for text in self.partition_by or ():
            Partition.parse(text)

    @property
    def functions(self) -> tuple[str, ...]:
        """The partitions that are functions of a column."""
        return tuple(str(one) for one in self.partitions if one.kind != "identity")

    @property
    def partitions(self) -> tuple[Partition, ...]:
        return tuple(map(Partition.parse, self.partition_by or ()))

    def onto(self, other: Layout) -> Layout:
        """``other`` with the choices of this one, where it makes any."""
        properties: Mapping[str, str] = {**dict(other.properties), **dict(self.properties)}
        return Layout(
            partition_by=other.partition_by if self.partition_by is None else self.partition_by,
            cluster_by=other.cluster_by if self.cluster_by is None else self.cluster_by,
            properties=tuple(properties.items()),
            file_bytes=self.file_bytes or other.file_bytes,
        )

    @property
    def is_empty(self) -> bool:
        """Does the layout ask nothing of the table itself? Only maintenance uses ``file_bytes``."""
        return self.partition_by is None and self.cluster_by is None and not self.properties

    def differences(
        self, partitions: Sequence[str], properties: Mapping[str, str], order: Sequence[str] | None = None
    ) -> tuple[Difference, ...]:
        """The differences between this layout and a table: its ``partitions`` in a layout's words, its ``properties``,
        and the ``order`` of its columns; None if the table itself records no order."""
        found = []
        wanted = [str(one) for one in self.partitions]
        if self.partition_by is not None and list(partitions) != wanted:
            was, now = (", ".join(one) or "nothing" for one in (partitions, wanted))
            found.append(Difference(f"partition_by is {now}, and the table is partitioned by {was}", in_place=False))
        if self.cluster_by is not None and order is not None and list(order) != list(self.cluster_by):
            was, now = (", ".join(one) or "nothing" for one in (order, self.cluster_by))
            found.append(Difference(f"cluster_by is {now}, and the table is sorted by {was}", in_place=True))
        for name, value in self.properties:
            if str(properties.get(name, "")).lower() != value.lower():
                was = properties.get(name, "not set")
                found.append(Difference(f"property {name} is {value}, and {was} in the table", in_place=True))
        return tuple(found)


@dataclass(frozen=True, slots=True)
class Difference:
    """A difference between a table and its layout, as a sentence. ``in_place``: Lakefeed changes it together with the
    table's next changes; else only a new copy does."""

    text: str
    in_place: bool

    def with_command(self, table: object) -> str:
        """The sentence, and what changes the table."""
        if self.in_place:
            return f"{self.text}: it changes with the next changes of the table"
        return f"{self.text}: it changes with lakefeed rebuild FILE {table} --from-source"
