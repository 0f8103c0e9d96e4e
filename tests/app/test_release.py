"""A release is ready to be published: what the workflow calls is there, and the check finds what is not."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from scripts import release
from scripts.picture import COLUMNS, Screen, paced, svg

ROOT = Path(__file__).resolve().parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: file.name)
def test_a_workflow_calls_only_what_is_there(file: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    jobs = yaml.safe_load(file.read_text())["jobs"]
    assert jobs
    for job in jobs.values():
        assert set([job["needs"]] if isinstance(job.get("needs"), str) else job.get("needs", [])) <= set(jobs)
        for step in job["steps"]:
            assert set(re.findall(r"^\s*make ([a-z-]+)", step.get("run", ""), re.MULTILINE)) <= targets
            for script in re.findall(r"^\s*(\.\S+)$", step.get("run", ""), re.MULTILINE):
                assert (ROOT / script).is_file()
            assert ("run" in step) != ("uses" in step)


def test_nothing_is_published_that_was_not_checked_and_tested() -> None:
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text())["jobs"]
    ran = [step.get("run", "") for step in jobs["build"]["steps"]]
    assert [line for line in ran if "release-check" in line]
    assert ".ci/run" in ran
    assert (jobs["pypi"]["needs"], jobs["image"]["needs"]) == ("build", "pypi")


def test_the_version_is_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    version = str(release.project()["version"])
    assert release.problems_of_version(None) == []
    assert any("must be v" in problem for problem in release.problems_of_version("v9.9.9"))
    monkeypatch.setattr(release, "ROOT", tmp_path)
    (tmp_path / "pyproject.toml").write_text(f'[project]\nversion = "{version}"\n')
    (tmp_path / "CHANGELOG.md").write_text(f"# Changelog\n\n## {version} (not released yet)\n")
    assert release.problems_of_version(f"v{version}") == [
        f"CHANGELOG.md says 'not released yet' for {version}: write the day of the release"
    ]
    (tmp_path / "CHANGELOG.md").write_text(f"# Changelog\n\n## {version} (2026-12-01)\n")
    assert release.problems_of_version(f"v{version}") == []
    (tmp_path / "CHANGELOG.md").write_text("# Changelog\n\n## 0.0.9 (2026-12-01)\n")
    assert release.problems_of_version(None) == [f"CHANGELOG.md begins with 0.0.9, pyproject.toml has {version}"]


def test_the_image_is_built_from_files_that_are_there_and_runs_as_nobody_special() -> None:
    text = (ROOT / "Dockerfile").read_text()
    kept = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    for copied in re.findall(r"^COPY (?!--from)(.*) \S+$", text, re.MULTILINE):
        for name in copied.split():
            assert (ROOT / name).exists()
            assert any(Path(name).match(pattern) for pattern in kept), f"{name} does not reach the build"
    assert re.findall(r"^USER (\w+)", text, re.MULTILINE)[-1] != "root"
    assert text.index("USER lakefeed") < text.index('ENTRYPOINT ["lakefeed"]')
    extras = set(re.findall(r"\.\[([\w,-]+)\]", text)[0].split(","))
    there = release.project()["optional-dependencies"]
    assert isinstance(there, dict)
    assert extras == set(there) - {"demo", "dev"}, "every source and format"


def test_the_recorder_sees_what_a_terminal_shows() -> None:
    screen = Screen()
    screen.feed("one\r\ntwo\r\nthree\r\n\x1b[2A\x1b[2Ktwo again\r\n\x1b[1mbold\x1b[0m \x1b[?25l")
    assert screen.view() == ("one", "two again", "bold")
    screen.feed("\r\n" + "x" * (COLUMNS + 2))
    assert screen.view()[-2:] == ("x" * COLUMNS, "xx")


def test_a_moving_picture_shows_each_line_while_it_stood_there() -> None:
    frames = paced([(0.0, ("$ lakefeed demo",)), (1.0, ("$ lakefeed demo", "a < b")), (60.0, ("$ lakefeed demo", "c"))])
    assert [at for at, _ in frames] == [0.0, 1.0, 3.0], "long waits are cut"
    picture = svg(frames, "demo")
    assert picture.count("<text") == 3
    assert "a &lt; b" in picture
    assert 'values="hidden;visible;hidden"' in picture
