"""A release: ``python -m scripts.release build DIRECTORY`` makes wheel and sdist, ``check [TAG]`` proves them ready.

``check`` is ``make release-check``: the version is the same in pyproject.toml, CHANGELOG.md and the tag; the wheel has
the package and nothing else, the sdist what it takes to build and test; and the wheel's command runs in an environment
of its own. It publishes nothing: .github/workflows/release.yml does, when a tag is pushed and all this is well.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import venv
import zipfile
from email import message_from_bytes
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_IN_SDIST = (
    "pyproject.toml",
    "README.md",
    "LICENSE",
    "CHANGELOG.md",
    "src/lakefeed/__init__.py",
    "src/lakefeed/py.typed",
)


def project() -> dict[str, object]:
    found: dict[str, object] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return found


def build(directory: Path) -> tuple[Path, Path]:
    """Wheel and sdist in ``directory``, which is made."""
    directory.mkdir(parents=True, exist_ok=True)
    if shutil.which("uv"):
        command = ["uv", "build", "--quiet", "--system-certs", "--out-dir", str(directory), str(ROOT)]
    else:
        with tempfile.TemporaryDirectory() as place:
            venv.create(place, with_pip=True)
            python = Path(place, "bin", "python")
            _run(str(python), "-m", "pip", "install", "--quiet", "build==1.3.0")
            _run(str(python), "-m", "build", "--outdir", str(directory), str(ROOT))
            command = []
    if command:
        _run(*command)
    (wheel,), (sdist,) = directory.glob("*.whl"), directory.glob("*.tar.gz")
    return wheel, sdist


def problems_of_version(tag: str | None) -> list[str]:
    """What does not agree with the version in pyproject.toml."""
    version = str(project()["version"])
    heading = re.search(r"^## (\S+) \((.*)\)$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    found = []
    if heading is None or heading[1] != version:
        found.append(
            f"CHANGELOG.md begins with {heading[1] if heading else 'no version'}, pyproject.toml has {version}"
        )
    if tag is not None:
        if tag != f"v{version}":
            found.append(f"the tag is {tag}, pyproject.toml has {version}: it must be v{version}")
        if heading is not None and not re.fullmatch(r"\d{4}-\d\d-\d\d", heading[2]):
            found.append(f"CHANGELOG.md says '{heading[2]}' for {version}: write the day of the release")
    return found


def problems_of_files(wheel: Path, sdist: Path) -> list[str]:
    """What is in the files and should not be, or the other way round."""
    found, given = [], project()
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (record,) = [name for name in names if name.endswith(".dist-info/METADATA")]
        metadata = message_from_bytes(archive.read(record))
    strangers = [
        name for name in names if not name.startswith(("lakefeed/", f"lakefeed-{given['version']}.dist-info/"))
    ]
    found += [f"the wheel has {name}" for name in strangers]
    found += [f"the wheel lacks {name}" for name in ("lakefeed/py.typed", "lakefeed/app/cli.py") if name not in names]
    wanted = {"Name": "lakefeed", "Version": given["version"], "License-Expression": given["license"],
              "Requires-Python": given["requires-python"], "Description-Content-Type": "text/markdown"}  # fmt: skip
    found += [
        f"{key} of the wheel is {metadata[key]}, not {value}" for key, value in wanted.items() if metadata[key] != value
    ]
    with tarfile.open(sdist) as packed:
        there = {name.partition("/")[2] for name in packed.getnames()}
    found += [f"the sdist lacks {name}" for name in _IN_SDIST if name not in there]
    found += [
        f"the sdist has {name}" for name in sorted(there) if name.startswith((".venv", "demo/", "site/", "dist/"))
    ]
    return found


def problems_of_command(wheel: Path) -> list[str]:
    """The command of the wheel, in an environment with what it needs for that and nothing else."""
    with tempfile.TemporaryDirectory() as place:
        venv.create(place, with_pip=True)
        python = Path(place, "bin", "python")
        light = [one for one in project()["dependencies"] if one.startswith(("typer", "pydantic", "pyyaml", "rich"))]  # type: ignore[attr-defined]
        _run(str(python), "-m", "pip", "install", "--quiet", "--no-deps", str(wheel))
        _run(str(python), "-m", "pip", "install", "--quiet", *light)
        said = _run(str(Path(place, "bin", "lakefeed")), "--version", cwd=Path(place)).strip()
        help_text = _run(str(Path(place, "bin", "lakefeed")), "--help", cwd=Path(place))
    wanted = f"lakefeed {project()['version']}"
    found = [] if said == wanted else [f"lakefeed --version says '{said}', not '{wanted}'"]
    return found if "demo" in help_text else [*found, "lakefeed --help does not name its commands"]


def _run(*command: str, cwd: Path = ROOT) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def main(action: str, *given: str) -> int:
    if action == "build":
        for file in build(Path(given[0])):
            sys.stdout.write(f"{file}\n")
        return 0
    found = problems_of_version(given[0] if given else None)
    with tempfile.TemporaryDirectory() as place:
        wheel, sdist = build(Path(place, "dist"))
        found += problems_of_files(wheel, sdist) + problems_of_command(wheel)
        sizes = f"{wheel.name} ({wheel.stat().st_size:,} bytes), {sdist.name} ({sdist.stat().st_size:,} bytes)"
    for problem in found:
        sys.stderr.write(f"Error: {problem}.\n")
    sys.stdout.write(f"{sizes}: {'ready' if not found else 'not ready'}.\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
