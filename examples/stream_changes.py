"""Stream one table's changes out of a pipeline's journal: to the screen, or into Parquet files exactly once.

Try it on the demo's lake (`lakefeed demo` leaves one in ./demo):

    python examples/stream_changes.py --lake demo/lake --pipeline shop --table main.orders --once
    python examples/stream_changes.py --lake demo/lake --pipeline shop --table main.orders --output out/orders

Stop it with Ctrl-C and start it again: with --output it goes on where it stopped, and no change is written twice.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

import lakefeed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Stream one table's changes out of a Lakefeed journal.")
    parser.add_argument("--lake", required=True, help="the lake's path")
    parser.add_argument("--pipeline", required=True, help="the pipeline's name")
    parser.add_argument("--table", required=True, help="as in main.orders")
    parser.add_argument("--start", default="earliest", help="a change set number, earliest or latest")
    parser.add_argument("--output", type=Path, help="a directory for Parquet files; without it, the screen")
    parser.add_argument("--max-change-sets", default="64", help="for one micro-batch")
    parser.add_argument("--once", action="store_true", help="stop after one micro-batch")
    return parser.parse_args()


def changes(options: argparse.Namespace) -> DataFrame:
    """A streaming DataFrame: the table's own columns, and what happened to each row."""
    spark = lakefeed.spark_session("stream-changes")
    lakefeed.register_source(spark)
    return (
        spark.readStream.format("lakefeed")
        .option("path", options.lake)
        .option("pipeline", options.pipeline)
        .option("table", options.table)
        .option("start", options.start)
        .option("max_change_sets", options.max_change_sets)
        .load()
    )


def started(stream: DataFrame, options: argparse.Namespace) -> StreamingQuery:
    writer = stream.writeStream.trigger(availableNow=True) if options.once else stream.writeStream
    if options.output is None:
        return writer.format("console").option("truncate", "false").start()
    # The checkpoint is the query's memory: what it has read. The files are listed in the output's own log, so a
    # micro-batch that is run again after a crash replaces itself.
    return (
        writer.format("parquet")
        .option("path", str(options.output))
        .option("checkpointLocation", str(options.output.with_name(options.output.name + ".checkpoint")))
        .start()
    )


def main() -> None:
    options = arguments()
    query = started(changes(options), options)
    try:
        query.awaitTermination()
    except KeyboardInterrupt:
        query.stop()


if __name__ == "__main__":
    main()
