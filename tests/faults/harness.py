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
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from tests import jvm
from tests.faults.fault import KINDS, Kind
from tests.faults.world import WORLDS, World

from lakefeed.capture.reader import BackgroundReader
from lakefeed.errors import LakefeedError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SILENCE_SECONDS = 2.0
"""Instead of 30: how long a server may be silent. So a connection that is half-open is noticed within the fault."""


@dataclass
class Result:
    """How many faults were survived, by kind, source and format, and what was not."""

    survived: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    findings: list[str] = field(default_factory=list)
    seconds: float = 0.0

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
        lines.append(f"{self.survived.total()} faults survived in {self.seconds:.0f} s, {len(self.findings)} findings")
        return "\n".join([*lines, *self.findings])


def run(
    world: World, kinds: Sequence[Kind], seed: int, result: Result, *, seconds: float = 1e9, most: int = 10**9
) -> None:
    """Faults until ``seconds`` are over or ``most`` were done. A finding ends it: the world is as it was found."""
    chance, until = random.Random(seed), time.monotonic() + seconds
    mine = [kind for kind in kinds if kind.applies(world)]
    where = f"{world.source} → {world.format}, seed {seed}"
    world.start()
    if (difference := world.wait_equal()) is not None:
        result.findings.append(f"{where}: before any fault: {difference}")
        return
    done = 0
    while time.monotonic() < until and done < most:
        kind = chance.choices(mine, [one.weight for one in mine])[0]
        done += 1
        world.write(chance, chance.randrange(1, 10))
        try:
            counts = kind.act(world, chance)
            world.write(chance, chance.randrange(1, 10))
            difference = _settled(world, kind)
        except Exception as error:  # noqa: BLE001  # a finding, with where it came from
            traceback.print_exc()
            difference, counts = f"{type(error).__name__}: {error}", False
        if difference is not None:
            result.findings.append(f"{where}, fault {done}, {kind.name}: {difference}")
            return
        result.survived[kind.name, world.source, world.format] += counts


def _settled(world: World, kind: Kind) -> str | None:
    """None once lake and source are equal. A pipeline that has ended where it may is started again."""
    for _ in range(4):
        difference = world.wait_equal()
        if difference is None or world.is_running:
            return difference
        unexpected = [error for error in world.errors if not isinstance(error, LakefeedError)]
        if not kind.stops or unexpected:
            return difference
        world.stop()
        world.start()
    return difference


@contextlib.contextmanager
def quick_silence():  # type: ignore[no-untyped-def]
    known = dict(BackgroundReader.__init__.__kwdefaults__ or {})
    BackgroundReader.__init__.__kwdefaults__ = {**known, "silence_seconds": SILENCE_SECONDS}
    try:
        yield
    finally:
        BackgroundReader.__init__.__kwdefaults__ = known


def session() -> SparkSession:
    from lakefeed.lake.spark.session import spark_session

    settings = {"spark.driver.extraJavaOptions": "-XX:+UseParallelGC -XX:TieredStopAtLevel=1"}
    return spark_session("lakefeed-faults", settings=settings, formats=("delta", "iceberg"))


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--seconds", type=float, default=300.0, help="for all worlds together")
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--sources", default="postgres,sqlite,mysql")
    parser.add_argument("--formats", default="delta,iceberg")
    parser.add_argument("--kinds", default="", help="only those whose name contains this")
    given = parser.parse_args(arguments)
    seed = given.seed if given.seed is not None else random.SystemRandom().randrange(10**6)
    worlds = [(source, lake) for source in given.sources.split(",") for lake in given.formats.split(",")]
    kinds = [kind for kind in KINDS if given.kinds in kind.name]
    print(f"seed {seed}; again: make faults SEED={seed} SECONDS={given.seconds:.0f}", flush=True)
    os.environ.setdefault("JAVA_TOOL_OPTIONS", jvm.options())
    result, spark, began = Result(), session(), time.monotonic()
    with quick_silence():
        for number, (source, lake) in enumerate(worlds):
            left = given.seconds - (time.monotonic() - began)
            directory = Path(tempfile.mkdtemp(prefix="lakefeed-faults-"))
            world = WORLDS[source](directory, lake, spark)
            try:
                run(world, kinds, seed + number, result, seconds=left / (len(worlds) - number))
            finally:
                world.close()
            print(f"{source} → {lake}: {result.survived.total()} survived so far", flush=True)
    result.seconds = time.monotonic() - began
    print(result)
    spark.stop()
    return bool(result.findings)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
