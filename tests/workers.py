"""Which process of a test run gets which file of tests.

Each process that needs Spark starts a JVM, which loads and compiles the same code as every other: a minute of a core.
So of three processes two prefer the files that need Spark, and the third one prefers the others.
"""

from __future__ import annotations

from pathlib import Path

from xdist.scheduler.loadfile import LoadFileScheduling
from xdist.workermanage import WorkerController

WITHOUT_SPARK = 3
"""Every third process prefers files that need no Spark."""


class SparkScheduling(LoadFileScheduling):  # type: ignore[misc]  # xdist has no types
    """As ``--dist loadfile``, but a process takes the files that suit it first. With nothing else left it takes any."""

    def _assign_work_unit(self, node: WorkerController) -> None:
        wants_spark = (self.nodes.index(node) + 1) % WITHOUT_SPARK != 0
        for name in self.workqueue:
            if needs_spark(self.config.rootpath / name) == wants_spark:
                self.workqueue.move_to_end(name, last=False)
                break
        super()._assign_work_unit(node)


def needs_spark(file: Path) -> bool:
    """Whether a file of tests asks for the session of the test run, by its text: processes do not say."""
    text = file.read_text()
    return "SparkSession" in text or "mark.spark" in text
