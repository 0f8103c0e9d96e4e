"""100,000 changes into a Delta table of a million rows: Lakefeed's lake side against the plain Spark way."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from bench.backlog import ID, Backlog, backlog, content, table_in
from bench.bench import Bench, Contestant, in_turns, timed
from bench.report import Report, Verdict, rates, speed_ratio, spread
from lakefeed.change.batch import OP, SEQ, Operation
from lakefeed.lake.spark.session import spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TARGET = 1.0
_SPARK_DEFAULTS = {"spark.sql.adaptive.enabled": "true", "spark.sql.shuffle.partitions": "200"}
_OURS, _SAME, _DEFAULT = "Lakefeed, from the journal", "plain MERGE, same session", "plain MERGE, Spark's defaults"


def run(bench: Bench) -> Report:
    rows, changes = bench.size(full=1_000_000, quick=5_000), bench.size(full=100_000, quick=1_000)
    made = backlog(bench, spark_session("lakefeed-bench"), rows, changes)
    try:
        made.session.capture.drain()
        batch = _batch(made)
        contestants: dict[str, Contestant] = {
            _OURS: partial(_ours, made),
            _SAME: partial(_plain, made, batch, {}, "same"),
            _DEFAULT: partial(_plain, made, batch, _SPARK_DEFAULTS, "default"),
        }
        bench.say("warm-up")
        in_turns(bench, contestants, bench.size(full=1, quick=0))
        seconds = in_turns(bench, contestants, bench.size(full=5, quick=1))
        assert content(bench.scratch / "ours").equals(content(bench.scratch / "same")), "the two ways disagree"
    finally:
        made.session.close()
    ratio = speed_ratio("Lakefeed / plain MERGE, same session", seconds[_OURS], seconds[_SAME])
    return Report(
        what=f"{changes:,} changes (60 % updates, 30 % inserts, 10 % deletes, some keys several times) are applied to "
        f"a Delta table of {rows:,} rows and 6 columns. Lakefeed reads its journal, collapses and merges, finds and "
        "records what it applied. The plain way is what a foreachBatch function does: the same changes as one Parquet "
        "file, row_number over the key to keep the last change, MERGE. All on identical copies, in one warm JVM; the "
        "results are compared row by row.",
        measures=tuple(rates(name, "changes/s", changes, taken, ours=name == _OURS) for name, taken in seconds.items()),
        ratios=(ratio, speed_ratio("Lakefeed / plain MERGE, Spark's defaults", seconds[_OURS], seconds[_DEFAULT])),
        verdicts=(
            Verdict(
                "as fast as the plain MERGE or faster (ratio of speeds 1 or more)",
                spread(ratio.values),
                ratio.median >= TARGET,
            ),
        ),
        notes=(
            (
                "Settings of a session that Lakefeed builds, and that the first plain way has too: adaptive execution "
                "off, as many shuffle partitions as cores, few partitions for Delta's snapshot, parallel garbage "
                "collector. Tables have no deletion vectors."
            ),
            (
                "Lakefeed alone sets `spark.databricks.delta.merge.materializeSource` to none, which is safe because "
                "its source is immutable files in a total order."
            ),
            "The second plain way has adaptive execution and 200 shuffle partitions, as Spark has by default.",
        ),
    )


def _ours(made: Backlog) -> float:
    engine = made.engine(made.copy("ours"), made.session.journal)
    seconds = timed(engine.sync_once)
    assert engine.status().lag == 0, "not everything was applied"
    return seconds


def _batch(made: Backlog) -> Path:
    """The journal's changes as a streaming batch would have them: one Parquet file with an operation and an order."""
    journal = made.session.journal
    segments = journal.window(ID, 0, journal.head).segments
    table = pa.concat_tables([pq.read_table(segment.path, partitioning=None) for segment in segments])
    deleted = pc.equal(table[OP], pa.scalar(int(Operation.DELETE), pa.int8()))
    own = table.select([name for name in table.column_names if not name.startswith("_lakefeed_")])
    path = made.scratch / "batch.parquet"
    pq.write_table(own.append_column("deleted", deleted).append_column("seq", table[SEQ]), path)
    return path


def _plain(made: Backlog, batch: Path, settings: dict[str, str], name: str) -> float:
    root = made.copy(name)
    session = made.spark.newSession()
    for key, value in settings.items():
        session.conf.set(key, value)
    return timed(partial(plain_merge, session, batch, f"delta.`{table_in(root)}`"))


def plain_merge(session: SparkSession, batch: Path, table: str) -> None:
    """What people write in foreachBatch."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F  # noqa: N812

    changes = session.read.parquet(str(batch))
    newest_first = Window.partitionBy("id").orderBy(F.col("seq").desc())
    last = changes.withColumn("place", F.row_number().over(newest_first)).where("place = 1").drop("place", "seq")
    last.createOrReplaceTempView("changes")
    names = [name for name in last.columns if name != "deleted"]
    updates = ", ".join(f"t.{name} = s.{name}" for name in names)
    values = ", ".join(f"s.{name}" for name in names)
    session.sql(
        f"MERGE INTO {table} AS t USING changes AS s ON t.id = s.id "
        f"WHEN MATCHED AND s.deleted THEN DELETE WHEN MATCHED THEN UPDATE SET {updates} "
        f"WHEN NOT MATCHED AND NOT s.deleted THEN INSERT ({', '.join(names)}) VALUES ({values})"
    )
