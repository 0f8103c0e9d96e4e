"""``python -m tests.faults.soak --seconds 3600``: one process follows a busy database, and what could grow
is sampled: memory of Python and of the JVM, open files, threads, files of the journal and of the lake, lag.
Of the lake those files count that the newest versions of its tables need: older ones stay for an hour at least.
At the end the lake must be equal to the source, and nothing of it may have grown in the last half. What has a bound
that is written down grows up to it, and is held against it: the JVM's whole memory, of which what remains after a
collection of all garbage may not grow, and the threads with which deltalake reads files.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.faults.alone import child_of
from tests.faults.world import WORLDS, World

from lakefeed.lake.spark.session import driver_memory_bytes

_PAGE_BYTES = 4096
GROWTH = 1.25
"""How much more the last quarter may have than the second one; small numbers may differ by SLACK."""
SLACK = {
    "python_mb": 25,
    "jvm_live_mb": 25,
    "jvm_classes_mb": 25,
    "handles": 20,
    "threads": 10,
    "journal_files": 60,
    "lake_files": 60,
    "lag_s": 5,
}

FILE_READERS = "tokio-rt-worker"
"""What deltalake's threads are called."""
BOUNDS: dict[str, float] = {
    # Tokio's blocking pool has 512 threads at most (`max_blocking_threads`), beside one for each core. A thread ends
    # after 10 s without work, but each has its turn: so many stay as files were once read at the same time.
    "file_readers": 512 + (os.cpu_count() or 1),
    # The heap's own bound; as much again as 700 MB have compiled code (240 at most), classes, threads and buffers.
    "jvm_mb": driver_memory_bytes() / 1e6 + 700,
}
"""What may never be exceeded, instead of not growing."""
LIVE_EVERY = 5
"""Samples from one collection of all garbage in the JVM to the next."""


@dataclass(frozen=True, slots=True)
class Sample:
    """``jvm_live_mb``: what the heap has after a collection of all garbage. ``jvm_classes_mb``: metaspace."""

    seconds: float
    python_mb: float
    jvm_mb: float
    jvm_live_mb: float
    jvm_classes_mb: float
    handles: int
    threads: int
    file_readers: int
    journal_files: int
    lake_files: int
    lag_s: float


def _mb(pid: int) -> float:
    with contextlib.suppress(OSError, IndexError):
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE_BYTES / 1e6
    return 0.0


def _threads(pid: int) -> Counter[str]:
    names = Counter[str]()
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):  # it has ended
            names[(task / "comm").read_text().strip()] += 1
    return names


_USED = re.compile(r"(ParOldGen|Metaspace) .*?used (\d+)K")


def _live(jvm: int) -> tuple[float, float]:
    """MB of heap after collections of all garbage, and of metaspace.

    Two of them: what Spark keeps for an object (blocks, broadcasts) it lets go of after the first has taken that. What
    is left is in the old generation; the young one has what came since.
    """
    asked = ["jcmd", str(jvm)]
    for _ in range(2):
        subprocess.run([*asked, "GC.run"], check=True, capture_output=True, timeout=60)
        time.sleep(2)
    heap = subprocess.run([*asked, "GC.heap_info"], check=True, capture_output=True, timeout=60, text=True).stdout
    used = {name: round(int(kib) * 1024 / 1e6, 1) for name, kib in _USED.findall(heap)}
    return used["ParOldGen"], used["Metaspace"]


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
    samples, chance, began, live = list[Sample](), random.Random(1), time.monotonic(), (0.0, 0.0)
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
                threads = _threads(process.pid)
                if len(samples) % LIVE_EVERY == 0:
                    live = _live(jvm)
                samples.append(
                    Sample(
                        round(now - began),
                        round(_mb(process.pid)),
                        round(_mb(jvm)),
                        *live,
                        len(list((own / "fd").iterdir())),
                        threads.total() - threads[FILE_READERS],
                        threads[FILE_READERS],
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
    """What has grown between the second and the last quarter (the first one is the start of a JVM), or is beyond its
    bound."""
    quarter = len(samples) // 4
    if not quarter:
        return None
    grown = list[str]()
    for name, slack in SLACK.items():
        early = statistics.median(getattr(one, name) for one in samples[quarter : 2 * quarter])
        late = statistics.median(getattr(one, name) for one in samples[-quarter:])
        if late > early * GROWTH and late > early + slack:
            grown.append(f"{name} has grown from {early} to {late}")
    for name, bound in BOUNDS.items():
        if (most := max(getattr(one, name) for one in samples)) > bound:
            grown.append(f"{name} was {most}, and may be {bound:.0f}")
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
