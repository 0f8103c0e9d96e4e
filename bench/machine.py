"""Which machine and which versions a number belongs to. No names and no paths: a report is published."""

from __future__ import annotations

import os
import platform
import sqlite3
from importlib.metadata import version
from pathlib import Path

_GIB = 1024**3
_PACKAGES = ("lakefeed", "pyspark", "delta-spark", "deltalake", "pyarrow", "numpy")


def describe(scratch: Path) -> dict[str, str]:
    """``scratch``: the directory that was measured on; its file system decides what an fsync costs."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    found = {
        "processor": f"{_processor()}, {os.cpu_count()} cores",
        "memory": f"{memory / _GIB:.0f} GiB",
        "system": f"{platform.system()} {platform.release().split('-')[0]}, {_filesystem(scratch)}",
        "Python": platform.python_version(),
        "SQLite": sqlite3.sqlite_version,
    }
    return found | {name: version(name) for name in _PACKAGES} | {"Java": _java()}


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def _filesystem(place: Path) -> str:
    """The type of the file system with the longest mount point above the place."""
    try:
        mounts = [line.split()[1:3] for line in Path("/proc/mounts").read_text().splitlines()]
    except OSError:
        return "unknown file system"
    above = [(len(point), kind) for point, kind in mounts if place.resolve().is_relative_to(point)]
    return max(above, default=(0, "unknown file system"))[1]


def _java() -> str:
    from lakefeed.errors import SparkSetupError
    from lakefeed.lake.spark.java import find_java

    try:
        return str(find_java().version)
    except SparkSetupError:
        return "none"
