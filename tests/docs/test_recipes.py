"""docs/recipes.md: programs that need nothing but Lakefeed run, the others compile; ``make recipes`` runs those."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from lakefeed import Pipeline
from lakefeed.app.demo.shop import build_shop

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "recipes.md").read_text()
PROGRAMS = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
NEEDS = re.compile(r"# needs: (\w+)")


def needed(program: str) -> str | None:
    found = NEEDS.match(program)
    return found[1] if found else None


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    build_shop(tmp_path / "shop.db", customers=5, products=5, orders=7)
    file = tmp_path / "shop.yaml"
    file.write_text("pipeline: shop\nsource: {kind: sqlite, path: shop.db}\nlake: {path: ./lake}\n")
    return file


def test_every_recipe_compiles_and_says_what_it_needs() -> None:
    for program in PROGRAMS:
        compile(program, "recipe", "exec")
    assert {needed(program) for program in PROGRAMS} == {None, "duckdb", "pandas", "spark", "airflow", "dagster"}
    for block in re.findall(r"^```yaml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL):
        yaml.safe_load(block)


def test_recipes_that_need_nothing_else_run(shop: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Pipeline.from_yaml(shop) as pipeline:
        pipeline.sync_once()
    (program,) = [program for program in PROGRAMS if needed(program) is None]
    exec(compile(program, "recipe", "exec"), {})
    assert capsys.readouterr().out.startswith("7 [")


@pytest.mark.spark
def test_the_notebook_runs(shop: Path, spark: object, capsys: pytest.CaptureFixture[str]) -> None:
    (program,) = [program for program in PROGRAMS if needed(program) == "spark"]
    # The tests share one JVM, which was started in another directory than the reader's.
    exec(compile(program.replace('"lake"', f'"{shop.parent}/lake"'), "recipe", "exec"), {})
    said = capsys.readouterr().out
    assert "<CycleResult: " in said
    assert "|       7|" in said
