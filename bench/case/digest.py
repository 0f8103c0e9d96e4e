"""What digests of a table's rows cost PostgreSQL: computed there in SQL, or from the binary rows that it sends."""

from __future__ import annotations

from dataclasses import replace

import psycopg

from bench.bench import Bench, Contestant, in_turns, timed
from bench.postgres import COLUMNS, WIDE, Workload, workload
from bench.report import Ratio, Report, rates, speed_ratio
from bench.usage import Meter

_SENT, _HASHED, _MD5 = "rows sent (COPY binary)", "hashtextextended(row as text)", "md5(row as text)"
_SQL = {
    _HASHED: "SELECT id % 64, count(*), sum(hashtextextended(t::text, 0)) FROM {table} t GROUP BY 1",
    _MD5: "SELECT id % 64, count(*), sum(('x' || left(md5(t::text), 16))::bit(64)::bigint::numeric) "
    "FROM {table} t GROUP BY 1",
}


def run(bench: Bench) -> Report:
    rows = bench.size(full=1_000_000, quick=3_000)
    with workload(rows) as source:
        meter = Meter(source.server.pid)
        contestants: dict[str, Contestant] = {_SENT: lambda: _sent(source)}
        contestants |= {name: lambda name=name: _summed(source, name) for name in _SQL}  # type: ignore[misc]
        watched = {name: meter.on(name, one) for name, one in contestants.items()}
        in_turns(bench, contestants, bench.size(full=1, quick=0))  # warms up
        seconds = in_turns(bench, watched, bench.size(full=5, quick=1))
        measures = meter.measures((_SENT,))
        server = {one.name: one.median for one in measures if one.name.endswith("CPU of the server")}
        report = Report(
            what=f"A PostgreSQL table of {rows:,} rows and {COLUMNS} columns: all rows sent in binary form, from which "
            "Lakefeed computes digests beside the database; and digests of the rows' text, summed in 64 buckets by the "
            "database itself. A limit for both: nothing is compared.",
            measures=(
                *(rates(name, "rows/s", rows, taken, ours=name == _SENT) for name, taken in seconds.items()),
                *measures,
            ),
            ratios=(
                *(speed_ratio(f"{_SENT} / {name}", seconds[_SENT], seconds[name]) for name in _SQL),
                *(
                    Ratio(
                        f"CPU of the server: {name} / {_SENT}",
                        (round(server[f"{name}: CPU of the server"] / server[f"{_SENT}: CPU of the server"], 2),),
                    )
                    for name in _SQL
                    if server.get(f"{_SENT}: CPU of the server")
                ),
            ),
        )
        return replace(report, notes=(*report.notes, source.versions))


def _sent(source: Workload) -> float:
    with psycopg.connect(source.dsn, autocommit=True) as connection, connection.cursor() as cursor:

        def work() -> None:
            with cursor.copy(f"COPY {WIDE} TO STDOUT (FORMAT binary)".encode()) as copy:
                while copy.read():
                    pass

        return timed(work)


def _summed(source: Workload, name: str) -> float:
    with psycopg.connect(source.dsn, autocommit=True) as connection:
        connection.execute("SET max_parallel_workers_per_gather = 0")
        return timed(lambda: connection.execute(_SQL[name].format(table=WIDE).encode()).fetchall())
