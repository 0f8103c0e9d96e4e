"""Waiting for sockets, by poll: select refuses descriptors from 1024 on, which a process with many files has."""

from __future__ import annotations

import select


def wait_readable(*files: int, seconds: float) -> list[int]:
    """Those that have something to read, or are closed; none if the time is over."""
    return _wait(files, select.POLLIN, seconds)


def wait_writable(file: int, seconds: float) -> bool:
    return bool(_wait((file,), select.POLLOUT, seconds))


def _wait(files: tuple[int, ...], event: int, seconds: float) -> list[int]:
    waiting = select.poll()
    for file in files:
        waiting.register(file, event)
    return [file for file, _ in waiting.poll(max(0.0, seconds) * 1000)]
