"""The first merge after a start, beside a warm one."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys

from bench.bench import Bench
from bench.first import MERGES
from bench.pipeline import FORMATS
from bench.report import Measure, Ratio, Report, Verdict
from bench.workload import create

MOST = 2.0
_WARMED, _COLD, _WARM = "first merge, warmed up", "first merge, without warm-up", "a warm merge"


def run(bench: Bench) -> Report:
    rows, wait = bench.size(full=10_000, quick=500), bench.size(full=25, quick=2)
    taken: dict[str, dict[str, list[float]]] = {fmt: {_WARMED: [], _COLD: [], _WARM: []} for fmt in FORMATS}
    for fmt in FORMATS:
        (bench.scratch / fmt).mkdir()
        create(bench.scratch / fmt / "shop.db", rows)
        _merges(bench, fmt, "0", "no")  # copies the table
        for name, warm_up in ((_WARMED, "yes"), (_COLD, "no")) * bench.size(full=2, quick=1):
            seconds = _merges(bench, fmt, str(wait), warm_up)
            taken[fmt][name].append(round(seconds[0], 3))
            taken[fmt][_WARM].append(round(statistics.median(seconds[MERGES // 2 :]), 3))
            bench.say(f"{fmt}, {name}: {seconds[0]:.2f} s, then {taken[fmt][_WARM][-1]:.2f} s")
    times = {fmt: statistics.median(one[_WARMED]) / statistics.median(one[_WARM]) for fmt, one in taken.items()}
    return Report(
        what=f"A process begins to follow a table of {rows:,} rows that is in the lake already; {wait} s after its "
        "start 500 rows change, and then again and again. Seconds of the lake side's cycle for the first change, and "
        f"of a later one (the median of the second half of {MERGES}).",
        measures=tuple(
            Measure(f"{fmt}: {name}", "s", tuple(values), ours=True)
            for fmt, one in taken.items()
            for name, values in one.items()
        ),
        ratios=tuple(Ratio(f"{fmt}: a warm merge / the first one", (round(1 / one, 3),)) for fmt, one in times.items()),
        verdicts=tuple(
            Verdict(
                f"{fmt}: the first merge takes at most {MOST:.0f} times a warm one", f"{one:.1f} times", one <= MOST
            )
            for fmt, one in times.items()
        ),
    )


def _merges(bench: Bench, fmt: str, wait: str, warm_up: str) -> list[float]:
    """The seconds of the first merges of a process of its own."""
    report = bench.scratch / "merges.json"
    command = [sys.executable, "-m", "bench.first", str(bench.scratch / fmt), fmt, wait, warm_up, str(report)]
    subprocess.run(command, check=True)
    found: list[float] = json.loads(report.read_text())
    return found
