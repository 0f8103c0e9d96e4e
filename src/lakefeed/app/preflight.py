"""What a pipeline needs of this machine: Java, and a place to write to. The source's own needs the capture knows."""

from __future__ import annotations

import os
from pathlib import Path

from lakefeed.app.config import Config
from lakefeed.capture.base import Finding, Level
from lakefeed.errors import SparkSetupError
from lakefeed.lake.spark.java import find_java


def machine_findings(config: Config) -> tuple[Finding, ...]:
    """Problems of this machine, each with its remedy. Creates nothing, starts no Spark."""
    return (*_java_findings(), *_lake_findings(Path(config.lake.path)))


def _java_findings() -> tuple[Finding, ...]:
    try:
        find_java()
    except SparkSetupError as error:
        return (Finding(level=Level.ERROR, problem=error.message, remedy=error.remedy),)
    return ()


def _lake_findings(path: Path) -> tuple[Finding, ...]:
    nearest = next(parent for parent in (path, *path.parents) if parent.exists())
    if not nearest.is_dir():
        problem, remedy = f"lake.path {path}: {nearest} is a file", "Choose a directory for lake.path."
    elif not os.access(nearest, os.W_OK | os.X_OK):
        problem, remedy = f"lake.path {path}: {nearest} cannot be written by this user", f"chmod u+rwx {nearest}"
    else:
        return ()
    return (Finding(level=Level.ERROR, problem=problem, remedy=remedy),)
