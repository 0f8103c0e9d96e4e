"""Pages of the documentation as programs: their code blocks, the commands in them, and what those should print."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGES = (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md")))
_BLOCK = re.compile(r"^(?:<!-- ([a-z ]+): (.*?) -->\n)?```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_NUMBER = re.compile(r"\d+ (?:min|h) \d+(?= (?:s|min)\b)|\d[\d.,:@+-]*")
"""A number, or all but the unit of a time in two parts."""


@dataclass(frozen=True, slots=True)
class Block:
    """One code block. ``mark`` and ``reason`` are of the comment above it: ``<!-- not run: why -->``."""

    page: Path
    line: int
    mark: str | None
    reason: str
    language: str
    code: str

    @property
    def where(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    return [
        Block(page, text.count("\n", 0, found.start()) + 1, found[1], found[2] or "", found[3], found[4])
        for found in _BLOCK.finditer(text)
    ]


def commands(block: str) -> Iterator[tuple[list[str], str]]:
    """(words after ``lakefeed``, output) of each ``$ lakefeed …`` in a block; other programs are left out."""
    for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        line, _, output = part.partition("\n")
        if line.startswith("lakefeed "):
            yield line.split()[1:], output


def shape(text: str) -> list[str]:
    """A text without its numbers, its spacing and the start of Spark, which may run already: those differ from run to
    run."""
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("Starting Spark …")]
    return [" ".join(_NUMBER.sub("#", line).split()) for line in lines]
