"""How many functions one UPDATE of PostgreSQL passes through on its way into a Delta file.

Counted are distinct functions and methods of the package that are entered below one of the three steps that carry a
change: the capture's next change set, its append to the journal, its application to the table, also in a thread that
they start. Attributes (properties, operators, constructors) are no steps. The pipeline has run before, so that what
happens only at a start is not part of the way; nor is what only watches (status, trim, maintenance).
"""

from __future__ import annotations

import inspect
import sys
import threading
from pathlib import Path
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from deltalake import DeltaTable
from tests.postgres.conftest import new_database

import lakefeed
from lakefeed import Delta, Pipeline, Postgres
from lakefeed.testing.server.postgres import PostgresServer, find_binaries

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MOST = 90
"""206 before the reshape, counted in the same way; the bar is 90."""
_ROOT = str(Path(lakefeed.__file__).parent)
_STEPS = ("._change_sets", ".live", "Journal.append", "Table.apply", "run_job.<locals>.work")
_BESIDE = ("flow/report/recorded.py",)
"""What is done after a sync, for others, with functions that are on the way, too."""
_NOT_CALLS = ("<genexpr>", "<listcomp>", "<dictcomp>", "<setcomp>", "<lambda>", "<module>")


class Calls:
    """The functions of the package that are entered inside the block, by whichever thread."""

    def __init__(self) -> None:
        self.codes: set[CodeType] = set()

    def __enter__(self) -> Calls:
        threading.setprofile(self._note)  # for threads that begin inside the block
        sys.setprofile(self._note)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)
        threading.setprofile(None)

    def names(self) -> list[str]:
        named = {f"{Path(code.co_filename).relative_to(_ROOT)}:{code.co_qualname}" for code in self.codes}
        return sorted(name for name in named if not name.endswith(_NOT_CALLS) and not _is_attribute(name))

    def _note(self, frame: FrameType, event: str, _: Any) -> None:
        if event != "call" or not frame.f_code.co_filename.startswith(_ROOT):
            return
        callers, caller = list[CodeType](), frame.f_back
        while caller is not None:
            callers.append(caller.f_code)
            caller = caller.f_back
        if any(code.co_filename.endswith(_BESIDE) for code in callers):
            return
        steps = (
            code.co_filename.startswith(_ROOT) and code.co_qualname.endswith(_STEPS)
            for code in [frame.f_code, *callers]
        )
        if any(steps) or any(code in self.codes for code in callers):
            self.codes.add(frame.f_code)


def _is_attribute(name: str) -> bool:
    """Whether ``file:Class.name`` is a property, an operator or a constructor."""
    file, _, qualified = name.partition(":")
    owner: Any = sys.modules[f"lakefeed.{file.removesuffix('.py').replace('/', '.')}"]
    for part in qualified.split("."):
        owner = inspect.getattr_static(owner, part, None)
    return name.endswith("__") or isinstance(owner, property)


@pytest.mark.spark
def test_an_update_reaches_its_delta_file_through_few_functions(tmp_path: Path, spark: SparkSession) -> None:
    with (
        PostgresServer.start(max(find_binaries().items())[1]) as server,
        new_database(server) as dsn,
        psycopg.connect(dsn, autocommit=True) as writer,
        Pipeline(Postgres(dsn), Delta(spark, str(tmp_path)), name="path") as pipeline,
    ):
        writer.execute("CREATE TABLE item (id int PRIMARY KEY, name text)")
        writer.execute("INSERT INTO item SELECT i, 'name ' || i FROM generate_series(1, 100) AS i")
        pipeline.sync_once()
        writer.execute("UPDATE item SET name = 'x' WHERE id = 7")
        pipeline.sync_once()
        writer.execute("UPDATE item SET name = 'y' WHERE id = 8")
        with Calls() as calls:
            pipeline.sync_once()
        lake = DeltaTable(str(tmp_path / "public" / "item")).to_pyarrow_table().to_pylist()
    assert [row["name"] for row in lake if row["id"] == 8] == ["y"], "the UPDATE went the whole way"
    names = calls.names()
    print(f"{len(names)} functions in {len({name.partition(':')[0] for name in names})} files:", *names, sep="\n  ")
    assert len(names) <= MOST
