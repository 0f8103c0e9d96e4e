"""Many PostgreSQL tables: preparing all of them, and the first transaction that touches each of them."""

from __future__ import annotations

import psycopg

from bench.bench import Bench, timed
from bench.pipeline import PIPELINE
from bench.report import Curve, Measure, Plot, Report, Verdict, number
from lakefeed.capture.base import ChangeCapture
from lakefeed.capture.postgres.source import Postgres
from lakefeed.change.table import TableId
from lakefeed.testing.server.postgres import PostgresServer, find_binaries

AIM_SECONDS = 5.0
_TABLES = """
DO $$ BEGIN FOR i IN 1..{count} LOOP
  EXECUTE format('CREATE TABLE t%s (id int PRIMARY KEY, a text NOT NULL, b numeric(12,2), c timestamptz, d bool)', i);
END LOOP; END $$"""
_ROWS = """
DO $$ BEGIN FOR i IN 1..{count} LOOP
  EXECUTE format('INSERT INTO t%s VALUES (1, ''a'', 1.5, now(), true)', i);
END LOOP; END $$"""


def run(bench: Bench) -> Report:
    counts = (5, 10) if bench.quick else (250, 500, 1_000)
    prepared, decoded = {}, {}
    for count in counts:
        prepared[count], decoded[count] = _measure(count)
        bench.say(f"{count} tables: prepared in {prepared[count]:.2f} s, decoded in {decoded[count]:.2f} s")
    most = counts[-1]
    return Report(
        what="So many PostgreSQL tables of five columns are prepared (published, the slot made), then one transaction "
        "writes a row to each of them, which is decoded up to its change set.",
        measures=tuple(
            Measure(f"{what}, {count} tables", "s", (round(seconds[count], 2),), ours=True)
            for what, seconds in (("prepared", prepared), ("first transaction decoded", decoded))
            for count in counts
        ),
        verdicts=tuple(
            Verdict(f"{most:,} tables {what} in {AIM_SECONDS:.0f} s", f"{number(one)} s", one < AIM_SECONDS)
            for what, one in (("prepared", prepared[most]), ("decoded", decoded[most]))
        ),
        plot=Plot(
            "tables",
            "seconds",
            tuple(
                Curve(what, tuple((count, round(seconds[count], 3)) for count in counts))
                for what, seconds in (("prepared", prepared), ("first transaction decoded", decoded))
            ),
        ),
    )


def _measure(count: int) -> tuple[float, float]:
    binaries = find_binaries()
    with PostgresServer.start(binaries[max(binaries)]) as server:
        capture = Postgres(server.dsn).bind(PIPELINE)
        capture.open()
        try:
            with psycopg.connect(server.dsn, autocommit=True) as writer:
                writer.execute(_TABLES.format(count=count).encode())
                tables = [TableId("public", f"t{one}") for one in range(1, count + 1)]
                prepared = timed(lambda: capture.prepare(tables))
                writer.execute(_ROWS.format(count=count).encode())
            return prepared, timed(lambda: _drain(capture, count))
        finally:
            capture.close()


def _drain(capture: ChangeCapture, count: int) -> None:
    rows = 0
    for change_set in capture.live(None, wait_seconds=1.0):
        rows += change_set.rows
        if rows >= count:
            return
