"""One benchmark in a process of its own: ``python -m bench.child NAME REPORT SCRATCH [--quick]``.

A fresh process starts with a small heap, no JVM, and, where the benchmark wants it, one core.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from bench.bench import Bench
from bench.catalog import CASES


def main(name: str, report: str, scratch: str, *options: str) -> None:
    case = CASES[name]
    if case.one_core and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})  # before any library starts its threads
    case.run(Bench(Path(scratch), quick="--quick" in options)).save(Path(report))


if __name__ == "__main__":
    main(*sys.argv[1:])
