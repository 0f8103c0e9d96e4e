"""What a contestant uses is measured over its processes, and the server's is kept apart."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time

import pytest
from bench.usage import Meter, _memory_kib, tree

SERVER = "import time; print('ready', flush=True); time.sleep(120)"
BUSY = """
import sys, time
kept = bytearray(64 << 20)
until = time.process_time() + 0.5
while time.process_time() < until:
    pass
sys.stdin.read()
"""


def test_cpu_and_memory_of_a_child_are_counted_also_after_it_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    looked = threading.Event()

    def look(pid: int) -> int:
        found = _memory_kib(pid)
        if found > 50 << 10:
            looked.set()
        return found

    monkeypatch.setattr("bench.usage._memory_kib", look)
    with subprocess.Popen([sys.executable, "-c", SERVER], stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            assert server.stdout.readline() == "ready\n"  # how it starts is not measured
            meter = Meter(server.pid)

            def work() -> float:
                with subprocess.Popen([sys.executable, "-c", BUSY], stdin=subprocess.PIPE) as child:
                    assert looked.wait(60)  # ten times a second, as long as it lives
                assert child.returncode == 0
                return 1.0

            assert meter.on("one", work, alone=True)() == 1.0
        finally:
            server.kill()
    cpu, of_server, memory = meter.measures(("one",))
    assert 0.4 < cpu.values[0] < 5
    assert of_server.values[0] < 0.2
    assert memory.values[0] > 50
    assert all(measure.ours and not measure.charted for measure in (cpu, of_server, memory))


def test_a_tree_has_children_but_not_the_one_that_is_left_out() -> None:
    with subprocess.Popen(["sleep", "60"]) as one, subprocess.Popen(["sleep", "60"]) as other:
        try:
            time.sleep(0.05)
            found = tree(os.getpid(), without=other.pid)
            assert found[0] == os.getpid()
            assert one.pid in found
            assert other.pid not in found
        finally:
            one.kill()
            other.kill()
