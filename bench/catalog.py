"""The benchmarks, in the order of the data flow."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module

from bench.bench import Bench
from bench.report import Report


@dataclass(frozen=True, slots=True)
class Case:
    """A benchmark: its title, and whether its process is held to one core. The code is imported when it runs."""

    name: str
    title: str
    one_core: bool = False

    def run(self, bench: Bench) -> Report:
        run: Callable[[Bench], Report] = import_module(f"bench.case.{self.name}").run
        return run(bench)


CASES = {
    case.name: case
    for case in (
        Case("writer", "What capture costs the application", one_core=True),
        Case("drain", "SQLite's change log into the journal", one_core=True),
        Case("snapshot", "A SQLite table into Delta"),
        Case("pg_snapshot", "A PostgreSQL table into Delta"),
        Case("pg_stream", "PostgreSQL's log into the journal"),
        Case("pg_tables", "A thousand PostgreSQL tables"),
        Case("thousand", "A thousand PostgreSQL tables in one pipeline"),
        Case("thousand_sqlite", "A thousand SQLite tables in one pipeline"),
        Case("mysql_snapshot", "A MySQL table into Delta"),
        Case("mysql_stream", "MySQL's log into the journal"),
        Case("mariadb_stream", "MariaDB's log into the journal"),
        Case("poll_snapshot", "Tables by polling into Delta"),
        Case("poll_diff", "Deleted rows found by comparing all keys"),
        Case("merge", "Changes into a Delta table"),
        Case("cost", "A batch of changes, by mode and format"),
        Case("marks", "Few changes all over a large table"),
        Case("hundred", "Few changes all over a hundred million rows"),
        Case("digest", "Digests by the source, or from its rows"),
        Case("repair", "A thousand damaged rows found and repaired"),
        Case("folding", "What deletion vectors cost readers"),
        Case("growth", "Ten times the rows; inserts that cannot collide"),
        Case("tables", "One, ten and fifty tables"),
        Case("start", "The first merge after a start"),
        Case("pg_lake", "PostgreSQL's log into a mirror"),
        Case("journal", "What the journal costs"),
        Case("idle", "Nothing new"),
        Case("idle_run", "A running pipeline with nothing to do"),
        Case("freshness", "From the source's commit to the lake"),
        Case("current", "From the source's commit to a query"),
        Case("endurance", "Five minutes at a steady rate"),
        Case("memory", "Memory while changes pass"),
    )
}
