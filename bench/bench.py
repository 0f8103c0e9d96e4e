"""What every benchmark gets and uses: its sizes, a place to work, a clock, and turns that are taken fairly."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

Contestant = Callable[[], float]
"""Prepares itself, does the work once, returns the seconds of the work alone."""


@dataclass(frozen=True, slots=True)
class Bench:
    """``quick``: small sizes, which show that it works; its numbers mean nothing. ``scratch`` is empty at first."""

    scratch: Path
    quick: bool = False

    def size(self, full: int, quick: int) -> int:
        return quick if self.quick else full

    def say(self, text: str) -> None:
        """Progress, for a person who waits."""
        print(f"    {text}", flush=True)


def timed(work: Callable[[], object]) -> float:
    """The seconds that the work takes."""
    gc.collect()
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def in_turns(bench: Bench, contestants: Mapping[str, Contestant], repetitions: int) -> dict[str, list[float]]:
    """Each contestant once, in turns, so that a noisy minute hits all of them; who begins changes every time."""
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    names = list(contestants)
    for repetition in range(repetitions):
        turn = repetition % len(names)
        for name in names[turn:] + names[:turn]:
            seconds[name].append(contestants[name]())
            bench.say(f"{repetition + 1}/{repetitions} {name}: {seconds[name][-1]:.3f} s")
    return seconds
