"""BeforeImageContract: what a ChangeCapture with before images promises about them. Use it with ``CaptureContract``:

    class TestMyCaptureWithBeforeImages(BeforeImageContract, CaptureContract):
        def make_subject(self, place: Path) -> Subject: ...
        def rekey(self, subject: Subject, key: int, other: int) -> None: ...

The capture has been asked for before images, and the source can deliver them for these tables.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from itertools import pairwise
from pathlib import Path

import pytest

from lakefeed.capture.base import ChangeCapture
from lakefeed.change.batch import ABSENT, OP, POSITION, SEQ, TIME, TXN, Operation
from lakefeed.change.position import Position
from lakefeed.testing.capture_subject import Subject, drain, names, opened, ordered_rows
from lakefeed.testing.replica import Replica

Told = tuple[str, int, str | None]
"""Operation, id and name of a row."""

LARGE = "".join(chr(0x4E00 + number * 7919 % 20_000) for number in range(30_000))
"""Too large and too varied for any database to store in one piece."""


class BeforeImageContract(ABC):
    """See the module."""

    @abstractmethod
    def make_subject(self, place: Path) -> Subject:
        """A new source with two empty tables, with nothing prepared in it."""

    @abstractmethod
    def rekey(self, subject: Subject, key: int, other: int) -> None:
        """Give another key to a row of the first table, in one statement."""

    @pytest.fixture
    def subject(self, tmp_path: Path) -> Subject:
        return self.make_subject(tmp_path)

    def test_a_capture_says_that_it_gives_before_images(self, subject: Subject) -> None:
        assert subject.capture().capabilities.before_images

    @pytest.mark.parametrize("name", ["a", "", None, LARGE], ids=["short", "empty", "null", "large"])
    def test_an_update_and_a_delete_come_behind_the_row_as_it_was(self, subject: Subject, name: str | None) -> None:
        actor = subject.actor
        with opened(subject) as capture:
            start = capture.prepare([actor.table])
            actor.put(actor.table, 1, name)
            actor.put(actor.table, 1, "b")
            actor.delete(actor.table, 1)
            assert _told(capture, start) == [
                ("INSERT", 1, name), ("BEFORE", 1, name), ("UPDATE", 1, "b"), ("BEFORE", 1, "b"), ("DELETE", 1, None),
            ]  # fmt: skip

    def test_a_changed_key_is_one_row_as_it_was_then_a_delete_and_an_insert(self, subject: Subject) -> None:
        actor = subject.actor
        with opened(subject) as capture:
            actor.put(actor.table, 1, "a")
            start = capture.prepare([actor.table])
            self.rekey(subject, 1, 2)
            assert _told(capture, start) == [("BEFORE", 1, "a"), ("DELETE", 1, None), ("INSERT", 2, "a")]

    def test_each_of_many_changes_in_one_transaction_has_its_own(self, subject: Subject) -> None:
        actor = subject.actor
        with opened(subject) as capture:
            start = capture.prepare([actor.table, actor.other])
            with actor.together():
                for name in ("a", "b", "c"):
                    actor.put(actor.table, 1, name)
                    actor.put(actor.other, 1, name.upper())
                actor.delete(actor.table, 1)
            assert _told(capture, start) == [
                ("INSERT", 1, "a"), ("INSERT", 1, "A"),
                ("BEFORE", 1, "a"), ("UPDATE", 1, "b"), ("BEFORE", 1, "A"), ("UPDATE", 1, "B"),
                ("BEFORE", 1, "b"), ("UPDATE", 1, "c"), ("BEFORE", 1, "B"), ("UPDATE", 1, "C"),
                ("BEFORE", 1, "c"), ("DELETE", 1, None),
            ]  # fmt: skip

    def test_it_has_a_place_of_its_own_and_tells_the_same_as_its_change(self, subject: Subject) -> None:
        actor = subject.actor
        with opened(subject) as capture:
            start = capture.prepare([actor.table])
            for name in ("a", "b"):
                actor.put(actor.table, 1, name)
            actor.delete(actor.table, 1)
            found = [row for one in drain(capture, start) for row in ordered_rows(one)]
        pairs = [(one, other) for one, other in pairwise(found) if one[OP] == Operation.BEFORE]
        assert len(pairs) == 2
        for one, other in pairs:
            assert [one[name] for name in (POSITION, TIME, TXN)] == [other[name] for name in (POSITION, TIME, TXN)]
            assert one[SEQ] < other[SEQ]
            assert one[ABSENT] is None

    def test_whoever_applies_the_changes_passes_them_over(self, subject: Subject) -> None:
        actor = subject.actor
        with opened(subject) as capture:
            start = capture.prepare([actor.table])
            for key in range(5):
                actor.put(actor.table, key, "a")
            actor.put(actor.table, 1, "b")
            self.rekey(subject, 2, 7)
            actor.delete(actor.table, 3)
            replica = Replica()
            for change_set in drain(capture, start):
                replica.apply(change_set)
        assert names(replica, actor.table) == actor.rows(actor.table) == {0: "a", 1: "b", 4: "a", 7: "a"}

    def test_e05_what_was_not_confirmed_is_delivered_again_with_its_before_images(self, subject: Subject) -> None:
        actor = subject.actor
        with opened(subject) as capture:
            capture.prepare([actor.table])
            for name in ("a", "b"):
                actor.put(actor.table, 1, name)
            first = _told(capture, None)
        with opened(subject) as capture:
            assert _told(capture, None) == first == [("INSERT", 1, "a"), ("BEFORE", 1, "a"), ("UPDATE", 1, "b")]


def _told(capture: ChangeCapture, after: Position | None) -> list[Told]:
    rows = (row for one in drain(capture, after) for row in ordered_rows(one))
    return [(Operation(row[OP]).name, row["id"], row["name"]) for row in rows]
