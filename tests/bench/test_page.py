"""The page and its charts are written from kept results alone."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest
from bench.__main__ import main
from bench.chart import bars, lines
from bench.page import write_page
from bench.report import Curve, Measure, Plot, Ratio, Report, Verdict, number, spread

REPORT = Report(
    what="Rows <into> a table.",
    measures=(
        Measure("ours & quick", "rows/s", (120.0, 100.0, 110.0), ours=True),
        Measure("peer", "rows/s", (50.0, 60.0, 55.0)),
        Measure("not drawn", "jobs", (7.0,), charted=False),
    ),
    ratios=(Ratio("ours / peer", (2.4, 1.667, 2.0)),),
    verdicts=(Verdict("fast", "110 rows/s", met=True), Verdict("faster", "110 rows/s", met=False)),
    notes=("A note.",),
    where={"processor": "a fast one"},
    date="2024-01-01",
    seconds=12.3,
    load_average=0.5,
)
PLOT = Plot("seconds", "MiB", (Curve("one", ((0.0, 10.0), (30.0, 12.0))), Curve("two", ((0.0, 1.0), (30.0, 2.0)))))


def test_a_report_is_read_back_as_it_was_saved(tmp_path: Path) -> None:
    whole = Report(what="x", measures=REPORT.measures, ratios=REPORT.ratios, verdicts=REPORT.verdicts, plot=PLOT)
    whole.save(tmp_path / "deep" / "one.json")
    assert Report.load(tmp_path / "deep" / "one.json") == whole


def test_the_page_has_medians_spreads_ratios_targets_and_the_machine(tmp_path: Path) -> None:
    REPORT.save(tmp_path / "results" / "merge.json")
    text = write_page(tmp_path / "results", tmp_path / "docs").read_text()
    assert "| **ours & quick** | 110 [100–120] rows/s |" in text
    assert "| ours / peer | 2 [1.67–2.4] |" in text
    assert "| [Changes into a Delta table](#changes-into-a-delta-table) | faster | 110 rows/s | **no** |" in text
    assert "| processor | a fast one |" in text
    assert "![Changes into a Delta table](img/bench-merge.svg)" in text
    assert "- Measured 2024-01-01 in 12 s, 3 repetitions, load average before 0.5." in text


def test_a_part_measured_again_keeps_the_other_sections_and_says_where_it_differs(tmp_path: Path) -> None:
    for name in ("merge", "drain", "idle"):
        REPORT.save(tmp_path / "results" / f"{name}.json")
    Report(what="Other.", measures=REPORT.measures, where={"processor": "a slow one"}).save(
        tmp_path / "results" / "drain.json"
    )
    text = write_page(tmp_path / "results", tmp_path / "docs").read_text()
    assert text.count("a slow one") == 1
    assert text.index("## SQLite's change log") < text.index("## Changes into a Delta table") < text.index("## Nothing")


def test_charts_are_well_formed_and_scaled_to_their_values() -> None:
    drawn = ElementTree.fromstring(bars("a <title>", REPORT.measures[:2]))
    width = [float(rect.attrib["width"]) for rect in drawn.findall("{*}rect")[1:]]
    assert width[0] == pytest.approx(2 * width[1], rel=0.01)
    plotted = ElementTree.fromstring(lines("title", PLOT)).findall("{*}polyline")
    assert len(plotted) == 2
    assert plotted[0].attrib["points"].startswith("70.0,")


@pytest.mark.parametrize(
    ("value", "text"), [(0.0123, "0.0123"), (1.0, "1"), (12.34, "12.3"), (456.7, "457"), (123_456, "123,000")]
)
def test_numbers_are_written_with_three_digits(value: float, text: str) -> None:
    assert number(value) == text


def test_a_spread_is_the_median_with_the_lowest_and_the_highest() -> None:
    assert spread([3.0, 1.0, 2.0]) == "2 [1–3]"


def test_a_benchmark_that_there_is_not_is_refused_with_the_ones_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["marge"])
    assert "there is no benchmark marge; there are writer, drain" in capsys.readouterr().err
