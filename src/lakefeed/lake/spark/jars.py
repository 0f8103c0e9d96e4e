"""The jars that a Spark session needs for a table format: by Maven coordinates the first time, from disk afterwards.

Spark's resolver takes seconds even when it has everything. So Lakefeed keeps the resolved paths in a small file and
puts the jars on the class path directly. It leaves out jars that Spark brings itself: with two versions of a library on
one class path, chance decides which one Java loads.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import pwd
import re
import subprocess
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from lakefeed.lake.cloud.registry import CLOUDS
from lakefeed.lake.formats import FORMATS
from lakefeed.lake.spark.java import cache_directory, find_java

_RESOLVE_SECONDS = 300.0
_LONGEST_NAME = 150
_VERSION = re.compile(r"-\d[\w.\-]*\.jar$")


def coordinates_of(formats: Sequence[str] = ("delta",), stores: Sequence[str] = ()) -> str:
    """The value of ``spark.jars.packages``."""
    found = [FORMATS[name].coordinates for name in sorted(set(formats))]
    for store in sorted(set(stores)):
        found += [*CLOUDS[store].packages, *(CLOUDS[store].iceberg_packages if "iceberg" in formats else ())]
    return ",".join(found)


def excludes_of(stores: Sequence[str]) -> str:
    """The value of ``spark.jars.excludes``."""
    return ",".join(name for store in sorted(set(stores)) for name in CLOUDS[store].excluded)


def remembered_jars(coordinates: str = FORMATS["delta"].coordinates) -> tuple[str, ...]:
    """The jars of an earlier start, if all of them still exist; else none."""
    try:
        jars = json.loads(_memory(coordinates).read_text())
    except (OSError, ValueError):
        return ()
    if not isinstance(jars, list) or not all(isinstance(jar, str) and Path(jar).is_file() for jar in jars):
        return ()
    return tuple(jars)


def missing_jars(coordinates: str) -> str | None:
    """Why Spark cannot get the jars: they are not on this machine, and its resolver cannot fetch them. Else None."""
    group, artifact, version = coordinates.split(":")
    cached = (jar for place in _resolver_places() for jar in place.glob(f"jars/{group}_{artifact}-{version}.jar"))
    if remembered_jars(coordinates) or any(cached):
        return None
    try:
        with resolving(coordinates):
            fetch_jars(coordinates)
    except OSError as error:
        return str(error)
    return None


def fetch_jars(coordinates: str, place: Path | None = None) -> list[Path]:
    """Let Spark's resolver fetch jars into ``place``, or into its own cache. OSError with the reason that it prints."""
    import pyspark

    home = Path(pyspark.__file__).parent
    command = [str(home / "bin" / "spark-submit"), "--packages", coordinates]
    command += ["--conf", f"spark.jars.ivy={place}"] if place is not None else []
    done = subprocess.run(
        [*command, "--class", "none", "none.jar"],  # nothing to run: it ends once it has the jars
        env={**os.environ, "SPARK_HOME": str(home), "JAVA_HOME": str(find_java().home)},
        capture_output=True, text=True, timeout=_RESOLVE_SECONDS, check=False,
    )  # fmt: skip
    group, artifact, version = coordinates.split(":")
    folders = [place] if place is not None else _resolver_places()
    found = [jar for folder in folders for jar in folder.glob(f"jars/{group}_{artifact}-{version}.jar")]
    if not found:
        said = [line.strip() for line in done.stderr.splitlines() if "not found" in line or "failed" in line]
        raise OSError(f"Spark's resolver says: {said[0] if said else done.returncode}")
    return found


def _resolver_places() -> list[Path]:
    """The directories where Spark's resolver keeps jars. A JVM takes the home of the password file, not HOME."""
    homes = dict.fromkeys((Path.home(), Path(pwd.getpwuid(os.getuid()).pw_dir)))
    return [place for home in homes for place in sorted(home.glob(".ivy2*"))]


@contextmanager
def resolving(coordinates: str) -> Iterator[tuple[str, ...]]:
    """The jars of an earlier start. Without any, the block resolves them, and no other process on this machine does.

    Two resolvers that download into one directory at the same time break each other's files. So the second one waits,
    at most ``_RESOLVE_SECONDS``, and then gets what the first one found. A process that dies frees the lock.
    """
    if jars := remembered_jars(coordinates):
        yield jars
        return
    memory = _memory(coordinates)
    memory.parent.mkdir(parents=True, exist_ok=True)
    until = time.monotonic() + _RESOLVE_SECONDS
    with (memory.parent / "jars.lock").open("w") as turn:  # one for all formats: they share files
        while time.monotonic() < until:
            try:
                fcntl.flock(turn, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                time.sleep(0.2)
        yield remembered_jars(coordinates)


def remember_jars(resolved: Iterable[str], coordinates: str = FORMATS["delta"].coordinates) -> None:
    """Keep what the resolver found. ``resolved`` has the URIs that Spark lists in ``spark.jars``."""
    import pyspark

    paths = [jar.removeprefix("file://").removeprefix("file:") for jar in resolved if jar]
    # The resolver names a file ``group_artifact-version.jar``, Spark ``artifact-version.jar``.
    shipped = {_VERSION.sub("", jar.name) for jar in (Path(pyspark.__file__).parent / "jars").glob("*.jar")}
    names = {path: Path(path).name for path in paths}
    wanted = [
        path for path, name in names.items()
        if _VERSION.sub("", name.split("_", 1)[1] if "_" in name else name) not in shipped
    ]  # fmt: skip
    if not wanted:
        return
    memory = _memory(coordinates)
    memory.parent.mkdir(parents=True, exist_ok=True)
    fresh = memory.with_name(f"{memory.name}.{os.getpid()}")
    fresh.write_text(json.dumps(wanted, indent=1))
    fresh.replace(memory)


def _memory(coordinates: str) -> Path:
    name = coordinates.replace(":", "_")
    if len(name) > _LONGEST_NAME:
        name = f"{name[:_LONGEST_NAME]}-{hashlib.sha256(name.encode()).hexdigest()[:12]}"
    return cache_directory() / f"jars-{name}.json"
