"""Which columns are compared: those that should be equal, by the name that each side has for them."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa

from lakefeed.change.table import Column, TableSchema
from lakefeed.lake.schema.mapping import ColumnMapping, MappedColumn
from lakefeed.testing.builders import table
from lakefeed.verify.columns import paired, paired_by_name

SCHEMA = table("main.t", {"id": pa.int64(), "a": pa.string(), "n": pa.string(), "new": pa.string()}, key=("id",))


def fed(name: str, source: str | None = None, *, since: int = 0, until: int | None = None) -> MappedColumn:
    return MappedColumn(Column(name, pa.string(), id=name), source or name, since, until)


def test_without_decisions_columns_meet_by_name() -> None:
    found = paired_by_name(["id", "cost"], ["id", "price"])
    assert found.pairs == (("id", "id"),)
    assert found.differences == ("column price is not in the lake", "column cost is not in the source")


def test_what_the_evolution_chose_is_named_and_the_rest_is_compared() -> None:
    schema = replace(SCHEMA, version=3)
    columns = (fed("id"), fed("a"), fed("gone", until=2), fed("n", until=2), fed("n__2", "n", since=3))
    found = paired(["id", "a", "gone", "n", "n__2"], ["id", "a", "n", "new"], ColumnMapping(3, columns), schema)
    assert found.pairs == (("id", "id"), ("a", "a"))
    assert found.differences == ()
    assert found.chosen == (
        "column new of the source is ignored",
        "column gone is kept, and the source no longer feeds it",
        "column n is kept, and the source no longer feeds it",
        "column n__2 has the source's n only in rows changed after its type changed",
    )


def test_a_column_under_another_name_is_compared_with_what_feeds_it() -> None:
    schema = TableSchema(SCHEMA.table, (Column("id", pa.int64()), Column("b", pa.string())), ("id",), 1)
    found = paired(["id", "b__2"], ["id", "b"], ColumnMapping(1, (fed("id"), fed("b__2", "b"))), schema)
    assert found.pairs == (("id", "id"), ("b__2", "b"))
    assert (found.chosen, found.differences) == ((), ())


def test_what_nobody_chose_is_a_difference() -> None:
    followed = ColumnMapping.plain(SCHEMA)
    lost = paired(["id", "a", "n"], ["id", "a", "n", "new"], followed, SCHEMA)
    assert lost.differences == ("column new is not in the lake",)
    late = paired(list(SCHEMA.names), [*SCHEMA.names, "later"], followed, SCHEMA)
    assert late.differences == ("column later is not in the lake",)
    strange = paired([*SCHEMA.names, "theirs"], SCHEMA.names, followed, SCHEMA)
    assert strange.differences == ("column theirs is not in the source",)
    dropped = paired(SCHEMA.names, ["id", "a", "n"], followed, SCHEMA)
    assert dropped.differences == ("column new is not in the source",)
