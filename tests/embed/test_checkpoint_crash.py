"""D14: a writer killed at any moment leaves the old or the new checkpoint, never a torn one."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from lakefeed.embed.checkpoint import Checkpoint
from lakefeed.embed.store import FileCheckpointStore

pytestmark = pytest.mark.crash

ENDLESS = """
import sys
from lakefeed.embed.checkpoint import Checkpoint
from lakefeed.embed.store import FileCheckpointStore

store = FileCheckpointStore(sys.argv[1])
last = store.load("k")
number = last.parse_postgres_lsn() if last else 0
while True:
    number += 1
    store.save("k", Checkpoint.postgres_lsn(number).with_metadata("padding", str(number) * 2000))
    print(number, flush=True)
"""

# Dies by its own hand at one exact system call of the second save.
EXACT = """
import os, signal, sys
from lakefeed.embed.checkpoint import Checkpoint
from lakefeed.embed.store import FileCheckpointStore

directory, name, wanted, before = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4] == "before"
store = FileCheckpointStore(directory)
store.save("k", Checkpoint.postgres_lsn(1))
real, calls = getattr(os, name), 0

def deadly(*arguments):
    global calls
    calls += 1
    if calls == wanted and before:
        os.kill(os.getpid(), signal.SIGKILL)
    real(*arguments)
    if calls == wanted:
        os.kill(os.getpid(), signal.SIGKILL)

setattr(os, name, deadly)
store.save("k", Checkpoint.postgres_lsn(2))
"""


@pytest.mark.parametrize("pause_seconds", [0.0, 0.003, 0.011, 0.029])
def test_d14_a_writer_killed_in_the_middle_of_its_saves_leaves_old_or_new(tmp_path: Path, pause_seconds: float) -> None:
    for _ in range(2):
        acknowledged = _run_and_kill(tmp_path, pause_seconds)
        with FileCheckpointStore(tmp_path) as store:
            found = store.load("k")
            assert store.damaged() == {}
        assert found is not None
        number = found.parse_postgres_lsn()
        # The save after the last acknowledged one may have come through before the kill, and no other.
        assert number in (acknowledged, acknowledged + 1)
        assert found.metadata == {"padding": str(number) * 2000}
        assert sorted(path.name for path in tmp_path.iterdir()) == [".lease", "k.json"]


@pytest.mark.parametrize(
    ("call", "wanted", "moment", "expected"),
    [
        ("fsync", 1, "before", 1),  # the temporary file is written
        ("fsync", 1, "after", 1),  # and forced out
        ("replace", 1, "before", 1),
        ("replace", 1, "after", 2),  # renamed
        ("fsync", 2, "before", 2),
        ("fsync", 2, "after", 2),  # the directory is forced out
    ],
)
def test_d14_a_writer_killed_at_one_step_leaves_what_that_step_says(
    tmp_path: Path, call: str, wanted: int, moment: str, expected: int
) -> None:
    command = [sys.executable, "-c", EXACT, str(tmp_path), call, str(wanted), moment]
    assert subprocess.run(command, check=False).returncode == -9
    with FileCheckpointStore(tmp_path) as store:
        found = store.load("k")
        assert found is not None
        assert found.parse_postgres_lsn() == expected
        store.save("k", Checkpoint.postgres_lsn(3))


def _run_and_kill(directory: Path, pause_seconds: float) -> int:
    """Let a child save for a while, kill it, and return the last save that it reported as done."""
    child = subprocess.Popen([sys.executable, "-c", ENDLESS, str(directory)], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    with child.stdout as output:
        first = output.readline()
        time.sleep(pause_seconds)
        child.kill()
        lines = [first, *output.readlines()]
    assert child.wait() == -9
    complete = [line for line in lines if line.endswith("\n")]
    return int(complete[-1])
