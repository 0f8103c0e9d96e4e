"""Named failpoints: moments between two steps of a protocol where a test can make the process die, fail or wait.

``hit("journal.after_segments")`` costs one dictionary lookup when nothing is armed. Arm them from a test with
``armed(...)``, or for a whole process with the environment variable, which is how the crash tests do it:

    LAKEFEED_FAILPOINTS="journal.before_commit=kill@3;lake.after_commit=sleep:0.5"

Actions: ``kill`` (SIGKILL, as real as it gets), ``raise`` (a FailpointError), ``sleep:SECONDS``. ``@N`` acts only on
the N-th hit; without it, on every one. A name that is not in NAMES is refused: a crash test that never crashes would
prove nothing.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from lakefeed.errors import ConfigError, LakefeedError

NAMES = frozenset(
    {
        "capture.before_confirm",
        "capture.after_confirm",
        "journal.after_segments",  # segments are on disk, but no commit file names them
        "journal.before_commit",  # the commit file has its temporary name
        "journal.after_commit",  # the change set exists, but the source may not forget it yet
        "journal.during_trim",  # some of what is trimmed is gone, some is not
        "repair.before_append",  # rows were read again, but the journal does not have them
        "repair.after_append",  # the journal has them, but the caller does not know it
        "lake.before_load",  # a table's copy is staged, but nothing is in the lake
        "lake.during_load",  # one group of chunks is committed, others are not
        "lake.after_load",  # all rows are there, but the copy is not marked as complete
        "lake.before_commit",  # before a table's merge
        "lake.after_marks",  # rows and deletion vectors of a merge are written, but no commit names them
        "lake.during_commit",  # while a table's merge runs
        "lake.after_commit",  # the table has the change sets, but nobody knows it yet
    }
)


class FailpointError(LakefeedError):
    """Raised by an armed failpoint; never outside tests."""


Action = Callable[[], None]
ARMED: dict[str, Action] = {}
"""Changed by ``arm`` and ``disarm`` alone; asked by whom it costs something to find the moment for a ``hit``."""


def hit(name: str) -> None:
    """Run the action armed under ``name``, if any."""
    action = ARMED.get(name)
    if action is not None:
        action()


def arm(name: str, text: str) -> None:
    """Arm one failpoint with an action in the form above."""
    if name not in NAMES:
        raise ConfigError(f"there is no failpoint '{name}'; there are {', '.join(sorted(NAMES))}")
    written, _, at = text.partition("@")
    what, _, argument = written.partition(":")
    if what not in ("kill", "raise", "sleep"):
        raise ConfigError(f"failpoint '{name}': '{written}' is not an action; use kill, raise or sleep:SECONDS")
    wanted, hits = int(at) if at else None, 0
    lock = threading.Lock()

    def act() -> None:
        nonlocal hits
        with lock:
            hits += 1
            if wanted not in (None, hits):
                return
        if what == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif what == "sleep":
            time.sleep(float(argument))
        else:
            raise FailpointError(f"failpoint {name}")

    ARMED[name] = act


def disarm(name: str) -> None:
    ARMED.pop(name, None)


@contextmanager
def armed(name: str, text: str) -> Iterator[None]:
    """Arm one failpoint for a block."""
    arm(name, text)
    try:
        yield
    finally:
        disarm(name)


def arm_from_environment() -> None:
    """Called once by the command line, so that importing the library has no side effects."""
    for item in filter(None, os.environ.get("LAKEFEED_FAILPOINTS", "").split(";")):
        name, _, text = item.partition("=")
        arm(name.strip(), text.strip())
