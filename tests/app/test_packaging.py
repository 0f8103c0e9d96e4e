"""Set-up: locks, Makefile and scripts say the same as pyproject.toml, and nothing of one machine is in them."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
LOCKS = ("requirements.lock", "requirements-demo.lock", "requirements-java.lock")


def _names(requirements: list[str]) -> set[str]:
    return {re.split(r"[<>=!~ ;\[]", line, maxsplit=1)[0].lower().replace("_", "-") for line in requirements}


def _locked(file: str) -> list[str]:
    return [line for line in (ROOT / file).read_text().splitlines() if line and not line[0].isspace()]


def test_everything_that_the_project_asks_for_is_locked() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = project["dependencies"] + project["optional-dependencies"]["dev"]
    assert _names(asked) <= _names(_locked("requirements.lock"))
    assert _names(project["optional-dependencies"]["java"]) == _names(_locked("requirements-java.lock"))
    shown = project["dependencies"] + project["optional-dependencies"]["demo"]
    assert _names(shown) <= _names(_locked("requirements-demo.lock"))
    assert set(_locked("requirements-demo.lock")) <= set(_locked("requirements.lock"))  # the same versions
    assert not {"mypy", "pytest", "moto"} & _names(_locked("requirements-demo.lock"))


@pytest.mark.parametrize("file", LOCKS)
def test_a_lock_has_exact_versions_with_hashes_and_no_registry(file: str) -> None:
    text = (ROOT / file).read_text()
    assert all("==" in line for line in _locked(file))
    assert text.count("--hash=sha256:") >= len(_locked(file))
    assert "://" not in text
    assert "--index-url" not in text


def test_make_help_explains_every_target() -> None:
    answer = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for target in ("setup", "demo", "check", "test", "fmt", "lock", "schema", "clean"):
        assert re.search(rf"make {target} +\w", answer)


@pytest.mark.parametrize("script", ["scripts/setup.sh", "scripts/lock.sh", ".ci/run"])
def test_scripts_are_valid_bash_that_stops_at_the_first_error(script: str) -> None:
    assert "set -euo pipefail" in (ROOT / script).read_text()
    subprocess.run(["bash", "-n", str(ROOT / script)], check=True)


def test_ci_runs_check_and_then_test() -> None:
    text = (ROOT / ".ci/run").read_text()
    assert 0 < text.index("make check") < text.index("make test")


def _setup_without_python(tmp_path: Path, **variables: str) -> str:
    """Runs the set-up where there is neither Python nor uv, in a copy that has no environment yet."""
    copy, tools = tmp_path / "copy", tmp_path / "tools"
    (copy / "scripts").mkdir(parents=True)
    tools.mkdir()
    for name in (*LOCKS, "pyproject.toml", "scripts/setup.sh"):
        (copy / name).write_bytes((ROOT / name).read_bytes())
    for tool in ("bash", "cat", "cksum", "dirname", "head", "sed", "tail"):
        found = subprocess.run(["bash", "-c", f"command -v {tool}"], capture_output=True, text=True, check=True)
        (tools / tool).symlink_to(found.stdout.strip())
    result = subprocess.run(
        [str(tools / "bash"), "scripts/setup.sh"],
        cwd=copy,
        env={"PATH": str(tools), "HOME": str(tmp_path), **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 1
    assert not (copy / ".venv").exists()
    return result.stderr


def test_a_machine_without_python_gets_one_sentence_and_a_remedy(tmp_path: Path) -> None:
    text = _setup_without_python(tmp_path)
    assert text.startswith("There is no Python 3.11 or newer with SQLite on the PATH. Remedy: ")
    assert len(text.splitlines()) == 1


def test_a_python_that_does_not_fit_is_named(tmp_path: Path) -> None:
    text = _setup_without_python(tmp_path, PYTHON="/no/such/python")
    assert text.startswith("PYTHON=/no/such/python is not a Python 3.11 or newer with SQLite. Remedy: ")


@pytest.mark.parametrize("version", ["3.11.9", "3.13.5"])
def test_the_constraints_of_the_image_have_one_version_of_each_package(version: str) -> None:
    """The lock has several versions of some packages, each for other versions of Python: the markers must stay."""
    (command,) = re.findall(r"^RUN (sed .*) > constraints.txt", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    said = subprocess.run(["bash", "-c", command], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    there = {"python_version": version.rpartition(".")[0], "python_full_version": version}
    constraints = [Requirement(line) for line in said.splitlines()]
    names = [one.name for one in constraints if one.marker is None or one.marker.evaluate(there)]
    assert len(names) > 100
    assert len(names) == len(set(names))


def test_an_environment_with_everything_serves_the_demo_and_not_the_other_way_round(tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    (copy / "scripts").mkdir(parents=True)
    (copy / ".venv/bin").mkdir(parents=True)
    for name in (*LOCKS, "pyproject.toml", "scripts/setup.sh"):
        (copy / name).write_bytes((ROOT / name).read_bytes())
    (copy / ".venv/bin/lakefeed").write_text("#!/bin/sh\n")
    (copy / ".venv/bin/lakefeed").chmod(0o755)
    (copy / ".venv/bin/python").write_text("#!/bin/sh\necho python $* >&2; exit 7\n")  # nothing can be installed
    (copy / ".venv/bin/python").chmod(0o755)
    made_from = subprocess.run(
        ["bash", "-c", "cat requirements*.lock pyproject.toml scripts/setup.sh | cksum"],
        cwd=copy, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip

    def is_ready(made: str, wanted: str) -> bool:
        (copy / ".venv/.lakefeed-setup").write_text(f"{made} {made_from}")
        command = ["bash", "scripts/setup.sh", wanted]
        environment = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "PYTHON": "/no/such/python"}
        said = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True, check=False)
        return "is not a Python" not in said.stderr

    assert is_ready("everything", "everything")
    assert is_ready("everything", "demo")
    assert is_ready("demo", "demo")
    assert not is_ready("demo", "everything")
