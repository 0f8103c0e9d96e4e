"""rebuild: a lake table made anew, from the retained journal or from the source."""

from __future__ import annotations

from typing import Annotated

import typer

from lakefeed.app.command.argument import ConfigFile, JsonFlag
from lakefeed.app.output import show_object, show_text


def rebuild(
    file: ConfigFile,
    table: Annotated[str, typer.Argument(metavar="TABLE", help="The lake table: schema.table.")],
    from_source: Annotated[
        bool, typer.Option("--from-source", help="Copy it from the source at the next sync instead.")
    ] = False,
    as_json: JsonFlag = False,
) -> int:
    """Make a lake table anew as the configuration says, in another mode for example, without touching the source.

    It starts from the oldest state of the source table that the lake still has and the journal leads on from. Run it
    while no process runs the pipeline; the next sync brings the table up to date.
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
        show_text(f"{made.table} is copied from the source by the next sync.")
    else:
        show_text(f"{made.table}: {made.rows:,} rows of {made.donor} as of change set {made.start}.")
        show_text("The next sync applies the change sets after that.")
    return 0
