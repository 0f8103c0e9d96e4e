"""``python -m bench [names…] [--quick]``: measure, keep the results, write docs/benchmarks.md.

Each benchmark runs in a process of its own. Results are kept in bench/results, so that a part can be measured again
without the rest; ``--quick`` shows that everything works on small sizes and keeps nothing.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from bench.catalog import CASES, Case
from bench.machine import describe
from bench.page import RESULTS, write_page
from bench.report import Report, spread


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="name", help=f"which: {', '.join(CASES)} (default: all)")
    parser.add_argument("--quick", action="store_true", help="small sizes; show that it works and keep nothing")
    parser.add_argument("--page", action="store_true", help="only write the page anew from the kept results")
    parser.add_argument(
        "--scratch", type=Path, help="where to work (a disk with room for 5 GB); default: a temporary one"
    )
    options = parser.parse_args(arguments)
    unknown = set(options.names) - CASES.keys()
    if unknown:
        parser.error(f"there is no benchmark {', '.join(sorted(unknown))}; there are {', '.join(CASES)}")
    failed = []
    if not options.page:
        failed = [name for name in options.names or CASES if not measure(CASES[name], options.quick, options.scratch)]
    if not options.quick:
        write_page()
    if failed:
        print(f"Failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def measure(case: Case, quick: bool, place: Path | None) -> bool:
    """Run one benchmark in its own process. False if it failed."""
    print(f"{case.name}: {case.title}", flush=True)
    started, load_average, speed = time.monotonic(), os.getloadavg()[0], loop_seconds()
    with tempfile.TemporaryDirectory(prefix="lakefeed-bench-", dir=place, ignore_cleanup_errors=True) as directory:
        path = Path(directory) / "report.json"
        scratch = Path(directory) / "scratch"
        scratch.mkdir()
        command = [sys.executable, "-m", "bench.child", case.name, str(path), str(scratch)]
        done = subprocess.run([*command, *(["--quick"] if quick else [])], check=False)
        if done.returncode != 0:
            return False
        report = Report.load(path)
        before_and_after = f"{speed:.2f} s before the run and {loop_seconds():.2f} s after it"
        report = replace(
            report,
            notes=(
                *report.notes,
                f"How fast the machine was: five million additions in Python took {before_and_after}.",
            ),
            where=describe(scratch),
            date=f"{datetime.now(UTC):%Y-%m-%d}",
            seconds=round(time.monotonic() - started, 1),
            load_average=round(load_average, 1),
        )
    show(report)
    if not quick:
        report.save(RESULTS / f"{case.name}.json")
    return True


def loop_seconds() -> float:
    """CPU seconds of a fixed piece of work: a virtual machine's cores are not always worth the same."""
    started, total = time.process_time(), 0
    for number in range(5_000_000):
        total += number
    return time.process_time() - started


def show(report: Report) -> None:
    for measure in report.measures:
        print(f"  {measure.name}: {spread(measure.values)} {measure.unit}")
    for ratio in report.ratios:
        print(f"  {ratio.name}: × {spread(ratio.values)}")
    for verdict in report.verdicts:
        print(f"  {'met    ' if verdict.met else 'NOT MET'} {verdict.target}: {verdict.measured}")
    print(f"  ({report.seconds:.0f} s)", flush=True)


if __name__ == "__main__":
    sys.exit(main())
