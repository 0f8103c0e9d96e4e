"""What a pipeline needs of this machine: Java, the jars of its table format, and a directory to write to.

The capture checks the source itself.
"""

from __future__ import annotations

from tempfile import TemporaryFile

from lakefeed.app.config import Config
from lakefeed.capture.base import Finding, Level
from lakefeed.errors import SparkSetupError
from lakefeed.lake.formats import FORMATS
from lakefeed.lake.spark.jars import missing_jars
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
    path = config.state_path
    nearest = next(parent for parent in (path, *path.parents) if parent.exists())
    try:
        with TemporaryFile(dir=nearest):  # really: rights alone do not tell of a read-only disk
            pass
    except NotADirectoryError:
        found.append((f"lake.path {config.lake.path}: {nearest} is a file", "Set lake.path to a directory."))
    except OSError as error:
        problem = f"lake.path {config.lake.path}: {nearest} cannot be written: {error.strerror}"
        found.append((problem, f"Make {nearest} writable for this user, or set lake.path to a directory that is."))
    coordinates = FORMATS[config.lake.format].coordinates
    if missing := missing_jars(coordinates):
        remedy = "Connect to the internet once, or set spark.jars.repositories in spark-defaults.conf."
        found.append((f"the jars of {coordinates} are not on this machine, and {missing}", remedy))
    return tuple(
        Finding(level=level, problem=problem, remedy=remedy)
        for level, listed in ((Level.ERROR, found), (Level.WARNING, warnings))
        for problem, remedy in listed
    )
