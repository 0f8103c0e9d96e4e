"""``python -m lakefeed.app.demo.writer DATABASE SECONDS RATE PARENT``: a shop at work, as a process of its own.

Says "ready" once it can be stopped, then writes transactions at a bounded rate until SIGTERM, until the time is over or
until the process PARENT that started it is gone, always after a whole transaction. Then it prints how many transactions
it has written.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from lakefeed.app.demo.shop import Shop, opened
from lakefeed.errors import LakefeedError

_STOP_SECONDS = 30.0


class Writer:
    """The process, seen from the demo. It is writing when the constructor returns."""

    def __init__(self, database: Path, *, seconds: float, rate: float) -> None:
        arguments = [str(database), str(seconds), str(rate), str(os.getpid())]
        command = [sys.executable, "-m", "lakefeed.app.demo.writer", *arguments]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True)
        assert self._process.stdout is not None  # noqa: S101  # it is a pipe
        if self._process.stdout.readline() != "ready\n":
            self.kill()
            raise LakefeedError("the demo's writer did not start", remedy="What it said is above.")

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def stop(self) -> int:
        """End it after the transaction under way; how many it has written."""
        if self.alive:
            self._process.send_signal(signal.SIGTERM)
        output, _ = self._process.communicate(timeout=_STOP_SECONDS)
        return int(output.strip() or 0)

    def kill(self) -> None:
        """Whatever happened: nothing is left running."""
        if self.alive:
            self._process.kill()
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()


def write(database: Path, *, seconds: float, rate: float, parent: int) -> int:
    """What the process does. Returns the number of transactions."""
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the whole group; the demo decides
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    chance = random.Random()  # noqa: S311  # not for secrets
    with opened(database) as connection:
        shop, started, written = Shop(connection, chance), time.monotonic(), 0
        # The parent's id is given, not asked for here: it may be gone before this line is reached.
        while not stopping.is_set() and time.monotonic() < started + seconds and os.getppid() == parent:
            connection.execute("BEGIN IMMEDIATE")
            for _ in range(chance.randrange(1, 4)):
                shop.anything()
            connection.execute("COMMIT")
            written += 1
            stopping.wait(max(0.0, started + written / rate - time.monotonic()))
    return written


if __name__ == "__main__":
    _database, _seconds, _rate, _parent = sys.argv[1:]
    _count = write(Path(_database), seconds=float(_seconds), rate=float(_rate), parent=int(_parent))
    sys.stdout.write(f"{_count}\n")
