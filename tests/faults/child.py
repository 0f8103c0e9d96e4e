"""``python child.py FILE READY``: ``lakefeed run FILE`` in a process whose JVM is there already. It makes the file
READY then, and begins once its standard input ends: so whoever kills it need not wait for a JVM each time."""

from __future__ import annotations

import sys
from pathlib import Path

from lakefeed.app.build import session_of
from lakefeed.app.cli import main
from lakefeed.app.config import load_config
from lakefeed.flow import lake_side

if __name__ == "__main__":
    file, ready = map(Path, sys.argv[1:])
    lake_side.TRIM_EVERY = 2  # as in ``harness.short_pauses``
    session_of(load_config(file))().range(1).count()
    ready.touch()
    sys.stdin.read()
    sys.argv = ["lakefeed", "run", str(file), "--for", "300"]
    main()
