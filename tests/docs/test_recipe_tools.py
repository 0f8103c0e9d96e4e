"""The programs of docs/recipes.md with the tools that they need, each in an environment of its own: ``make recipes``.

Downloads some hundred megabytes. A tool gets the newest version that fits; what was run is in the report.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest
from scripts.page import ROOT, blocks

from lakefeed import Pipeline
from lakefeed.app.demo.shop import build_shop

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]

PAGE = blocks(ROOT / "docs" / "recipes.md")


def recipe(mark: str) -> str:
    (found,) = [block.code for block in PAGE if mark in block.code.splitlines()[0]]
    return found


class Tools:
    """An environment with Lakefeed and some packages, and a shop beside it that was synced once."""

    def __init__(self, directory: Path, *packages: str) -> None:
        self.work, self.bin = directory / "work", directory / "venv" / "bin"
        self.work.mkdir()
        build_shop(self.work / "shop.db", customers=5, products=5, orders=7)
        self.file = self.work / "shop.yaml"
        self.file.write_text("pipeline: shop\nsource: {kind: sqlite, path: shop.db}\nlake: {path: ./lake}\n")
        if shutil.which("uv"):
            self._do("uv", "venv", "--quiet", "--python", sys.executable, str(directory / "venv"))
            install = ["uv", "pip", "install", "--quiet", "--system-certs", "--python", str(self.bin / "python")]
        else:
            venv.create(directory / "venv", with_pip=True)
            install = [str(self.bin / "python"), "-m", "pip", "install", "--quiet"]
        self._do(*install, str(ROOT), *packages)

    def sync(self) -> None:
        with Pipeline.from_yaml(self.file) as pipeline:
            pipeline.sync_once()

    def run(self, *command: str, **variables: str) -> str:
        """With a command of the environment; what it prints."""
        return self._do(str(self.bin / command[0]), *command[1:], **variables)

    def _do(self, *command: str, **variables: str) -> str:
        environment = {**os.environ, "PATH": f"{self.bin}{os.pathsep}{os.environ['PATH']}", **variables}
        environment.pop("PYTHONPATH", None)
        done = subprocess.run(command, cwd=self.work, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout[-3000:]}\n{done.stderr[-5000:]}"
        return done.stdout + done.stderr


def test_pandas_polars_and_duckdb_read_the_tables(tmp_path: Path) -> None:
    tools = Tools(tmp_path, "pandas", "polars", "duckdb")
    tools.sync()
    said = tools.run("python", "-c", recipe("needs: pandas"))
    assert said.count("new") >= 3
    assert re.search(r"new\s+7", said)
    assert "7" in tools.run("python", "-c", recipe("needs: duckdb"))
    frames = """
from lakefeed import Pipeline
with Pipeline.from_yaml("shop.yaml") as pipeline:
    result, status = pipeline.sync_once(), pipeline.status()
print(list(result.to_pandas().columns), list(status.to_pandas()["table"]), status.to_pandas().loc[2, "rows"])
"""
    assert "['main.customers', 'main.order_items', 'main.orders', 'main.products'] 7" in tools.run(
        "python", "-c", frames
    )


def test_the_duckdb_program_of_the_tutorial_prints_what_the_page_says(tmp_path: Path) -> None:
    """docs/tutorial.md, step 7."""
    tools = Tools(tmp_path, "duckdb")
    tools.sync()
    page = blocks(ROOT / "docs" / "tutorial.md")
    (code,) = [block.code for block in page if "import duckdb" in block.code]
    query = code.replace(
        "product, count(*) AS lines, sum(price)", "product_id AS product, count(*) AS lines, sum(price_cents)"
    )
    assert "│ product │" in tools.run("python", "-c", query)


def test_the_notebook_is_executed(tmp_path: Path) -> None:
    tools = Tools(tmp_path, "pandas", "nbclient", "ipykernel")
    (tools.work / "first_look.ipynb").write_text((ROOT / "examples" / "first_look.ipynb").read_text())
    said = tools.run("python", "-c", """
import nbformat
from nbclient import NotebookClient
notebook = nbformat.read("first_look.ipynb", 4)
NotebookClient(notebook, timeout=300, kernel_name="python3").execute()
for cell in notebook.cells:
    for output in cell.get("outputs", []):
        print(output.get("text") or output["data"]["text/plain"])
""")  # fmt: skip
    assert "<CycleResult: " in said
    assert re.search(r"\|\s+new\|\s+7\|", said)


def test_dbt_builds_a_model_on_a_lake_table(tmp_path: Path) -> None:
    tools = Tools(tmp_path, "dbt-duckdb", "dbt-core<1.11")  # newer ones fetch a part from elsewhere than PyPI
    tools.sync()
    (tools.work / "dbt_project.yml").write_text("name: shop\nprofile: shop\nmodel-paths: [models]\n")
    (tools.work / "models").mkdir()
    for mark, file in (("profiles.yml", "profiles.yml"), ("sources.yml", "models/sources.yml"),
                       ("order_counts.sql", "models/order_counts.sql")):  # fmt: skip
        (tools.work / file).write_text(recipe(mark))
    tools.run("dbt", "run", "--profiles-dir", ".", DBT_SEND_ANONYMOUS_USAGE_STATS="false")
    query = "import duckdb; print(duckdb.connect('shop.duckdb').sql('SELECT * FROM order_counts').fetchall())"
    assert tools.run("python", "-c", query).strip() == "[('new', 7)]"


def test_dagster_materializes_the_asset(tmp_path: Path) -> None:
    tools = Tools(tmp_path, "dagster")
    (tools.work / "assets.py").write_text(recipe("needs: dagster").replace("/etc/lakefeed/shop.yaml", str(tools.file)))
    said = tools.run("python", "-c", """
import dagster, assets
done = dagster.materialize([assets.shop_lake])
(event,) = done.get_asset_materialization_events()
print(done.success, event.materialization.metadata["inserted"].value > 7)
""", DAGSTER_HOME=str(tools.work))  # fmt: skip
    assert "True True" in said


def test_airflow_runs_the_dag(tmp_path: Path) -> None:
    tools = Tools(tmp_path, "apache-airflow>=3")
    home = tools.work / "airflow"
    (home / "dags").mkdir(parents=True)
    program = recipe("needs: airflow").replace("/etc/lakefeed/shop.yaml", str(tools.file))
    (home / "dags" / "shop.py").write_text(program)
    settings = {"AIRFLOW_HOME": str(home), "AIRFLOW__CORE__LOAD_EXAMPLES": "False"}
    tools.run("airflow", "db", "migrate", **settings)
    said = tools.run("airflow", "dags", "test", "shop", **settings)
    assert "success" in said
    assert (tools.work / "lake" / "main" / "orders" / "_delta_log").is_dir()
