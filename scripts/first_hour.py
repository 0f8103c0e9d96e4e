"""The first hour of a new user, with a stopwatch: ``python -m scripts.first_hour``, or ``make first-hour``.

Two ways from nothing to a verified PostgreSQL table: a clone, and a wheel in an environment of its own. Both are gone
in a temporary directory with an empty HOME and an empty environment (certificates and mirrors of packages excepted), by
typing docs/first-postgres.md as it stands. Everything is downloaded: packages, a Java runtime if the machine has none,
Delta's jars. A stumble is a command that exits or prints otherwise than the page says. Writes docs/first-hour.md.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import psycopg
from scripts.page import ROOT, blocks, commands, shape

from lakefeed.testing.server.postgres import PostgresServer, find_binaries

PAGE, RESULT = ROOT / "docs" / "first-postgres.md", ROOT / "docs" / "first-hour.md"
DSN = "host=localhost dbname=shop user=lakefeed"
CODES = {("check", "--sql"): 1, ("uninstall",): 3}
"""Where the page announces that a command does not exit with 0."""
_KEPT = ("SSL_CERT_FILE", "SSL_CERT_DIR", "PIP_CERT", "PIP_INDEX_URL", "UV_INDEX_URL", "HTTPS_PROXY", "SPARK_CONF_DIR")
_HBA = (
    "local all all trust\nhost all,replication postgres 127.0.0.1/32 trust\nhost all all 127.0.0.1/32 scram-sha-256\n"
)


@dataclass
class Stopwatch:
    """What was done, how long it took, and what went otherwise than announced."""

    directory: Path
    steps: list[tuple[str, float]] = field(default_factory=list)
    stumbles: list[str] = field(default_factory=list)
    load: float = field(default_factory=lambda: os.getloadavg()[0])
    """Of the machine, when this way began."""

    @property
    def seconds(self) -> float:
        """Until the table was verified: reading it and cleaning up come after that."""
        names = [step for step, _ in self.steps]
        end = next((index for index, name in enumerate(names) if name.startswith("lakefeed verify")), len(names))
        return sum(seconds for _, seconds in self.steps[: end + 1])

    @property
    def environment(self) -> dict[str, str]:
        kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
        home = self.directory / "home"
        home.mkdir(exist_ok=True)
        jvm = {"JAVA_TOOL_OPTIONS": f"-Duser.home={home}"}  # it would take the one of the password file
        return {"HOME": str(home), "PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8", **jvm, **kept}

    def run(self, step: str, *command: str | Path, cwd: Path, expected: int = 0, **variables: str) -> str:
        """Type a command. What it prints, stderr first, as the pages show it."""
        sys.stderr.write(f"{step} …\n")
        begun = time.monotonic()
        done = subprocess.run(
            [str(word) for word in command], cwd=cwd, capture_output=True, text=True, stdin=subprocess.DEVNULL,
            env=self.environment | variables, check=False,
        )  # fmt: skip
        self.steps.append((step, time.monotonic() - begun))
        said = done.stderr + done.stdout
        if done.returncode != expected:
            self.stumbles.append(f"`{step}` exited with {done.returncode}: {said.strip()[-400:]}")
        return said


@contextmanager
def database() -> Iterator[int]:
    """A server as people have one: a database ``shop``, passwords asked for. Its port."""
    found = find_binaries()
    with PostgresServer.start(found[max(found)]) as server:
        with psycopg.connect(server.dsn, autocommit=True) as admin:
            admin.execute("CREATE DATABASE shop")
            (server.directory / "data" / "pg_hba.conf").write_text(_HBA)
            admin.execute("SELECT pg_reload_conf()")
        yield server.port


def follow_page(watch: Stopwatch, tools: Path, port: int) -> None:
    """Type docs/first-postgres.md from top to bottom, with ``lakefeed`` of ``tools`` on the PATH."""
    work = watch.directory / "work"
    work.mkdir()
    variables = {"PATH": f"{tools}:{watch.environment['PATH']}", "PGPASSWORD": "secret"}
    listed = blocks(PAGE)
    with psycopg.connect(f"host=127.0.0.1 port={port} user=postgres dbname=shop", autocommit=True) as admin:
        for index, block in enumerate(listed):
            if block.language == "sql":
                admin.execute(block.code)
            elif block.language == "python":
                said = watch.run("the program that reads the table", tools / "python", "-c", block.code, cwd=work)
                _compare(watch, "the program", said, listed[index + 1].code)
            for words, announced in commands(block.code):
                code = CODES.get(tuple(word for word in words if word != "shop.yaml"), 0)
                step = "lakefeed " + " ".join(words)
                said = watch.run(step, tools / "lakefeed", *words, cwd=work, expected=code, **variables)
                _compare(watch, step, said, announced)
                if words[0] == "init":
                    file = work / "shop.yaml"
                    file.write_text(file.read_text().replace(DSN, f"{DSN} port={port}"))
                elif "--sql" in words:
                    for line in said.splitlines():
                        admin.execute(line or "SELECT 1")


def _compare(watch: Stopwatch, step: str, said: str, announced: str) -> None:
    if shape(said) != shape(announced):
        watch.stumbles.append(f"`{step}` printed otherwise than the page says: {said.strip()[-400:]}")


def by_clone(watch: Stopwatch) -> Path:
    clone = watch.directory / "lakefeed"
    watch.run("git clone", "git", "clone", "--quiet", ROOT, clone, cwd=watch.directory)
    watch.run("make demo", "make", "demo", cwd=clone)
    return clone / ".venv" / "bin"


def by_wheel(watch: Stopwatch) -> Path:
    """The wheel is made beforehand: people get it from an index."""
    directory = watch.directory
    made = [sys.executable, "-m", "scripts.release", "build", str(directory / "dist")]
    subprocess.run(made, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = (directory / "dist").glob("*.whl")
    extras = "postgres" if shutil.which("java") else "postgres,java"
    watch.run("python -m venv", sys.executable, "-m", "venv", directory / "venv", cwd=directory)
    tools = directory / "venv" / "bin"
    watch.run(f"pip install 'lakefeed[{extras}]'", tools / "pip", "install", "--quiet", f"{wheel}[{extras}]",
              cwd=directory)  # fmt: skip
    return tools


WAYS = {"a clone": by_clone, "a wheel": by_wheel}


def page(watches: dict[str, Stopwatch]) -> str:
    rows = []
    for way, watch in watches.items():
        rows.append(f"| {way} | {watch.seconds / 60:.1f} | {len(watch.stumbles)} | {watch.load:.1f} |")
    parts = [
        "# The first hour, with a stopwatch\n",
        "How long does it take from nothing to a verified PostgreSQL table in the lake? A program follows the steps",
        "of a new user and takes the time. It types [PostgreSQL step by step](first-postgres.md) exactly as the page",
        "has it, in an empty directory with an empty environment. A stumble is a command whose exit code or output",
        "differs from the page. The clone begins with `make demo`, the wheel with",
        "`pip install`. Both download all packages and jars. `make first-hour` repeats this and writes this page.\n",
        f"Measured on {datetime.now(UTC):%Y-%m-%d}: Python {platform.python_version()}, {os.cpu_count()} cores.",
        "The load is the load average of the machine before each measurement began.\n",
        "| from | minutes to the verified table | stumbles | load |\n|---|---|---|---|",
        *rows,
    ]
    for way, watch in watches.items():
        parts += [f"\n## From {way}\n", "| step | seconds |\n|---|---|"]
        parts += [f"| `{step}` | {seconds:.1f} |" for step, seconds in watch.steps]
        parts += [f"\nStumble: {stumble}" for stumble in watch.stumbles]
    return "\n".join(parts) + "\n"


def main(*ways: str) -> int:
    """Without a name all ways; a page with some of them is printed and not written."""
    watches = dict[str, Stopwatch]()
    for way, begin in WAYS.items():
        if ways and way not in ways:
            continue
        with tempfile.TemporaryDirectory(prefix="lakefeed-first-hour-") as directory, database() as port:
            watches[way] = watch = Stopwatch(Path(directory))
            follow_page(watch, begin(watch), port)
    if ways:
        sys.stdout.write(page(watches))
    else:
        RESULT.write_text(page(watches), encoding="utf-8")
    for watch in watches.values():
        for stumble in watch.stumbles:
            sys.stderr.write(f"Stumble: {stumble}\n")
    return 1 if any(watch.stumbles for watch in watches.values()) else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
