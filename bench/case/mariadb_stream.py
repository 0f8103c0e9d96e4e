"""W2: the same out of MariaDB."""

from __future__ import annotations

from bench.bench import Bench
from bench.case.mysql_stream import measured
from bench.report import Report


def run(bench: Bench) -> Report:
    return measured(bench, "mariadb", "MariaDB")
