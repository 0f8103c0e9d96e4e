"""``python -m tests.faults.soak --seconds 3600``: one process follows a busy database, and what could grow
is sampled: memory of Python and of the JVM, open files, threads, files of the journal and of the lake, lag.
Of the lake those files count that the newest versions of its tables need: older ones stay for an hour at least.
At the end the lake must be equal to the source, and nothing of it may have grown in the last half.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.faults.fault import child_of
from tests.faults.world import WORLDS, World

_PAGE_BYTES = 4096
GROWTH = 1.25
"""How much more the last quarter may have than the second one; small numbers may differ by SLACK."""
SLACK = {
    "python_mb": 40,
    "jvm_mb": 250,
    "handles": 20,
    "threads": 10,
    "journal_files": 60,
    "lake_files": 60,
    "lag_s": 5,
}


@dataclass(frozen=True, slots=True)
class Sample:
    seconds: float
    python_mb: float
    jvm_mb: float
    handles: int
    threads: int
    journal_files: int
    lake_files: int
    lag_s: float


def _mb(pid: int) -> float:
    with contextlib.suppress(OSError, IndexError):
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE_BYTES / 1e6
    return 0.0


def _count(folder: Path) -> int:
    return sum(1 for one in folder.rglob("*") if one.is_file()) if folder.is_dir() else 0


def _newest(world: World) -> int:
    """Files that the newest versions of the tables need."""
    with contextlib.suppress(Exception):  # a commit came between, or the tables are not there yet
        return len(world.lake_files("account")) + len(world.lake_files("log"))
    return 0


class Lag(threading.Thread):
    """Seconds from a change to its row in the lake, of a change every few seconds; by a reader that is not ours."""

    def __init__(self, world: World) -> None:
        super().__init__(daemon=True)
        self._world, self.over, self.seconds = world, threading.Event(), 0.0

    def run(self) -> None:
        while not self.over.wait(2.0):
            began, number = time.monotonic(), self._world.number
            while not self.over.is_set() and not self._world.has_logged(number):
                self.seconds = max(self.seconds, time.monotonic() - began)
                time.sleep(0.2)
            self.seconds = time.monotonic() - began


def soak(world: World, seconds: float, every_seconds: float, rate: float) -> tuple[list[Sample], str | None]:
    """The samples, and what is wrong in the end."""
    maintenance = {"every_seconds": 120, "keep_hours": 1, "keep_versions": 10}
    command = [sys.executable, "-m", "lakefeed", "run", str(world.config(maintenance=maintenance))]
    samples, chance, began = list[Sample](), random.Random(1), time.monotonic()
    with (world.directory / "run.log").open("ab") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=world.directory)
    lag = Lag(world)
    lag.start()
    try:
        due = began + every_seconds
        while (now := time.monotonic()) < began + seconds:
            assert process.poll() is None, (world.directory / "run.log").read_text()[-3000:]
            world.write(chance, 5)
            if now >= due:
                due += every_seconds
                jvm, own = child_of(process.pid, "java"), Path(f"/proc/{process.pid}")
                samples.append(
                    Sample(
                        round(now - began),
                        round(_mb(process.pid)),
                        round(_mb(jvm)),
                        len(list((own / "fd").iterdir())),
                        len(list((own / "task").iterdir())),
                        _count(world.state),
                        _newest(world),
                        round(lag.seconds, 1),
                    )
                )
                print(json.dumps(asdict(samples[-1])), flush=True)
            time.sleep(max(0.0, 15 / rate - (time.monotonic() - now)))  # five of them are fifteen statements
        until = time.monotonic() + 120
        while (difference := world.difference()) is not None and time.monotonic() < until:
            time.sleep(0.2)
    finally:
        lag.over.set()
        process.terminate()
        process.wait(60)
    return samples, difference or growth(samples)


def growth(samples: Sequence[Sample]) -> str | None:
    """What has grown between the second and the last quarter; the first one is the start of a JVM."""
    quarter = len(samples) // 4
    if not quarter:
        return None
    grown = list[str]()
    for name, slack in SLACK.items():
        early = statistics.median(getattr(one, name) for one in samples[quarter : 2 * quarter])
        late = statistics.median(getattr(one, name) for one in samples[-quarter:])
        if late > early * GROWTH and late > early + slack:
            grown.append(f"{name} has grown from {early} to {late}")
    return "; ".join(grown) or None


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.soak", description=__doc__)
    parser.add_argument("--seconds", type=float, default=3600.0)
    parser.add_argument("--every", type=float, default=0.0, help="seconds between two samples; 0: sixty samples")
    parser.add_argument("--rate", type=float, default=150.0, help="statements a second, at most")
    parser.add_argument("--source", default="postgres", choices=sorted(WORLDS))
    parser.add_argument("--format", default="delta", choices=["delta", "iceberg"])
    given = parser.parse_args(arguments)
    world = WORLDS[given.source](Path(tempfile.mkdtemp(prefix="lakefeed-soak-")), given.format, None)
    try:
        samples, problem = soak(world, given.seconds, given.every or given.seconds / 60, given.rate)
        print(f"{len(samples)} samples, {world.number:,} rows, {given.source} → {given.format}: {problem or 'flat'}")
    finally:
        world.close()
    return problem is not None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
