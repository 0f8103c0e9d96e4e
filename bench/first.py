"""The first merges of a process: ``python -m bench.first PLACE FORMAT SECONDS WARM_UP REPORT``.

Follows the database in PLACE, whose copy is in the lake already. The first change comes SECONDS after the start, others
one after the other; the seconds of each merge are left in REPORT.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path

from bench.pipeline import FORMATS, PIPELINE, Progress, lake_of
from bench.workload import connected
from lakefeed.capture.sqlite.source import Sqlite
from lakefeed.flow.options import PipelineOptions
from lakefeed.flow.pipeline import Pipeline
from lakefeed.lake.spark.session import spark_session

MERGES = 16


def main(place: str, fmt: str, seconds: str, warm_up: str, report: str) -> None:
    database, progress = Path(place) / "shop.db", Progress()
    lake = lake_of(spark_session("lakefeed-bench", formats=FORMATS), fmt, Path(place) / "lake")
    options = PipelineOptions(interval_seconds=0.05, warm_up=warm_up == "yes")
    with Pipeline(Sqlite(database), lake, name=PIPELINE, options=options, listener=progress) as pipeline:
        running = threading.Thread(target=pipeline.run)
        running.start()
        time.sleep(float(seconds))
        for number in range(MERGES):
            with connected(database) as connection:
                connection.execute("UPDATE account SET score = score + 1 WHERE id <= 500")
            deadline = time.monotonic() + 120
            while len(progress.cycles) <= number and time.monotonic() < deadline:
                time.sleep(0.01)
        pipeline.stop()
        running.join()
    Path(report).write_text(json.dumps([cycle.seconds for cycle in progress.cycles]))


if __name__ == "__main__":
    main(*sys.argv[1:])
