"""An archive of Java's classes for the many short processes that tests start: a JVM that maps it needs little more than
half the processor time until its first merge. ``python -m tests.jvm`` makes it, once for an environment; tests that
find none do without. Where it cannot be made, one line says so."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pyspark

from lakefeed.lake.spark.jars import coordinates_of, remembered_jars
from lakefeed.lake.spark.java import find_java

QUICK = "-XX:TieredStopAtLevel=1"
"""One that lives for seconds takes half the time without its optimising compiler."""
_TRAIN_SECONDS, _DUMP_SECONDS = 600.0, 180.0


def options() -> str:
    """For JAVA_TOOL_OPTIONS. A JVM with another class path than the archive's says so in its log, which is off, and
    goes on without it."""
    return f"{QUICK} -XX:SharedArchiveFile={place()} -Xlog:disable" if place().is_file() else QUICK


def place() -> Path:
    """Another Java, Spark or Delta has another archive."""
    known = f"{find_java()} {pyspark.__version__} {coordinates_of()} {remembered_jars(coordinates_of())}"
    return Path(sys.prefix) / f"lakefeed-{hashlib.sha256(known.encode()).hexdigest()[:16]}.jsa"


def make() -> None:
    """A process of its own merges once and writes down at its end which classes it had."""
    if not remembered_jars(coordinates_of()):
        _train("")
    target = place()
    if target.is_file():
        return
    for old in target.parent.glob("lakefeed-*.jsa"):
        old.unlink()
    draft = target.with_suffix(f".{os.getpid()}")
    pid = _train(f"-XX:ArchiveClassesAtExit={draft} -Xlog:disable")
    until = time.monotonic() + _DUMP_SECONDS
    while Path(f"/proc/{pid}").exists() and time.monotonic() < until:  # it writes behind our back
        time.sleep(0.2)
    if Path(f"/proc/{pid}").exists() or not draft.is_file():  # half of an archive is none
        raise OSError("Java has not written it in time")
    draft.rename(target)


def _train(java: str) -> int:
    """The process id of its JVM, which may still be there."""
    environment = {**os.environ, "JAVA_TOOL_OPTIONS": f"{QUICK} {java}".strip()}
    command = [sys.executable, "-c", "from tests.jvm import merge_once; merge_once()"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=_TRAIN_SECONDS)
    return int(done.stdout.split()[-1])


def merge_once() -> None:
    from lakefeed.lake.spark.session import spark_session

    spark = spark_session("lakefeed-archive")
    with tempfile.TemporaryDirectory() as directory:
        table = f"{directory}/table"
        spark.range(100).selectExpr("id", "cast(id AS string) AS v").write.format("delta").save(table)
        merge = f"MERGE INTO delta.`{table}` t USING (SELECT 5L AS id, 'x' AS v) s ON t.id = s.id"
        spark.sql(f"{merge} WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *")
    jvm = spark._jvm
    assert jvm is not None
    print(jvm.java.lang.ProcessHandle.current().pid())
    spark.stop()


if __name__ == "__main__":
    try:
        make()
    except (OSError, subprocess.SubprocessError) as error:
        print(f"There is no archive of Java's classes, so the tests take longer: {error}")
