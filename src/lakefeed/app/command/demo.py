"""The demo command."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lakefeed.app.command.argument import JsonFlag


def demo(
    seconds: Annotated[float, typer.Option("--seconds", min=1, max=3600, help="How long to follow it live.")] = 15.0,
    directory: Annotated[
        Path, typer.Option("--directory", metavar="DIR", help="The directory of shop and lake; emptied first.")
    ] = Path("demo"),
    as_json: JsonFlag = False,
) -> int:
    """Replicate a small shop from SQLite into Delta tables, live, and prove that both are equal.

    Builds the shop, starts a process that inserts, updates and deletes all the time, replicates it as it goes, stops
    the writer and compares every table row by row. Exits 1 if one of them differs.
    """
    from lakefeed.app.demo.show import run_demo

    return run_demo(directory, seconds, as_json=as_json)
