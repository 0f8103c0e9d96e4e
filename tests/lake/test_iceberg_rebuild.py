"""An Iceberg table that is made anew of its own rows, while its commits clean up the metadata they are read by."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from tests.lake.iceberg_reader import read_iceberg, static_table

from lakefeed.lake.base import TableCopy
from lakefeed.lake.iceberg import Iceberg
from lakefeed.lake.iceberg import copy as iceberg_copy
from lakefeed.lake.iceberg import store as iceberg_store
from lakefeed.testing.builders import at, batch, table
from lakefeed.testing.format_contract import one
from lakefeed.testing.scripted_log import ListChunk, ScriptedLog

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark
KEPT = "write.metadata.previous-versions-max"
FILES = 6


def test_a_copy_of_many_commits_is_made_of_the_very_table_that_it_replaces(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "segments").mkdir()
    monkeypatch.setitem(iceberg_store.PROPERTIES, KEPT, "2")
    log = ScriptedLog(tmp_path / "segments")
    schema = log.schema_of(table("main.t", {"id": pa.int64(), "v": pa.string()}, key=("id",)))
    found = one(Iceberg(spark, tmp_path / "lake").bind("shop"), schema)
    chunks = [ListChunk.of(schema, [{"id": n, "v": "0"}], read_at=1, marks=tmp_path) for n in range(FILES)]
    found.load(TableCopy(schema=schema, generation=1, base=0, position=at(1), chunks=chunks), lambda _: None)
    log.add(batch(schema, [("update", {"id": 0, "v": "1"})]))
    found.apply(log.window(schema.table, 0, 1), 1)
    state = found.states(1)[-1]
    own = found.chunks(state, schema)
    assert own is not None
    assert len(own) >= FILES
    donor = Path(own[0].metadata_file.removeprefix("file://"))  # type: ignore[attr-defined]
    monkeypatch.setattr(iceberg_copy, "GROUP_CHUNKS", 1)
    copy = TableCopy(schema=schema, generation=2, base=1, position=state.position, chunks=own)
    assert found.load(copy, lambda _: None).rows == FILES
    rows = {row["id"]: row["v"] for row in read_iceberg(found.location)}
    assert rows == {0: "1", **dict.fromkeys(range(1, FILES), "0")}
    assert static_table(found.location).properties[KEPT] == "2"
    assert not donor.exists(), "what is kept for the copy goes with its end"
