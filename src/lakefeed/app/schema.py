"""``python -m lakefeed.app.schema FILE`` writes the configuration's JSON schema; ``make schema`` calls it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from lakefeed.app.config import json_schema


def schema_text() -> str:
    """The file's exact content."""
    return json.dumps(json_schema(), indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(schema_text(), encoding="utf-8")
