"""Peers that are Java programs: Maven fetches their libraries into the scratch directory, never into the project."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

_FETCH_SECONDS = 600


def build(place: Path, pom: Path, program: Path, properties: tuple[str, ...] = ()) -> str:
    """The program compiled in ``place``, its libraries in ``lib`` below. Returns why that failed, or nothing."""
    if not shutil.which("mvn") or not shutil.which("javac"):
        return "there is no Maven or no Java compiler"
    place.mkdir(parents=True, exist_ok=True)
    for source in (pom, program):
        shutil.copyfile(source, place / source.name)
    fetch = ["mvn", "-q", "dependency:copy-dependencies", "-DoutputDirectory=lib", "-DincludeScope=runtime"]
    for command in ([*fetch, *properties], ["javac", "-cp", "lib/*", program.name]):
        try:
            done = subprocess.run(command, cwd=place, capture_output=True, text=True, timeout=_FETCH_SECONDS)
        except subprocess.TimeoutExpired:
            return f"{command[0]} took longer than {_FETCH_SECONDS} s"
        if done.returncode != 0:
            return f"{command[0]} failed"
    return ""
