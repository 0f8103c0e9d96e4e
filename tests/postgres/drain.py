"""``python -m tests.postgres.drain DSN DIRECTORY ROWS``: a process that takes ROWS changes into a journal.

Prints JSON: the rows, the change sets that had any, the seconds, and the most memory that the process ever had, before
the first change (``start_bytes``) and in the end (``peak_bytes``).
"""

from __future__ import annotations

import json
import resource
import sys
import time
from pathlib import Path

from tests.postgres.rows import opened

from lakefeed.capture.postgres.source import Postgres
from lakefeed.journal.journal import Journal

_LONGEST_SECONDS = 600


def peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main(dsn: str, directory: Path, wanted: int) -> None:
    start, began, rows, sets = peak_bytes(), time.monotonic(), 0, 0
    with opened(Postgres(dsn)) as capture, Journal.open(directory) as journal:
        for change_set in capture.live(None, wait_seconds=1.0):
            if change_set.end != change_set.start:
                journal.append(change_set)
                capture.confirm(change_set.end)
                rows, sets = rows + change_set.rows, sets + (change_set.rows > 0)
            if rows >= wanted:
                break
            if time.monotonic() - began > _LONGEST_SECONDS:
                raise SystemExit(f"{rows} of {wanted} rows after {_LONGEST_SECONDS} s")
    seconds = time.monotonic() - began
    result = {"rows": rows, "change_sets": sets, "seconds": seconds, "start_bytes": start, "peak_bytes": peak_bytes()}
    print(json.dumps(result))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
