"""Every code block of the documentation runs, or says why it does not.

Without a mark above it a YAML block is read as a configuration, and a Python block runs beside a small shop in a lake.
``<!-- run by: FILE -->`` names the test that runs a block; ``<!-- not run: … -->`` says why none does. Python that
does not run is compiled.
"""

from __future__ import annotations

import re
import shlex
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from scripts.page import PAGES, ROOT, Block, blocks, shape

import lakefeed
from lakefeed import Append, Mirror, Pipeline, Temporal
from lakefeed.app.build import build_pipeline
from lakefeed.app.cli import execute
from lakefeed.app.config import load_config

WHOLE = {
    "docs/tutorial.md": "tests/docs/test_tutorial.py",
    "docs/first-postgres.md": "tests/docs/test_first_postgres.py",
    "docs/recipes.md": "tests/docs/test_recipes.py",
    "docs/adding-a-source.md": "tests/toy/test_toy.py",
    "docs/api.md": "tests/docs/test_api.py",  # signatures, generated from the code
}
"""Pages that have a test of their own."""
ALL = [block for page in PAGES for block in blocks(page)]
UNMARKED = [block for block in ALL if block.mark is None and str(block.page.relative_to(ROOT)) not in WHOLE]
BASE: dict[str, Any] = {
    "pipeline": "shop",
    "source": {"kind": "sqlite", "path": "shop.db"},
    "lake": {"path": "./lake"},
}


def named(block: Block) -> str:
    return block.where


@pytest.mark.parametrize("block", ALL, ids=named)
def test_every_block_is_accounted_for(block: Block) -> None:
    page = str(block.page.relative_to(ROOT))
    if block.mark == "run by":
        assert block.page.name in (ROOT / block.reason).read_text(), f"{block.reason} does not read {page}"
    elif block.mark == "not run":
        assert len(block.reason) > 5
        for file in re.findall(r"\b(?:tests|src|docs)/[\w/.-]+\.(?:py|md)", block.reason):
            assert (ROOT / file).is_file(), file
    else:
        assert block.mark is None, f"'{block.mark}' means nothing"
        assert page in WHOLE or block.language in ("yaml", "python"), "no test runs it: say which, or why none does"
    if page in WHOLE:
        assert block.page.name in (ROOT / WHOLE[page]).read_text()
    if block.language == "python" and page != "docs/api.md" and "…" not in block.code:
        compile(block.code, block.where, "exec")


def test_no_block_is_overlooked() -> None:
    """A fence that is indented, or longer, is seen by readers and not by these tests."""
    for page in PAGES:
        text = page.read_text()
        assert len(re.findall(r"^\s*(?:```|~~~)", text, re.MULTILINE)) == 2 * len(blocks(page)), page.name


@pytest.mark.parametrize("block", [one for one in UNMARKED if one.language == "yaml"], ids=named)
def test_a_configuration_of_the_documentation_is_one(
    block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a block leaves out is added; what it has makes a pipeline that could be opened."""
    for name in re.findall(r"\$\{(\w+)\}", block.code):
        monkeypatch.setenv(name, "a secret that is long enough")
    given = yaml.safe_load(block.code)
    whole = BASE | given | {"lake": BASE["lake"] | given.get("lake", {})}
    (tmp_path / whole["source"].get("path", "shop.db")).touch()
    file = tmp_path / "shop.yaml"
    file.write_text(yaml.safe_dump(whole))
    build_pipeline(load_config(file))


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with a database, its configuration, and a lake with a temporal table of orders beside the mirrors."""
    monkeypatch.chdir(tmp_path)
    with closing(sqlite3.connect("shop.db")) as connection, connection:
        connection.execute("CREATE TABLE orders (order_id INTEGER PRIMARY KEY, name TEXT)")
        connection.execute("CREATE TABLE lines (id INTEGER PRIMARY KEY, order_id INTEGER)")
        connection.execute("INSERT INTO orders VALUES (1, 'a'), (2, 'b')")
        connection.execute("INSERT INTO lines VALUES (1, 1), (2, 2)")
    configuration = BASE | {"lake": {"path": "./lake", "tables": [{"match": "orders", "mode": "temporal",
                                                                   "name": "orders_history"}]}}  # fmt: skip
    (tmp_path / "shop.yaml").write_text(yaml.safe_dump(configuration))
    return tmp_path


@pytest.mark.spark
def test_the_programs_of_the_documentation_run(shop: Path, spark: Any, capsys: pytest.CaptureFixture[str]) -> None:
    with Pipeline.from_yaml(shop / "shop.yaml", spark=spark) as pipeline:
        pipeline.sync_once()
    given = {"Append": Append, "Mirror": Mirror, "Temporal": Temporal, "UTC": UTC, "datetime": datetime,
             "lakefeed": lakefeed, "spark": spark}  # fmt: skip
    ran = []
    for block in (one for one in UNMARKED if one.language == "python"):
        # The tests share one JVM, which was started in another directory than the reader's.
        code = re.sub(r'"((?:lake|out)(?:[./][\w./]*)?)"', lambda match: f'"{shop}/{match[1]}"', block.code)
        if "as_of" in code:  # of a table with history
            code = re.sub(r"/(?:main|public)/orders", "/main/orders_history", code)
            code = code.replace('valid_from="from", valid_to="until"', 'valid_from="valid_from", valid_to="valid_to"')
        code = code.replace(".start()", ".trigger(availableNow=True).start()")  # what is there, and not for ever
        names = dict(given)
        exec(compile(code, block.where, "exec"), names)
        for query in spark.streams.active:
            assert query.awaitTermination(120)
        ran.append(block.page.name)
    assert sorted(set(ran)) == ["README.md", "modes.md", "reading.md"]
    assert "<CycleResult" in capsys.readouterr().out


def test_the_program_without_spark_prints_what_runtime_md_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """docs/runtime.md: the program, then its session, command by command."""
    program, session = [one for one in blocks(ROOT / "docs" / "runtime.md") if one.mark == "run by"]
    (tmp_path / "to_lines.py").write_text(program.code)
    run: dict[str, Callable[[list[str]], str]] = {
        "sqlite3": lambda words: _sqlite(tmp_path / words[0], words[1]),
        "python": lambda words: (
            subprocess.run([sys.executable, *words], cwd=tmp_path, capture_output=True, text=True, check=True).stdout
        ),
        "cat": lambda words: (tmp_path / words[0]).read_text(),
    }
    for part in re.split(r"^\$ ", session.code, flags=re.MULTILINE)[1:]:
        line, _, announced = part.partition("\n")
        tool, *words = shlex.split(line)
        assert shape(run[tool](words)) == shape(announced), line


def _sqlite(file: Path, script: str) -> str:
    with closing(sqlite3.connect(file)) as connection:
        connection.executescript(script)
    return ""


def test_a_table_whose_directory_is_removed_is_copied_again_as_operations_md_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (block,) = [one for one in blocks(ROOT / "docs" / "operations.md") if one.mark == "run by"]
    monkeypatch.chdir(tmp_path)
    _sqlite(tmp_path / "shop.db", "CREATE TABLE customers (id INTEGER PRIMARY KEY); INSERT INTO customers VALUES (1);")
    (tmp_path / "shop.yaml").write_text(yaml.safe_dump(BASE))
    assert execute(["sync", "shop.yaml"]) == 0
    remove, sync = block.code.splitlines()
    subprocess.run(remove.split(), check=True)
    assert execute(sync.split()[1:]) == 0
    assert "main.customers: copied 1 row" in capsys.readouterr().err
    assert lakefeed.to_arrow("lake", "main.customers").num_rows == 1
