"""``python -m tests.faults --seconds 300 --seed 1``: faults that a seed draws, done to one pipeline, in lanes
beside each other. After each volley the lake must be equal to the source, and nothing may be there twice. Prints how
many were survived.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING
from unittest import mock

from tests import jvm
from tests.faults.fault import KINDS
from tests.faults.kind import Kind
from tests.faults.world import WORLDS, World

from lakefeed.capture.reader import BackgroundReader
from lakefeed.flow import lake_side, retry, run_loop
from lakefeed.testing.server.spark_cluster import SparkCluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SILENCE_SECONDS = 2.0
"""Instead of 30: how long a server may be silent. So a connection that is half-open is noticed within the fault."""
PAUSE_SECONDS = (0.02, 0.1)
"""Instead of 0.5 and 30, or 1 and 60: the first and the longest pause before what failed is tried again."""
GOING_SECONDS = 1.0
"""How long every other fault of a lane waits for a pipeline that gets on; the others come at any moment."""
FEWEST_JOINED, MOST_JOINED = 12, 48
"""How many faults there may be between two comparisons."""
AHEAD = 2
"""How many of those that stand alone prepare themselves: the second one does while the first one has its turn."""
ALONE_SECONDS = 0.12
"""For each fault of a lane those that stand alone get so much of the time."""
FIRST_TIMES = 5.0
"""How many times as likely a kind is that this world has not drawn yet."""
FAULTS_OF_A_WORLD = 1200
"""Then a new database and a new lake have their turn: comparing all rows would take longer and longer."""
COMPARED, STARTED = "waiting until lake and source are equal", "starting a database and its first copy"
MOST_FINDINGS = 5
"""Of one source and format; then the next ones have their turn."""


@dataclass
class Result:
    """How many faults were survived, by kind, source and format, and what was not."""

    survived: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    findings: list[str] = field(default_factory=list)
    seconds: float = 0.0
    spent: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    """Seconds by kind of fault, and those until lake and source were equal again. Lanes work beside each other."""
    missed: Counter[str] = field(default_factory=Counter)
    """How many faults of a kind met nothing, and do not count."""

    def __str__(self) -> str:
        columns = sorted({(source, lake) for _, source, lake in self.survived})
        lines = ["| fault | " + " | ".join(f"{source} → {lake}" for source, lake in columns) + " |"]
        lines.append("|---|" + "---|" * len(columns))
        for name in dict.fromkeys(kind.name for kind in KINDS):
            counts = [self.survived[name, source, lake] for source, lake in columns]
            if any(counts):
                lines.append(f"| {name} | " + " | ".join(str(count or "") for count in counts) + " |")
        sums = [sum(n for (_, *of), n in self.survived.items() if tuple(of) == one) for one in columns]
        lines.append("| **all** | " + " | ".join(map(str, sums)) + " |")
        most = ", ".join(
            f"{name} {seconds:.0f}" for name, seconds in sorted(self.spent.items(), key=itemgetter(1))[:-12:-1]
        )
        lines.append(f"seconds of {most}")
        lines.append(
            "met nothing: " + ", ".join(f"{name} {times}" for name, times in self.missed.most_common() if times)
        )
        lines.append(f"{self.survived.total()} faults survived in {self.seconds:.0f} s, {len(self.findings)} findings")
        return "\n".join([*lines, *self.findings])


class Deck:
    """Which fault comes next. A seed decides that for each lane and for those that stand alone, however long anything
    takes; only how many of each have come by a moment depends on that."""

    def __init__(self, world: World, kinds: Sequence[Kind], seed: int, result: Result) -> None:
        mine = [kind for kind in kinds if kind.applies(world)]
        self.lanes: dict[str, list[Kind]] = {}
        for kind in mine:
            if kind.lane:
                self.lanes.setdefault(kind.lane, []).append(kind)
        self._draws = {lane: random.Random(f"{seed} {lane}") for lane in self.lanes}
        self._drawn = set[str]()
        self.chance = random.Random(seed)
        alone = [kind for kind in mine if not kind.lane]
        self.chance.shuffle(alone)
        self._alone = sorted(alone, key=lambda kind: result.survived[kind.name, world.source, world.format])
        self._world = world
        self._credit = 0.0
        self._next: list[Kind] = []

    def draw(self, lane: str) -> tuple[Kind, random.Random]:
        """The lane's next fault, with the chance that is its own."""
        draws = self._draws[lane]
        weights = [one.weight * (1.0 if one.name in self._drawn else FIRST_TIMES) for one in self.lanes[lane]]
        kind = draws.choices(self.lanes[lane], weights)[0]
        self._drawn.add(kind.name)
        return kind, random.Random(draws.random())

    def alone(self) -> Kind | None:
        """The one whose turn it is to stand alone, if it is due. They take turns, the least survived one first."""
        if not self._alone:
            return None
        while len(self._next) < AHEAD:
            kind = self._alone.pop(0)
            self._alone.append(kind)
            self._next.append(kind)
            if kind.before is not None:
                kind.before(self._world, self.chance)
        if self.lanes and self._credit < self._next[0].seconds:
            return None
        due = self._next.pop(0)
        self._credit -= due.seconds
        return due

    def had(self, faults: int) -> None:
        self._credit += faults * ALONE_SECONDS


def run(
    world: World, kinds: Sequence[Kind], seed: int, result: Result, *, seconds: float = 1e9, most: int = 10**9
) -> None:
    """Faults until ``seconds`` are over or ``most`` were done. A finding ends it: the world is as it was found."""
    until = time.monotonic() + seconds
    where = f"{world.source} → {world.format}, seed {seed}"
    world.start()
    difference = world.wait_equal()
    result.spent[STARTED] += seconds - (until - time.monotonic())
    if difference is not None:
        result.findings.append(f"{where}: before any fault: {difference}")
        return
    deck, done = Deck(world, kinds, seed, result), 0
    while time.monotonic() < until and done < most:
        alone = deck.alone()
        size = min(most - done, deck.chance.randrange(FEWEST_JOINED, MOST_JOINED))
        volley = Volley(world, deck, size, result)
        difference = volley.act([alone] if alone else [])
        done += len(volley.acted)
        if difference is None:
            began = time.monotonic()
            world.write(deck.chance, deck.chance.randrange(1, 10))
            difference = volley.settled()
            result.spent[COMPARED] += time.monotonic() - began
        if difference is not None:
            names = " + ".join(one.name for one in volley.acted)
            result.findings.append(f"{where}, fault {done}, {names}: {difference}")
            return
        result.survived += volley.survived
        if alone is None:
            deck.had(len(volley.acted))


class Volley:
    """The faults between two comparisons: one that stands alone, or up to ``size`` of all lanes, beside each other."""

    def __init__(self, world: World, deck: Deck, size: int, result: Result) -> None:
        self._world = world
        self._deck = deck
        self._size = size
        self._result = result
        self._lock = threading.Lock()
        self.acted: list[Kind] = []
        self.survived = Counter[tuple[str, str, str]]()
        self._failures: list[str] = []

    def act(self, alone: Sequence[Kind]) -> str | None:
        """Returns what went wrong, None if nothing did."""
        self._world.ended.clear()
        for kind in alone:
            self.acted.append(kind)
            self._do(kind, random.Random(self._deck.chance.random()))
        if not alone:
            try:
                self._beside_each_other()
            except Exception as error:  # noqa: BLE001  # the writer could not write
                traceback.print_exc()
                self._failures.append(f"{type(error).__name__}: {error}")
        return self._failures[0] if self._failures else self._going()

    def settled(self) -> str | None:
        """None once lake and source are equal."""
        for _ in range(4):
            difference = self._world.wait_equal()
            if difference is None or self._world.is_running:
                return difference
            if (ended := self._going()) is not None:
                return f"{ended}; {difference}"
        return difference

    def _beside_each_other(self) -> None:
        threads = [
            threading.Thread(target=self._lane, args=(name,), name=f"lane {name}", daemon=True)
            for name in self._deck.lanes
        ]
        with self._world.writing(self._deck.chance):
            for thread in threads:
                thread.start()
            while any(thread.is_alive() for thread in threads):
                time.sleep(0.01)
                if (ended := self._going()) is not None:
                    self._failures.append(ended)
                    break
            for thread in threads:
                thread.join()

    def _lane(self, name: str) -> None:
        while True:
            with self._lock:
                if len(self.acted) >= self._size or self._failures:
                    return
                kind, chance = self._deck.draw(name)
                self.acted.append(kind)
            if chance.random() < 0.5:
                self._world.wait_for_progress(GOING_SECONDS)
            self._do(kind, chance)

    def _do(self, kind: Kind, chance: random.Random) -> None:
        began = time.monotonic()
        try:
            counts = kind.act(self._world, chance)
        except Exception as error:  # noqa: BLE001  # a finding, with where it came from
            traceback.print_exc()
            self._failures.append(f"{kind.name}: {type(error).__name__}: {error}")
            return
        with self._lock:
            self.survived[kind.name, self._world.source, self._world.format] += counts
            self._result.spent[kind.name] += time.monotonic() - began
            self._result.missed[kind.name] += not counts

    def _going(self) -> str | None:
        """A pipeline that has ended by a fault that may end it is started again. Returns what else has ended it."""
        world = self._world
        with world.turn:
            errors = [*world.ended, *world.errors]
            told = [error for error in errors if not any(kind.ends(error) for kind in self.acted)]
            if told:
                return f"the pipeline has ended: {told[0]!r}"
            if not world.is_running:
                if not world.errors:
                    return "the pipeline has ended by itself"
                world.stop()
                world.start()
        return None


@contextlib.contextmanager
def short_pauses() -> Iterator[None]:
    """Nobody waits long, or there would be a fault in ten seconds; and few change sets are kept, so that trims come."""
    known = dict(BackgroundReader.__init__.__kwdefaults__ or {})
    first, longest = PAUSE_SECONDS
    BackgroundReader.__init__.__kwdefaults__ = {**known, "silence_seconds": SILENCE_SECONDS}
    try:
        with (
            mock.patch.multiple(run_loop, _FIRST_PAUSE_SECONDS=first, _LONGEST_PAUSE_SECONDS=longest),
            mock.patch.multiple(retry, FIRST_PAUSE_SECONDS=first, LONGEST_PAUSE_SECONDS=longest),
            mock.patch.object(lake_side, "TRIM_EVERY", 2),
        ):
            yield
    finally:
        BackgroundReader.__init__.__kwdefaults__ = known


def session(cluster: SparkCluster | None = None) -> SparkSession:
    from lakefeed.lake.spark.session import spark_session

    settings = {"spark.driver.extraJavaOptions": "-XX:+UseParallelGC -XX:TieredStopAtLevel=1"}
    if cluster is not None:
        settings |= {"spark.driver.host": "127.0.0.1", "spark.executor.memory": "600m", "spark.cores.max": "2"}
    return spark_session(
        "lakefeed-faults",
        settings=settings,
        formats=("delta", "iceberg"),
        master=cluster.master if cluster is not None else None,
    )


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--seconds", type=float, default=300.0, help="for all worlds together")
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--sources", default="postgres,sqlite,mysql,mariadb")
    parser.add_argument("--formats", default="delta,iceberg")
    parser.add_argument("--kinds", default="", help="only those whose name contains one of these, separated by commas")
    parser.add_argument("--cluster", action="store_true", help="Spark with a master and two workers, which are killed")
    given = parser.parse_args(arguments)
    seed = given.seed if given.seed is not None else random.SystemRandom().randrange(10**6)
    worlds = [(source, lake) for source in given.sources.split(",") for lake in given.formats.split(",")]
    kinds = [kind for kind in KINDS if any(part in kind.name for part in given.kinds.split(","))]
    print(f"seed {seed}; again: make faults SEED={seed} SECONDS={given.seconds:.0f}", flush=True)
    os.environ.setdefault("JAVA_TOOL_OPTIONS", jvm.options())
    cluster = SparkCluster.start(workers=2) if given.cluster else None
    result, spark, began = Result(), session(cluster), time.monotonic()
    with short_pauses(), contextlib.ExitStack() as stack:
        if cluster is not None:
            stack.callback(cluster.close)
        stack.callback(spark.stop)
        for number, (source, lake) in enumerate(worlds):
            over = time.monotonic() + (given.seconds - (time.monotonic() - began)) / (len(worlds) - number)
            attempt, most = 0, len(result.findings) + MOST_FINDINGS
            while time.monotonic() < over and len(result.findings) < most:  # a finding ends a world: then another one
                starting = time.monotonic()
                world = WORLDS[source](Path(tempfile.mkdtemp(prefix="lakefeed-faults-")), lake, spark)
                world.cluster = cluster
                result.spent[STARTED] += time.monotonic() - starting
                try:
                    drawn = seed + number + 1000 * attempt
                    run(world, kinds, drawn, result, seconds=over - time.monotonic(), most=FAULTS_OF_A_WORLD)
                finally:
                    world.close()
                attempt += 1
                result.seconds = time.monotonic() - began
                print(f"{result}\n", flush=True)
    result.seconds = time.monotonic() - began
    print(result)
    return bool(result.findings)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
