"""Kind: one way to break something. It is done to a ``World`` whose pipeline follows, and heals what it broke."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass

from tests.faults.world import World

Act = Callable[[World, random.Random], bool]
"""False: it did not come to it, so it does not count."""

_MEET_SECONDS = 5.0
"""How long a fault waits for something to meet it. Those of the other lanes come meanwhile."""


def _nothing(_error: BaseException) -> bool:
    return False


@dataclass(frozen=True, slots=True)
class Kind:
    """``lane``: faults of one lane come one after the other, beside those of the other lanes and beside a writer, up to
    ``harness.MOST_JOINED`` before the next comparison. What one of them lost or doubled is seen there all the same:
    every transaction of the writer has rows of ``log`` that no later one replaces. Without a lane a fault stands alone,
    between two comparisons; it writes itself, and takes about ``seconds``.

    ``ends``: errors by which it may end the pipeline, which is started again; by any other one it may not.
    ``before``: what it needs and what takes long. That is done beside the faults that come before it.
    """

    name: str
    act: Act
    weight: float = 1.0
    lane: str = ""
    seconds: float = 0.0
    ends: Callable[[BaseException], bool] = _nothing
    before: Callable[[World, random.Random], None] | None = None
    applies: Callable[[World], bool] = lambda _: True


def met(chance: random.Random, count: Callable[[], int]) -> bool:
    """Wait until the fault has met something, and stay a moment. False: nothing came by, so it does not count."""
    before, until = count(), time.monotonic() + _MEET_SECONDS
    while count() == before and time.monotonic() < until:
        time.sleep(0.005)
    time.sleep(chance.choice([0.0, 0.0, 0.02, 0.1, 0.4]))
    return count() > before
