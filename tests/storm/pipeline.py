"""Lakefeed as its user has it: a process and its commands, and nothing of its inside. Remedies are run as printed."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from tests import jvm

_SQL = re.compile(r"\b((?:ALTER|CREATE|DROP|SELECT)\b[^;…]*;)")
_COMMAND = re.compile(r"lakefeed (rebuild) FILE (\S+?)( --from-source)?[.,;]?(?=\s|$)")
_BY_RULE = re.compile(r"\{match: ([^,]+), out_of_range: \{([^:]+): text\}\}")


class Pipeline:
    """The directory of one pipeline: configuration, lake, and the output of every process in ``run.log``."""

    def __init__(self, directory: Path, config: Mapping[str, Any], *, short: bool = False) -> None:
        self.directory = directory
        self.config = dict(config)
        self.lake = directory / "lake"
        self.log = directory / "run.log"
        self._file = directory / "storm.yaml"
        self._file.write_text(yaml.safe_dump(self.config))
        # A short life is over before the JVM has compiled anything well: it compiles quickly instead.
        self._environment = {**os.environ, **({"JAVA_TOOL_OPTIONS": jvm.options()} if short else {})}
        self._process: subprocess.Popen[bytes] | None = None
        self._expected_end = True
        self._lock = threading.Lock()
        self.started_at = 0.0
        """When the process, or the server, was last started: freshness counts from there."""

    def start(self) -> None:
        with self._lock, self.log.open("ab") as log:
            log.write(f"--- {time.strftime('%H:%M:%S')} lakefeed run\n".encode())
            log.flush()
            command = [sys.executable, "-m", "lakefeed", "run", str(self._file), "--debug"]
            self._process = subprocess.Popen(command, stdout=log, stderr=log, cwd=self.directory, env=self._environment)
            self._expected_end = False
            self.started_at = time.monotonic()

    def kill(self) -> None:
        """SIGKILL, as an out-of-memory killer would."""
        with self._lock:
            self._expected_end = True
            assert self._process is not None
            self._process.kill()
            self._process.wait(30)

    def stop(self, seconds: float) -> str | None:
        """SIGTERM. Says what is wrong if the process does not end in time, or not with 0."""
        with self._lock:
            self._expected_end = True
            process = self._process
        if process is None or process.poll() is not None:
            return None
        process.send_signal(signal.SIGTERM)
        try:
            code = process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(30)
            return f"SIGTERM did not end the process within {seconds:.0f} s"
        return None if code == 0 else f"exit code {code} after SIGTERM: {self.last_words()}"

    def ended_by_itself(self) -> int | None:
        """The exit code of a process that nobody has killed or stopped."""
        with self._lock:
            return None if self._process is None or self._expected_end else self._process.poll()

    def last_words(self) -> str:
        lines = self.log.read_text(errors="replace").split("lakefeed run\n")[-1].splitlines()
        told = [line for line in lines if line.startswith(("Error", "Remedy"))]
        return "\n".join(told[-4:] or lines[-12:])

    def command(self, *arguments: str, seconds: float = 300) -> tuple[int, Any]:
        """The exit code and the JSON of one command."""
        process = subprocess.run(
            [sys.executable, "-m", "lakefeed", *arguments, "--json"],
            capture_output=True, text=True, timeout=seconds, cwd=self.directory,
        )  # fmt: skip
        with (self.directory / "commands.log").open("a") as log:
            log.write(f"{arguments} exit {process.returncode}\n{process.stdout}{process.stderr}\n")
        try:
            return process.returncode, json.loads(process.stdout or "null")
        except json.JSONDecodeError:
            return process.returncode, {"error": process.stdout[-2000:] + process.stderr[-2000:]}

    def status(self) -> dict[str, Any]:
        """``tables`` by the name without its schema."""
        _, answer = self.command("status", str(self._file))
        answer["tables"] = {name.partition(".")[2]: table for name, table in answer.get("tables", {}).items()}
        found: dict[str, Any] = answer
        return found

    def check(self) -> str:
        return json.dumps(self.command("check", str(self._file))[1], ensure_ascii=False)

    def remedy_statements(self, remedy: str) -> list[str]:
        return _SQL.findall(remedy)

    def carry_out(self, remedy: str) -> bool:
        """Run the part of a remedy that is Lakefeed's: a setting or a command. False if there is none to run."""
        if rules := [{"match": match, "out_of_range": {name: "text"}} for match, name in _BY_RULE.findall(remedy)]:
            lake = self.config["lake"]
            self.config["lake"] = {**lake, "tables": [*lake.get("tables", []), *rules]}
            self._file.write_text(yaml.safe_dump(self.config))
            return True
        command = _COMMAND.search(remedy)
        if command is None:
            return False
        options = ["--from-source"] if command[3] else []
        self.command("rebuild", str(self._file), command[2], *options)
        return True
