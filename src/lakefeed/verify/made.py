"""Rows that a rule makes: turns the source's rows into those that the lake table should have, for the comparison.

The source is read in its own types, masks that apply before the journal are applied in Arrow, as in the pipeline, and
Spark evaluates the rest of the rule. A column is compared if everything that it is made from can be read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from lakefeed.change.choice import field_of
from lakefeed.change.mask import masked
from lakefeed.change.table import TableSchema
from lakefeed.lake.rule.resolve import Resolved
from lakefeed.lake.rule.rows import RowRule
from lakefeed.lake.schema.mapping import ColumnMapping
from lakefeed.verify.columns import Columns, paired

Evaluate = Callable[[Resolved, Iterator[pa.RecordBatch], Path], Iterator[pa.RecordBatch]]
"""Takes whole rows of the source, returns rows of the lake table; the directory is for intermediate files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeRows:
    """``schema`` is the source schema that the lake table maps; ``mapping`` has its columns before ``ruled`` is
    applied."""

    rule: RowRule
    ruled: Resolved
    schema: TableSchema
    mapping: ColumnMapping
    evaluate: Evaluate

    @property
    def key(self) -> tuple[str, ...]:
        return self.ruled.schema.key

    def columns(self, lake: Sequence[str], source: Sequence[str]) -> Columns:
        """The pairs have the lake's name twice: one side stores the column, the other makes it."""
        read = self._read(source)
        ready = [one for one in self.ruled.columns if one.column.name in lake and set(one.inputs) <= set(read)]
        names = {one.column.name for one in self.ruled.columns}
        beside = paired([one.column.name for one in self.mapping.columns], source, self.mapping, self.schema)
        lacking = [one.column.name for one in self.ruled.columns if one.column.name not in lake]
        unread = [name for name in self.ruled.where_inputs if name not in read]
        return Columns(
            pairs=tuple((one.column.name, one.column.name) for one in ready),
            chosen=(
                *beside.chosen,
                *(
                    f"column {one.column.name} is computed from columns whose original values the source does not have"
                    for one in self.ruled.columns
                    if one.column.name in lake and one not in ready
                ),
            ),
            differences=(
                *beside.differences,
                *(f"column {name} is not in the lake" for name in lacking),
                *(f"column {name} is not made by the rule" for name in lake if name not in names),
                *(f"the condition reads {name}, which the source no longer has" for name in unread),
            ),
        )

    def given(self, source: Sequence[str]) -> tuple[pa.Schema, tuple[str, ...]]:
        """What to read from the source: the columns as a schema, under the rule's names, and their names in the source.
        Each has its rule for values out of range, which applies before a mask."""
        read, fields = self._read(source), {one.name: field_of(one) for one in self.schema.whole.columns}
        return pa.schema([fields[there].with_name(name) for name, there in read.items()]), tuple(read.values())

    def batches(
        self, rows: Iterator[pa.RecordBatch], source: Sequence[str], directory: Path
    ) -> Iterator[pa.RecordBatch]:
        """The rows that the lake table should have."""
        read, early = self._read(source), dict(self.rule.early)

        def whole(batch: pa.RecordBatch) -> pa.RecordBatch:
            arrays = []
            for column in self.ruled.source.columns:
                if column.name not in read:
                    arrays.append(pa.array([None] * batch.num_rows, column.type))
                    continue
                values, mask = batch.column(column.name), early.get(read[column.name])
                arrays.append(masked(values, mask, self.rule.salt) if mask is not None else values)
            fields = [pa.field(column.name, column.type) for column in self.ruled.source.columns]
            return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))

        prepared = map(whole, rows)
        return prepared if self.rule.is_plain else self.evaluate(self.ruled, prepared, directory)

    def _read(self, source: Sequence[str]) -> dict[str, str]:
        """The names of the rule's input columns, each with the name of its source column."""
        return {
            one.column.name: one.source
            for one in self.mapping.columns
            if one.is_live and not one.since and one.source in source
        }
