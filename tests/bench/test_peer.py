"""A peer that cannot be had is left out, and the report says why."""

from __future__ import annotations

from pathlib import Path

import pytest
from bench.bench import Bench
from bench.case import pg_lake
from bench.peer import debezium, flink_cdc


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine whose commands are those of an empty folder."""
    commands = tmp_path / "bin"
    commands.mkdir()
    monkeypatch.setenv("PATH", str(commands))
    return commands


def test_without_maven_a_java_peer_is_not_fetched(bare: Path, tmp_path: Path) -> None:
    assert flink_cdc.fetch(tmp_path / "flink") == "there is no Maven or no Java compiler"
    assert debezium.fetch(tmp_path / "debezium", "postgres") == "there is no Maven or no Java compiler"


def test_a_peer_that_maven_does_not_find_is_not_fetched(bare: Path, tmp_path: Path) -> None:
    for name, status in (("mvn", 1), ("javac", 0)):  # stand-ins: the registry cannot be asked to fail
        (bare / name).write_text(f"#!/bin/sh\nexit {status}\n")
        (bare / name).chmod(0o755)
    assert flink_cdc.fetch(tmp_path / "flink") == "mvn failed"
    assert (tmp_path / "flink" / "FlinkCdc.java").exists()


@pytest.mark.spark
@pytest.mark.slow
def test_a_quick_run_fetches_no_peer_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flink_cdc, "fetch", lambda place: pytest.fail(f"fetched into {place}"))
    report = pg_lake.run(Bench(tmp_path, quick=True))
    assert "Flink CDC was not measured: only full runs fetch it." in report.notes
