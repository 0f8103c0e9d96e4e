"""What a person meets in a notebook: a pipeline from its file, results that can be read, errors that help."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

import lakefeed
from lakefeed import Append, ConfigError, Delta, Iceberg, LakeError, LakefeedError, Pipeline, Sqlite
from lakefeed.errors import SourceSetupError, SparkSetupError, in_python


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    with closing(sqlite3.connect(tmp_path / "s.db")) as connection, connection:
        connection.execute("CREATE TABLE items (id INTEGER PRIMARY KEY, name TEXT)")
        connection.execute("INSERT INTO items VALUES (1, 'a'), (2, 'b')")
    file = tmp_path / "shop.yaml"
    file.write_text("pipeline: shop\nsource: {kind: sqlite, path: s.db}\nlake: {path: ./lake}\n")
    return file


def test_a_pipeline_from_its_file_and_what_it_says(shop: Path) -> None:
    with Pipeline.from_yaml(shop) as pipeline:
        assert repr(pipeline) == f"<Pipeline shop, state in {shop.parent / 'lake' / '_lakefeed' / 'shop'}>"
        first = pipeline.sync_once()
        assert repr(first).startswith("<CycleResult: 2 inserted, 0 updated, 0 deleted in ")
        by_name = cast("dict[Any, Any]", first.tables)
        assert by_name["main.items"] is by_name["items"]
        assert by_name["items"].counts.inserted == 2
        with pytest.raises(KeyError, match=r"nope; there are main\.items"):
            by_name["nope"]
        assert first.to_dict()["tables"]["main.items"]["inserted"] == 2
        assert json.loads(json.dumps(first.to_dict())) == first.to_dict()
        assert repr(pipeline.sync_once()).startswith("<CycleResult: nothing new in ")
        status = pipeline.status()
        assert (status.verdict, status.reason) == ("idle", "every table has every change there is")
        assert repr(status) == (
            "<PipelineStatus: idle, every table has every change there is\n  main.items: live, 2 rows>"
        )
        assert cast("dict[Any, Any]", status.tables)["items"].rows == 2
        assert json.loads(json.dumps(status.to_dict()))["tables"]["main.items"]["state"] == "live"
    closed = pipeline.status()
    assert (closed.verdict, closed.reason) == ("stopped", "no process runs it; every table has every change there is")


def test_the_rows_can_be_read_without_spark(shop: Path) -> None:
    with Pipeline.from_yaml(shop) as pipeline:
        pipeline.sync_once()
    rows = lakefeed.to_arrow(shop.parent / "lake", "main.items")
    assert sorted(rows.to_pylist(), key=lambda row: row["id"]) == [{"id": 1, "name": "a"}, {"id": 2, "name": "b"}]
    with pytest.raises(LakeError, match=r"there is no table main\.nope") as missing:
        lakefeed.to_arrow(shop.parent / "lake", "main.nope")
    assert missing.value.remedy == "The tables there are main.items."
    with pytest.raises(ConfigError) as plain:
        lakefeed.to_arrow(shop.parent / "lake", "items")
    assert plain.value.remedy == "Add its schema, as in public.items or main.items."


def test_to_pandas_without_pandas_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pandas", None)
    with pytest.raises(LakefeedError, match="to_pandas needs pandas") as refused:
        lakefeed.CycleResult().to_pandas()
    assert refused.value.remedy == "pip install pandas"


def test_a_file_with_a_mistake_is_refused_when_the_pipeline_is_made(shop: Path) -> None:
    shop.write_text(shop.read_text().replace("kind: sqlite", "kind: sqlit"))
    with pytest.raises(ConfigError) as refused:
        Pipeline.from_yaml(shop)
    assert refused.value.remedy.startswith(f"Correct source.kind in {shop}")


@pytest.mark.parametrize("kind", [Delta, Iceberg])
def test_a_session_that_cannot_work_is_refused_when_the_pipeline_is_made(
    tmp_path: Path, kind: type[Delta] | type[Iceberg]
) -> None:
    plain = cast("Any", SimpleNamespace(conf=SimpleNamespace(get=lambda _key, default=None: default), version="4.1.0"))
    (tmp_path / "s.db").touch()
    with pytest.raises(SparkSetupError, match="the Spark session was built without"):
        Pipeline(Sqlite(tmp_path / "s.db"), kind(plain, tmp_path / "lake"), name="shop")


def test_an_error_prints_its_remedy() -> None:
    assert str(SourceSetupError("a right is missing", remedy="GRANT it;")) == "a right is missing\nRemedy: GRANT it;"


def test_an_error_of_a_pipeline_names_its_file_or_else_the_call(shop: Path) -> None:
    with Pipeline.from_yaml(shop) as pipeline:
        pipeline.sync_once()
    shop.write_text(shop.read_text().replace("{path: ./lake}", "{path: ./lake, mode: append}"))
    with Pipeline.from_yaml(shop) as pipeline, pytest.raises(LakefeedError) as with_file:
        pipeline.sync_once()
    assert f"lakefeed rebuild {shop} main.items" in str(with_file.value)
    lake = Delta(lambda: pytest.fail("no Spark is needed"), shop.parent / "lake", mode=Append())
    with Pipeline(Sqlite(shop.parent / "s.db"), lake, name="shop") as own, pytest.raises(LakefeedError) as without:
        own.sync_once()
    assert f"lakefeed rebuild {shop} main.items" in str(pipeline.status().remedy), (
        "the status says it as the error does"
    )
    assert 'pipeline.rebuild("main.items"' in str(own.status().remedy)
    assert 'pipeline.rebuild("main.items"' in str(without.value)
    for error in (with_file.value, without.value):
        assert "FILE" not in str(error)
        assert "FILE" in error.remedy, "the commands put their own file there"


@pytest.mark.parametrize(
    ("remedy", "call"),
    [
        ("Run `lakefeed check`, which prints it.", "Run `pipeline.check()`, which prints it."),
        ("lakefeed uninstall FILE, then lakefeed sync FILE", "pipeline.uninstall(), then pipeline.sync_once()"),
        ("lakefeed rebuild FILE a.b --from-source. Or not.", 'pipeline.rebuild("a.b", from_source=True). Or not.'),
        ("the script that `lakefeed check FILE --sql` prints.", "the script that `pipeline.check()` prints."),
        ("lakefeed diff FILE a.b --max-deleted-share 1", "lakefeed diff FILE a.b --max-deleted-share 1"),
    ],
)
def test_a_command_is_a_call_where_a_method_does_the_same(remedy: str, call: str) -> None:
    assert in_python(remedy) == call


def test_the_public_names_are_listed() -> None:
    assert {"Pipeline", "Delta", "Postgres", "table", "to_arrow"} <= set(dir(lakefeed))
