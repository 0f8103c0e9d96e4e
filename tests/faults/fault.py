"""The kinds of faults. Each is done to a ``World`` whose pipeline follows, writes beside it, and heals what it broke.

``stops``: the pipeline may end by it, with an error of Lakefeed's, and is started again; by any other fault it may not.
"""

from __future__ import annotations

import contextlib
import errno
import os
import random
import re
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
from tests.cluster.test_store_cluster import executors
from tests.faults.link import Link
from tests.faults.world import EQUAL_SECONDS, PostgresWorld, World

from lakefeed import failpoint
from lakefeed.change.table import TableId
from lakefeed.errors import LakefeedError
from lakefeed.flow.reread.repair import ask
from lakefeed.journal.journal import Journal
from lakefeed.storage.location import storage_at

Act = Callable[[World, random.Random], bool]
"""False: it did not come to it, so it does not count."""


@dataclass(frozen=True, slots=True)
class Kind:
    """``joins``: others may come before the next comparison. What one of them lost or doubled is seen there all the
    same: every transaction of the writer has rows of ``log`` that no later one replaces."""

    name: str
    act: Act
    weight: float = 1.0
    stops: bool = False
    joins: bool = False
    applies: Callable[[World], bool] = lambda _: True


def _has_link(world: World) -> bool:
    return world.link is not None


_MEET_SECONDS = 3.0
"""How long a fault waits for something to meet it."""


def _met(world: World, chance: random.Random, count: Callable[[], int]) -> bool:
    """Write until the fault has met something, and stay a moment. False: nothing came by, so it does not count."""
    before, until = count(), time.monotonic() + _MEET_SECONDS
    while count() == before and time.monotonic() < until and world.is_running:
        world.write(chance, 2)
        time.sleep(0.01)
    time.sleep(chance.choice([0.0, 0.0, 0.02, 0.1, 0.4]))
    return count() > before


def _linked(begin: Callable[[Any], None], *, longest: float = 0.0) -> Act:
    """``longest``: now and then it lasts so many seconds, longer than a server may be silent."""

    def fault(world: World, chance: random.Random) -> bool:
        link: Any = world.link
        before = link.met
        begin(link)
        try:
            if not _met(world, chance, lambda: link.met - before):
                return bool(link.met > before)  # what was met at once
            if longest and chance.random() < 0.05:
                time.sleep(longest)
        finally:
            link.heal()
        return True

    return fault


def cut(world: World, chance: random.Random) -> bool:
    link: Any = world.link
    until = time.monotonic() + _MEET_SECONDS
    before = link.met
    while link.met == before and time.monotonic() < until:
        world.write(chance, chance.randrange(1, 5))
        time.sleep(chance.uniform(0, 0.05))
        link.cut()
    return bool(link.met > before)


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
        return _met(world, chance, lambda: world.troubles)
    finally:
        ballast.unlink()


def read_only(world: World, chance: random.Random) -> bool:
    return _injected(world, chance, errno.EROFS)


def _injected(world: World, chance: random.Random, code: int) -> bool:
    """Every file that Lakefeed would make fails. Root may write where nobody else may, so it cannot be a real one."""
    opened, refusals = os.open, list[str]()

    def refused(path: Any, flags: int, *arguments: Any, **options: Any) -> int:
        if flags & os.O_CREAT and str(world.state) in str(path):
            refusals.append(str(path))
            raise OSError(code, os.strerror(code), str(path))
        return opened(path, flags, *arguments, **options)

    with mock.patch("os.open", refused):
        return _met(world, chance, lambda: len(refusals))


def slow_disk(world: World, chance: random.Random) -> bool:
    synced, seconds, slowed = os.fsync, chance.choice([0.02, 0.1, 0.5]), list[int]()

    def slow(descriptor: int) -> None:
        slowed.append(descriptor)
        time.sleep(seconds)
        synced(descriptor)

    with mock.patch("os.fsync", slow):
        return _met(world, chance, lambda: len(slowed))


def clock(world: World, chance: random.Random) -> bool:
    """This process's clock jumps: what it reads as seconds since 1970. The server's does not."""
    real, real_ns, asked = time.time, time.time_ns, list[float]()
    by = chance.choice([-86_400, -3600, -5, 5, 3600, 86_400])

    def moved() -> float:
        asked.append(by)
        return real() + by

    def moved_ns() -> int:
        return real_ns() + by * 10**9

    with mock.patch("time.time", moved), mock.patch("time.time_ns", moved_ns):
        return _met(world, chance, lambda: len(asked))


def _raised(name: str) -> Act:
    """The step fails at its failpoint. Behind a commit that is an answer that was lost."""

    def fault(world: World, chance: random.Random) -> bool:
        hits = list[float]()
        plain = failpoint.FailpointError.__init__

        def counted(error: failpoint.FailpointError, *arguments: Any, **options: Any) -> None:
            hits.append(time.monotonic())
            plain(error, *arguments, **options)

        with mock.patch.object(failpoint.FailpointError, "__init__", counted), failpoint.armed(name, "raise@1"):
            return _met(world, chance, lambda: len(hits))

    return fault


def _raised_in_repair(name: str) -> Act:
    """The same in a repair that somebody asks for: rows are read again and written through the journal."""
    plain = _raised(name)

    def fault(world: World, chance: random.Random) -> bool:
        state = storage_at(world.state)
        keys = [(key,) for key in chance.sample(range(80), 10)]
        ask(state, TableId(world.schema, "account"), keys, Journal.read(state).head)
        return plain(world, chance)

    return fault


def spoil(file: Path, how: str, chance: random.Random) -> tuple[bytes, bytes]:
    """Damage a file, or take it away. What it had, and what it has now."""
    whole = file.read_bytes()
    spoilt = bytearray(whole)
    if how == "torn":
        del spoilt[chance.randrange(len(spoilt)) :]
    elif how == "flipped":
        spoilt[chance.randrange(len(spoilt))] ^= 1 << chance.randrange(8)
    if how == "missing":
        file.unlink()
    else:
        file.write_bytes(spoilt)
    return whole, bytes(spoilt)


def damaged(how: str) -> Act:
    """One file of the state is damaged while nobody runs. It must be noticed and named, or must not matter; then the
    file is put back."""

    def fault(world: World, chance: random.Random) -> bool:
        world.write(chance, 5)
        time.sleep(chance.uniform(0, 0.3))
        world.stop()
        world.write(chance, 5)
        files = sorted(one for one in world.state.rglob("*") if one.is_file() and one.stat().st_size)
        file = chance.choice(files)
        whole, spoilt = spoil(file, how, chance)
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


_REBUILD, _MOVE = re.compile(r"lakefeed rebuild FILE (\S+?) --from-source"), re.compile(r"mv \S+ \S+\.damaged")


def lake_damaged(how: str) -> Act:
    """A file of the newest version of the lake table ``account`` is damaged or gone while nobody runs. The pipeline
    names the table with a remedy, or `lakefeed verify` says that it differs; the remedy, as printed, makes it right."""

    def fault(world: World, chance: random.Random) -> bool:
        difference = world.wait_equal()
        assert difference is None, difference
        world.stop()
        file = chance.choice(world.lake_files("account"))
        spoil(file, how, chance)
        world.forget()
        world.start()
        for _ in range(3):
            world.write(chance, 5)
            time.sleep(0.2)
        table, until = f"{world.schema}.account", time.monotonic() + 30
        while table not in world.told and time.monotonic() < until and world.is_running:
            with contextlib.suppress(Exception):  # a table that cannot be read is not equal
                if world.difference() is None:
                    return True  # no row was in it that counts, or it was written again from the journal
            time.sleep(0.1)
        if table in world.told:
            message, remedy = world.told[table]
            text = f"{message} {remedy}"
        else:
            text = world.verify()
            assert table in text, f"{file.name} {how}: nobody names it; {world.wait_equal(5)}; verify: {text}"
            if "rows differ from the source" in text:  # then it is `lakefeed repair FILE TABLE`
                world.repair(table)
                return True
        rebuild, move = _REBUILD.search(text), _MOVE.search(text)
        assert rebuild or move, f"{file.name} {how}: no remedy that could be run: {text}"
        world.stop()
        if rebuild:
            world.rebuild(rebuild[1])
        elif move:
            subprocess.run(move[0], shell=True, check=True)
        world.start()
        if (left := world.wait_equal()) is not None:
            raise AssertionError(f"{file.name} {how}: the remedy does not help: {left}; {text}; {world.told}")
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


def executor_killed(world: World, chance: random.Random) -> bool:
    """The process in which Spark's tasks run dies; its worker starts another."""
    assert world.cluster is not None
    world.write(chance, 10)
    time.sleep(chance.uniform(0, 1.0))
    found = executors(world.cluster)
    for pid in found[:1]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return bool(found)


def worker_killed(world: World, chance: random.Random) -> bool:
    """A worker dies with its executor, and another one comes."""
    assert world.cluster is not None
    world.write(chance, 10)
    time.sleep(chance.uniform(0, 1.0))
    victim = world.cluster.processes.pop()
    os.killpg(victim.pid, signal.SIGKILL)
    victim.wait()
    world.cluster.add_worker()
    return True


def _has_cluster(world: World) -> bool:
    return world.cluster is not None


def _meets(name: str) -> Callable[[World], bool]:
    """Rows of Iceberg tables are marked as deleted; those of the Delta tables here are not."""
    return lambda world: name != "lake.after_marks" or world.format == "iceberg"


STREAMED = sorted(one for one in failpoint.NAMES if "load" not in one and "repair" not in one)
"""Those that a pipeline meets whose tables are copied."""
REPAIRED = sorted(one for one in failpoint.NAMES if "repair" in one)
KINDS: tuple[Kind, ...] = (
    Kind("connection cut", cut, 8, joins=True, applies=_has_link),
    Kind("connection frozen", _linked(Link.freeze, longest=3.0), 4, joins=True, applies=_has_link),
    Kind("connection half-open", _linked(Link.hole, longest=3.0), 4, joins=True, applies=_has_link),
    Kind("connection slowed", _linked(Link.slow), 4, joins=True, applies=_has_link),
    Kind("answer lost", _linked(Link.lose_answer), 6, joins=True, applies=_has_link),
    Kind("server restarted", _restart(crash=False), 1, joins=True, applies=_has_link),
    Kind("server crashed", _restart(crash=True), 1, joins=True, applies=_has_link),
    Kind("failed over", fail_over, 1, applies=lambda world: isinstance(world, PostgresWorld)),
    Kind("pipeline stopped and started", stopped, 4, joins=True),
    Kind("journal disk full", disk_full, 4, joins=True),
    Kind("journal read-only (injected)", read_only, 4, stops=True, joins=True),
    Kind("journal disk slow", slow_disk, 4, joins=True),
    Kind("clock of the process moved", clock, 4, joins=True),
    Kind("state file torn", damaged("torn"), 4, stops=True),
    Kind("bit of a state file flipped", damaged("flipped"), 4, stops=True),
    Kind("file of a lake table missing", lake_damaged("missing"), 2),
    Kind("file of a lake table torn", lake_damaged("torn"), 2),
    Kind("bit of a lake table's file flipped", lake_damaged("flipped"), 2),
    *(
        Kind(
            f"failed at {name}", _raised(name), 2, stops=True, joins=True,
            applies=_meets(name),
        )
        for name in STREAMED
    ),
    *(Kind(f"failed at {name}", _raised_in_repair(name), 1, stops=True, joins=True) for name in REPAIRED),
    Kind("process killed at random", killed, 1),
    *(Kind(f"process killed at {name}", _killed_at(name), 0.1) for name in STREAMED),
    Kind("Spark driver killed", driver_killed, 0.5),
    Kind("Spark executor killed", executor_killed, 3, joins=True, applies=_has_cluster),
    Kind("Spark worker killed", worker_killed, 1, applies=_has_cluster),
)  # fmt: skip
