"""What else a live verification can do: some rows alone, in the background, on after a kill; and what it never says."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.verify.shop import Shop

from lakefeed.app.build import build_verification
from lakefeed.app.config import load_config
from lakefeed.change.position import SqliteSequence
from lakefeed.change.table import TableId
from lakefeed.errors import LeaseError
from lakefeed.flow.report.verified import load_verified
from lakefeed.lake.loader import ChunkFile, DataFile
from lakefeed.storage.location import storage_at
from lakefeed.verify.background import BackgroundVerification
from lakefeed.verify.staging import Staging

CONFIG = """
pipeline: shop
source: {kind: sqlite, path: shop.db}
lake: {path: ./lake}
sync: {interval_seconds: 0.2}
"""
ITEMS = TableId("main", "items")


@pytest.mark.spark
@pytest.mark.timeout(900)
def test_a_sample_the_rows_since_a_position_and_all_rows_in_the_background(tmp_path: Path, spark: Any) -> None:
    shop = Shop(tmp_path, spark, CONFIG)
    shop.execute("CREATE TABLE items (id INTEGER PRIMARY KEY, name TEXT)")
    shop.execute(
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 50) "
        "INSERT INTO items SELECT i, 'x' FROM n"
    )
    shop.sync()
    shop.execute("UPDATE items SET name = 'y' WHERE id = 1")
    found = shop.compared("main.items")
    assert "the journal has not reached, and no process runs the pipeline" in found.differences[0]
    assert not found.compared
    config = load_config(shop.file)
    work = build_verification(config, "lakefeed sync", spark=spark)
    state = storage_at(config.state())
    with shop.running():
        with BackgroundVerification(replace(work, options=replace(work.options, max_rate=1000)), 0.5):
            until = time.monotonic() + 300
            while not (known := load_verified(state).get(ITEMS)) or known.through is None:
                assert time.monotonic() < until
                time.sleep(0.2)
        assert (known.equal, known.through.rows) == (True, 50)
        shop.execute("UPDATE items SET name = 'z' WHERE id IN (7, 8, 9)")
        time.sleep(2)
        since = shop.compared("main.items", since="last")
        assert since.equal, since.differences
        assert since.partial is not None
        assert since.partial.startswith("3 rows that changed since sqlite="), since.partial
    spark.sql(f"UPDATE delta.`{tmp_path / 'lake' / 'main' / 'items'}` SET name = NULL WHERE id = 20")
    with shop.running():
        sample = shop.compared("main.items", sample=100)
    assert sample.differences[1] == "id=20: name is 'x' in the source, None in the lake"
    assert sample.partial == "a sample of 50 of about 50 rows"


def test_what_was_read_before_a_kill_is_not_read_again(tmp_path: Path) -> None:
    state, asked = storage_at(tmp_path), {"generation": 1}
    killed = Staging(state, ITEMS)
    killed.__enter__()
    with pytest.raises(LeaseError), Staging(state, ITEMS):
        pass
    assert {path.stat().st_mode & 0o777 for path in (killed.place, killed.place.parent)} == {0o700}
    killed.begin(asked, [{"chunk": 1}, {"chunk": 2}], 7)
    (killed.place / "part.parquet").write_bytes(b"")
    position = SqliteSequence(3, 4)
    killed.done(1, ChunkFile(DataFile("part.parquet", 5, 6, "{}", 0), position, position))
    killed.save()
    killed._lock.close()  # as the kernel does with a process that is killed
    with Staging(state, ITEMS) as another:
        found = another.resumed(asked)
        assert found is not None
        assert found[0] is None
        assert found[1] is not None
        assert (found[1].rows, found[1].low, found[1].high) == (5, position, position)
        assert (another.began, len(another.chunks)) == (7, 2)
        assert another.resumed({"generation": 2}) is None, "another life of the table is read from its beginning"
        (another.place / "part.parquet").unlink()
        assert another.resumed(asked) is None, "a file is missing"
    assert not (tmp_path / "verify" / "main.items").exists()
