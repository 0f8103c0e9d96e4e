"""See ``harness``."""

import sys

from tests.faults.harness import main

sys.exit(main(sys.argv[1:]))
