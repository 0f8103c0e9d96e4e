"""What a command prints: sentences and tables for people, JSON objects for machines. Never both on stdout.

The result goes to stdout; progress, and errors for people, go to stderr.
"""

from __future__ import annotations

import json
import logging
import shlex
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import typer

from lakefeed import errors
from lakefeed.errors import LakefeedError

_quiet = False
_structured = False
_file: str | None = None


def be_quiet(quiet: bool) -> None:
    """Show no progress from now on (``--quiet``), or show it again."""
    global _quiet  # of the process, as its stderr is
    _quiet = quiet


def is_quiet() -> bool:
    return _quiet


def set_file(file: Path | None) -> None:
    """Set the configuration file that messages name, so that users can type the commands in them as printed."""
    global _file  # of the process, as its arguments are
    _file = None if file is None else shlex.quote(str(file))


def with_file(text: str) -> str:
    """A message with the user's configuration file in its commands, and without credentials that a library shows."""
    text = errors.without_signature(text)
    return text if _file is None else errors.with_file(text, _file)


def be_structured(structured: bool) -> None:
    """Write everything on stderr as JSON objects, one per line, from now on (``--log-format json``), or as text."""
    global _structured  # as above
    _structured = structured


def is_structured() -> bool:
    return _structured


class LogLines(logging.Handler):
    """Writes log lines in the same way as everything else on stderr, so that none breaks a progress bar."""

    def emit(self, record: logging.LogRecord) -> None:
        if _structured:
            extra = {"exception": logging.Formatter().formatException(record.exc_info)} if record.exc_info else {}
            show_event(record.getMessage(), {"level": record.levelname.lower(), "logger": record.name, **extra})
        else:
            show_note(self.format(record))


def show_event(message: str, fields: Mapping[str, Any] | None = None) -> None:
    """One log line as JSON: time, level, logger, message and ``fields``."""
    time = datetime.now(UTC).isoformat(timespec="milliseconds")
    line = {"time": time, "level": "info", "logger": "lakefeed", "message": message, **(fields or {})}
    typer.echo(errors.without_signature(json.dumps(line, ensure_ascii=False, default=str)), err=True)


def show_object(data: dict[str, Any]) -> None:
    """One JSON object on one line."""
    typer.echo(json.dumps(_with_file_names(data), ensure_ascii=False))


def _with_file_names(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _with_file_names(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_with_file_names(one) for one in value]
    return with_file(value) if isinstance(value, str) else value


def show_text(text: str) -> None:
    typer.echo(with_file(text))


def show_note(text: str) -> None:
    """Progress or an error, not the result: on stderr."""
    if _structured:
        show_event(with_file(text))
    else:
        typer.echo(with_file(text), err=True)


def show_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Columns as wide as their longest value. Numbers and their heads are aligned to the right; None is a dash."""
    lines = [list(columns)]
    for row in rows:
        texts = ["-" if value is None else f"{value:,}" if type(value) is int else str(value) for value in row]
        lines.append(texts)
    widths = [max(len(line[index]) for line in lines) for index in range(len(columns))]
    filled = [[line[index] for line in lines[1:] if line[index] != "-"] for index in range(len(columns))]
    numeric = [
        bool(cells) and all(cell.replace(",", "").replace(".", "", 1).isdigit() for cell in cells) for cells in filled
    ]
    for line in lines:
        cells = (
            text.rjust(width) if is_right else text.ljust(width)
            for text, width, is_right in zip(line, widths, numeric, strict=True)
        )
        typer.echo("  ".join(cells).rstrip())


def show_error(error: LakefeedError, *, as_json: bool, then: str = "") -> None:
    """The error and its remedy. ``then`` is what to do after that."""
    if as_json:
        show_object({"error": error.message, "remedy": error.remedy + then})
    elif _structured:
        failed = {"level": "error", "event": "failed", "error": type(error).__name__}
        show_event(with_file(error.message), {**failed, "remedy": with_file(error.remedy + then)})
    else:
        show_note(f"Error: {sentence(error.message)}\nRemedy: {error.remedy}{then}")


def sentence(text: str) -> str:
    """The text with a full stop, unless it ends otherwise."""
    return text if text.endswith(("?", "!")) else f"{text.rstrip('.')}."


def seconds_text(seconds: float | None) -> str:
    """``0.4 s``, ``3 min 20 s``: short, for people."""
    if seconds is None:
        return "unknown"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def bytes_text(count: int) -> str:
    """``512 bytes``, ``1.2 GiB``: short, for people."""
    size, unit = float(count), "bytes"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if size < 1024:
            break
        size, unit = size / 1024, larger
    return f"{count:,} bytes" if unit == "bytes" else f"{size:.1f} {unit}"


def counted(number: int, noun: str) -> str:
    """``1 table``, ``2 tables``."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
