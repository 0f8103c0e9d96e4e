"""Real processes for the crash tests: the pipeline that is killed, and the writer that goes on."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any


class PipelineDirectory:
    """A directory with the configuration of one pipeline in it, and its lake."""

    def __init__(self, directory: Path, config: str) -> None:
        self.directory = directory
        self.config = directory / "shop.yaml"
        self.config.write_text(config)

    def run_until_killed(self, failpoint: str, *, seconds: float = 300) -> float:
        """Run `lakefeed run` with a failpoint armed to kill it. Returns the seconds it lived; fails if it lived on."""
        started = time.monotonic()
        process = self._start("run", str(self.config), "--for", str(seconds), failpoints=failpoint)
        output, _ = process.communicate(timeout=seconds + 60)
        assert process.returncode == -signal.SIGKILL, f"{failpoint}: exit {process.returncode}, not killed\n{output}"
        return time.monotonic() - started

    def lakefeed(self, *arguments: str) -> dict[str, Any]:
        process = self._start(*arguments, str(self.config), "--json")
        output, _ = process.communicate(timeout=600)
        assert process.returncode == 0, output
        answer: dict[str, Any] = json.loads(output)
        return answer

    def _start(self, *arguments: str, failpoints: str = "") -> subprocess.Popen[str]:
        environment = {**os.environ, "LAKEFEED_FAILPOINTS": failpoints}
        command = [sys.executable, "-m", "lakefeed", *arguments]
        return subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=self.directory
        )


@contextlib.contextmanager
def writing(command: Sequence[str]) -> Iterator[None]:
    """A Python process that changes a database until the block ends."""
    root = str(Path(__file__).parents[2])
    process = subprocess.Popen([sys.executable, *command], env={**os.environ, "PYTHONPATH": root})
    try:
        yield
    finally:
        process.terminate()
        assert process.wait(180) in (0, -signal.SIGTERM)
