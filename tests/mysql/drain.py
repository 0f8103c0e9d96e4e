"""``python -m tests.mysql.drain KIND DSN DIRECTORY ROWS``: a process that takes ROWS changes into a journal.

Prints JSON: the rows, the change sets that had any, the seconds, and the most memory that the process ever had.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from pathlib import Path

from lakefeed.capture.mysql.columns import Flavour
from lakefeed.capture.mysql.source import Mysql
from lakefeed.journal.journal import Journal

_LONGEST_SECONDS = 600


def main(kind: Flavour, dsn: str, directory: Path, wanted: int) -> None:
    began, rows, sets = time.monotonic(), 0, 0
    capture = Mysql(dsn, kind=kind, tables=["shop.*"], state=directory).bind("play")
    capture.open()
    with Journal.open(directory / "journal") as journal:
        for change_set in capture.live(None, wait_seconds=1.0):
            if change_set.end != change_set.start:
                journal.append(change_set)
                capture.confirm(change_set.end)
                rows, sets = rows + change_set.rows, sets + (change_set.rows > 0)
            if rows >= wanted:
                break
            if time.monotonic() - began > _LONGEST_SECONDS:
                raise SystemExit(f"{rows} of {wanted} rows after {_LONGEST_SECONDS} s")
    capture.close()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps({"rows": rows, "change_sets": sets, "seconds": time.monotonic() - began, "peak_bytes": peak}))


if __name__ == "__main__":
    flavour: Flavour = "mariadb" if sys.argv[1] == "mariadb" else "mysql"
    main(flavour, sys.argv[2], Path(sys.argv[3]), int(sys.argv[4]))
