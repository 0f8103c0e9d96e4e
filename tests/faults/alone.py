"""The faults that stand alone: damaged files of the state and of lake tables, kills of processes, a fail-over."""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from tests import jvm
from tests.faults.kind import Act
from tests.faults.world import EQUAL_SECONDS, MysqlWorld, PostgresWorld, World

from lakefeed.errors import LakefeedError

_QUIET_SECONDS = 3.0
"""A table that differs for so long, while others go on, is one of which nobody says anything."""
_KILL_SECONDS = 60.0
"""How long a process may take to come to the step at which it is to be killed."""


def fail_over(world: World, chance: random.Random) -> bool:
    assert isinstance(world, PostgresWorld | MysqlWorld)
    world.write(chance, 10)
    world.fail_over()
    return True


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
        table, began = f"{world.schema}.account", time.monotonic()
        last, since = "", began
        while table not in world.told and time.monotonic() < began + 30 and world.is_running:
            with contextlib.suppress(Exception):  # a table that cannot be read is not equal
                differs = world.difference()
                if differs is None:
                    return True  # no row was in it that counts, or it was written again from the journal
                if differs != last or not world.has_logged(world.number):
                    last, since = differs, time.monotonic()
                elif time.monotonic() > since + _QUIET_SECONDS:
                    break
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


def child(world: World, chance: random.Random, failing: str = "") -> None:
    """Start the process that ``_running`` will need, and its JVM. It touches nothing until then."""
    kill = f"{failing}=kill@{chance.choice([1, 2, 3])}" if failing else ""
    environment = {**os.environ, "LAKEFEED_FAILPOINTS": kill, "JAVA_TOOL_OPTIONS": jvm.options()}
    ready = world.directory / f"ready-{chance.randrange(10**9)}"
    with (world.directory / "run.log").open("ab") as log:
        command = [sys.executable, str(Path(__file__).with_name("child.py")), str(world.config()), str(ready)]
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=log, stderr=log, env=environment, cwd=world.directory
        )
    world.children.append((process, ready))


@contextlib.contextmanager
def _running(world: World) -> Iterator[subprocess.Popen[bytes]]:
    """`lakefeed run` in a process of its own, which ends with the block; then this process follows again."""
    process, ready = world.children.pop(0)
    assert process.stdin is not None
    until = time.monotonic() + EQUAL_SECONDS
    while not ready.exists():
        assert process.poll() is None, (world.directory / "run.log").read_text()[-2000:]
        assert time.monotonic() < until, "its JVM did not start"
        time.sleep(0.02)
    world.stop()
    process.stdin.close()
    try:
        yield process
    finally:
        process.kill()
        process.wait(60)
        world.start()


def killed(world: World, chance: random.Random) -> bool:
    """SIGKILL at a random moment: of a start, a merge, or of nothing."""
    with _running(world) as process:
        until = time.monotonic() + chance.choice([chance.uniform(0.0, 1.5), chance.uniform(0.5, 8.0)])
        while time.monotonic() < until:
            assert process.poll() is None, f"it ended by itself: {process.returncode}"
            world.write(chance, 3)
            time.sleep(0.02)
    return True


def killed_at(world: World, chance: random.Random) -> bool:
    """By a failpoint of its own."""
    with _running(world) as process:
        until = time.monotonic() + _KILL_SECONDS
        while process.poll() is None and time.monotonic() < until:
            world.write(chance, 3)
            time.sleep(0.05)
        return process.returncode == -signal.SIGKILL


def driver_killed(world: World, chance: random.Random) -> bool:
    """The JVM of Spark's driver dies under a process that lives on."""
    with _running(world) as process:
        found = child_of(process.pid, "java")
        assert found, "its JVM is not there"
        until = time.monotonic() + chance.uniform(0, 6)
        while time.monotonic() < until:
            world.write(chance, 3)
            time.sleep(0.05)
        os.kill(found, signal.SIGKILL)
        until = time.monotonic() + 5
        while process.poll() is None and time.monotonic() < until:
            world.write(chance, 3)
            time.sleep(0.1)
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
