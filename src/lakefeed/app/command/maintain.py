"""maintenance: pack small files and remove old ones, now."""

from __future__ import annotations

from lakefeed.app.command.argument import ConfigFile, JsonFlag
from lakefeed.app.output import show_note, show_object, show_table

FAILURE = 3


def maintain(file: ConfigFile, as_json: JsonFlag = False) -> int:
    """Pack small files of the lake tables and remove those that nobody needs any more.

    A running process does it by itself from time to time; this is for `lakefeed sync` from cron. Both may run at once.
    """
    from lakefeed.app.build import build_pipeline
    from lakefeed.app.config import load_config

    found = sorted(build_pipeline(load_config(file)).maintain().items())
    if as_json:
        show_object(
            {
                str(table): {
                    "files_before": result.files_before,
                    "files_after": result.files_after,
                    "removed": result.removed,
                    "error": result.error,
                }
                for table, result in found
            }
        )
    else:
        rows = [(table, result.files_before, result.files_after, result.removed) for table, result in found]
        show_table(("table", "files", "packed to", "removed"), rows)
        for table, result in found:
            if result.error:
                show_note(f"Error: {table}: {result.error}\nRemedy: It changes nothing; run it again.")
    return FAILURE if any(result.error for _, result in found) else 0
