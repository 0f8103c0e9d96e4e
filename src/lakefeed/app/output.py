"""What a command prints: sentences and tables for people, JSON objects for machines. Never both on stdout.

The result goes to stdout, everything about the way there (progress, errors for people) to stderr.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Sequence
from typing import Any

import typer

from lakefeed.errors import LakefeedError

_quiet = False


def be_quiet(quiet: bool) -> None:
    """Whether the commands show no progress from now on: what ``--quiet`` says."""
    global _quiet  # of the process, as its stderr is
    _quiet = quiet


def is_quiet() -> bool:
    return _quiet


class LogLines(logging.Handler):
    """Log lines by the same way as everything else on stderr: a line never lands in the middle of a progress bar."""

    def emit(self, record: logging.LogRecord) -> None:
        show_note(self.format(record))


def show_object(data: dict[str, Any]) -> None:
    """One JSON object on one line."""
    typer.echo(json.dumps(data, ensure_ascii=False))


def show_text(text: str) -> None:
    typer.echo(text)


def show_note(text: str) -> None:
    """Something about the way there, not the result."""
    typer.echo(text, err=True)


def show_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Columns as wide as their longest value. Numbers to the right; None is a dash."""
    lines = [list(columns)]
    for row in rows:
        texts = ["-" if value is None else f"{value:,}" if type(value) is int else str(value) for value in row]
        lines.append(texts)
    widths = [max(len(line[index]) for line in lines) for index in range(len(columns))]
    for line in lines:
        cells = (
            text.rjust(width) if text.replace(",", "").replace(".", "", 1).isdigit() else text.ljust(width)
            for text, width in zip(line, widths, strict=True)
        )
        typer.echo("  ".join(cells).rstrip())


def show_error(error: LakefeedError, *, as_json: bool, then: str = "") -> None:
    """What is wrong and what to do about it. ``then`` is what to do after that."""
    if as_json:
        show_object({"error": error.message, "remedy": error.remedy + then})
    else:
        show_note(f"Error: {error.message.rstrip('.')}.\nRemedy: {error.remedy}{then}")


def seconds_text(seconds: float | None) -> str:
    """``0.4 s``, ``3 min 20 s``: short, for people."""
    if seconds is None:
        return "unknown"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def counted(number: int, noun: str) -> str:
    """``1 table``, ``2 tables``."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
