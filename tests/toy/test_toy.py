"""docs/adding-a-source.md, followed: a log source of at most 200 lines keeps the contract, by log and by polling."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.toy.database import ToyActor
from tests.toy.source import ToyDialect, ToyLine, toy

from lakefeed.capture.poll.capture import Polling
from lakefeed.capture.poll.rule import Pace, TableRule
from lakefeed.capture.poll.store import FileWatermarkStore
from lakefeed.change.position import position_kinds
from lakefeed.errors import PositionLostError
from lakefeed.testing.capture_contract import CaptureContract
from lakefeed.testing.capture_subject import Subject, opened

SOURCE = Path(__file__).with_name("source.py").read_text()
GUIDE = (Path(__file__).parents[2] / "docs" / "adding-a-source.md").read_text()


@pytest.fixture(autouse=True)
def _known_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(position_kinds(), ToyLine.kind, ToyLine)


class TestToyLog(CaptureContract):
    def make_subject(self, place: Path) -> Subject:
        actor = ToyActor(place / "toy", {"id": "int64", "name": "string"})
        return Subject(capture=lambda: toy(str(place / "toy"), "shop"), actor=actor)

    def test_e11_a_log_that_ends_before_the_position_has_lost_it(self, subject: Subject) -> None:
        with opened(subject) as capture:
            capture.prepare([subject.actor.table])
            with pytest.raises(PositionLostError, match="older copy"):
                capture.continuity(ToyLine(7), [])

    def test_e11_a_stream_goes_on_after_somebody_has_asked_for_a_position_that_is_lost(self, subject: Subject) -> None:
        with opened(subject) as capture:
            start = capture.prepare([subject.actor.table])
            next(capture.live(start, wait_seconds=0))
            with pytest.raises(PositionLostError, match="older copy"):
                capture.live(ToyLine(7))
            subject.actor.put(subject.actor.table, 1, "a")
            assert next(capture.live(start, wait_seconds=0)).rows == 1


class TestToyPolling(CaptureContract):
    def make_subject(self, place: Path) -> Subject:
        columns = {"id": "int64", "name": "string", "created_at": "int64", "updated_at": "int64"}
        actor = ToyActor(place / "toy", columns)
        rules = {"*": TableRule(columns=["name"], safety_lag_seconds=0)}

        def capture() -> Polling:
            store = FileWatermarkStore(place / "marks.json")
            return Polling(ToyDialect(str(place / "toy")), rules=rules, store=store, pace=Pace(poll_seconds=0.05))

        return Subject(capture=capture, actor=actor, sees_deletes=False)


def test_the_toy_has_at_most_200_lines_of_code() -> None:
    lines = [line for line in SOURCE.splitlines() if line.strip() and not line.strip().startswith("#")]
    assert len(lines) <= 200


def test_every_block_of_the_guide_is_the_toys_own_code() -> None:
    blocks = list(_blocks())
    assert blocks
    for block in blocks:
        assert block in SOURCE, f"the guide has code that the toy has not:\n{block}"


def test_the_guide_shows_the_whole_toy() -> None:
    shown = "\n".join(_blocks())
    for node in ast.parse(SOURCE).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            assert (ast.get_source_segment(SOURCE, node) or "?") in shown, f"{node.name} is not in the guide"


def _blocks() -> Iterator[str]:
    return (match[1].strip("\n") for match in re.finditer(r"^```python\n(.*?)^```$", GUIDE, re.DOTALL | re.MULTILINE))
