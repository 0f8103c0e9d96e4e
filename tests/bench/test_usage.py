"""What a contestant uses is measured over its processes, and the server's is kept apart."""

from __future__ import annotations

import os
import subprocess
import sys
import time

from bench.usage import Meter, tree

BUSY = """
import time
kept = bytearray(64 << 20)
until = time.process_time() + 0.5
while time.process_time() < until:
    pass
"""


def test_cpu_and_memory_of_a_child_are_counted_also_after_it_has_ended() -> None:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as server:
        try:
            meter = Meter(server.pid)

            def work() -> float:
                subprocess.run([sys.executable, "-c", BUSY], check=True)
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
