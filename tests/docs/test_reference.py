"""The reference of configuration and commands names everything there is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pydantic import BaseModel

from lakefeed.app.cli import COMMANDS
from lakefeed.app.config import config_model
from lakefeed.capture.registry import SOURCES, source_config

DOCS = Path(__file__).resolve().parents[2] / "docs"
TEXT = (DOCS / "configuration.md").read_text()


def keys() -> list[str]:
    found = []
    for name, field in config_model().model_fields.items():
        section = field.annotation
        if name == "source":
            found += [f"source.{key}" for kind in SOURCES for key in source_config(kind).model_fields]
        elif isinstance(section, type) and issubclass(section, BaseModel):
            found += [f"{name}.{key}" for key in section.model_fields]
        else:
            found.append(name)
    return sorted(set(found))


@pytest.mark.parametrize("key", keys())
def test_every_key_is_in_the_table(key: str) -> None:
    assert f"\n| `{key}` |" in TEXT


def test_the_table_has_no_key_that_is_not_there() -> None:
    table = TEXT[: TEXT.index("# Commands")]
    assert sorted(re.findall(r"^\| `([a-z_.]+)` \|", table, re.MULTILINE)) == keys()


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_is_in_the_table(command: str) -> None:
    assert f"\n| `lakefeed {command} " in TEXT


@pytest.mark.parametrize("page", [DOCS.parent / "README.md", *sorted(DOCS.glob("*.md"))], ids=lambda page: page.name)
def test_commands_that_a_page_shows_exist(page: Path) -> None:
    shown = re.findall(r"(?:^|`|\$ )lakefeed ([a-z]+)", page.read_text(), re.MULTILINE)
    assert [name for name in shown if name not in COMMANDS] == []


@pytest.mark.parametrize("page", [DOCS.parent / "README.md", *sorted(DOCS.glob("*.md"))], ids=lambda page: page.name)
def test_links_lead_to_files_and_headings_that_are_there(page: Path) -> None:
    prose = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    for target in re.findall(r"\]\(([^)#:]*)(?:#[^)]*)?\)", prose):
        assert not target or (page.parent / target).exists(), target
    for file, anchor in re.findall(r"\]\(([^)#:]*)#([^)]*)\)", prose):
        text = (page.parent / file).read_text() if file else page.read_text()
        headings = [
            re.sub(r"[^\w\- ]", "", line).strip().lower() for line in re.findall(r"^#+ (.*)", text, re.MULTILINE)
        ]
        assert anchor in [heading.replace(" ", "-") for heading in headings], f"{file}#{anchor}"
