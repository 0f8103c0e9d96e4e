"""What a pipeline needs of this machine: a place that can be written. The source's own needs are the capture's."""

from __future__ import annotations

import os
from pathlib import Path

from lakefeed.app.config import Config
from lakefeed.capture.base import Finding, Level


def machine_findings(config: Config) -> tuple[Finding, ...]:
    """Problems of this machine, each with its remedy. Creates nothing."""
    return _lake_findings(Path(config.lake.path))


def _lake_findings(path: Path) -> tuple[Finding, ...]:
    nearest = next(parent for parent in (path, *path.parents) if parent.exists())
    if not nearest.is_dir():
        problem, remedy = f"lake.path {path}: {nearest} is a file", "Choose a directory for lake.path."
    elif not os.access(nearest, os.W_OK | os.X_OK):
        problem, remedy = f"lake.path {path}: {nearest} cannot be written by this user", f"chmod u+rwx {nearest}"
    else:
        return ()
    return (Finding(level=Level.ERROR, problem=problem, remedy=remedy),)
