"""Every benchmark runs, on sizes too small to mean anything, and says what its page needs."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from bench.__main__ import measure
from bench.bench import Bench
from bench.catalog import CASES
from bench.report import Report

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.parametrize(
    "name",
    [
        "pg_stream",
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in ("drain", "writer", "memory", "mysql_stream", "mariadb_stream")
        ),
    ],
)
def test_a_benchmark_of_the_capture_side_runs_and_reports_ratios(name: str, tmp_path: Path) -> None:
    _check(CASES[name].run(Bench(tmp_path, quick=True)))


@pytest.mark.spark
@pytest.mark.slow  # also in their quick form these take longer than what they prove is worth in every run
@pytest.mark.parametrize(
    "name",
    [
        "journal",
        "pg_lake",
        "tables",
        "poll_snapshot",
        "poll_diff",
        "merge",
        "growth",
        "cost",
        "freshness",
        "current",
        "start",
        "endurance",
        "repair",
    ],
)
def test_a_benchmark_of_the_lake_side_runs_and_reports_ratios(name: str, spark: SparkSession, tmp_path: Path) -> None:
    _check(CASES[name].run(Bench(tmp_path, quick=True)))


@pytest.mark.spark
@pytest.mark.parametrize("name", ["snapshot", "pg_snapshot", "mysql_snapshot"])
@pytest.mark.slow
def test_the_snapshot_benchmarks_run_in_a_process_and_session_of_their_own(
    name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert measure(CASES[name], quick=True, place=tmp_path)
    assert "Lakefeed / plain Spark JDBC: ×" in capfd.readouterr().out


@pytest.mark.spark
def test_an_idle_sync_starts_no_spark_job_and_no_java(spark: SparkSession, tmp_path: Path) -> None:
    report = CASES["idle"].run(Bench(tmp_path, quick=True))
    _check(report)
    by_target = {verdict.target: verdict for verdict in report.verdicts}
    assert by_target["sync with nothing new: no Spark job"].met
    assert by_target["`lakefeed sync` and `status` with nothing new: no JVM"].met


@pytest.mark.slow
@pytest.mark.parametrize("name", ["thousand", "thousand_sqlite", "idle_run"])
def test_a_benchmark_without_a_peer_runs(name: str, tmp_path: Path) -> None:
    report = CASES[name].run(Bench(tmp_path, quick=True))
    assert report.what
    assert all(value >= 0 for measure in report.measures for value in measure.values)
    assert all(verdict.met for verdict in report.verdicts)


def _check(report: Report) -> None:
    assert report.what
    assert any(measure.ours for measure in report.measures)
    values = [value for measure in report.measures for value in measure.values]
    ratios = [value for ratio in report.ratios for value in ratio.values]
    assert ratios
    assert all(math.isfinite(value) and value >= 0 for value in values)
    assert all(math.isfinite(value) and value > 0 for value in ratios)
