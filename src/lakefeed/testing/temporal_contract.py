"""The contract suite of mode temporal. Every table format runs it: see ``mode_contract``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lakefeed.change.table import Column, TableSchema
from lakefeed.errors import TableStoppedError
from lakefeed.failpoint import FailpointError, armed
from lakefeed.lake.mode import Temporal
from lakefeed.testing.builders import batch, table
from lakefeed.testing.mode_contract import COPIED_AT, ModeContract, Stage, property_test
from lakefeed.testing.mode_history import Dice, TemporalModel, Values, histories, plain

NOON = datetime(2024, 5, 1, 12, tzinfo=UTC)
ONE, TWO, THREE = (NOON + timedelta(minutes=minutes) for minutes in (1, 2, 3))
HISTORY = ("_lakefeed_seq", "valid_from", "valid_to", "is_current")


def product(number: int, name: str | None = "n", price: float | None = 1.0) -> Values:
    return {"id": number, "name": name, "price": price}


def products() -> TableSchema:
    return table("main.products", {"id": pa.int64(), "name": pa.string(), "price": pa.float64()}, key=("id",))


class TemporalContract(ModeContract):
    """Each test checks one rule; the first one checks all of them against a plain model."""

    @property_test
    @given(seed=st.integers(0, 10**9), windows=st.integers(2, 4), track=st.booleans())
    @example(seed=1, windows=1, track=True)
    def test_b10_acceptance_7_any_history_gives_the_versions_of_a_plain_model_however_it_is_grouped(
        self, seed: int, windows: int, track: bool
    ) -> None:
        dice = Dice(seed)
        model = TemporalModel(("a", "f", "big", *(() if track else ("note",))), COPIED_AT)
        mode = Temporal(track_except=("note",)) if track else Temporal()
        with self.stage(mode, histories()) as stage:
            model.copy(dice.copied)
            for event in dice.events:
                model.apply(event)
            stage.copy(dice.copied)
            stage.play(list(dice.pieces(windows)))
            found = self.rows(stage)
        told = [(plain(row), *(row[name] for name in HISTORY)) for row in found]
        expected = [
            (plain(one.values), one.seq, one.valid_from, one.valid_to, one.valid_to is None) for one in model.versions
        ]
        assert set(told) == set(expected)
        assert len(told) == len(expected)

    def versions(self, stage: Stage, *names: str) -> list[tuple[Any, ...]]:
        """Chosen columns of all versions, ordered by key and then by opening."""
        rows = sorted(self.rows(stage), key=lambda row: (row["id"], row["_lakefeed_seq"]))
        return [tuple(row[name] for name in names) for row in rows]

    def test_b10_every_change_makes_a_version_and_update_and_delete_close_the_one_before(self) -> None:
        with self.stage(Temporal(), products()) as stage:
            stage.copy([])
            stage.add(("insert", product(1)), ("insert", product(2)), time=NOON)
            stage.add(("update", product(1, price=2.0)), time=ONE)
            stage.add(("delete", {"id": 1}), time=TWO)
            stage.sync()
            assert self.versions(stage, "id", "price", "valid_from", "valid_to", "is_current") == [
                (1, 1.0, NOON, ONE, False), (1, 2.0, ONE, TWO, False), (2, 1.0, NOON, None, True),
            ]  # fmt: skip
            assert _as_of(self.rows(stage), ONE) == {1: 2.0, 2: 1.0}
            assert _as_of(self.rows(stage), TWO) == {2: 1.0}

    def test_b10_a_row_deleted_and_inserted_again_has_a_gap_between_its_versions(self) -> None:
        with self.stage(Temporal(), products()) as stage:
            stage.copy([product(1)])
            stage.add(("delete", {"id": 1}), time=ONE + timedelta(days=9999))
            stage.add(("insert", product(1)), time=THREE + timedelta(days=9999))
            stage.sync()
            end = ONE + timedelta(days=9999)
            assert self.versions(stage, "valid_from", "valid_to") == [
                (COPIED_AT, end), (THREE + timedelta(days=9999), None),
            ]  # fmt: skip

    def test_b03_a_step_that_failed_is_made_good_without_a_second_version(self) -> None:
        with self.stage(Temporal(), products()) as stage:
            stage.copy([product(1)])
            for number, place in enumerate(("lake.before_commit", "lake.after_commit"), 1):
                stage.add(("update", product(1, price=number + 1.0)), time=NOON + timedelta(minutes=number))
                with armed(place, "raise"), pytest.raises(FailpointError):
                    stage.sync()
                stage.sync()
            assert self.versions(stage, "price", "valid_from", "valid_to") == [
                (1.0, COPIED_AT, ONE), (2.0, ONE, TWO), (3.0, TWO, None),
            ]  # fmt: skip

    def test_an_update_that_changes_nothing_tracked_opens_no_version_and_is_written_into_the_current_one(self) -> None:
        with self.stage(Temporal(track=("price",)), products()) as stage:
            stage.copy([])
            stage.add(("insert", product(1, "old", float("nan"))), time=NOON)
            stage.add(("update", product(1, "new", float("nan"))), time=ONE)
            stage.sync()
            assert self.versions(stage, "name", "valid_from", "is_current") == [("new", NOON, True)]

    def test_a_change_to_or_from_null_opens_a_version(self) -> None:
        with self.stage(Temporal(), products()) as stage:
            stage.copy([])
            stage.add(
                ("insert", product(1, None)), ("update", product(1, "n")), ("update", product(1, None)), time=NOON
            )
            stage.sync()
            assert self.versions(stage, "name", "valid_to", "is_current") == [
                (None, NOON, False), ("n", NOON, False), (None, None, True),
            ]  # fmt: skip

    def test_a_clock_that_steps_back_makes_no_negative_interval_and_no_overlap(self) -> None:
        with self.stage(Temporal(), products()) as stage:
            stage.copy([])
            stage.add(("insert", product(1)), time=TWO)
            stage.add(("update", product(1, price=2.0)), time=ONE)
            stage.add(("delete", {"id": 1}), time=THREE)
            stage.sync()
            stage.add(("insert", product(1)), time=NOON)
            stage.sync()
            assert self.versions(stage, "valid_from", "valid_to") == [(TWO, TWO), (TWO, THREE), (THREE, None)]

    def test_a_truncate_closes_everything_at_its_time(self) -> None:
        with self.stage(Temporal(), products()) as stage:
            stage.copy([])
            stage.add(("insert", product(1)), ("insert", product(2)), ("insert", product(3)), time=NOON)
            stage.add(("delete", {"id": 2}), time=ONE)
            stage.add(("truncate", {}), ("insert", product(3)), time=TWO)
            stage.sync()
            assert self.versions(stage, "id", "valid_to") == [(1, TWO), (2, ONE), (3, TWO), (3, None)]

    def test_another_key_is_another_row(self) -> None:
        with self.stage(Temporal(), products()) as stage:
            stage.copy([])
            stage.add(("insert", product(1)), time=NOON)
            stage.add(("delete", {"id": 1}), ("insert", product(9)), time=ONE)
            stage.sync()
            assert self.versions(stage, "id", "valid_from", "valid_to") == [(1, NOON, ONE), (9, ONE, None)]

    def test_adding_a_column_closes_nothing(self) -> None:
        with self.stage(Temporal(), products()) as stage:
            stage.copy([])
            stage.add(("insert", product(1)), ("insert", product(2)), time=NOON)
            stage.sync()
            wider = (*stage.schema.columns, Column("unit", pa.string(), default="kg"))
            newest = stage.log.schema_of(replace(stage.schema, columns=wider))
            rows = [("update", {**product(1), "unit": "kg"}), ("update", {**product(2), "unit": "g"})]
            stage.log.add(batch(newest, rows, time=ONE))
            stage.sync()
            assert self.versions(stage, "id", "unit", "valid_from", "is_current") == [
                (1, "kg", NOON, True), (2, "kg", NOON, False), (2, "g", ONE, True),
            ]  # fmt: skip

    def test_acceptance_6_a_column_that_was_not_carried_has_the_value_of_the_version_before(self) -> None:
        with self.stage(Temporal(), products()) as stage:
            stage.copy([product(1, "copied")])
            stage.add(
                ("update", product(1, None, 2.0)), ("update", product(1, None, 3.0)), absent={0: ["name"], 1: ["name"]}
            )
            stage.sync()
            assert self.versions(stage, "name", "price") == [("copied", 1.0), ("copied", 2.0), ("copied", 3.0)]

    def test_acceptance_6_a_partial_update_of_an_unknown_row_stops_the_table(self) -> None:
        with self.stage(Temporal(), products()) as stage:
            stage.copy([product(1)])
            stage.add(("delete", {"id": 1}), ("update", product(1, None)), absent={1: ["name"]})
            with pytest.raises(TableStoppedError, match="an update lacks columns"):
                stage.sync()
            assert self.versions(stage, "name", "is_current") == [("n", True)]

    def test_changes_that_the_copy_may_have_make_no_history(self) -> None:
        with self.stage(Temporal(), products()) as stage:
            stage.copy([product(1, price=9.0), product(2), product(3)])
            rows = [("update", product(1, price=2.0)), ("delete", {"id": 2}), ("insert", product(3, price=3.0))]
            stage.log.add(batch(stage.schema, [*rows, ("insert", product(4))], time=ONE))
            stage.apply(replace(stage.window(), exact=False))
            assert self.versions(stage, "id", "price", "valid_from", "valid_to", "is_current") == [
                (1, 2.0, COPIED_AT, None, True), (3, 3.0, COPIED_AT, None, True), (4, 1.0, ONE, None, True),
            ]  # fmt: skip
            stage.log.add(batch(stage.schema, [("truncate", {}), ("insert", product(5))], time=TWO))
            stage.apply(replace(stage.window(1), exact=False))
            assert self.versions(stage, "id", "valid_from", "is_current") == [(5, TWO, True)]

    def test_the_modes_columns_have_the_names_that_were_asked_for(self) -> None:
        mode = Temporal(valid_from="since", valid_to="until", is_current="now")
        with self.stage(mode, products()) as stage:
            stage.copy([])
            stage.add(("insert", product(1)), ("update", product(1, "m")), ("delete", {"id": 1}), time=NOON)
            stage.sync()
            assert self.versions(stage, "since", "until", "now") == [(NOON, NOON, False)] * 2

    def test_a_table_without_a_key_and_one_without_a_tracked_column_stop(self) -> None:
        with self.stage(Temporal(), table("main.marks", {"t": pa.string()})) as stage:
            stage.copy([])
            stage.add(("insert", {"t": "a"}))
            with pytest.raises(TableStoppedError, match="has no key"):
                stage.sync()
        with (
            self.stage(Temporal(track=("price", "colour")), products()) as stage,
            pytest.raises(TableStoppedError, match="lacks columns that its track names: colour"),
        ):
            stage.copy([])

    def test_a_tracked_column_that_gets_another_name_stops_the_table_before_its_history_is_lost(self) -> None:
        key, price = Column("id", pa.int64(), nullable=False, id="1"), Column("price", pa.float64(), id="2")
        schema = replace(products(), columns=(key, price))
        with self.stage(Temporal(track=("price",)), schema) as stage:
            stage.copy([])
            stage.add(("insert", {"id": 1, "price": 1.0}), time=NOON)
            stage.sync()
            renamed = stage.log.schema_of(replace(schema, columns=(key, replace(price, name="cost"))))
            stage.log.add(batch(renamed, [("update", {"id": 1, "cost": 2.0})], time=ONE))
            with pytest.raises(TableStoppedError, match=r"column 'price'.*is now called 'cost'"):
                stage.sync()
            assert self.versions(stage, "price", "valid_to") == [(1.0, None)]


def _as_of(rows: Sequence[Values], time: datetime) -> dict[int, float]:
    """The rows that are valid at T: valid_from <= T AND (valid_to IS NULL OR valid_to > T)."""
    return {
        row["id"]: row["price"]
        for row in rows
        if row["valid_from"] <= time and (row["valid_to"] is None or row["valid_to"] > time)
    }
