"""docs/benchmarks.md and its charts, written from the kept results."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.catalog import CASES, Case
from bench.chart import bars, lines
from bench.report import Report, spread

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench" / "results"

_HEAD = """# Benchmarks

Written by `make bench` from measured runs; nothing here is typed by hand. Lakefeed and the limits or peers beside it
are measured in one run, in turns, on one machine. Figures are medians with [lowest–highest]. Absolute figures move from
machine to machine; the ratios are what counts. Above 1 a ratio speaks for Lakefeed.

`python -m bench merge drain` measures a part again, `python -m bench --quick` shows in a minute or two that all of it
works. Blue bars are Lakefeed, grey ones limits and peers; the thin line is the spread.
"""


def write_page(results: Path = RESULTS, docs: Path = ROOT / "docs") -> Path:
    """Write the page and a chart for each benchmark that has a result. Returns the page."""
    found = {case: results / f"{name}.json" for name, case in CASES.items()}
    reports = {case: Report.load(path) for case, path in found.items() if path.exists()}
    images = docs / "img"
    images.mkdir(parents=True, exist_ok=True)
    for case, report in reports.items():
        (images / f"bench-{case.name}.svg").write_text(_chart(case, report))
    page = docs / "benchmarks.md"
    page.write_text("\n".join(_page(reports)))
    return page


def _page(reports: Mapping[Case, Report]) -> list[str]:
    where = _usual(list(reports.values()))
    parts = [_HEAD, *_summary(reports), "", "## Machine and versions", ""]
    parts += _table(("", ""), [(name, value) for name, value in where.items()])
    for case, report in reports.items():
        parts += ["", f"## {case.title}", "", *_section(case, report, where)]
    return [*parts, ""]


def _usual(reports: Sequence[Report]) -> dict[str, str]:
    """The machine and versions that most reports have; a section that differs says so itself."""
    counted = Counter(tuple(report.where.items()) for report in reports)
    return dict(counted.most_common(1)[0][0]) if counted else {}


def _summary(reports: Mapping[Case, Report]) -> list[str]:
    rows = [
        (
            f"[{case.title}](#{_anchor(case.title)})",
            verdict.target,
            verdict.measured,
            "yes" if verdict.met else "**no**",
        )
        for case, report in reports.items()
        for verdict in report.verdicts
    ]
    return _table(("benchmark", "target", "measured", "met"), rows)


def _section(case: Case, report: Report, usual: Mapping[str, str]) -> list[str]:
    parts = [report.what, ""]
    rows = [
        (f"**{measure.name}**" if measure.ours else measure.name, f"{spread(measure.values)} {measure.unit}")
        for measure in report.measures
    ]
    parts += _table(("", "median [lowest–highest]"), rows)
    if report.ratios:
        parts += [
            "",
            *_table(("ratio", "median [lowest–highest]"), [(one.name, spread(one.values)) for one in report.ratios]),
        ]
    parts += ["", f"![{case.title}](img/bench-{case.name}.svg)", ""]
    parts += [f"- {note}" for note in report.notes]
    other = {name: value for name, value in report.where.items() if usual.get(name) != value}
    differs = f", with {', '.join(f'{name} {value}' for name, value in other.items())}" if other else ""
    repetitions = max(len(measure.values) for measure in report.measures)
    passes = f"{repetitions} repetitions" if repetitions > 1 else "one pass"
    how = f"in {report.seconds:.0f} s, {passes}, load average before {report.load_average:.1f}"
    return [*parts, f"- Measured {report.date} {how}{differs}."]


def _chart(case: Case, report: Report) -> str:
    if report.plot is not None:
        return lines(case.title, report.plot)
    return bars(case.title, [measure for measure in report.measures if measure.charted])


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lined = [head, ["---"] * len(head), *rows]
    return [f"| {' | '.join(cells)} |" for cells in lined]


def _anchor(title: str) -> str:
    """As GitHub and GitLab make it from a heading."""
    kept = "".join(char for char in title.lower() if char.isalnum() or char in " -")
    return kept.replace(" ", "-")
