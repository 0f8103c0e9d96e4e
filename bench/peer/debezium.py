"""Debezium's embedded engine as a peer: fetched by Maven into the scratch directory, never into the project."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

VERSION = "3.6.1"
_HERE = Path(__file__).parent
_FETCH_SECONDS = 600


@dataclass(frozen=True, slots=True)
class Debezium:
    """Compiled and ready in ``place``."""

    place: Path

    def drain(self, port: int, slot: str, publication: str, *, table: str, changes: int) -> float:
        """Seconds from its first record to its last: the start of the JVM and of the connector do not count."""
        java = ["java", "-Xmx4g", "-XX:+UseParallelGC", "-cp", f"{self.place}:{self.place}/lib/*", "DebeziumCount"]
        arguments = [str(port), slot, publication, table, str(changes)]
        done = subprocess.run([*java, *arguments], capture_output=True, text=True, check=True)
        seen, seconds = done.stdout.split()[-2:]
        assert int(seen) == changes, f"Debezium saw {seen} changes"
        return float(seconds)


def fetch(place: Path) -> Debezium | str:
    """Debezium, or why it cannot be had."""
    if not shutil.which("mvn") or not shutil.which("javac"):
        return "there is no Maven or no Java compiler"
    place.mkdir(parents=True, exist_ok=True)
    for name in ("pom.xml", "DebeziumCount.java"):
        shutil.copyfile(_HERE / name, place / name)
    copy = ["mvn", "-q", "dependency:copy-dependencies", "-DoutputDirectory=lib", "-DincludeScope=runtime"]
    for command in (copy, ["javac", "-cp", "lib/*", "DebeziumCount.java"]):
        try:
            done = subprocess.run(command, cwd=place, capture_output=True, text=True, timeout=_FETCH_SECONDS)
        except subprocess.TimeoutExpired:
            return f"{command[0]} took longer than {_FETCH_SECONDS} s"
        if done.returncode != 0:
            return f"{command[0]} failed"
    return Debezium(place)
