"""The first copy of a server's table into Delta, by Lakefeed and by Spark's JDBC reader: what benchmarks share."""

from __future__ import annotations

import itertools
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
from deltalake import DeltaTable

from bench.backlog import read
from bench.bench import timed
from bench.pipeline import PIPELINE
from lakefeed.capture.base import Source
from lakefeed.flow.options import PipelineOptions
from lakefeed.flow.report.listener import Listener
from lakefeed.flow.run_loop import OpenPipeline
from lakefeed.lake.delta import Delta
from lakefeed.lake.spark.jars import remembered_jars
from lakefeed.lake.spark.session import spark_session
from lakefeed.storage.location import storage_at

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_FIRST_SESSION = "from lakefeed.lake.spark.session import spark_session; spark_session().stop()"


@dataclass(frozen=True, slots=True)
class Copying:
    """New Delta tables below ``scratch``. Both ways work in one warm session."""

    spark: SparkSession
    scratch: Path
    numbers: Iterator[int] = field(default_factory=itertools.count)

    @classmethod
    def start(cls, scratch: Path, driver: str) -> Copying:
        """``driver`` is the JDBC driver's jar, by its coordinates."""
        if not remembered_jars():  # else Spark would be asked for the driver's jar instead of Delta's
            subprocess.run([sys.executable, "-c", _FIRST_SESSION], check=True)
        return cls(spark_session("lakefeed-bench", settings={"spark.jars.packages": driver}), scratch)

    def place(self, name: str) -> Path:
        """An empty lake; the last of that name goes."""
        for old in self.scratch.glob(f"{name}-*"):
            shutil.rmtree(old)
        return self.scratch / f"{name}-{next(self.numbers)}"

    def ours(self, source: Source) -> float:
        """Everything: what is made in the source, plan, Spark tasks, commits."""
        lake = Delta(self.spark, self.place("ours"))

        def work() -> None:
            root, capture = Path(lake.path) / "_lakefeed" / PIPELINE, source.bind(PIPELINE)
            capture.keep_state(storage_at(root))
            session = OpenPipeline(capture, lake.bind(PIPELINE), root, PipelineOptions(), Listener())
            try:
                session.copies.load()
            finally:
                session.close()

        return timed(work)

    def jdbc(self, options: Mapping[str, str], rows: int, partitions: int) -> float:
        """The keys ``id`` are 1 to ``rows``."""
        root = self.place("jdbc")
        ranges = {"partitionColumn": "id", "lowerBound": "1", "upperBound": str(rows), "numPartitions": str(partitions)}

        def work() -> None:
            found = self.spark.read.format("jdbc").options(**{**options, **ranges}).load()
            found.write.format("delta").mode("append").save(str(root))

        return timed(work)

    def equal(self, types: Mapping[str, pa.DataType]) -> bool:
        """The two copies, row by row, in these types where they differ by intent."""
        ours, theirs = (self._content(name, types) for name in ("ours", "jdbc"))
        return bool(ours.equals(theirs))

    def _content(self, name: str, types: Mapping[str, pa.DataType]) -> pa.Table:
        place = next(next(self.scratch.glob(f"{name}-*")).rglob("_delta_log")).parent
        rows = read(DeltaTable(str(place))).sort_by("id").combine_chunks().replace_schema_metadata(None)
        return rows.cast(pa.schema([(one.name, types.get(one.name, one.type)) for one in rows.schema]))
