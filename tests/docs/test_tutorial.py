"""The tutorial, followed to the letter: its programs and its commands run, and print what the page says."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

import pytest

from lakefeed.app import cli

PAGE = Path(__file__).resolve().parents[2] / "docs" / "tutorial.md"
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
NUMBER = re.compile(r"\d[\d.,:@+-]*")


def shape(text: str) -> list[str]:
    """A text without its numbers and its spacing: those differ from run to run."""
    return [" ".join(NUMBER.sub("#", line).split()) for line in text.splitlines() if line.strip()]


def commands(block: str) -> list[tuple[list[str], str]]:
    """(words, output) of each `$ lakefeed …` in a block; other programs are left out."""
    parts = re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]
    return [
        (part.split("\n", 1)[0].split()[1:], part.split("\n", 1)[1]) for part in parts if part.startswith("lakefeed")
    ]


@pytest.mark.spark
@pytest.mark.usefixtures("spark")
def test_every_program_and_command_of_the_tutorial_does_what_the_page_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    blocks, ran = BLOCK.findall(PAGE.read_text()), 0
    for index, (language, code) in enumerate(blocks):
        capsys.readouterr()
        if language == "python" and ("duckdb" not in code or find_spec("duckdb")):
            # The tests share one JVM, which was started in another directory than the reader's.
            here = code.replace('load("lake/', f'load("{tmp_path}/lake/')
            exec(compile(here, "tutorial", "exec"), {})
            if (printed := capsys.readouterr().out) and "spark" not in code:
                assert shape(printed) == shape(blocks[index + 1][1])
        for words, expected in commands(code):
            assert cli.execute(words) == 0
            said = capsys.readouterr()
            assert shape(said.err + said.out) == shape(expected), words
            ran += 1
    assert ran == 9
