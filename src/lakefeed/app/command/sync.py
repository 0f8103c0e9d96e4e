"""Commands that move data: sync (one cycle) and run (until told to stop)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from lakefeed.app.command.argument import ConfigFile, JsonFlag
from lakefeed.app.output import seconds_text, show_note, show_object, show_table, show_text

if TYPE_CHECKING:
    from lakefeed.flow.pipeline import Pipeline
    from lakefeed.flow.result import CycleResult

FAILURE = 3


def sync(file: ConfigFile, as_json: JsonFlag = False) -> int:
    """One cycle: copy what the lake does not have yet, capture all that is there, apply it, exit."""
    from lakefeed.app.build import build_pipeline
    from lakefeed.app.config import load_config
    from lakefeed.app.progress import progress

    config = load_config(file)
    with progress(quiet=as_json) as listener, build_pipeline(config, listener=listener) as pipeline:
        result = pipeline.sync_once()
    if as_json:
        show_object(cycle_object(result, pipeline))
    else:
        _show_cycle(result, pipeline)
    return FAILURE if result.errors else 0


def cycle_object(result: CycleResult, pipeline: Pipeline) -> dict[str, Any]:
    """What ``sync --json`` prints. ``tables`` has every table; what stops one is added to it."""
    tables: dict[str, dict[str, Any]] = {
        str(table): {"applied": status.applied, "rows": status.rows}
        for table, status in sorted(pipeline.status().tables.items())
    }
    for table, failed in result.errors.items():
        tables.setdefault(str(table), {"applied": None, "rows": None})
        tables[str(table)] |= {"error": failed.error, "remedy": failed.remedy}
    counts = result.counts
    return {
        "change_sets": result.change_sets,
        "rows": {"inserted": counts.inserted, "updated": counts.updated, "deleted": counts.deleted},
        "tables": tables,
        "last_position": result.last_position.encode() if result.last_position else None,
        "last_seq": result.last_seq,
        "seconds": round(result.seconds, 3),
    }


def _show_cycle(result: CycleResult, pipeline: Pipeline) -> None:
    tables = sorted(pipeline.status().tables.items())
    if tables:
        show_table(("table", "applied", "rows"), [(name, table.applied, table.rows) for name, table in tables])
        show_text("")
    counts = result.counts
    what = f"{counts.inserted:,} inserted, {counts.updated:,} updated, {counts.deleted:,} deleted"
    show_text(f"{what if counts.total else 'Nothing new'}, in {seconds_text(result.seconds)}.")
    for table, failed in result.errors.items():
        show_note(f"Error: {table}: {failed.error}\nRemedy: {failed.remedy}")


def run(
    file: ConfigFile,
    for_seconds: Annotated[
        float | None, typer.Option("--for", min=0, metavar="SECONDS", help="Stop by itself after so long.")
    ] = None,
    as_json: JsonFlag = False,
) -> int:
    """Sync continuously until SIGINT (Ctrl-C) or SIGTERM, which stop it cleanly.

    With --json one object is printed for each cycle that brought something.
    """
    from lakefeed.app.build import build_pipeline
    from lakefeed.app.config import load_config
    from lakefeed.app.progress import CycleObjects, progress
    from lakefeed.app.supervise import Supervised

    config = load_config(file)
    with progress(quiet=as_json) as listener:
        if not as_json:
            show_note(f"Running {config.pipeline}; Ctrl-C stops it.")
        objects = CycleObjects(lambda result: show_object(cycle_object(result, pipeline)))
        with build_pipeline(config, listener=objects if as_json else listener) as pipeline:
            Supervised(pipeline).run(for_seconds)
    if not as_json:
        show_text("Stopped cleanly.")
    return 0
