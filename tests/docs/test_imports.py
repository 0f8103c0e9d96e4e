"""What the documentation imports is public: a reader may rely on it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import lakefeed

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
SEAMS = {"adding-a-source.md"}
"""Pages for authors of Lakefeed itself: they name the modules that a new source is written in."""
SHIPPED = "lakefeed.testing"
"""Contract suites and scripted captures, which are there to be imported by module."""


def imported(code: str) -> Iterator[tuple[str, str]]:
    """(module, name) of everything that a code block imports from lakefeed; the name is empty for ``import module``."""
    for module, listed in re.findall(r"from (lakefeed[\w.]*) import (\([^)]*\)|[^\n]*)", code):
        for name in re.findall(r"\w+", re.sub(r"#.*| as \w+", "", listed)):
            yield module, name
    for module in re.findall(r"^\s*import (lakefeed[\w.]*)", code, re.MULTILINE):
        yield module, ""
    if re.search(r"^\s*import lakefeed\s*$", code, re.MULTILINE):
        for name in re.findall(r"\blakefeed\.(\w+)", code):
            yield "lakefeed", name


def private(code: str) -> list[str]:
    return [
        f"{module} {name}".strip()
        for module, name in imported(code)
        if not (module == "lakefeed" and (name in lakefeed.__all__ or not name))
        and not (module == SHIPPED or module.startswith(f"{SHIPPED}."))
    ]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_code_blocks_import_public_names_alone(page: Path) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
    assert page.name in SEAMS or [name for block in blocks for name in private(block)] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_sentence_names_no_private_module_to_import(page: Path) -> None:
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    found = re.findall(r"`from (lakefeed\.[\w.]+) import", text)
    assert page.name in SEAMS or [name for name in found if not name.startswith(SHIPPED)] == []


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("from lakefeed.lake.spark.session import spark_session", ["lakefeed.lake.spark.session spark_session"]),
        ("from lakefeed import Delta, Nothing", ["lakefeed Nothing"]),
        ("from lakefeed import (\n    Delta,\n    Hidden,  # why\n)", ["lakefeed Hidden"]),
        ("import lakefeed.flow.pipeline", ["lakefeed.flow.pipeline"]),
        ("import lakefeed\nlakefeed.read_at(1)\nlakefeed.secret()", ["lakefeed secret"]),
        ("from lakefeed.testing.scripted import ScriptedCapture", []),
        ("from lakefeed import Delta as D, Pipeline", []),
    ],
)
def test_the_search_finds_what_is_private(code: str, expected: list[str]) -> None:
    assert private(code) == expected


def test_requirement_points_are_linked_where_they_are_cited() -> None:
    """A citation such as C28 means nothing to a reader without the page that lists the points."""
    for page in PAGES:
        text = re.sub(r"^```.*?^```|`[^`]*`", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
        cited = re.findall(r"(?<![\w/-])(?:[A-E]\d{1,2}|T\d{2})(?![\w-])", text)
        assert not cited or page.name == "points.md" or "points.md" in text, f"{page.name} cites {cited}"
