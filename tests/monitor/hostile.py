"""A pipeline whose table names, errors and remedies try to break out of every place that they are shown in."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa

from lakefeed import Pipeline, PipelineOptions
from lakefeed.capture.base import Finding, Level
from lakefeed.flow.status import Liveness
from lakefeed.journal.options import JournalOptions
from lakefeed.testing.builders import table
from lakefeed.testing.memory_lake import MemoryLake
from lakefeed.testing.scripted import COMMIT, ScriptedCapture, insert

NAME = "main.<img src=x onerror=\"document.title='owned'\">"
ERROR = "</script><script>document.title='owned'</script> \"quoted\" \\back\nnew line"
REMEDY = "'\"><svg onload=\"document.title='owned'\"> & run: DROP TABLE x;"


@contextmanager
def hostile_pipeline(directory: Path) -> Iterator[Pipeline]:
    """One that has synced, with a table of that name; its report has that error."""
    shape = table(NAME, {"id": pa.int64()}, key=("id",))
    capture = ScriptedCapture(snapshot={shape: [{"id": 1}]}, waits=True)
    source = type("One", (), {"bind": lambda self, pipeline: capture})()
    options = PipelineOptions(journal=JournalOptions(fsync=False))
    with Pipeline(source, MemoryLake(str(directory)), name="p", options=options) as pipeline:
        capture.append(insert(shape, id=2), COMMIT)
        pipeline.sync_once()
        report = Liveness.read(pipeline.root)
        Liveness(at=time.time(), tables={NAME: (ERROR, REMEDY)}, activity=report.activity).write(pipeline.root)
        yield pipeline


def hostile_findings() -> tuple[Finding, ...]:
    return (Finding(level=Level.WARNING, problem=ERROR, remedy=REMEDY),)
