"""Proof that a lake table equals its source table, row by row, by readers that the pipeline does not use.

deltalake or pyiceberg read the lake (no Spark, no JVM); plain SQL and the driver's own conversions read the source.
Both become Arrow columns of the lake's types and are compared exactly: no tolerance, no sample, a hash only to
distribute rows.

  1 pair the columns: by name, or by the lake table's column mapping
  2 read each side once, in batches, and distribute it over buckets by key
  3 bucket by bucket, select the lake's rows that should equal the source's (current versions; results of changes) and
    compare them; the versions of a history table must also keep their invariants
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa

from lakefeed.capture.dialect import Key
from lakefeed.capture.registry import VerifyReader
from lakefeed.change.choice import field_of
from lakefeed.change.position import Position
from lakefeed.change.table import TableId, TableSchema
from lakefeed.lake.mode import Mirror, Mode
from lakefeed.lake.reader import StoredRows, rows_at
from lakefeed.lake.schema.mapping import ColumnMapping
from lakefeed.verify.bucket import Buckets, buckets_for
from lakefeed.verify.columns import Columns, paired, paired_by_name
from lakefeed.verify.made import MadeRows
from lakefeed.verify.mode import CHANGE_COLUMNS, current_rows, fault_sentences, history_faults, last_truncate
from lakefeed.verify.rows import Row, ValueDifferenceError, different_rows, exact_batch

_EXAMPLES = 3
_MIRROR = Mirror()


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Rows on both sides and the first differences, as sentences; without differences the two are equal.

    ``lake_rows`` counts the rows that should be the source's: the current versions of a history table, the results of a
    table of changes. ``chosen`` says what the evolution has excluded from the comparison. ``compared`` is False for a
    table that could not be compared: its rows are unknown, and that is a difference. A comparison beside a running
    pipeline also has the number of ``differing`` rows, their ``keys`` as in the source, and the ``change_set`` and
    ``position`` at which the lake was compared; ``only_rows`` means that nothing but rows differs, so that repairing
    them makes the table equal. ``partial`` says which rows were compared if not all: such a table is never called
    equal.
    """

    table: TableId
    source_rows: int
    lake_rows: int
    differences: tuple[str, ...] = ()
    chosen: tuple[str, ...] = ()
    compared: bool = True
    keys: tuple[Key, ...] = ()
    differing: int = 0
    change_set: int | None = None
    position: Position | None = None
    only_rows: bool = False
    partial: str | None = None

    @property
    def equal(self) -> bool:
        """Whether nothing was found. ``partial`` tells whether that holds only for some rows."""
        return not self.differences


@dataclass(frozen=True, slots=True, kw_only=True)
class TableShape:
    """What is known about a lake table. ``mapping`` and ``schema`` say which source column feeds which of its columns;
    ``made`` turns the source's rows into what the table should have, if that is not the same."""

    table: TableId
    mode: Mode = _MIRROR
    mapping: ColumnMapping | None = None
    schema: TableSchema | None = None
    made: MadeRows | None = None

    def columns(self, lake: Sequence[str], source: Sequence[str]) -> Columns:
        if self.made is not None:
            return self.made.columns(lake, source)
        if self.mapping is None or self.schema is None:
            return paired_by_name(lake, source)
        return paired(lake, source, self.mapping, self.schema)

    def ruled(self, field: pa.Field[Any], source: str) -> pa.Field[Any]:
        """The field of a lake column, with the rule by which the source column ``source`` was delivered."""
        found = [one for one in self.schema.columns if one.name == source] if self.schema is not None else []
        return pa.field(field.name, field.type, metadata=field_of(found[0]).metadata) if found else field

    @property
    def key(self) -> tuple[str, ...]:
        """In the lake table's names; empty if unknown, and then all values of a row identify it."""
        if self.made is not None:
            return self.made.key
        if self.mapping is None or self.schema is None:
            return ()
        return self.mapping.schema(self.schema).key


Progress = Callable[[str, int], None]
"""Receives the side, ``lake`` or ``source``, and the number of its rows that have been read so far."""


def compare_table(
    known: TableShape, stored: StoredRows, source: VerifyReader, progress: Progress = lambda _side, _rows: None
) -> Comparison:
    """Compare a lake table with its source table. Nothing may be writing to either side meanwhile.

    Needs room for both tables in the temporary directory (TMPDIR) if they are large; memory stays bounded.
    """
    # 1 columns
    current, interval = known.mode.current_rows(), known.mode.interval()
    own = {column.name for column in known.mode.added_columns()}
    names = [name for name in stored.schema.names if name not in own]
    columns = known.columns(names, source.columns())
    key = known.key if set(known.key) <= set(columns.lake) else ()
    is_keyless = known.schema is not None and not known.schema.key
    incomparable = None
    if not columns.pairs:
        incomparable = "there is no column that both have"
    elif current is None and not is_keyless and not key:
        incomparable = "the lake table does not have the whole key, so it is not known which rows its changes leave"
    if incomparable is not None:
        differences = (*columns.differences, incomparable)
        return Comparison(table=known.table, source_rows=0, lake_rows=0, differences=differences, chosen=columns.chosen)
    estimate = stored.estimate
    count = buckets_for(max(estimate, source.count()) if estimate is not None else None)
    kept = pa.schema([one for one in stored.schema if one.name in {*columns.lake, *own}])
    compared = pa.schema([stored.schema.field(name) for name in columns.lake])
    ruled = pa.schema([known.ruled(stored.schema.field(name), source) for name, source in columns.pairs])
    with tempfile.TemporaryDirectory(prefix="lakefeed-verify-") as directory:
        lake_side = Buckets(Path(directory) / "lake", count, key or columns.lake, kept)
        source_side = Buckets(Path(directory) / "source", count, key or columns.lake, compared)
        # 2 both sides, once each
        truncated_at, found = -1, list(columns.differences)
        for batch in stored.batches():
            part = batch.select(kept.names)
            if current is None:
                truncated_at = max(truncated_at, last_truncate(part))
            lake_side.add(part)
            progress("lake", lake_side.rows)
        lake_side.close()
        try:
            for part in _source_batches(known, source, columns, compared, ruled, Path(directory)):
                source_side.add(part)
                progress("source", source_side.rows)
        except ValueDifferenceError as error:
            return Comparison(
                table=known.table,
                source_rows=source_side.rows,
                lake_rows=lake_side.rows,
                differences=(*found, str(error)),
                chosen=columns.chosen,
            )
        finally:
            source_side.close()
        # 3 bucket by bucket
        lake_rows, only, faults = 0, Counter({"source": 0, "lake": 0}), Counter[str]()
        examples: dict[str, list[Row]] = {"source": [], "lake": []}
        for number in range(count):
            in_lake = lake_side.table(number)
            if current is not None:
                wanted: pa.Table = current.of(in_lake).select(compared.names)
            else:
                changes: Any = in_lake.select([*compared.names, *CHANGE_COLUMNS])
                wanted = current_rows(changes, key, compared.names, truncated_at)
            lake_rows += wanted.num_rows
            apart = different_rows(source_side.table(number), wanted)
            for side, different in zip(examples, apart, strict=True):
                only[side] += different.total()
                examples[side] += islice(different, _EXAMPLES - len(examples[side]))
            if interval is not None and key:
                faults += history_faults(in_lake, key, interval)
    if only.total():
        are = "row is" if only["source"] == 1 else "rows are"
        found.append(f"{only['source']:,} {are} only in the source, {only['lake']:,} only in the lake")
        found += (f"only in the {side}: {row}" for side, rows in examples.items() for row in rows)
    return Comparison(
        table=known.table,
        source_rows=source_side.rows,
        lake_rows=lake_rows,
        differences=(*found, *fault_sentences(faults)),
        chosen=columns.chosen,
    )


def _source_batches(
    known: TableShape, source: VerifyReader, columns: Columns, compared: pa.Schema, ruled: pa.Schema, directory: Path
) -> Iterator[pa.RecordBatch]:
    """The source's rows with the columns ``compared``, as the lake table should have them; ``ruled`` are the same with
    the rules by which they were delivered."""
    if known.made is None:
        for rows in source.rows(ruled, columns.source):
            yield exact_batch(rows, compared)
        return
    there = source.columns()
    given, names = known.made.given(there)
    clear = (exact_batch(rows, given) for rows in source.rows(given, names))
    for batch in known.made.batches(clear, there, directory):
        arrays = [batch.column(one.name).cast(one.type) for one in compared]
        yield pa.RecordBatch.from_arrays(arrays, schema=compared)


def compare_at(table: TableId, source: VerifyReader, lake_table: Path, mode: Mode = _MIRROR) -> Comparison:
    """Compare one source table with the lake table at a path. Nothing may be writing to either side meanwhile."""
    stored = rows_at(str(lake_table))
    if stored is None:
        return missing_table(table, lake_table)
    return compare_table(TableShape(table=table, mode=mode), stored, source)


def missing_table(table: TableId, location: object) -> Comparison:
    return Comparison(table=table, source_rows=0, lake_rows=0, differences=(f"there is no table at {location}",))


def not_compared(table: TableId, why: str) -> Comparison:
    return Comparison(table=table, source_rows=0, lake_rows=0, differences=(f"not compared: {why}",), compared=False)
