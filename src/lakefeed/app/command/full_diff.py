"""diff: compare polled tables with the lake in full, now."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from lakefeed.app.command.argument import ConfigFile, JsonFlag
from lakefeed.app.output import show_note, show_object, show_table, show_text

if TYPE_CHECKING:
    from lakefeed.lake.full_diff import FullDiffResult

FOUND_SOMETHING = 1


def diff(
    file: ConfigFile,
    tables: Annotated[
        list[str] | None, typer.Argument(metavar="[TABLE]...", help="schema.table; without any, all of them.")
    ] = None,
    max_deleted_share: Annotated[
        float | None,
        typer.Option("--max-deleted-share", min=0, max=1, help="How much may be missing, for this time."),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with a comparison that was interrupted, as of when it began.")
    ] = False,
    as_json: JsonFlag = False,
) -> int:
    """Find deleted rows by comparing all keys of the source with the lake, for tables that are polled.

    A running process does it by itself where a rule says full_diff. What is found is delivered by the running process,
    or by the next sync. Exit code 1: a comparison was refused, because too much is missing.
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
        show_object({str(table): _object(result) for table, result in found})
    else:
        rows = [(table, one.source_rows, one.lake_rows, one.deleted, one.changed) for table, one in found]
        show_table(("table", "in the source", "in the lake", "deleted", "different"), rows)
        for _, result in found:
            if result.refused is not None:
                show_note(f"Error: {result.refused}\nRemedy: {refusal_remedy(result)}")
        if any(result.published for _, result in found):
            show_text("The running process delivers them, or the next sync.")
    return FOUND_SOMETHING if any(result.refused for _, result in found) else 0


def _object(result: FullDiffResult) -> dict[str, Any]:
    return {
        "source_rows": result.source_rows,
        "lake_rows": result.lake_rows,
        "deleted": result.deleted,
        "changed": result.changed,
        "refused": result.refused,
        "seconds": round(result.seconds, 3),
    }
