"""The first copy of a table: Lakefeed's load against Spark's JDBC reader, both into Delta."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from bench.backlog import content, table_in
from bench.bench import Bench, Contestant, in_turns, timed
from bench.pipeline import open_session
from bench.report import Report, rates, speed_ratio
from bench.workload import TABLE, connected, create
from lakefeed.lake.delta import Delta
from lakefeed.lake.spark.jars import remembered_jars
from lakefeed.lake.spark.session import spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DRIVER = "org.xerial:sqlite-jdbc:3.50.3.0"
_TYPES = "id BIGINT, owner STRING, balance BIGINT, score DOUBLE, note STRING, tick BIGINT"
_OURS, _JDBC, _SELECT = "Lakefeed", "plain Spark JDBC", "SELECT * to nowhere"
_FETCH = 10_000
_FIRST_SESSION = "from lakefeed.lake.spark.session import spark_session; spark_session().stop()"


@dataclass(frozen=True, slots=True)
class Snapshot:
    spark: SparkSession
    scratch: Path
    rows: int
    numbers: Iterator[int] = field(default_factory=itertools.count)

    @property
    def database(self) -> Path:
        return self.scratch / "shop.db"

    def place(self, name: str) -> Path:
        """An empty lake; the last of that name goes."""
        for old in self.scratch.glob(f"{name}-*"):
            shutil.rmtree(old)
        return self.scratch / f"{name}-{next(self.numbers)}"

    def ours(self) -> float:
        """From planning to the last commit. Installing the triggers belongs to it, on a database that has none."""
        root = self.place("ours")
        self._without_triggers()

        def work() -> None:
            session = open_session(self.database, Delta(self.spark, root))
            try:
                session.copies.load()
            finally:
                session.close()

        return timed(work)

    def jdbc(self) -> float:
        from pyspark.sql import functions as F  # noqa: N812

        root = self.place("jdbc")
        options = {
            "url": f"jdbc:sqlite:{self.database}",
            "driver": "org.sqlite.JDBC",
            "dbtable": TABLE,
            "customSchema": _TYPES,
            "fetchsize": str(_FETCH),
            "partitionColumn": "id",
            "lowerBound": "1",
            "upperBound": str(self.rows + 1),
            "numPartitions": str(2 * (os.cpu_count() or 1)),
        }

        def work() -> None:
            rows = self.spark.read.format("jdbc").options(**options).load()
            # The driver reports TEXT as varchar(0), which Delta would enforce: the columns' metadata has to go.
            plain = rows.select(*(F.col(name).alias(name, metadata={"comment": name}) for name in rows.columns))
            plain.write.format("delta").mode("append").save(str(table_in(root)))

        return timed(work)

    def select(self) -> float:
        with connected(self.database) as connection:

            def work() -> None:
                cursor = connection.execute(f"SELECT * FROM {TABLE}")
                while cursor.fetchmany(_FETCH):
                    pass

            return timed(work)

    def _without_triggers(self) -> None:
        for suffix in ("", "-wal", "-shm"):
            Path(f"{self.database}{suffix}").unlink(missing_ok=True)
        shutil.copyfile(self.scratch / "template.db", self.database)


def run(bench: Bench) -> Report:
    rows = bench.size(full=1_000_000, quick=5_000)
    if not remembered_jars():  # else Spark would be asked for the driver's jar instead of Delta's
        subprocess.run([sys.executable, "-c", _FIRST_SESSION], check=True)
    spark = spark_session("lakefeed-bench", settings={"spark.jars.packages": DRIVER})
    bench.say(f"a table of {rows:,} rows")
    create(bench.scratch / "template.db", rows)
    snapshot = Snapshot(spark, bench.scratch, rows)
    contestants: dict[str, Contestant] = {_OURS: snapshot.ours, _JDBC: snapshot.jdbc, _SELECT: snapshot.select}
    bench.say("warm-up")
    in_turns(bench, contestants, bench.size(full=1, quick=0))
    seconds = in_turns(bench, contestants, bench.size(full=5, quick=1))
    ours, theirs = (content(next(bench.scratch.glob(f"{name}-*"))) for name in ("ours", "jdbc"))
    assert ours.equals(theirs), "the two copies differ"
    return Report(
        what=f"A SQLite table of {rows:,} rows and 6 columns into a new Delta table: Lakefeed's load, with everything "
        "that belongs to it (triggers, plan, Spark tasks that read chunks and write files, commits); against "
        "`spark.read.format('jdbc')` with a partition column, appended to Delta, in the same warm session. The copies "
        "are compared row by row.",
        measures=tuple(rates(name, "rows/s", rows, taken, ours=name == _OURS) for name, taken in seconds.items()),
        ratios=(
            speed_ratio("Lakefeed / plain Spark JDBC", seconds[_OURS], seconds[_JDBC]),
            speed_ratio("Lakefeed / SELECT alone, one core", seconds[_OURS], seconds[_SELECT]),
        ),
        notes=(
            (
                f"JDBC: {DRIVER}, {2 * (os.cpu_count() or 1)} partitions by key range, fetchsize {_FETCH:,}, and the "
                "columns' types given by hand: by itself Spark reads "
                "SQLite's INTEGER as 32 bits and its TEXT as varchar(0)."
            ),
        ),
    )
