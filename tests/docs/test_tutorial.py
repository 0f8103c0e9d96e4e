"""The tutorial, followed to the letter: its programs and its commands run, and print what the page says."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest
from scripts.page import blocks, commands, shape

from lakefeed.app import cli

PAGE = Path(__file__).resolve().parents[2] / "docs" / "tutorial.md"


@pytest.mark.spark
@pytest.mark.usefixtures("spark")
def test_every_program_and_command_of_the_tutorial_does_what_the_page_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    listed, ran = [(block.language, block.code) for block in blocks(PAGE)], 0
    for index, (language, code) in enumerate(listed):
        capsys.readouterr()
        if language == "python" and ("duckdb" not in code or find_spec("duckdb")):
            # The tests share one JVM, which was started in another directory than the reader's.
            here = code.replace('load("lake/', f'load("{tmp_path}/lake/')
            exec(compile(here, "tutorial", "exec"), {})
            if (printed := capsys.readouterr().out) and "spark" not in code:
                assert shape(printed) == shape(listed[index + 1][1])
        for words, expected in commands(code):
            assert cli.execute(words) == 0
            said = capsys.readouterr()
            assert shape(said.err + said.out) == shape(expected), words
            ran += 1
    assert ran == 9
