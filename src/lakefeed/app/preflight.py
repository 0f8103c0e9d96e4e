"""What a pipeline needs of this machine: Java, and a directory to write to. The capture checks the source itself."""

from __future__ import annotations

import os
from pathlib import Path

from lakefeed.app.config import Config
from lakefeed.capture.base import Finding, Level
from lakefeed.errors import SparkSetupError
from lakefeed.lake.spark.java import find_java, wrong_java_home


def machine_findings(config: Config) -> tuple[Finding, ...]:
    """Problems of this machine, each with its remedy. Creates nothing, starts no Spark."""
    found, warnings = list[tuple[str, str]](), list[tuple[str, str]]()
    try:
        java = find_java()
        if wrong := wrong_java_home():
            warnings.append((f"{wrong}; {java.home} is used instead", f"export JAVA_HOME={java.home}"))
    except SparkSetupError as error:
        found.append((error.message, error.remedy))
    path = Path(config.lake.path)
    nearest = next(parent for parent in (path, *path.parents) if parent.exists())
    if not nearest.is_dir():
        found.append((f"lake.path {path}: {nearest} is a file", "Choose a directory for lake.path."))
    elif not os.access(nearest, os.W_OK | os.X_OK):
        found.append((f"lake.path {path}: this user may not write to {nearest}", f"chmod u+rwx {nearest}"))
    return tuple(
        Finding(level=level, problem=problem, remedy=remedy)
        for level, listed in ((Level.ERROR, found), (Level.WARNING, warnings))
        for problem, remedy in listed
    )
