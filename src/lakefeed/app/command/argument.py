"""Arguments and options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lakefeed.app.output import set_file


def _remember(file: Path) -> Path:
    set_file(file)
    return file


ConfigFile = Annotated[
    Path, typer.Argument(metavar="FILE", help="The configuration file.", show_default=False, callback=_remember)
]
ConfigFiles = Annotated[
    list[Path],
    typer.Argument(metavar="FILE", help="Configuration files, or directories of them.", show_default=False),
]
JsonFlag = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
