"""The contract suites of the modes. Every table format runs them:

class TestMyMirror(MirrorContract):
    def make_format(self, root: Path, mode: Mode) -> TableFormat:
        return MyLake(root, mode=mode).bind("contract")

    def read_rows(self, tables: TableFormat, table: TableId) -> list[dict[str, Any]]:
        return rows by a reader that is not the writer

The suite of mode temporal is in ``temporal_contract``.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from lakefeed.change.segment import Counts, Window
from lakefeed.change.table import TableId, TableSchema
from lakefeed.errors import RebuildNeededError, TableStoppedError
from lakefeed.lake.base import LakeTable, TableCopy, TableFormat
from lakefeed.lake.mode import Append, Mirror, Mode
from lakefeed.testing.builders import COMMITTED_AT, Row, at, batch, table
from lakefeed.testing.mode_history import COLUMNS, Dice, Event, MirrorModel, Values, as_batch, histories, plain
from lakefeed.testing.scripted_log import ListChunk, ScriptedLog

GENERATION = 1_700_000_000_000
COPIED_AT = datetime.fromtimestamp(GENERATION / 1000, UTC)
MARKS: dict[str, pa.DataType] = {"case": pa.int64(), "a": pa.int64(), "f": pa.float64(), "t": pa.string()}
"""For a table without a key."""

property_test = settings(
    max_examples=1,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.differing_executors],
)
"""Few examples, because each has more than a hundred histories."""


@dataclass(frozen=True, slots=True)
class Stage:
    """A table in one format and mode, and the log with its changes."""

    tables: TableFormat
    schema: TableSchema
    log: ScriptedLog
    root: Path

    @property
    def lake_table(self) -> LakeTable:
        return self.tables.table(self.tables.routes(self.schema.table)[0])

    def copy(self, rows: Sequence[Values] = ()) -> None:
        chunks = [ListChunk.of(self.schema, rows, read_at=1, marks=self.root)] if rows else []
        copy = TableCopy(schema=self.schema, generation=GENERATION, base=0, position=at(0), chunks=chunks)
        self.lake_table.load(copy, lambda _: None)

    def add(self, *rows: Row, time: datetime = COMMITTED_AT, absent: dict[int, Sequence[str]] | None = None) -> None:
        """Add one change set, without applying it."""
        self.log.add(batch(self.schema, rows, time=time, absent=absent))

    def sync(self) -> None:
        """Apply everything pending, in one window."""
        applied = self.lake_table.applied(GENERATION)
        assert applied is not None
        self.apply(self.window(applied.number))

    def window(self, after: int = 0) -> Window:
        return self.log.window(self.schema.table, after, self.log.head)

    def apply(self, window: Window) -> None:
        self.lake_table.apply(window, GENERATION)

    def play(self, pieces: Sequence[Sequence[Event]]) -> None:
        """Apply one window for each piece, which is several change sets, and apply each window twice."""
        for piece in pieces:
            after, middle = self.log.head, len(piece) // 2
            for part in (piece[:middle], piece[middle:]):
                if part:
                    self.log.add(as_batch(self.schema, part))
            self.apply(self.window(after))
            self.apply(self.window(after))


class ModeContract(ABC):
    """What the suites need from a format."""

    @abstractmethod
    def make_format(self, root: Path, mode: Mode) -> TableFormat:
        """The tables below ``root`` in this mode, for one pipeline."""

    @abstractmethod
    def read_rows(self, tables: TableFormat, table: TableId) -> list[dict[str, Any]]:
        """All rows, read by something other than the writer."""

    @contextmanager
    def stage(self, mode: Mode, schema: TableSchema) -> Iterator[Stage]:
        """An empty lake, separate from those of other examples."""
        with TemporaryDirectory() as directory:
            root = Path(directory)
            (root / "segments").mkdir()
            log = ScriptedLog(root / "segments")
            yield Stage(self.make_format(root / "lake", mode), log.schema_of(schema), log, root)

    def rows(self, stage: Stage) -> list[dict[str, Any]]:
        return self.read_rows(stage.tables, stage.schema.table)


class MirrorContract(ModeContract):
    """A mirror with its options. ``format_contract`` has what holds for every mirror."""

    KEPT = Mirror(soft_delete="deleted_at", metadata=("operation", "position", "committed_at"))

    @property_test
    @given(seed=st.integers(0, 10**9), windows=st.integers(2, 4))
    @example(seed=1, windows=1)
    def test_deleted_rows_stay_with_their_values_however_changes_are_grouped(self, seed: int, windows: int) -> None:
        dice = Dice(seed)
        model = MirrorModel()
        model.copy(dice.copied)
        for event in dice.events:
            model.apply(event)
        with self.stage(self.KEPT, histories()) as stage:
            stage.copy(dice.copied)
            stage.play(list(dice.pieces(windows)))
            found = self.rows(stage)
        assert {(*_told(row), row["deleted_at"]) for row in found} == {_expected(model, key) for key in model.rows}
        assert len(found) == len(model.rows)

    @property_test
    @given(seed=st.integers(0, 10**9), windows=st.integers(2, 3))
    def test_metadata_tells_of_each_rows_last_change(self, seed: int, windows: int) -> None:
        dice = Dice(seed)
        model = MirrorModel()
        model.copy(dice.copied)
        for event in dice.events:
            model.apply(event)
        with self.stage(replace(self.KEPT, soft_delete=None), histories()) as stage:
            stage.copy(dice.copied)
            stage.play(list(dice.pieces(windows)))
            found = self.rows(stage)
        assert {_told(row) for row in found} == {
            _expected(model, key)[:-1] for key in model.rows if key not in model.deleted
        }
        assert len(found) == len(model.rows) - len(model.deleted)

    def test_a_row_that_comes_back_is_no_longer_deleted(self) -> None:
        with self.stage(Mirror(soft_delete="gone"), _pets()) as stage:
            stage.copy([{"id": 1, "name": "Rex"}, {"id": 2, "name": "Tom"}])
            stage.add(("delete", {"id": 1}), ("delete", {"id": 2}))
            stage.sync()
            assert {(row["name"], row["gone"]) for row in self.rows(stage)} == {
                ("Rex", COMMITTED_AT), ("Tom", COMMITTED_AT),
            }  # fmt: skip
            stage.add(("insert", {"id": 1, "name": None}))
            stage.sync()
            assert {(row["id"], row["name"], row["gone"]) for row in self.rows(stage)} == {
                (1, None, None), (2, "Tom", COMMITTED_AT),
            }  # fmt: skip

    def test_a_before_image_changes_nothing_and_is_not_counted(self) -> None:
        with self.stage(Mirror(), _pets()) as stage:
            stage.copy([{"id": 1, "name": "Rex"}, {"id": 2, "name": "Tom"}])
            stage.add(("before", {"id": 1, "name": "no"}), ("update", {"id": 1, "name": "Max"}))
            stage.add(("before", {"id": 2, "name": "no"}), ("delete", {"id": 2}), ("before", {"id": 3, "name": "no"}))
            window = stage.window()
            assert (window.rows, window.counts) == (5, Counts(updated=1, deleted=1))
            stage.sync()
            assert self.rows(stage) == [{"id": 1, "name": "Max"}]

    def test_a_column_of_the_source_with_the_name_of_the_option_stops_the_table(self) -> None:
        with self.stage(Mirror(soft_delete="NAME"), _pets()) as stage, pytest.raises(TableStoppedError, match="NAME"):
            stage.copy([])


class KeylessContract(ModeContract):
    """Mirrors of tables without a key."""

    @property_test
    @given(seed=st.integers(0, 10**9), windows=st.integers(2, 4))
    @example(seed=1, windows=1)
    def test_t11_equal_rows_are_counted_and_none_is_lost(self, seed: int, windows: int) -> None:
        chance = random.Random(seed)  # noqa: S311  # reproducible is what it is to be
        rows: Counter[tuple[Any, ...]] = Counter()
        copied = [self._row(chance.randrange(60), chance) for _ in range(100)]
        rows.update(plain(row, tuple(MARKS)) for row in copied)
        there, events = list(copied), []
        for _ in range(500):
            if there and chance.random() < 0.5:
                gone = there.pop(chance.randrange(len(there)))
                rows[plain(gone, tuple(MARKS))] -= 1
                events += [("before", gone), ("delete", gone)]
            else:
                there.append(self._row(chance.randrange(60), chance))
                rows[plain(there[-1], tuple(MARKS))] += 1
                events.append(("insert", there[-1]))
        with self.stage(Mirror(), table("main.marks", MARKS)) as stage:
            stage.copy(copied)
            size = len(events) // windows + 1
            for start in range(0, len(events), size):
                stage.add(*events[start : start + size])
                stage.sync()
            found = Counter(plain(row, tuple(MARKS)) for row in self.rows(stage))
        assert found == +rows

    def _row(self, case: int, chance: random.Random) -> Values:
        pick = chance.choice
        return {"case": case, "a": pick([None, 1]), "f": pick([None, float("nan"), 0.5]), "t": pick([None, "", "x"])}

    def test_a_truncate_takes_everything_before_it(self) -> None:
        one = self._row_of("a")
        with self.stage(Mirror(), table("main.marks", MARKS)) as stage:
            stage.copy([one, one])
            other = self._row_of("b")
            stage.add(("insert", other), ("truncate", {}), ("insert", other), ("insert", other), ("delete", other))
            stage.sync()
            assert self.rows(stage) == [other]

    def test_metadata_is_kept_through_the_deletion_of_an_equal_row(self) -> None:
        one = self._row_of("a")
        with self.stage(Mirror(metadata=("operation",)), table("main.marks", MARKS)) as stage:
            stage.copy([one, one, one])
            stage.add(("delete", one), ("insert", self._row_of("b")))
            stage.sync()
            told = sorted((row["t"], row["_lakefeed_operation"]) for row in self.rows(stage))
            assert told == [("a", "read"), ("a", "read"), ("b", "insert")]

    def test_a_delete_of_a_row_that_is_not_there_stops_the_table_and_changes_nothing(self) -> None:
        one = self._row_of("a")
        with self.stage(Mirror(), table("main.marks", MARKS)) as stage:
            stage.copy([one])
            stage.add(("delete", one), ("delete", one))
            with pytest.raises(TableStoppedError, match="does not have"):
                stage.sync()
            assert self.rows(stage) == [one]

    @pytest.mark.parametrize(
        ("mode", "change", "said"),
        [
            (Mirror(), "update", "without the old row"),
            (Mirror(keyless="append"), "delete", "takes inserts alone"),
            (Mirror(keyless="append"), "truncate", "takes inserts alone"),
            (Mirror(soft_delete="gone"), "insert", "cannot keep its deleted rows"),
        ],
    )
    def test_acceptance_5_what_cannot_be_matched_stops_the_table_with_a_remedy(
        self, mode: Mirror, change: str, said: str
    ) -> None:
        with self.stage(mode, table("main.marks", MARKS)) as stage:
            stage.copy([self._row_of("a")])
            stage.add((change, {} if change == "truncate" else self._row_of("a")))
            with pytest.raises(TableStoppedError, match=said) as stopped:
                stage.sync()
            assert "primary key" in stopped.value.remedy
            assert len(self.rows(stage)) == 1

    def test_changes_that_the_copy_may_have_stop_the_table(self) -> None:
        with self.stage(Mirror(keyless="append"), table("main.marks", MARKS)) as stage:
            stage.copy([self._row_of("a")])
            stage.add(("insert", self._row_of("b")))
            stage.sync()
            assert len(self.rows(stage)) == 2
            stage.log.add(batch(stage.schema, [("insert", self._row_of("c"))]))
            with pytest.raises(RebuildNeededError, match="changed during its copy"):
                stage.apply(replace(stage.window(1), exact=False))

    def _row_of(self, text: str) -> Values:
        return {"case": 1, "a": None, "f": 0.5, "t": text}


class AppendContract(ModeContract):
    """The change log."""

    def test_every_change_is_a_row_with_what_the_source_told(self) -> None:
        dice = Dice(7, cases=20, length=150)
        with self.stage(Append(), histories()) as stage:
            stage.copy(dice.copied)
            stage.play(list(dice.pieces(3)))
            found = self.rows(stage)
        copied = [row for row in found if row["_lakefeed_operation"] == "read"]
        assert {plain(row) for row in copied} == {plain(row) for row in dice.copied}
        assert {(row["_lakefeed_seq"], row["_lakefeed_committed_at"]) for row in copied} == {(0, COPIED_AT)}
        changes = sorted((row for row in found if row["_lakefeed_seq"]), key=lambda row: int(row["_lakefeed_seq"]))
        model, expected = MirrorModel(), []
        model.copy(dice.copied)
        for event in dice.events:
            model.apply(event)
            values, absent = event.values, event.absent
            if event.moved_from is not None:  # completed with values from the old key
                values, absent = model.rows[event.key], ()
            told = (event.seq, event.operation, event.position, event.time, f"txn {event.seq}", list(absent) or None)
            expected.append((*told, plain({name: values.get(name) for name in COLUMNS})))
        assert [_logged(row) for row in changes] == expected

    def test_a_table_without_a_key_has_a_change_log_too(self) -> None:
        with self.stage(Append(), table("main.marks", {"t": pa.string()})) as stage:
            stage.copy([{"t": "a"}])
            stage.add(("insert", {"t": "a"}), ("delete", {"t": "a"}), ("truncate", {}))
            stage.sync()
            told = sorted((row["_lakefeed_seq"], row["_lakefeed_operation"], row["t"]) for row in self.rows(stage))
        assert told == [(0, "read", "a"), (1, "insert", "a"), (2, "delete", "a"), (3, "truncate", None)]

    def test_columns_that_were_not_sent_have_the_names_of_today(self) -> None:
        own = histories()
        known = replace(own, columns=tuple(replace(column, id=column.name) for column in own.columns))
        renamed = tuple(replace(one, name="large") if one.name == "big" else one for one in known.columns)
        with self.stage(Append(), known) as stage:
            stage.copy([])
            stage.log.add(batch(stage.schema, [("update", {"case": 1, "id": "x", "a": 5})], absent={0: ["big"]}))
            newest = stage.log.schema_of(replace(known, columns=renamed))
            stage.log.add(batch(newest, [("insert", {"case": 2, "id": "x", "large": "l"})]))
            stage.sync()
            told = {row["case"]: (row["large"], row["_lakefeed_absent"]) for row in self.rows(stage)}
        assert told == {1: (None, ["large"]), 2: ("l", None)}


def _pets() -> TableSchema:
    return table("main.pets", {"id": pa.int64(), "name": pa.string()}, key=("id",))


def _told(row: dict[str, Any]) -> tuple[Any, ...]:
    names = ("_lakefeed_operation", "_lakefeed_position", "_lakefeed_committed_at")
    return (plain(row), *(row[name] for name in names))


def _expected(model: MirrorModel, key: tuple[Any, ...]) -> tuple[Any, ...]:
    last = model.last.get(key)
    told = (last.operation, last.position, last.time) if last else ("read", at(0).encode(), COPIED_AT)
    return (plain(model.rows[key]), *told, model.deleted.get(key))


def _logged(row: dict[str, Any]) -> tuple[Any, ...]:
    names = ("seq", "operation", "position", "committed_at", "txn", "absent")
    return (*(row[f"_lakefeed_{name}"] for name in names), plain(row))
