"""Set-up: locks, Makefile and scripts say the same as pyproject.toml, and nothing of one machine is in them."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LOCKS = ("requirements.lock", "requirements-java.lock")


def _names(requirements: list[str]) -> set[str]:
    return {re.split(r"[<>=!~ ;\[]", line, maxsplit=1)[0].lower().replace("_", "-") for line in requirements}


def _locked(file: str) -> list[str]:
    return [line for line in (ROOT / file).read_text().splitlines() if line and not line[0].isspace()]


def test_everything_that_the_project_asks_for_is_locked() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = project["dependencies"] + project["optional-dependencies"]["dev"]
    assert _names(asked) <= _names(_locked("requirements.lock"))
    assert _names(project["optional-dependencies"]["java"]) == _names(_locked("requirements-java.lock"))


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
