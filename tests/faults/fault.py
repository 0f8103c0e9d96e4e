"""The kinds of faults: those that may come beside others, by their lanes, and all of them (``KINDS``)."""

from __future__ import annotations

import contextlib
import errno
import os
import random
import signal
import time
from collections.abc import Callable
from functools import partial
from typing import Any
from unittest import mock

from tests.cluster.test_store_cluster import executors
from tests.faults import alone
from tests.faults.kind import Act, Kind, met
from tests.faults.link import Link
from tests.faults.world import World

from lakefeed import failpoint
from lakefeed.change.table import TableId
from lakefeed.errors import LakefeedError
from lakefeed.flow.reread.repair import ask
from lakefeed.journal.journal import Journal
from lakefeed.storage.location import storage_at


def _linked(begin: Callable[[Any], None], *, longest: float = 0.0) -> Act:
    """``longest``: now and then it lasts so many seconds, longer than a server may be silent."""

    def fault(world: World, chance: random.Random) -> bool:
        link: Any = world.link
        before = link.met
        begin(link)
        try:
            if not met(chance, lambda: link.met - before):
                return bool(link.met > before)  # what was met at once
            if longest and chance.random() < 0.05:
                time.sleep(longest)
        finally:
            link.heal()
        return True

    return fault


def cut(world: World, chance: random.Random) -> bool:
    """At any moment of what the pipeline does with its connections."""
    link: Any = world.link
    time.sleep(chance.uniform(0, 0.2))

    def ended() -> int:
        link.cut()
        return int(link.met)

    return met(chance, ended)


def _restart(*, crash: bool) -> Act:
    def fault(world: World, chance: random.Random) -> bool:
        assert world.server is not None
        time.sleep(chance.uniform(0, 0.3))
        world.server.halt(immediate=crash)
        world.server.resume()
        return True

    return fault


def stopped(world: World, chance: random.Random) -> bool:
    """An orderly stop and a start, at any moment."""
    time.sleep(chance.uniform(0, 0.5))
    with world.turn:
        was_running = world.is_running
        world.stop()
        time.sleep(chance.uniform(0, 0.1))
        world.start()
    return was_running


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
        return met(chance, lambda: world.retried["JournalFullError"])
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
        return met(chance, lambda: len(refusals))


def _is_of_system(error: BaseException, code: int) -> bool:
    """Whether the system's error ``code`` is what led to it."""
    found: BaseException | None = error
    while found is not None:
        if isinstance(found, OSError) and found.errno == code:
            return isinstance(error, LakefeedError)
        found = found.__cause__ or found.__context__
    return False


def slow_disk(world: World, chance: random.Random) -> bool:
    synced, seconds, slowed = os.fsync, chance.choice([0.02, 0.1, 0.5]), list[int]()

    def slow(descriptor: int) -> None:
        slowed.append(descriptor)
        time.sleep(seconds)
        synced(descriptor)

    with mock.patch("os.fsync", slow):
        return met(chance, lambda: len(slowed))


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
        return met(chance, lambda: len(asked))


def raised(name: str) -> Act:
    """The step fails at its failpoint. Behind a commit that is an answer that was lost."""

    def fault(world: World, chance: random.Random) -> bool:
        hits = list[str]()
        with failpoint.armed(name, "raise@1"):
            act = failpoint.ARMED[name]

            def counted() -> None:
                try:
                    act()
                except failpoint.FailpointError:
                    hits.append(name)
                    raise

            failpoint.ARMED[name] = counted
            return met(chance, lambda: len(hits))

    return fault


def raised_in_repair(name: str) -> Act:
    """The same in a repair that somebody asks for: rows are read again and written through the journal."""
    plain = raised(name)

    def fault(world: World, chance: random.Random) -> bool:
        state = storage_at(world.state)
        keys = [(key,) for key in chance.sample(range(80), 10)]
        try:
            ask(state, TableId(world.schema, "account"), keys, Journal.read(state).head)
        except LakefeedError as error:
            if any(_is_of_system(error, code) for code in (errno.ENOSPC, errno.EROFS)):
                return False  # by a fault of another lane, whoever asks is told
            raise
        return plain(world, chance)

    return fault


def executor_killed(world: World, chance: random.Random) -> bool:
    """The process in which Spark's tasks run dies; its worker starts another."""
    assert world.cluster is not None
    time.sleep(chance.uniform(0, 1.0))
    found = executors(world.cluster)
    for pid in found[:1]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return bool(found)


def _has_link(world: World) -> bool:
    return world.link is not None


def _has_cluster(world: World) -> bool:
    return world.cluster is not None


def _meets(name: str, world: World) -> bool:
    """Rows of Iceberg tables are marked as deleted; those of the Delta tables here are not."""
    return name != "lake.after_marks" or world.format == "iceberg"


def _is_failpoint(error: BaseException) -> bool:
    return isinstance(error, failpoint.FailpointError)


def _is_ours(error: BaseException) -> bool:
    return isinstance(error, LakefeedError)


STREAMED = sorted(one for one in failpoint.NAMES if "load" not in one and "repair" not in one)
"""Those that a pipeline meets whose tables are copied."""
REPAIRED = sorted(one for one in failpoint.NAMES if "repair" in one)
_SOURCE, _MACHINE, _STEPS, _LAKE = "source", "machine", "steps", "lake"
KINDS: tuple[Kind, ...] = (
    Kind("connection cut", cut, 8, _SOURCE, applies=_has_link),
    Kind("connection frozen", _linked(Link.freeze, longest=3.0), 4, _SOURCE, applies=_has_link),
    Kind("connection half-open", _linked(Link.hole, longest=3.0), 4, _SOURCE, applies=_has_link),
    Kind("connection slowed", _linked(Link.slow), 4, _SOURCE, applies=_has_link),
    Kind("answer lost", _linked(Link.lose_answer), 6, _SOURCE, applies=_has_link),
    Kind("server restarted", _restart(crash=False), 1, _SOURCE, applies=_has_link),
    Kind("server crashed", _restart(crash=True), 1, _SOURCE, applies=_has_link),
    Kind("failed over", alone.fail_over, seconds=8, applies=_has_link),
    Kind("pipeline stopped and started", stopped, 4, _MACHINE),
    Kind("journal disk full", disk_full, 4, _MACHINE),
    Kind("journal read-only (injected)", read_only, 4, _MACHINE, ends=partial(_is_of_system, code=errno.EROFS)),
    Kind("journal disk slow", slow_disk, 4, _MACHINE),
    Kind("clock of the process moved", clock, 4, _MACHINE),
    Kind("state file torn", alone.damaged("torn"), seconds=3, ends=_is_ours),
    Kind("bit of a state file flipped", alone.damaged("flipped"), seconds=3, ends=_is_ours),
    Kind("file of a lake table missing", alone.lake_damaged("missing"), seconds=6),
    Kind("file of a lake table torn", alone.lake_damaged("torn"), seconds=6),
    Kind("bit of a lake table's file flipped", alone.lake_damaged("flipped"), seconds=10),
    *(
        Kind(
            f"failed at {name}", raised(name), 2, _LAKE if "lake" in name else _STEPS, ends=_is_failpoint,
            applies=partial(_meets, name),
        )
        for name in STREAMED
    ),
    *(Kind(f"failed at {name}", raised_in_repair(name), 1, _STEPS, ends=_is_failpoint) for name in REPAIRED),
    Kind("process killed at random", alone.killed, seconds=8, before=alone.child),
    *(
        Kind(
            f"process killed at {name}", alone.killed_at, seconds=8, before=partial(alone.child, failing=name),
            applies=partial(_meets, name),
        )
        for name in STREAMED
    ),
    Kind("Spark driver killed", alone.driver_killed, seconds=10, before=alone.child),
    Kind("Spark executor killed", executor_killed, 3, _LAKE, applies=_has_cluster),
    Kind("Spark worker killed", alone.worker_killed, seconds=10, applies=_has_cluster),
)  # fmt: skip
