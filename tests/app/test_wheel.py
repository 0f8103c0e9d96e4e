"""The package as people get it: a wheel, in an environment of its own, outside of the repository."""

from __future__ import annotations

import os
import re
import shutil
import sqlite3
import subprocess
import sys
import sysconfig
import venv
from contextlib import closing
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ONLY_IN_A_CLONE = re.compile(r"make (setup|test|demo)|\bdocs/|scripts/")


def run(*command: str | Path, cwd: Path, **variables: str) -> str:
    trust = {"UV_SYSTEM_CERTS": "true", "UV_NATIVE_TLS": "true"}  # the system's certificates, as pip has them
    environment = {**trust, **os.environ, **variables}
    done = subprocess.run(
        [str(word) for word in command], cwd=cwd, capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("wheel")
    if shutil.which("uv"):
        run("uv", "build", "--quiet", "--wheel", "--out-dir", directory, ROOT, cwd=directory)
    else:
        run(sys.executable, "-m", "pip", "wheel", "--no-deps", "--wheel-dir", directory, ROOT, cwd=directory)
    (built,) = directory.glob("*.whl")
    return built


def use(python: Path, directory: Path, **variables: str) -> None:
    """What the first minutes are: a configuration, a check, a sync, the rows."""
    with closing(sqlite3.connect(directory / "shop.db")) as connection, connection:
        connection.execute("CREATE TABLE items (id INTEGER PRIMARY KEY, name TEXT)")
        connection.execute("INSERT INTO items VALUES (1, 'a'), (2, 'b')")
    lakefeed: list[str | Path] = [python, "-c", "from lakefeed.app.cli import main; main()"]
    where = run(python, "-c", "import lakefeed; print(lakefeed.__file__)", cwd=directory, **variables)
    assert not Path(where.strip()).is_relative_to(ROOT), "the wheel's, and not the repository's"
    for words in (["--help"], ["init", "pg.yaml", "--source", "postgres"], ["init", "shop.yaml"]):
        assert not ONLY_IN_A_CLONE.search(run(*lakefeed, *words, cwd=directory, **variables))
    assert not ONLY_IN_A_CLONE.search((directory / "pg.yaml").read_text() + (directory / "shop.yaml").read_text())
    assert "shop is ready." in run(*lakefeed, "check", "shop.yaml", cwd=directory, **variables)
    assert "2 inserted" in run(*lakefeed, "sync", "shop.yaml", cwd=directory, **variables)
    assert "Equal: 1 table." in run(*lakefeed, "verify", "shop.yaml", cwd=directory, **variables)
    program = "import lakefeed; print(lakefeed.to_arrow('lake', 'main.items').num_rows)"
    assert run(python, "-c", program, cwd=directory, **variables) == "2\n"


def test_the_wheel_works_outside_of_the_repository(wheel: Path, tmp_path: Path) -> None:
    """Its packages are those of the tests: installing them all takes minutes, and is the slow form."""
    unpacked = tmp_path / "installed"
    shutil.unpack_archive(wheel, unpacked, "zip")
    work = tmp_path / "work"
    work.mkdir()
    packages = sysconfig.get_paths()["purelib"]
    use(Path(sys.executable), work, PYTHONPATH=f"{unpacked}{os.pathsep}{packages}", PYTHONSAFEPATH="1")
    names = {path.name for path in unpacked.glob("*")}
    assert all(name.startswith("lakefeed") for name in names), names


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_wheel_installs_with_its_packages_into_a_clean_environment(wheel: Path, tmp_path: Path) -> None:
    environment, work = tmp_path / "environment", tmp_path / "work"
    work.mkdir()
    constraints = tmp_path / "constraints.txt"
    locked = re.findall(r"^[\w.\[\]-]+==\S+", (ROOT / "requirements.lock").read_text(), re.MULTILINE)
    constraints.write_text("\n".join(locked))
    python = environment / "bin" / "python"
    if shutil.which("uv"):
        run("uv", "venv", "--quiet", "--python", sys.executable, environment, cwd=work)
        install: list[str | Path] = ["uv", "pip", "install", "--quiet", "--python", python]
    else:
        venv.create(environment, with_pip=True)
        install = [python, "-m", "pip", "install", "--quiet"]
    run(*install, "-c", constraints, f"{wheel}[postgres]", cwd=work)
    use(python, work)
    run(python, "-c", "import lakefeed, psycopg; lakefeed.Postgres('host=x')", cwd=work)
