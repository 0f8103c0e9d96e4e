"""Commands on lake tables: rebuild, diff, maintain."""

from __future__ import annotations

from typing import Annotated

import typer

from lakefeed.app.command.argument import ConfigFile, JsonFlag
from lakefeed.app.output import show_note, show_object, show_table, show_text

FOUND_SOMETHING, FAILURE = 1, 3


def rebuild(
    file: ConfigFile,
    table: Annotated[str, typer.Argument(metavar="TABLE", help="The lake table: schema.table.")],
    from_source: Annotated[
        bool, typer.Option("--from-source", help="Copy the table from the source at the next sync instead.")
    ] = False,
    as_json: JsonFlag = False,
) -> int:
    """Rebuild a lake table as the configuration says, for example in another mode. Reads nothing from the source.

    The rebuilt table starts from the oldest state of the source table that the lake still has and from which the
    journal has all changes; the next sync brings it up to date. First stop the process that runs the pipeline.
    """
    from lakefeed.app.build import build_pipeline
    from lakefeed.app.config import load_config
    from lakefeed.app.progress import progress

    config = load_config(file)
    with progress(quiet=as_json) as listener:
        made = build_pipeline(config, listener=listener).rebuild(table, from_source=from_source)
    if as_json:
        donor = str(made.donor) if made.donor else None
        show_object({"table": str(made.table), "from_change_set": made.start, "from_table": donor, "rows": made.rows})
    elif made.donor is None:
        show_text(f"The next sync copies {made.table} from the source: lakefeed sync {file}")
    else:
        show_text(f"{made.table}: {made.rows:,} rows of {made.donor} as of change set {made.start}.")
        show_text(f"The next sync applies the change sets after that: lakefeed sync {file}")
    return 0


def diff(
    file: ConfigFile,
    tables: Annotated[
        list[str] | None, typer.Argument(metavar="TABLE", help="schema.table; without any, all polled tables.")
    ] = None,
    max_deleted_share: Annotated[
        float | None,
        typer.Option(
            "--max-deleted-share", min=0, max=1, help="Accept for this run that this share of the lake's rows is gone."
        ),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue an interrupted comparison, as of when it began.")
    ] = False,
    as_json: JsonFlag = False,
) -> int:
    """Find deleted rows of polled tables: compare all keys of the source with the lake, on Spark.

    A running process does this by itself if a rule has full_diff. The running process, or the next sync, applies the
    findings. Exit code 1: more rows are missing than allowed, so the command published none.
    """
    from lakefeed.app.build import build_pipeline
    from lakefeed.app.config import load_config
    from lakefeed.app.progress import progress
    from lakefeed.flow.full_diff import refusal_remedy

    config = load_config(file)
    with progress(quiet=as_json) as listener:
        pipeline = build_pipeline(config, listener=listener)
        results = pipeline.full_diff(*(tables or ()), max_deleted_share=max_deleted_share, resume=resume)
        found = sorted(results.items())
    if as_json:
        show_object(
            {
                str(table): {
                    "source_rows": result.source_rows,
                    "lake_rows": result.lake_rows,
                    "deleted": result.deleted,
                    "changed": result.changed,
                    "refused": result.refused,
                    "seconds": round(result.seconds, 3),
                }
                for table, result in found
            }
        )
    else:
        rows = [(table, one.source_rows, one.lake_rows, one.deleted, one.changed) for table, one in found]
        show_table(("table", "in the source", "in the lake", "deleted", "different"), rows)
        for _, result in found:
            if result.refused is not None:
                show_note(f"Error: {result.refused}\nRemedy: {refusal_remedy(result)}")
        if any(result.published for _, result in found):
            show_text(f"The running process applies them; without one, the next sync does: lakefeed sync {file}")
    return FOUND_SOMETHING if any(result.refused for _, result in found) else 0


def maintain(file: ConfigFile, as_json: JsonFlag = False) -> int:
    """Pack small files of the lake tables, and remove files that no kept version needs.

    `lakefeed run` does this by itself from time to time. Use the command if cron calls `lakefeed sync`. It may run
    beside a running process.
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
                show_note(f"Error: {table}: {result.error}\nRemedy: lakefeed maintain {file}")
    return FAILURE if any(result.error for _, result in found) else 0
