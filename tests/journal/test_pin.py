"""Pins: what a reader has pinned stays, whoever trims and whoever dies; a pin that is forgotten ends by itself."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lakefeed.errors import ConfigError
from lakefeed.failpoint import FailpointError, armed
from lakefeed.journal import journal as journal_module
from lakefeed.journal import pin as pin_module
from lakefeed.journal.journal import Journal
from lakefeed.journal.options import JournalOptions
from lakefeed.journal.pin import Pin, open_pins
from lakefeed.storage.location import storage_at
from lakefeed.testing.builders import batch, change_set, read_window, table

T = table("main.t", {"id": pa.int64()}, key=("id",))


def filled(root: Path, *, count: int = 6, keep_seconds: float = 0.0) -> Journal:
    options = JournalOptions(fsync=False, keep_change_sets=0, keep_seconds=keep_seconds)
    journal = Journal.open(root, options=options)
    append(journal, count)
    return journal


def append(journal: Journal, count: int) -> None:
    for place in range(journal.head, journal.head + count):
        journal.append(change_set(place or None, place + 1, batch(T, [("insert", {"id": place + 1})])))


def ids(journal: Journal, after: int) -> list[int]:
    return [row["id"] for row in read_window(journal.window(T.table, after, journal.head))]


def test_what_was_there_when_a_pin_was_made_stays_until_it_is_released(tmp_path: Path) -> None:
    with filled(tmp_path) as journal:
        journal.trim(2)
        with Pin.make(tmp_path, 60) as pin:
            assert pin.after == 2
            append(journal, 2)
            assert (journal.trim_mark(8), journal.trim(8).trimmed) == (2, 2)
            assert ids(Journal.read(tmp_path), pin.after) == [3, 4, 5, 6, 7, 8]
        assert journal.trim(8).trimmed == 7


def test_of_several_pins_the_oldest_counts_and_one_that_has_ended_does_not(tmp_path: Path) -> None:
    with filled(tmp_path) as journal:
        forgotten = Pin.make(tmp_path, 0.2)
        journal.trim(6)
        assert journal.trimmed == 0
        time.sleep(0.25)
        assert journal.trim(3).trimmed == 3
        assert not list(tmp_path.glob("pins/*.json")), "the file of a pin that has ended stays"
        with Pin.make(tmp_path, 60), Pin.make(tmp_path, 60):
            assert journal.trim(6).trimmed == 3
        forgotten.release()  # it is gone already


def test_a_pin_outlives_the_reader_that_was_killed(tmp_path: Path) -> None:
    with filled(tmp_path) as journal:
        program = (
            "import os, signal, sys; from lakefeed.journal.pin import Pin; from pathlib import Path\n"
            "Pin.make(Path(sys.argv[1]), 60); os.kill(os.getpid(), signal.SIGKILL)"
        )
        reader = subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=False)
        assert reader.returncode == -signal.SIGKILL
        assert journal.trim(6).trimmed == 0
        assert [pin.after for pin in open_pins(storage_at(tmp_path / "pins"))] == [0]


def test_a_pin_that_is_made_after_a_trim_was_decided_on_is_kept_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with filled(tmp_path) as journal:
        decided = journal.trim_mark(6)
        assert decided == 5
        pin = Pin.make(tmp_path, 60)
        monkeypatch.setattr(journal, "trim_mark", lambda applied: decided)
        assert journal.trim(6).trimmed == pin.after == 0


@pytest.mark.parametrize("step", ["before the trim announces itself", "before it reads the pins", "before its mark"])
def test_whenever_a_pin_is_made_beside_a_trim_it_has_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    made: list[Pin] = []

    def make(*_: object) -> None:
        made.append(Pin.make(tmp_path, 60))

    with filled(tmp_path) as journal:
        module, name = {
            "before the trim announces itself": (journal_module, "pinned_below"),
            "before it reads the pins": (pin_module, "open_pins"),
            "before its mark": (journal, "_forget"),
        }[step]
        whole: Callable[..., Any] = getattr(module, name)

        def interrupted(*arguments: Any) -> Any:
            if not made:
                make()
            return whole(*arguments)

        monkeypatch.setattr(journal, "trim_mark", lambda applied: 5)
        monkeypatch.setattr(module, name, interrupted)
        journal.trim(6)
        monkeypatch.undo()
        assert journal.trimmed <= made[0].after
        append(journal, 1)
        journal.trim(7)
        assert ids(journal, made[0].after) == list(range(made[0].after + 1, 8))


def test_a_trim_that_dies_half_way_leaves_what_is_pinned(tmp_path: Path) -> None:
    journal = filled(tmp_path)
    journal.trim(2)
    with Pin.make(tmp_path, 60) as pin:
        journal.close()
        with Journal.open(tmp_path, options=JournalOptions(fsync=False, keep_seconds=0, keep_change_sets=0)) as again:
            append(again, 1)
            assert again.trim(7).trimmed == 2
            assert ids(again, pin.after) == [3, 4, 5, 6, 7]
    with (
        Journal.open(tmp_path, options=JournalOptions(fsync=False, keep_seconds=0, keep_change_sets=0)) as again,
        armed("journal.during_trim", "raise"),
        pytest.raises(FailpointError),
    ):
        again.trim(4)
    with Pin.make(tmp_path, 60) as pin, Journal.open(tmp_path) as last:
        assert pin.after == 4
        assert ids(last, 4) == [5, 6, 7]


def test_a_damaged_pin_keeps_nothing_and_a_pin_has_an_end(tmp_path: Path) -> None:
    with filled(tmp_path) as journal:
        Pin.make(tmp_path, 60)
        for path in tmp_path.glob("pins/*.json"):
            path.write_text("{")
        assert journal.trim(6).trimmed == 5
        for seconds in (0, -1, 10**9):
            with pytest.raises(ConfigError, match="a pin cannot last"):
                Pin.make(tmp_path, seconds)


def test_change_sets_stay_for_their_time_even_when_every_table_has_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with filled(tmp_path, count=4, keep_seconds=3600) as journal:
        now = datetime.now(UTC)
        assert journal.trim(4).trimmed == 0

        class Later(datetime):
            @classmethod
            def now(cls, tz: object = None) -> datetime:  # type: ignore[override]
                return now + timedelta(seconds=3500)

        monkeypatch.setattr(journal_module, "datetime", Later)
        append(journal, 3)
        assert journal.trim(7).trimmed == 0, "the first four are younger than an hour"
        now += timedelta(seconds=200)
        assert journal.trim(7).trimmed == 4
