"""What a process and its children use while something runs: CPU seconds and peak memory, from /proc.

Memory is the proportional set size, so that pages which forked workers share count once. It is looked at ten times a
second; a shorter peak may be missed. CPU time of children that have ended is their parent's.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from bench.bench import Contestant
from bench.report import Measure

_TICKS = os.sysconf("SC_CLK_TCK")
_LOOK_SECONDS = 0.1
_MIB = 1024


@dataclass(slots=True)
class Usage:
    """One value for each time that the contestant ran."""

    cpu_seconds: list[float] = field(default_factory=list)
    server_seconds: list[float] = field(default_factory=list)
    peak_mib: list[float] = field(default_factory=list)


class Meter:
    """Watches this process and its children, without the database server, which is watched for itself."""

    def __init__(self, server: int) -> None:
        self._server = server
        self._usages: dict[str, Usage] = {}

    def on(self, name: str, contestant: Contestant, *, alone: bool = False) -> Contestant:
        """The same contestant, watched. ``alone``: it is a process of its own, so the memory of this one is not its."""
        usage = self._usages.setdefault(name, Usage())

        def run() -> float:
            own, server = self._cpu()
            with _peak(lambda: self._processes()[int(alone) :]) as found:
                seconds = contestant()
            own_after, server_after = self._cpu()
            usage.cpu_seconds.append(round(own_after - own, 2))
            usage.server_seconds.append(round(server_after - server, 2))
            usage.peak_mib.append(round(found[0] / _MIB, 1))
            return seconds

        return run

    def measures(self, ours: tuple[str, ...]) -> tuple[Measure, ...]:
        """For the report."""
        found = []
        for name, usage in self._usages.items():
            mine = name in ours
            found += [
                Measure(f"{name}: CPU", "s", tuple(usage.cpu_seconds), mine, charted=False),
                Measure(f"{name}: CPU of the server", "s", tuple(usage.server_seconds), mine, charted=False),
                Measure(f"{name}: peak memory", "MiB", tuple(usage.peak_mib), mine, charted=False),
            ]
        return tuple(found)

    def _processes(self) -> list[int]:
        return tree(os.getpid(), without=self._server)

    def _cpu(self) -> tuple[float, float]:
        return sum(map(_cpu_seconds, self._processes())), cpu_of(self._server)


def cpu_of(root: int) -> float:
    """The processor time, in seconds, of a process and all below it, so far."""
    return sum(map(_cpu_seconds, tree(root)))


def tree(root: int, *, without: int = 0) -> list[int]:
    """A process, and then all below it."""
    children: dict[int, list[int]] = {}
    for place in Path("/proc").iterdir():
        if place.name.isdigit():
            fields = _stat(int(place.name))
            if fields:
                children.setdefault(int(fields[1]), []).append(int(place.name))
    found, waiting = [], [root]
    while waiting:
        pid = waiting.pop()
        found.append(pid)
        waiting += [child for child in children.get(pid, []) if child != without]
    return found


def _stat(pid: int) -> list[str]:
    """The fields behind the name, which may have spaces: state, parent …; empty if the process has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _cpu_seconds(pid: int) -> float:
    fields = _stat(pid)
    return sum(map(int, fields[11:15])) / _TICKS if fields else 0.0


def _memory_kib(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("Pss:")), 0)


@contextmanager
def _peak(processes: Callable[[], list[int]]) -> Iterator[list[int]]:
    """The most memory (KiB) that the processes have together while the block runs."""
    found, over = [0], threading.Event()

    def look() -> None:
        while True:
            found[0] = max(found[0], sum(map(_memory_kib, processes())))
            if over.wait(_LOOK_SECONDS):
                return

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        over.set()
        thread.join()
