"""`make storm`."""

from __future__ import annotations

import sys

from tests.storm.storm import main

sys.exit(main())
