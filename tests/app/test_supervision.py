"""Signals: the first one ends a run cleanly, whenever it comes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from lakefeed.app.supervise import Supervised, interruptible
from lakefeed.errors import SourceSetupError


class Runner:
    """Runs like a pipeline: forgets a stop that came before it had begun. Sends the process a signal if it has one."""

    def __init__(
        self, *, number: signal.Signals | None = None, early: bool = False, error: Exception | None = None
    ) -> None:
        self._number = number
        self._early = early
        self._error = error
        self._stopping = threading.Event()
        self.clean = False

    def run(self, for_seconds: float | None = None) -> None:
        if self._number is not None and self._early:
            os.kill(os.getpid(), self._number)
            assert self._stopping.wait(60)
        self._stopping.clear()
        if self._error is not None:
            raise self._error
        if self._number is not None and not self._early:
            os.kill(os.getpid(), self._number)
        self.clean = self._stopping.wait(for_seconds if for_seconds is not None else 60)

    def stop(self) -> None:
        self._stopping.set()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("early", [False, True], ids=["while it runs", "before it runs"])
def test_a_signal_stops_the_run_cleanly(number: signal.Signals, early: bool) -> None:
    runner, before = Runner(number=number, early=early), signal.getsignal(number)
    Supervised(runner).run()
    assert runner.clean
    assert signal.getsignal(number) is before


def test_a_run_for_some_seconds_ends_by_itself() -> None:
    started = time.monotonic()
    Supervised(Runner()).run(0.2)
    assert 0.2 <= time.monotonic() - started < 60


def test_what_ends_a_run_is_raised_in_the_main_thread() -> None:
    with pytest.raises(SourceSetupError, match="no triggers"):
        Supervised(Runner(error=SourceSetupError("no triggers"))).run()


def test_a_second_signal_kills_a_run_that_does_not_come_to_its_end() -> None:
    code = (
        "import time; from lakefeed.app.supervise import Supervised\n"
        "class Deaf:\n"
        "    def run(self, seconds): print('on', flush=True); time.sleep(120)\n"
        "    def stop(self): print('stopping', flush=True)\n"
        "Supervised(Deaf()).run()"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "on\n"
        process.send_signal(signal.SIGTERM)
        assert process.stdout.readline() == "stopping\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == -signal.SIGTERM


class Interrupts:
    """Sends Ctrl-C while the interpreter runs a finalizer, where no exception gets out."""

    def __del__(self) -> None:
        signal.raise_signal(signal.SIGINT)


def test_ctrl_c_that_comes_in_a_finalizer_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    before, is_alive = signal.getsignal(signal.SIGINT), threading.Thread.is_alive
    waiting = [Interrupts()]

    def look(thread: threading.Thread) -> bool:
        if threading.current_thread() is threading.main_thread():
            waiting.clear()
        return is_alive(thread)

    monkeypatch.setattr(threading.Thread, "is_alive", look)
    done = threading.Event()
    with pytest.raises(KeyboardInterrupt):
        interruptible(lambda: done.wait(20))
    done.set()
    assert signal.getsignal(signal.SIGINT) is before
