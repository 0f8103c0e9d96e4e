"""Which columns a temporal table tracks, and what stops it before one of them is lost. No Spark."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest

from lakefeed.change.table import Column, TableSchema
from lakefeed.errors import TableStoppedError
from lakefeed.lake.mode import Mirror, Mode, Temporal
from lakefeed.lake.schema.evolve import evolved
from lakefeed.lake.schema.mapping import ColumnMapping
from lakefeed.lake.schema.policy import Evolution, Policy
from lakefeed.testing.builders import table

ID, A, B = (
    Column(name, kind, nullable=name != "id", id=name)
    for name, kind in (("id", pa.int64()), ("a", pa.int64()), ("b", pa.string()))
)
TABLE = table("main.t", {}).table
FIRST = TableSchema(TABLE, (ID, A, B), ("id",), 1)


def step(mode: Mode, *columns: Column, **choices: str) -> None:
    """The source's table gets these columns."""
    path = [FIRST, TableSchema(TABLE, columns, ("id",), 2)]
    before = ColumnMapping.plain(FIRST)
    after = evolved(before, path, Policy(TABLE, mode, Evolution().with_choices(choices)))
    mode.check_evolution(TABLE, before, after, path)


def test_all_columns_but_the_key_are_tracked_unless_some_are_named() -> None:
    assert Temporal().tracked_columns(FIRST) == ("a", "b")
    assert Temporal(track=("b", "id")).tracked_columns(FIRST) == ("b",)
    assert Temporal(track_except=("b", "seen_at")).tracked_columns(FIRST) == ("a",)


@pytest.mark.parametrize("mode", [Temporal(track=("a", "c")), Temporal(track=("A",)), Temporal(track_except=("B",))])
def test_a_name_that_the_table_does_not_have_is_refused_with_those_that_it_has(mode: Temporal) -> None:
    with pytest.raises(TableStoppedError, match="lacks columns that its") as stopped:
        mode.check_columns(FIRST)
    assert stopped.value.table == "main.t"
    assert "its columns are id, a, b" in stopped.value.remedy
    Mirror().check_columns(FIRST)


@pytest.mark.parametrize("mode", [Temporal(track=("a",)), Temporal(track_except=("a",))])
def test_a_column_that_is_named_and_gets_another_name_stops_the_table(mode: Temporal) -> None:
    with pytest.raises(TableStoppedError, match=r"column 'a'.*is now called 'amount'") as stopped:
        step(mode, ID, replace(A, name="amount"), B)
    assert "'amount'" in stopped.value.remedy
    assert "lakefeed rebuild FILE main.t --from-source" in stopped.value.remedy
    with pytest.raises(TableStoppedError, match=r"column 'a'.*is now called 'b'"):
        step(mode, ID, replace(A, name="b"), replace(B, name="a"))
    step(mode, ID, A, replace(B, name="text"))
    step(Temporal(), ID, replace(A, name="amount"), B)


def test_values_that_go_to_a_column_of_another_name_stop_the_table() -> None:
    with pytest.raises(TableStoppedError, match=r"column 'a'.*is now called 'a__2'"):
        step(Temporal(track=("a",)), ID, replace(A, type=pa.string()), B, change_type="new_column")


def test_a_tracked_column_that_is_dropped_stops_the_table_unless_it_is_kept() -> None:
    with pytest.raises(TableStoppedError, match="the source dropped column 'b'") as stopped:
        step(Temporal(track=("a", "b")), ID, A)
    assert "drop_column to keep" in stopped.value.remedy
    step(Temporal(track=("a", "b")), ID, A, drop_column="keep")
    step(Temporal(track_except=("b",)), ID, A)
    step(Temporal(), ID, A)
