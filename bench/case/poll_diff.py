"""FullDiff: how long it takes to find a thousand deleted rows among all keys, and how that grows with the table."""

from __future__ import annotations

from pathlib import Path

from bench.bench import Bench, timed
from bench.report import Measure, Report, Verdict, speed_ratio, spread
from bench.workload import connected, settle, transaction
from lakefeed.capture.poll.source import FullDiff, SqlitePolling, TableRule
from lakefeed.change.table import TableId
from lakefeed.flow.pipeline import Pipeline
from lakefeed.lake.delta import Delta
from lakefeed.lake.spark.session import spark_session

DELETES = 1_000
SECONDS = 30.0
"""What "seconds" means for a million keys on the smallest machine that this is measured on."""


def run(bench: Bench) -> Report:
    spark = spark_session("lakefeed-bench")
    sizes = [bench.size(full=1_000_000, quick=2_000), bench.size(full=10_000_000, quick=4_000)]
    deletes = bench.size(full=DELETES, quick=20)
    repetitions = bench.size(full=3, quick=1)
    seconds: dict[int, list[float]] = {}
    for rows in sizes:
        bench.say(f"a table of {rows:,} rows")
        place = bench.scratch / str(rows)
        place.mkdir()
        database = _create(place / "keys.db", rows)
        source = SqlitePolling(database, rules={"keys": TableRule(deletes=FullDiff())})
        with Pipeline(source, Delta(spark, place / "lake"), name="bench") as pipeline:
            pipeline.sync_once()
            taken = []
            for repetition in range(repetitions + (0 if bench.quick else 1)):
                _delete(database, rows, deletes, repetition)
                taken.append(timed(lambda p=pipeline: _compare(p, deletes)))  # type: ignore[misc]
                bench.say(f"{rows:,} keys: {taken[-1]:.2f} s")
                pipeline.sync_once()
            seconds[rows] = taken[-repetitions:]  # the first one warms up
    small, large = (seconds[rows] for rows in sizes)
    growth = speed_ratio(f"{sizes[1] // sizes[0]} times the keys: times the seconds", small, large)
    return Report(
        what=f"All keys of a SQLite table are compared with a Delta table that has {deletes:,} rows more: chunks are "
        "read by Spark tasks, an anti-join finds the rows, and they are published for the capture to look up. In a "
        "warm session; the time is that of the whole comparison.",
        measures=tuple(
            Measure(
                f"{rows:,} keys, {deletes:,} deleted", "s", tuple(round(one, 3) for one in seconds[rows]), ours=True
            )
            for rows in sizes
        ),
        ratios=(growth,),
        verdicts=(
            Verdict(
                f"a million keys in less than {SECONDS:.0f} seconds", f"{spread(tuple(small))} s", max(small) < SECONDS
            ),
        ),
    )


def _compare(pipeline: Pipeline, deletes: int) -> None:
    result = pipeline.full_diff()[TableId("main", "keys")]
    assert (result.deleted, result.refused) == (deletes, None), result


def _create(path: Path, rows: int) -> Path:
    with connected(path) as connection:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("CREATE TABLE keys (id INTEGER PRIMARY KEY, updated_at INTEGER NOT NULL)")
        with transaction(connection):
            connection.execute(
                "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?)"
                " INSERT INTO keys SELECT i, 1700000000 FROM n",
                (rows,),
            )
        connection.execute("CREATE INDEX keys_updated ON keys (updated_at, id)")
        settle(connection)
    return path


def _delete(database: Path, rows: int, deletes: int, repetition: int) -> None:
    """Spread over the whole table, others each time."""
    step = rows // deletes
    with connected(database) as connection, transaction(connection):
        connection.executemany(
            "DELETE FROM keys WHERE id = ?", [(1 + place * step + repetition,) for place in range(deletes)]
        )
