"""The kinds of faults. Each is done to a ``World`` whose pipeline follows, writes beside it, and heals what it broke.

``stops``: the pipeline may end by it, with an error of Lakefeed's, and is started again; by any other fault it may not.
"""

from __future__ import annotations

import contextlib
import errno
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from tests import jvm
from tests.faults.world import EQUAL_SECONDS, PostgresWorld, World

from lakefeed import failpoint
from lakefeed.errors import LakefeedError

Act = Callable[[World, random.Random], bool]
"""False: it did not come to it, so it does not count."""


@dataclass(frozen=True, slots=True)
class Kind:
    name: str
    act: Act
    weight: float = 1.0
    stops: bool = False
    applies: Callable[[World], bool] = lambda _: True


def _has_link(world: World) -> bool:
    return world.link is not None


def _linked(act: Callable[[World, Any, random.Random], None]) -> Act:
    def fault(world: World, chance: random.Random) -> bool:
        act(world, world.link, chance)
        return True

    return fault


@_linked
def cut(world: World, link: Any, chance: random.Random) -> None:
    for _ in range(chance.randrange(1, 4)):
        world.write(chance, chance.randrange(1, 10))
        time.sleep(chance.uniform(0, 0.05))
        link.cut()


@_linked
def frozen(world: World, link: Any, chance: random.Random) -> None:
    link.freeze()
    world.write(chance, 5)
    time.sleep(chance.choice([0.1, 0.5, 1.0, 3.0]))
    link.heal()


@_linked
def half_open(world: World, link: Any, chance: random.Random) -> None:
    link.hole()
    world.write(chance, 5)
    time.sleep(chance.choice([0.1, 0.5, 1.0, 3.0]))
    link.heal()


@_linked
def slowed(world: World, link: Any, chance: random.Random) -> None:
    link.slow()
    world.write(chance, 20)
    time.sleep(chance.uniform(0.2, 1.0))
    link.heal()


@_linked
def lost_answer(world: World, link: Any, chance: random.Random) -> None:
    for _ in range(3):
        link.lose_answer()
        world.write(chance, 3)
        time.sleep(chance.uniform(0.05, 0.3))


def _restart(*, crash: bool) -> Act:
    def fault(world: World, chance: random.Random) -> bool:
        assert world.server is not None
        world.write(chance, chance.randrange(1, 30))
        time.sleep(chance.uniform(0, 0.3))
        world.server.halt(immediate=crash)
        world.server.resume()
        return True

    return fault


def fail_over(world: World, chance: random.Random) -> bool:
    assert isinstance(world, PostgresWorld)
    world.write(chance, 10)
    world.fail_over()
    return True


def stopped(world: World, chance: random.Random) -> bool:
    """An orderly stop and a start, at any moment."""
    world.write(chance, 10)
    time.sleep(chance.uniform(0, 0.5))
    world.stop()
    world.write(chance, 10)
    world.start()
    return True


def disk_full(world: World, chance: random.Random) -> bool:
    """The journal's file system has no room left; where none could be mounted, writes fail with ENOSPC."""
    if not world.is_mounted:
        return _injected(world, chance, errno.ENOSPC)
    ballast = world.journal / "ballast"
    try:
        with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(1 << 20))
        with contextlib.suppress(OSError), ballast.open("ab", buffering=0) as file:
            while True:
                file.write(bytes(512))
        world.write(chance, 20)
        time.sleep(chance.uniform(0.1, 1.0))
    finally:
        ballast.unlink()
    return True


def read_only(world: World, chance: random.Random) -> bool:
    return _injected(world, chance, errno.EROFS)


def _injected(world: World, chance: random.Random, code: int) -> bool:
    """Every file that Lakefeed would make fails. Root may write where nobody else may, so it cannot be a real one."""
    opened = os.open

    def refused(path: Any, flags: int, *arguments: Any, **options: Any) -> int:
        if flags & os.O_CREAT and str(world.state) in str(path):
            raise OSError(code, os.strerror(code), str(path))
        return opened(path, flags, *arguments, **options)

    with mock.patch("os.open", refused):
        world.write(chance, 20)
        time.sleep(chance.uniform(0.1, 1.0))
    return True


def slow_disk(world: World, chance: random.Random) -> bool:
    synced, seconds = os.fsync, chance.choice([0.05, 0.2, 0.5])

    def slow(descriptor: int) -> None:
        time.sleep(seconds)
        synced(descriptor)

    with mock.patch("os.fsync", slow):
        world.write(chance, 20)
        time.sleep(chance.uniform(0.1, 1.0))
    return True


def clock(world: World, chance: random.Random) -> bool:
    """This process's clock jumps: what it reads as seconds since 1970. The server's does not."""
    real, real_ns = time.time, time.time_ns
    by = chance.choice([-86_400, -3600, -5, 5, 3600, 86_400])
    moved, moved_ns = (lambda: real() + by), (lambda: real_ns() + by * 10**9)
    with mock.patch("time.time", moved), mock.patch("time.time_ns", moved_ns):
        world.write(chance, 10)
        time.sleep(chance.uniform(0.1, 1.0))
    return True


def _raised(name: str) -> Act:
    """The step fails at its failpoint. Behind a commit that is an answer that was lost."""

    def fault(world: World, chance: random.Random) -> bool:
        hits = list[float]()
        plain = failpoint.FailpointError.__init__

        def counted(error: failpoint.FailpointError, *arguments: Any, **options: Any) -> None:
            hits.append(time.monotonic())
            plain(error, *arguments, **options)

        with mock.patch.object(failpoint.FailpointError, "__init__", counted), failpoint.armed(name, "raise@1"):
            until = time.monotonic() + 10
            while not hits and time.monotonic() < until and world.is_running:
                world.write(chance, 5)
                time.sleep(0.1)
        return bool(hits)

    return fault


def damaged(*, torn: bool) -> Act:
    """One file of the state is damaged while nobody runs. It must be noticed and named, or must not matter; then the
    file is put back."""

    def fault(world: World, chance: random.Random) -> bool:
        world.write(chance, 5)
        time.sleep(chance.uniform(0, 0.3))
        world.stop()
        world.write(chance, 5)
        files = sorted(one for one in world.state.rglob("*") if one.is_file() and one.stat().st_size)
        file = chance.choice(files)
        whole = file.read_bytes()
        spoilt = bytearray(whole)
        if torn:
            del spoilt[chance.randrange(len(spoilt)) :]
        else:
            spoilt[chance.randrange(len(spoilt))] ^= 1 << chance.randrange(8)
        file.write_bytes(spoilt)
        world.start()
        world.wait_equal(10)
        world.stop()
        told = [error for error in world.errors if not isinstance(error, LakefeedError)]
        assert not told, f"{file.name} damaged: {told[0]!r}"
        with contextlib.suppress(FileNotFoundError):
            if file.read_bytes() == spoilt:
                file.write_bytes(whole)
        world.start()
        return True

    return fault


@contextlib.contextmanager
def _child(world: World, failpoints: str = "") -> Iterator[subprocess.Popen[bytes]]:
    """`lakefeed run` in a process of its own, which ends with the block; then this process follows again."""
    world.stop()
    environment = {**os.environ, "LAKEFEED_FAILPOINTS": failpoints, "JAVA_TOOL_OPTIONS": jvm.options()}
    with (world.directory / "run.log").open("ab") as log:
        command = [sys.executable, "-m", "lakefeed", "run", str(world.config()), "--for", "300"]
        process = subprocess.Popen(command, stdout=log, stderr=log, env=environment, cwd=world.directory)
    try:
        yield process
    finally:
        process.kill()
        process.wait(60)
        world.start()


def killed(world: World, chance: random.Random) -> bool:
    """SIGKILL at a random moment: of a start, a copy, a merge, or of nothing."""
    with _child(world) as process:
        until = time.monotonic() + chance.uniform(1.0, 25.0)
        while time.monotonic() < until:
            assert process.poll() is None, f"it ended by itself: {process.returncode}"
            world.write(chance, 3)
            time.sleep(0.1)
    return True


def _killed_at(name: str) -> Act:
    def fault(world: World, chance: random.Random) -> bool:
        with _child(world, f"{name}=kill@{chance.choice([1, 2, 3])}") as process:
            until = time.monotonic() + EQUAL_SECONDS
            while process.poll() is None and time.monotonic() < until:
                world.write(chance, 3)
                time.sleep(0.1)
            return process.returncode == -signal.SIGKILL

    return fault


def driver_killed(world: World, chance: random.Random) -> bool:
    """The JVM of Spark's driver dies under a process that lives on."""
    with _child(world) as process:
        until = time.monotonic() + EQUAL_SECONDS
        while not (found := child_of(process.pid, "java")) and time.monotonic() < until:
            world.write(chance, 3)
            time.sleep(0.2)
        if not found:
            return False
        time.sleep(chance.uniform(0, 10))
        with contextlib.suppress(ProcessLookupError):
            os.kill(found, signal.SIGKILL)
        until = time.monotonic() + 5
        while process.poll() is None and time.monotonic() < until:
            world.write(chance, 3)
            time.sleep(0.2)
    return True


def child_of(pid: int, wanted: str) -> int:
    """The id of a process called ``wanted`` below ``pid``, 0 if there is none."""
    parents = dict[int, tuple[int, str]]()
    for status in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            head, _, rest = status.read_text().rpartition(")")
            parents[int(status.parent.name)] = (int(rest.split()[1]), head.partition("(")[2])
    for one, (parent, name) in parents.items():
        above = parent
        while above in parents and above != pid:
            above = parents[above][0]
        if name == wanted and above == pid:
            return one
    return 0


STREAMED = sorted(one for one in failpoint.NAMES if "load" not in one)
"""Those that a pipeline meets whose tables are copied."""
KINDS: tuple[Kind, ...] = (
    Kind("connection cut", cut, 4, applies=_has_link),
    Kind("connection frozen", frozen, 2, applies=_has_link),
    Kind("connection half-open", half_open, 2, applies=_has_link),
    Kind("connection slowed", slowed, 2, applies=_has_link),
    Kind("answer lost", lost_answer, 3, applies=_has_link),
    Kind("server restarted", _restart(crash=False), 1, applies=_has_link),
    Kind("server crashed", _restart(crash=True), 1, applies=_has_link),
    Kind("failed over", fail_over, 0.5, applies=lambda world: isinstance(world, PostgresWorld)),
    Kind("pipeline stopped and started", stopped, 3),
    Kind("journal disk full", disk_full, 3),
    Kind("journal read-only (injected)", read_only, 2, stops=True),
    Kind("journal disk slow", slow_disk, 2),
    Kind("clock of the process moved", clock, 2),
    Kind("state file torn", damaged(torn=True), 3, stops=True),
    Kind("bit of a state file flipped", damaged(torn=False), 4, stops=True),
    *(Kind(f"failed at {name}", _raised(name), 0.7, stops=True) for name in STREAMED),
    Kind("process killed at random", killed, 0.3),
    *(Kind(f"process killed at {name}", _killed_at(name), 0.02) for name in STREAMED),
    Kind("Spark driver killed", driver_killed, 0.1),
)
