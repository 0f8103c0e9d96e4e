"""The jars that a Spark session needs for a table format: by Maven coordinates the first time, from disk ever after.

Spark's resolver takes seconds even when it has everything, so what it resolved once is remembered in a small file
and put on the class path directly. Jars that Spark brings itself are left out: two versions of one library on one
class path are decided by chance.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from lakefeed.lake.java import cache_directory

COORDINATES = {
    "delta": "io.delta:delta-spark_4.1_2.13:4.4.0",
    "iceberg": "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0",
}
"""By table format. Artifact names carry the versions of Spark and Scala that they are built for."""

_VERSION = re.compile(r"-\d[\w.\-]*\.jar$")


def coordinates_of(formats: Sequence[str] = ("delta",)) -> str:
    """As ``spark.jars.packages`` has them."""
    return ",".join(COORDINATES[name] for name in sorted(set(formats)))


def remembered_jars(coordinates: str = COORDINATES["delta"]) -> tuple[str, ...]:
    """The jars of an earlier start, if all of them are still there; else none."""
    try:
        jars = json.loads(_memory(coordinates).read_text())
    except (OSError, ValueError):
        return ()
    if not isinstance(jars, list) or not all(isinstance(jar, str) and Path(jar).is_file() for jar in jars):
        return ()
    return tuple(jars)


def remember_jars(resolved: Iterable[str], coordinates: str = COORDINATES["delta"]) -> None:
    """Keep what the resolver found. ``resolved`` are addresses as Spark lists them in ``spark.jars``."""
    paths = [jar.removeprefix("file://").removeprefix("file:") for jar in resolved if jar]
    wanted = [path for path in paths if not _shipped_with_spark(Path(path).name)]
    if not wanted:
        return
    memory = _memory(coordinates)
    memory.parent.mkdir(parents=True, exist_ok=True)
    fresh = memory.with_name(f"{memory.name}.{os.getpid()}")
    fresh.write_text(json.dumps(wanted, indent=1))
    fresh.replace(memory)


def _shipped_with_spark(name: str) -> bool:
    """The resolver names a file ``group_artifact-version.jar``, Spark ``artifact-version.jar``."""
    import pyspark

    artifact = _VERSION.sub("", name.split("_", 1)[1] if "_" in name else name)
    shipped = {_VERSION.sub("", jar.name) for jar in (Path(pyspark.__file__).parent / "jars").glob("*.jar")}
    return artifact in shipped


def _memory(coordinates: str) -> Path:
    return cache_directory() / f"jars-{coordinates.replace(':', '_')}.json"
