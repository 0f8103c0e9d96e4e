"""Proof that a lake table equals its source table, row by row, by readers that the pipeline does not use.

The lake is read with deltalake or pyiceberg (no Spark, no JVM), the source with plain SQL. Both become Arrow columns of
the lake's types and are compared exactly: no tolerance, no sample, and a hash only to spread rows.

  1 columns are paired: by name, or by what the lake table's evolution has decided
  2 each side is read once, in batches, and spread over buckets by key
  3 bucket by bucket, the rows that are the source's are taken out of the lake's (current versions; what changes leave)
    and compared; of a history table the invariants are looked at too
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa

from lakefeed.app.verify_bucket import Buckets, buckets_for
from lakefeed.app.verify_changes import TOLD, current_rows, last_truncate
from lakefeed.app.verify_columns import Columns, paired, paired_by_name
from lakefeed.app.verify_history import history_faults, told
from lakefeed.app.verify_rows import Row, different_rows
from lakefeed.app.verify_value import ValueDifferenceError, exact_batch
from lakefeed.change.table import TableId, TableSchema
from lakefeed.lake.mode import Mirror, Mode
from lakefeed.lake.reader import StoredRows
from lakefeed.lake.schema.mapping import ColumnMapping

_EXAMPLES = 3
_MIRROR = Mirror()


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Rows on both sides and the first differences, as sentences; none of them: equal.

    ``lake_rows`` are those that should be the source's: of a history table the current versions, of a table of changes
    what they leave. ``chosen`` says what the evolution has left out of the comparison. ``compared`` is False for a
    table that could not be looked at: its rows are unknown, and that is a difference.
    """

    table: TableId
    source_rows: int
    lake_rows: int
    differences: tuple[str, ...] = ()
    chosen: tuple[str, ...] = ()
    compared: bool = True

    @property
    def equal(self) -> bool:
        return not self.differences


class SourceTable(Protocol):
    """One table of a source, by plain SQL."""

    def columns(self, lake: Sequence[str]) -> list[str]:
        """Its own columns. ``lake`` are the lake table's, one of which may stand for a row id that has no column."""

    def count(self) -> int:
        """Its rows."""

    def rows(self, columns: pa.Schema, names: Sequence[str]) -> Iterator[Sequence[Row]]:
        """All rows of one moment, in runs: the values of ``names``, each for the lake's column at the same place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What is known of a lake table. ``mapping`` and ``schema`` pair its columns with the source's."""

    table: TableId
    mode: Mode = _MIRROR
    mapping: ColumnMapping | None = None
    schema: TableSchema | None = None

    def columns(self, lake: Sequence[str], source: Sequence[str]) -> Columns:
        if self.mapping is None or self.schema is None:
            return paired_by_name(lake, source)
        return paired(lake, source, self.mapping, self.schema)

    @property
    def key(self) -> tuple[str, ...]:
        """In the lake table's names; none if unknown, and then rows are what they have."""
        if self.mapping is None or self.schema is None:
            return ()
        return self.mapping.schema(self.schema).key


Progress = Callable[[str, int], None]
"""Is told the side, ``lake`` or ``source``, and how many of its rows have been read so far."""


def compare_table(
    subject: Subject, stored: StoredRows, source: SourceTable, progress: Progress = lambda _side, _rows: None
) -> Comparison:
    """Compare a lake table with its source table. Nothing may be writing to either side meanwhile.

    Needs room for both tables in the temporary directory (TMPDIR) if they are large; memory stays bounded.
    """
    own = {column.name for column in subject.mode.added_columns()}
    names = [name for name in stored.schema.names if name not in own]
    columns = subject.columns(names, source.columns(names))
    incomparable = _incomparable(subject, columns)
    if incomparable is not None:
        found = _Found(others=[incomparable])
    else:
        with tempfile.TemporaryDirectory(prefix="lakefeed-verify-") as place:
            found = _Sides(subject, columns, (stored, source), Path(place), progress).compared()
    return Comparison(
        table=subject.table,
        source_rows=found.source_rows,
        lake_rows=found.lake_rows,
        differences=(*columns.differences, *found.differences()),
        chosen=columns.chosen,
    )


def _incomparable(subject: Subject, columns: Columns) -> str | None:
    """Why there is nothing to compare, if so."""
    if not columns.pairs:
        return "there is no column that both have"
    is_keyless = subject.schema is not None and not subject.schema.key
    if subject.mode.current_rows() is None and not is_keyless and not _whole_key(subject, columns):
        return "the lake table does not have the whole key, so that what its changes leave is unknown"
    return None


def _whole_key(subject: Subject, columns: Columns) -> tuple[str, ...]:
    """The key, if all of it is compared."""
    return subject.key if set(subject.key) <= set(columns.lake) else ()


def missing_table(table: TableId, location: object) -> Comparison:
    return Comparison(table=table, source_rows=0, lake_rows=0, differences=(f"there is no table at {location}",))


def not_compared(table: TableId, why: str) -> Comparison:
    return Comparison(table=table, source_rows=0, lake_rows=0, differences=(f"not compared: {why}",), compared=False)


@dataclass(slots=True)
class _Found:
    """What has been found so far, over all buckets."""

    source_rows: int = 0
    lake_rows: int = 0
    only_source: int = 0
    only_lake: int = 0
    examples: dict[str, list[Row]] = field(default_factory=lambda: {"source": [], "lake": []})
    faults: Counter[str] = field(default_factory=Counter)
    others: list[str] = field(default_factory=list)

    def add(self, source: Counter[Row], lake: Counter[Row]) -> None:
        self.only_source += source.total()
        self.only_lake += lake.total()
        for side, rows in (("source", source), ("lake", lake)):
            self.examples[side] += islice(rows, _EXAMPLES - len(self.examples[side]))

    def differences(self) -> Iterator[str]:
        yield from self.others
        if self.only_source or self.only_lake:
            yield f"{self.only_source:,} rows are only in the source, {self.only_lake:,} only in the lake"
            yield from (f"only in the {side}: {row}" for side, rows in self.examples.items() for row in rows)
        yield from told(self.faults)


class _Sides:
    """Both sides of one comparison, spread over buckets in a directory."""

    def __init__(
        self,
        subject: Subject,
        columns: Columns,
        tables: tuple[StoredRows, SourceTable],
        place: Path,
        progress: Progress,
    ) -> None:
        self._subject = subject
        self._mode = subject.mode
        self._columns = columns
        self._stored, self._source = stored, source = tables
        self._progress = progress
        self._truncated_at = -1
        estimate = stored.estimate
        self._count = buckets_for(max(estimate, source.count()) if estimate is not None else None)
        self._key = _whole_key(subject, columns)
        spread = self._key or columns.lake
        needed = {*columns.lake, *(column.name for column in subject.mode.added_columns())}
        kept = pa.schema([one for one in stored.schema if one.name in needed])
        self._compared = pa.schema([stored.schema.field(name) for name in columns.lake])
        self.lake = Buckets(place / "lake", self._count, spread, kept)
        self.source = Buckets(place / "source", self._count, spread, self._compared)

    def compared(self) -> _Found:
        try:
            self._read()
        except ValueDifferenceError as error:
            return _Found(lake_rows=self.lake.rows, source_rows=self.source.rows, others=[str(error)])
        found = _Found(source_rows=self.source.rows)
        for number in range(self._count):
            stored = self.lake.table(number)
            rows = self._source_rows(stored)
            found.lake_rows += rows.num_rows
            found.add(*different_rows(self.source.table(number), rows))
            interval = self._mode.interval()
            if interval is not None and self._key:
                found.faults += history_faults(stored, self._key, interval)
        return found

    def _read(self) -> None:
        for batch in self._stored.batches():
            kept = batch.select(self.lake.schema.names)
            if self._mode.current_rows() is None:
                self._truncated_at = max(self._truncated_at, last_truncate(kept))
            self.lake.add(kept)
            self._progress("lake", self.lake.rows)
        self.lake.close()
        try:
            for rows in self._source.rows(self._compared, self._columns.source):
                self.source.add(exact_batch(rows, self._compared))
                self._progress("source", self.source.rows)
        finally:
            self.source.close()

    def _source_rows(self, stored: pa.Table) -> pa.Table:
        """The rows of a bucket of the lake's that should be the source's."""
        current = self._mode.current_rows()
        if current is not None:
            rows: pa.Table = current.of(stored).select(self._compared.names)
            return rows
        changes: Any = stored.select([*self._compared.names, *TOLD])
        return current_rows(changes, self._key, self._compared.names, self._truncated_at)
