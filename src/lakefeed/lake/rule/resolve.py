"""A rule on a schema: the lake table's columns, and the inputs of each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import pyarrow as pa

from lakefeed.change.mask import KEYED, can_mask, masked_type
from lakefeed.change.table import Column, TableId, TableSchema
from lakefeed.errors import TableStoppedError
from lakefeed.lake.layout import Partition
from lakefeed.lake.rule.expression import analyzed, mask_sql
from lakefeed.lake.rule.rows import RowRule
from lakefeed.lake.spark.type import quoted, text_literal

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class RuledColumn:
    """A column of the lake table. ``sql`` is its value, over the source's columns ``inputs``; None: the value of the
    only input. ``rule`` names, for people, what makes it."""

    column: Column
    inputs: tuple[str, ...]
    sql: str | None = None
    rule: str | None = None

    @property
    def value(self) -> str:
        return self.sql if self.sql is not None else quoted(self.inputs[0])


@dataclass(frozen=True)
class Resolved:
    """A rule on one schema (``source``), for the lake table ``table``: ``columns`` has the source's in their order,
    then the new ones. ``schema`` is the lake table's, without the mode's own columns."""

    table: TableId
    source: TableSchema
    columns: tuple[RuledColumn, ...]
    where: str | None = None
    where_inputs: tuple[str, ...] = ()
    origin: tuple[str, str] | None = None

    @cached_property
    def schema(self) -> TableSchema:
        names = {was: one.column.name for was, one in zip(self.source.names, self.columns, strict=False)}
        key = tuple(names[name] for name in self.source.key)
        if key and self.origin is not None:
            key = (*key, self.origin[0])
        return replace(self.source, columns=tuple(one.column for one in self.columns), key=key, left_out=())

    @cached_property
    def plain(self) -> dict[str, str]:
        """For columns with the source's values: the lake's name by the source's."""
        return {one.inputs[0]: one.column.name for one in self.columns if one.sql is None}

    @property
    def needed(self) -> tuple[str, ...]:
        """The columns with large values that every change must carry. With a condition all of them: a row that begins
        to meet it is new to the table. Else the inputs of an expression over several columns that the table does not
        also have with the source's values."""
        large = [one.name for one in self.source.columns if one.type in _LARGE or pa.types.is_list(one.type)]
        if self.where is not None:
            return tuple(large)
        mixed = {name for one in self.columns if one.sql is not None and len(one.inputs) > 1 for name in one.inputs}
        return tuple(name for name in large if name in mixed and name not in self.plain)

    @property
    def is_renaming(self) -> bool:
        """Are rows and values the source's, under other names?"""
        return self.where is None and all(one.sql is None for one in self.columns)

    @property
    def key_is_plain(self) -> bool:
        return all(name in self.plain for name in self.source.key)


_NEW = "new"
_LARGE = (pa.string(), pa.binary())
_PART_TYPES: dict[str, pa.DataType] = {"days": pa.date32(), "bucket": pa.int32()}


def resolved(rule: RowRule, source: TableSchema, table: TableId, session: Callable[[], SparkSession]) -> Resolved:
    """The rule on a schema, for the lake table ``table``. TableStoppedError if it does not fit.

    Calls ``session`` only for expressions.
    """

    def stopped(option: str, problem: str, remedy: str = "") -> TableStoppedError:
        return TableStoppedError(
            f"table {table}: {option} {problem}",
            remedy=f"Correct {option.split()[0]} in the rule for {source.table}. {remedy}".rstrip(),
            table=str(table),
        )

    transform, masks = dict(rule.transform), dict(rule.mask)
    for option, named in (("mask", masks), ("rename", dict(rule.rename))):
        for name in named:
            if name not in source.names and name not in rule.optional:
                listed = ", ".join(source.names)
                raise stopped(
                    option, f"names the column {name}, which {source.table} does not have", f"It has {listed}."
                )
    found: list[RuledColumn] = []
    for column in source.columns:
        lake = replace(column, name=rule.name(column.name))
        if column.name in transform:
            if column.name in source.key:
                raise stopped(
                    f"transform of {column.name}",
                    "is not possible: the column is part of the key, and an expression may give two keys one value",
                    "A key may have a mask: hash or tokenize.",
                )
            found.append(RuledColumn(lake, (), transform[column.name], f"transform {column.name}"))
        elif column.name in masks:
            mask = masks[column.name]
            if column.name in source.key and mask not in KEYED:
                raise stopped(
                    f"mask of {column.name}",
                    f"is {mask}, which gives different keys one value, and the column is part of the key",
                    f"A key may have the mask {' or '.join(KEYED)}.",
                )
            if not can_mask(column.type, mask):
                raise stopped(f"mask of {column.name}", f"is {mask}, which a column of type {column.type} cannot have")
            lake = replace(lake, type=masked_type(column.type, mask), default=None)
            sql = mask_sql(column.name, column.type, mask, rule.salt)
            found.append(RuledColumn(lake, (column.name,), sql, f"mask {column.name}"))
        else:
            found.append(RuledColumn(lake, (column.name,)))
    new = [name for name in transform if name not in source.names]
    found += [RuledColumn(Column(name, pa.string(), id=f"rule.{name}"), (), transform[name], _NEW) for name in new]
    columns: list[RuledColumn] = []
    for one in found:
        if one.rule is None or one.inputs:
            columns.append(one)
            continue
        name = one.column.name if one.rule == _NEW else one.rule.removeprefix("transform ")
        answer = analyzed(session(), source, transform[name])
        if isinstance(answer, str):
            raise stopped(f"transform of {name}", answer)
        column = replace(one.column, type=answer.type, default=None)
        columns.append(RuledColumn(column, answer.inputs, one.sql, f"transform {name}"))
    if rule.origin is not None:
        column = Column(rule.origin[0], pa.string(), nullable=False, id="origin")
        columns.append(RuledColumn(column, (), text_literal(rule.origin[1])))
    columns += _parts(rule, columns, stopped)
    seen: dict[str, str] = {}
    for one in () if rule.is_plain else columns:
        if twin := seen.get(one.column.name.lower()):
            option = "union" if one.column.id == "origin" else "rename"
            raise stopped(option, f"gives two columns the name {one.column.name}: spelt {twin} and {one.column.name}",
                          "Or choose another naming, or another column of a union.")  # fmt: skip
        seen[one.column.name.lower()] = one.column.name
    where_inputs: tuple[str, ...] = ()
    if rule.where is not None:
        answer = analyzed(session(), source, rule.where)
        if isinstance(answer, str):
            raise stopped("where", answer)
        if answer.type != pa.bool_():
            raise stopped("where", f"is a value of type {answer.type}, and not a condition")
        where_inputs = answer.inputs
    return Resolved(table, source, tuple(columns), rule.where, where_inputs, rule.origin)


def _parts(
    rule: RowRule, columns: Sequence[RuledColumn], stopped: Callable[[str, str], Exception]
) -> list[RuledColumn]:
    """The columns for partitions by a function: see ``lake.layout``."""
    known, found = {one.column.name: one for one in columns}, list[RuledColumn]()
    for part in map(Partition.parse, rule.parts):
        if part.column not in known:
            raise stopped("partition_by", f"names the column {part.column}, which the lake table does not have")
        of = known[part.column]
        sql = part.sql(f"({of.value})", is_instant=of.column.type == pa.timestamp("us", tz="UTC"))
        lake = Column(part.name, _PART_TYPES.get(part.kind, pa.string()), id=f"part.{part.name}")
        found.append(RuledColumn(lake, of.inputs, sql))
    return found
