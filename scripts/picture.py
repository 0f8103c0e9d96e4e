"""Records a demo as a moving picture: ``python -m scripts.picture FILE.svg -- COMMAND…``, or ``make picture``.

The command runs in a terminal of its own. What it prints is followed as a terminal would, and each line of the screen
becomes a text of the picture that is visible while the line stood there. Time is the real one, except that a wait
longer than ``_LONGEST`` is cut to that. No package is needed, and any browser plays the file.
"""

from __future__ import annotations

import codecs
import fcntl
import html
import os
import pty
import re
import select
import struct
import sys
import termios
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

COLUMNS, ROWS = 92, 25
_SETTLED, _LONGEST, _AT_THE_END = 0.15, 2.0, 6.0
_WIDTH, _HEIGHT, _LEFT, _TOP = 8.0, 18.0, 16, 48
_SEQUENCE, _TORN = re.compile(r"\x1b\[([?\d;]*)([A-Za-z])"), re.compile(r"(\x1b(\[[?\d;]*)?)?\Z")


class Screen:
    """As much of a terminal as the demo uses: lines, carriage returns, moves upwards, erased lines. No colours."""

    def __init__(self) -> None:
        self._lines: list[list[str]] = [[]]
        self._row = self._column = 0

    def feed(self, text: str) -> None:
        at = 0
        while at < len(text):
            found = _SEQUENCE.match(text, at)
            if found is not None:
                self._control(found[1], found[2])
                at = found.end()
                continue
            self._character(text[at])
            at += 1

    def view(self) -> tuple[str, ...]:
        """The lines that are on the screen."""
        lines = ["".join(line).rstrip() for line in self._lines]
        while lines and not lines[-1]:
            lines.pop()
        return tuple(lines[-ROWS:])

    def _control(self, parameters: str, kind: str) -> None:
        number = int(parameters) if parameters.isdigit() else 1
        if kind == "A":
            self._row = max(0, self._row - number)
        elif kind == "K":
            line = self._lines[self._row]
            del line[0 if parameters == "2" else self._column :]

    def _character(self, one: str) -> None:
        if one == "\n" or (one.isprintable() and self._column == COLUMNS):
            self._row, self._column = self._row + 1, 0
            if self._row == len(self._lines):
                self._lines.append([])
        if one == "\r":
            self._column = 0
        elif one.isprintable():
            line = self._lines[self._row]
            line.extend(" " * (self._column + 1 - len(line)))
            line[self._column] = one
            self._column += 1


def record(command: Sequence[str]) -> Iterator[tuple[float, tuple[str, ...]]]:
    """Seconds since the beginning and the screen, each time that it has settled."""
    process, terminal = pty.fork()
    if process == 0:
        os.environ.update(TERM="xterm", COLUMNS=str(COLUMNS), LINES=str(ROWS))
        os.execvp(command[0], list(command))  # noqa: S606  # what the caller wants recorded
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    screen, begun, pending = Screen(), time.monotonic(), ""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    is_open, shown = True, tuple[str, ...]()
    while is_open:
        changed = None
        while select.select([terminal], [], [], _SETTLED if changed else None)[0]:
            changed = changed or time.monotonic()
            try:
                received = os.read(terminal, 65536)
            except OSError:  # what a terminal says at the end
                received = b""
            if not received:
                is_open = False
                break
            pending += decoder.decode(received)
            whole = len(pending) - len(_TORN.search(pending)[0])  # type: ignore[index]  # it always matches
            screen.feed(pending[:whole])
            pending = pending[whole:]
        if screen.view() != shown:
            shown = screen.view()
            yield (changed or time.monotonic()) - begun, shown
    _, code = os.waitpid(process, 0)
    if code:
        raise SystemExit(f"{' '.join(command)} ended with {os.waitstatus_to_exitcode(code)}")


def paced(frames: Sequence[tuple[float, tuple[str, ...]]]) -> list[tuple[float, tuple[str, ...]]]:
    """The frames with long waits cut."""
    at, before, result = 0.0, 0.0, []
    for when, screen in frames:
        at, before = at + min(when - before, _LONGEST), when
        result.append((at, screen))
    return result


def svg(frames: Sequence[tuple[float, tuple[str, ...]]], title: str) -> str:
    """The picture. Each line is one text for each stretch of time in which it stood unchanged."""
    total = frames[-1][0] + _AT_THE_END
    height = max(len(screen) for _, screen in frames)
    wide, high = _LEFT * 2 + COLUMNS * _WIDTH, _TOP + height * _HEIGHT + 12
    texts = []
    for row in range(height):
        begun, shown = 0.0, ""
        for at, screen in (*frames, (total, ())):
            now = screen[row] if row < len(screen) else ""
            if now == shown:
                continue
            if shown:
                texts.append(_text(row, shown, begun / total, at / total, total))
            begun, shown = at, now
    dots = "".join(
        f'<circle cx="{20 + 18 * index}" cy="18" r="5.5" fill="{colour}"/>'
        for index, colour in enumerate(("#ff5f57", "#febc2e", "#28c840"))
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide:g} {high:g}" role="img" '
        f'aria-label="{html.escape(title)}">\n'
        "<style>text{font:13.3px ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace;"
        "fill:#e6edf3;white-space:pre;visibility:hidden}</style>\n"
        f'<rect width="{wide:g}" height="{high:g}" rx="8" fill="#0d1117"/>{dots}\n' + "\n".join(texts) + "\n</svg>\n"
    )


def _text(row: int, shown: str, begin: float, end: float, total: float) -> str:
    indent = len(shown) - len(shown.lstrip(" "))
    line = shown.strip(" ")
    values, times = ["hidden", "visible", "hidden"], [0.0, begin, end]
    if begin <= 0:
        values, times = values[1:], times[1:]
    if end >= 1:
        values, times = values[:-1], times[:-1]
    return (
        f'<text x="{_LEFT + indent * _WIDTH:g}" y="{_TOP + row * _HEIGHT:g}" textLength="{len(line) * _WIDTH:g}">'
        f'{html.escape(line, quote=False)}<animate attributeName="visibility" calcMode="discrete" '
        f'dur="{total:.1f}s" repeatCount="indefinite" values="{";".join(values)}" '
        f'keyTimes="{";".join(f"{one:.4f}".rstrip("0").rstrip(".") or "0" for one in times)}"/></text>'
    )


def main(target: Path, command: Sequence[str]) -> None:
    frames = list(record(command))
    prompt = ("$ lakefeed demo",)
    cut = paced([(0.0, prompt), *((at + 0.8, (*prompt, *screen)[-ROWS:]) for at, screen in frames)])
    target.write_text(svg(cut, "lakefeed demo, recorded"), encoding="utf-8")
    size = target.stat().st_size
    sys.stdout.write(f"{target}: {len(frames)} screens in {frames[-1][0]:.0f} s, {size:,} bytes\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[3:])
