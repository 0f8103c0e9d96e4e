"""Arguments and options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

ConfigFile = Annotated[Path, typer.Argument(metavar="FILE", help="The configuration file.", show_default=False)]
JsonFlag = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
