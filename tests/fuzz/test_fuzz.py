"""The short form of `make fuzz`; the decoders have theirs beside their own tests."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.fuzz.fuzz import Ends, try_configurations, try_positions, try_state


@pytest.mark.parametrize(
    ("fuzzer", "rounds"),
    [(try_configurations, 60), (try_positions, 3_000), (try_state, 600)],
    ids=["configurations", "positions", "state"],
)
def test_damaged_inputs_are_read_or_refused_with_a_remedy(fuzzer: Callable[[int, int], Ends], rounds: int) -> None:
    ends = fuzzer(rounds, 7)
    assert ends["read"] > 0
    assert ends.total() - ends["read"] > rounds // 20
