"""Several pipelines in one process and one Spark session: ``lakefeed run a.yaml b.yaml``, or a directory of files.

Each pipeline has its own threads, its own lease and its own state, as in a process of its own; they share the JVM.
While all have work, Spark gives each an equal share of its cores (a scheduler pool for each). If a pipeline fails, the
others go on, and the command says so at its end.

The command polls a directory every two seconds: it starts the pipeline of a new file, stops that of a removed file
after its current step, and restarts that of a changed file.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from lakefeed.app.build import build_pipeline, shared_session, verified_meanwhile
from lakefeed.app.config import Config, load_config
from lakefeed.app.dashboard import served
from lakefeed.app.observe import observed
from lakefeed.errors import ConfigError, LakefeedError
from lakefeed.flow.report.listener import Listener

if TYPE_CHECKING:
    from lakefeed.flow.pipeline import Pipeline

_POLL_SECONDS = 2.0
_CHECK_SECONDS = 0.1
_SUFFIXES = (".yaml", ".yml")


def files_of(given: Sequence[Path]) -> list[Path]:
    """The configuration files: those given, and those that a given directory has now."""
    found: list[Path] = []
    for path in given:
        found += sorted(one for one in path.iterdir() if one.suffix in _SUFFIXES) if path.is_dir() else [path]
    return list(dict.fromkeys(one.absolute() for one in found))


@dataclass
class _Running:
    """One pipeline while it runs. ``stamp``: the modification time of its file when it started."""

    file: Path
    stamp: int
    thread: threading.Thread | None = None
    pipeline: Pipeline | None = None
    error: Exception | None = None
    stopping: threading.Event = field(default_factory=threading.Event)


class Pipelines:
    """See the module. ``run`` blocks until ``stop``, until the time is over, or until every pipeline has ended.

    ``say`` gets lines for people. ``failed`` has the errors of the pipelines that failed, by file.
    """

    def __init__(
        self,
        given: Sequence[Path],
        say: Callable[[str], None],
        listener: Callable[[Config], Listener],
        *,
        standby: bool,
    ) -> None:
        if missing := [str(path) for path in given if not path.exists()]:
            raise ConfigError(
                f"there is no file {', '.join(missing)}", remedy="Correct the name, or write it: lakefeed init FILE."
            )
        files = files_of(given)
        if not files:
            raise ConfigError(
                f"there is no configuration file in {', '.join(map(str, given))}",
                remedy=f"Put files there that end in {' or '.join(_SUFFIXES)}; `lakefeed init shop.yaml` writes one.",
            )
        self._given = tuple(given)
        self._follows = any(path.is_dir() for path in given)
        self._say = say
        self._listener = listener
        self._standby = standby
        self._stopping = threading.Event()
        self._running: dict[Path, _Running] = {}
        self.failed: dict[Path, Exception] = {}
        self.hanging: list[str] = []
        # A mistake in one file fails that pipeline alone, when it starts.
        configs = {file: config for file in files if (config := self._loaded(file)) is not None}
        self._session = shared_session(configs)

    def _loaded(self, file: Path) -> Config | None:
        try:
            return load_config(file)
        except (LakefeedError, OSError):
            return None  # reported when its pipeline starts

    def stop(self) -> None:
        self._stopping.set()

    def run(self, for_seconds: float | None = None) -> None:
        until = time.monotonic() + for_seconds if for_seconds is not None else None
        next_poll = 0.0
        while not self._stopping.is_set() and (until is None or time.monotonic() < until):
            if time.monotonic() >= next_poll and (self._follows or not next_poll):
                self._poll_files()
                next_poll = time.monotonic() + _POLL_SECONDS
            if not self._follows and not any(one.thread and one.thread.is_alive() for one in self._running.values()):
                break  # all have failed
            self._stopping.wait(_CHECK_SECONDS)
        self._end(list(self._running))

    def _poll_files(self) -> None:
        """Start the pipelines of new files, and stop those of removed or changed ones."""
        wanted = {file: file.stat().st_mtime_ns for file in files_of(self._given) if file.exists()}
        for file, one in list(self._running.items()):
            if wanted.get(file) != one.stamp:
                self._say(
                    f"{file.name}: {'it has changed' if file in wanted else 'it is gone'}, stopping its pipeline."
                )
                self._end([file])
                self.failed.pop(file, None)
        for file, stamp in wanted.items():
            if file not in self._running:
                one = self._running[file] = _Running(file, stamp)
                one.thread = threading.Thread(target=self._work, args=(one,), name=f"lakefeed-{file.stem}", daemon=True)
                one.thread.start()

    def _end(self, files: Sequence[Path]) -> None:
        """Stop pipelines, all at once, and wait for them: ten seconds at most, even if one hangs."""
        ending = [self._running.pop(file) for file in files]
        for one in ending:
            one.stopping.set()
        while left := [one for one in ending if one.thread is not None and one.thread.is_alive()]:
            for one in left:
                if one.pipeline is not None:
                    one.pipeline.stop()  # repeat it: run() forgets a stop that came before it began
            time.sleep(_CHECK_SECONDS)
        for one in ending:
            if one.pipeline is not None:
                self.hanging += [f"{one.file.name}: {name}" for name in one.pipeline.hanging]

    def _work(self, one: _Running) -> None:
        """Run one pipeline, from its file to its end. Its errors do not reach the others."""
        try:
            config = load_config(one.file)
            with ExitStack() as stack:
                listeners = stack.enter_context(observed(config, self._listener(config)))
                one.pipeline = stack.enter_context(build_pipeline(config, spark=self._session, listener=listeners))
                url = stack.enter_context(served(config, one.pipeline, config.monitor.http))
                stack.enter_context(verified_meanwhile(config, f"lakefeed sync {one.file}"))
                self._say(f"Running {config.pipeline} ({one.file.name}){f'; dashboard: {url}' if url else ''}.")
                if not one.stopping.is_set():
                    one.pipeline.run(standby=self._standby)
        except Exception as error:  # noqa: BLE001  # the other pipelines go on
            one.error = self.failed[one.file] = error
            remedy = f" Remedy: {error.remedy}" if isinstance(error, LakefeedError) and error.remedy else ""
            self._say(f"{one.file.name}: stopped, the others go on: {error}{'' if remedy in str(error) else remedy}")
