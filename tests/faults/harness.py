"""``python -m tests.faults --seconds 300 --seed 1``: faults that a seed draws, one after the other on one pipeline.
After each of them the lake must be equal to the source, and nothing may be there twice. Prints how many were survived.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import sys
import tempfile
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
from tests.faults.fault import KINDS, Kind
from tests.faults.world import WORLDS, World

from lakefeed.capture.reader import BackgroundReader
from lakefeed.errors import LakefeedError
from lakefeed.flow import lake_side, retry, run_loop
from lakefeed.testing.server.spark_cluster import SparkCluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SILENCE_SECONDS = 2.0
"""Instead of 30: how long a server may be silent. So a connection that is half-open is noticed within the fault."""
PAUSE_SECONDS = (0.05, 0.5)
"""Instead of 0.5 and 30, or 1 and 60: the first and the longest pause before what failed is tried again."""
MOST_JOINED = 48
"""How many faults there may be between two comparisons."""
FIRST_TIMES = 5.0
"""How many times as likely a kind is that this world has not drawn yet."""
FAULTS_OF_A_WORLD = 600
"""Then a new database and a new lake have their turn: comparing all rows would take longer and longer."""
COMPARED = "waiting until lake and source are equal"
MOST_FINDINGS = 5
"""Of one source and format; then the next ones have their turn."""


@dataclass
class Result:
    """How many faults were survived, by kind, source and format, and what was not."""

    survived: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    findings: list[str] = field(default_factory=list)
    seconds: float = 0.0
    spent: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    """Seconds by kind of fault, and those until lake and source were equal again."""

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
        lines.append(f"{self.survived.total()} faults survived in {self.seconds:.0f} s, {len(self.findings)} findings")
        return "\n".join([*lines, *self.findings])


def run(
    world: World, kinds: Sequence[Kind], seed: int, result: Result, *, seconds: float = 1e9, most: int = 10**9
) -> None:
    """Faults until ``seconds`` are over or ``most`` were done. A finding ends it: the world is as it was found."""
    draws, chance = random.Random(seed), random.Random(seed)  # what is drawn does not depend on how long anything took
    until = time.monotonic() + seconds
    mine = [kind for kind in kinds if kind.applies(world)]
    joining = [kind for kind in mine if kind.joins]
    where = f"{world.source} → {world.format}, seed {seed}"
    world.start()
    if (difference := world.wait_equal()) is not None:
        result.findings.append(f"{where}: before any fault: {difference}")
        return
    done, drawn = 0, set[str]()

    def draw(among: Sequence[Kind]) -> Kind:
        weights = [one.weight * (1.0 if one.name in drawn else FIRST_TIMES) for one in among]
        kind = draws.choices(among, weights)[0]
        drawn.add(kind.name)
        return kind

    while time.monotonic() < until and done < most:
        volley = [draw(mine)]
        if volley[0].joins:
            volley += [draw(joining) for _ in range(min(most - done - 1, draws.randrange(MOST_JOINED)))]
        survived, difference = Counter[tuple[str, str, str]](), None
        for index, kind in enumerate(volley):
            done, began = done + 1, time.monotonic()
            try:
                world.write(chance, chance.randrange(1, 10))
                survived[kind.name, world.source, world.format] += kind.act(world, chance)
                difference = _going(world, stops=any(one.stops for one in volley[: index + 1]))
            except Exception as error:  # noqa: BLE001  # a finding, with where it came from
                traceback.print_exc()
                difference = f"{type(error).__name__}: {error}"
            result.spent[kind.name] += time.monotonic() - began
            if difference is not None:
                break
        names, began = " + ".join(one.name for one in volley[: index + 1]), time.monotonic()
        if difference is None:
            world.write(chance, chance.randrange(1, 10))
            difference = _settled(world, stops=any(kind.stops for kind in volley))
        result.spent[COMPARED] += time.monotonic() - began
        if difference is not None:
            result.findings.append(f"{where}, fault {done}, {names}: {difference}")
            return
        result.survived += survived


def _going(world: World, *, stops: bool) -> str | None:
    """A pipeline that has ended by a fault that may end it (``stops``), with an error of ours, is started again."""
    if world.is_running:
        return None
    if not stops or any(not isinstance(error, LakefeedError) for error in world.errors):
        return f"the pipeline has ended: {world.errors}"
    world.stop()
    world.start()
    return None


def _settled(world: World, *, stops: bool) -> str | None:
    """None once lake and source are equal."""
    for _ in range(4):
        difference = world.wait_equal()
        if difference is None or world.is_running:
            return difference
        if (ended := _going(world, stops=stops)) is not None:
            return f"{ended}; {difference}"
    return difference


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
    parser.add_argument("--sources", default="postgres,sqlite,mysql")
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
                world = WORLDS[source](Path(tempfile.mkdtemp(prefix="lakefeed-faults-")), lake, spark)
                world.cluster = cluster
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
