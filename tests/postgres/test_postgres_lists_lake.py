"""Lists, chosen types and clamped values in real tables of both formats, through every mode, read by other readers."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import psycopg
import pytest
from deltalake import DeltaTable
from pyiceberg.table import StaticTable

from lakefeed import Pipeline
from lakefeed.app.build import build_verification
from lakefeed.app.config import load_config

pytestmark = pytest.mark.spark

CONFIG = """
pipeline: p
source: {{kind: postgres, dsn: "{dsn}", tables: ["public.*"]}}
lake:
  path: ./lake
  format: {format}
  tables:
    - {{match: t, types: {{opens: microseconds}}, out_of_range: {{until: clamp, days: "null"}}}}
    - {{match: t, name: t_history, mode: temporal}}
    - {{match: t, name: t_log, mode: append}}
    - {{match: logs, keyless: inserts}}
"""


CHANGES = (
    "UPDATE t SET tags = tags || '{new}', until = '-infinity' WHERE id = 1; DELETE FROM t WHERE id = 3;"
    "INSERT INTO t VALUES (4, '{x}', '{infinity,2026-02-02}', '9999-12-31 23:59:59.999999+00', '12:34:56.789');"
    "INSERT INTO logs VALUES ('b', '{}'), ('c', NULL)"
)


@pytest.fixture
def writer(dsn: str) -> Iterator[Any]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(
            "CREATE TABLE t (id int PRIMARY KEY, tags text[], days date[], until timestamptz, opens time);"
            "CREATE TABLE logs (what text, codes int[]); INSERT INTO logs VALUES ('a', '{1,NULL}'), ('a', '{1,NULL}');"
            "INSERT INTO t VALUES (1, '{a,NULL,\"b c\"}', '{2026-01-01,infinity}', 'infinity', '08:00'),"
            " (2, '{}', NULL, '2026-01-01', '24:00'), (3, NULL, '{}', NULL, NULL)"
        )
        yield connection


@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize("format_", [pytest.param("delta", marks=pytest.mark.slow), "iceberg"])
def test_lists_and_rules_in_every_mode_and_format(dsn: str, writer: Any, tmp_path: Path, format_: str) -> None:
    file = tmp_path / "p.yaml"
    file.write_text(CONFIG.format(dsn=dsn, format=format_))
    for step in ("SELECT 1", CHANGES):
        writer.execute(step)
        with Pipeline.from_yaml(file) as pipeline:
            result = pipeline.sync_once()
        assert not result.errors, result.errors
        verification = build_verification(load_config(file), "sync").run(lambda _: lambda _side, _rows: None)
        differences = {str(one.table): one.differences for _, one in verification.tables if not one.equal}
        assert differences == {}
    with Pipeline.from_yaml(file) as pipeline:
        counted = {table.name: status.rules for table, status in pipeline.status().tables.items()}
    # Row 1 twice and row 4: an element of an array counts for itself. What fits exactly, in row 4, is not touched.
    expected = {"out_of_range days": 3, "out_of_range until": 2}
    assert counted == {"t": expected, "t_history": expected, "t_log": expected, "logs": {}}
    place = tmp_path / "lake" / "public"
    if format_ == "delta":
        stored = DeltaTable(str(place / "t")).to_pyarrow_table().to_pylist()
    else:
        newest = max((place / "t" / "metadata").glob("*.metadata.json"), key=lambda path: path.stat().st_mtime_ns)
        stored = StaticTable.from_metadata(str(newest)).scan().to_arrow().to_pylist()
    rows = {row["id"]: row for row in stored}
    assert rows[1]["tags"] == ["a", None, "b c", "new"]
    assert rows[1]["until"] == datetime.min.replace(tzinfo=UTC)
    assert rows[4]["days"] == [None, date(2026, 2, 2)]
    assert rows[4]["opens"] == 45_296_789_000
    writer.execute("UPDATE logs SET what = 'z' WHERE what = 'c'")  # which nobody sees but verify
    verification = build_verification(load_config(file), "sync").run(lambda _: lambda _side, _rows: None)
    (found,) = [one for _, one in verification.tables if not one.equal]
    assert found.table.name == "logs"
    assert "updates and deletes" in " ".join(found.differences)
