"""The model of mode temporal, to which Spark is compared, keeps the invariants itself, and its dice are not tame."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from lakefeed.testing.mode_contract import COPIED_AT
from lakefeed.testing.mode_history import KEY, Dice, Key, TemporalModel, Version


def played(seed: int) -> tuple[Dice, TemporalModel]:
    dice = Dice(seed, cases=20, length=200)
    model = TemporalModel(("a", "f", "big"), COPIED_AT)
    model.copy(dice.copied)
    for event in dice.events:
        model.apply(event)
    return dice, model


@given(seed=st.integers(0, 10**9))
def test_versions_of_the_model_neither_overlap_nor_turn_negative(seed: int) -> None:
    _, model = played(seed)
    by_key: dict[Key, list[Version]] = {}
    for version in model.versions:
        by_key.setdefault(tuple(version.values[name] for name in KEY), []).append(version)
    for versions in by_key.values():
        for before, after in pairwise(versions):
            assert before.valid_to is not None
            assert before.valid_from <= before.valid_to <= after.valid_from
            assert before.seq < after.seq


def test_the_dice_make_every_kind_of_trouble() -> None:
    events = [event for seed in range(20) for event in played(seed)[0].events]
    versions = [version for seed in range(20) for version in played(seed)[1].versions]
    assert {event.operation for event in events} == {"insert", "update", "delete", "truncate", "before"}
    assert any(event.time is None for event in events)
    assert any(event.absent for event in events)
    assert any(version.valid_from == version.valid_to for version in versions), "no versions of no length"
    times = [(before.time, after.time) for before, after in pairwise(events)]
    assert any(one and other and one > other for one, other in times), "no clock steps back"
