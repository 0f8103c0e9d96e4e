"""Flink CDC into Iceberg as a peer: fetched by Maven into the scratch directory, never into the project."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bench.peer import maven

_HERE = Path(__file__).parent / "flink"
VERSIONS = "Flink CDC 3.5.0 on Flink 1.20.4 with Iceberg 1.11.0"
"""As the pom has them."""


@dataclass(frozen=True, slots=True)
class FlinkCdc:
    """Compiled and ready in ``place``."""

    place: Path

    @contextlib.contextmanager
    def cluster(self, port: int, slot: str, publication: str, *, table: str, location: Path) -> Iterator[Cluster]:
        """A cluster in its own JVM: changes of one table go into an Iceberg table that had the rows before them."""
        java = ["java", "-Xmx4g", "-XX:+UseParallelGC", "-Duser.timezone=UTC"]
        java += [f"--add-opens=java.base/{name}=ALL-UNNAMED" for name in ("java.lang", "java.nio", "java.util")]
        arguments = [str(port), slot, publication, table, str(location), str(self.place / "checkpoints")]
        errors = self.place / "errors.txt"
        with (
            errors.open("w") as err,
            subprocess.Popen(
                [*java, "-cp", f"{self.place}:{self.place}/lib/*", "FlinkCdc", *arguments],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=err, text=True,
            ) as process,
        ):  # fmt: skip
            yield Cluster(process, errors)


@dataclass(frozen=True, slots=True)
class Cluster:
    process: subprocess.Popen[str]
    errors: Path

    def drain(self, changes: int) -> float:
        """Seconds from the first change to the commit that has the last: the start of the job does not count."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{changes}\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        assert answer, f"Flink CDC ended with {self.errors.read_text()[-3000:]}"
        return float(answer)


def fetch(place: Path) -> FlinkCdc | str:
    """Flink CDC, or why it cannot be had."""
    return maven.build(place, _HERE / "pom.xml", _HERE / "FlinkCdc.java") or FlinkCdc(place)
