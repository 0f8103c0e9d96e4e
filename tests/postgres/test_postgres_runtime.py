"""The runtime over PostgreSQL's log: its slot is part of the checkpoint, and so is what the tables looked like."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest

from lakefeed.capture.postgres.source import Postgres
from lakefeed.change.change_set import RecopyNeeded
from lakefeed.change.table import TableId
from lakefeed.embed.options import RuntimeOptions
from lakefeed.embed.runtime import Runtime
from lakefeed.embed.store import FileCheckpointStore
from lakefeed.errors import SourceChangedError
from lakefeed.testing.runtime_contract import take_all

T = TableId("public", "t")
OPTIONS = RuntimeOptions(snapshot_tables=(T,), chunk_rows=1, wait_seconds=0)


@pytest.mark.parametrize("in_snapshot", [True, False])
def test_c21_a_checkpoint_is_of_one_slot_and_another_pipelines_is_refused(
    dsn: str, tmp_path: Path, in_snapshot: bool
) -> None:
    with psycopg.connect(dsn, autocommit=True) as writer, FileCheckpointStore(tmp_path, fsync=False) as store:
        writer.execute("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1), (2), (3)")
        runtime = Runtime(Postgres(dsn).bind("one"), store, key="k", options=OPTIONS)
        runtime.start()
        first = runtime.poll()
        assert first is not None
        runtime.commit(first.token)
        if not in_snapshot:
            take_all(runtime)
        runtime.force_stop()
        saved = store.load("k")
        assert saved is not None
        assert saved.source_type == ("postgres_snapshot" if in_snapshot else "postgres")
        other = Postgres(dsn).bind("two")
        other.open()
        other.prepare([T])  # it has everything since, by chance: nobody could tell
        other.close()
        refused = Runtime(other, store, key="k", options=OPTIONS)
        with pytest.raises(SourceChangedError, match="slot lakefeed_one, but this capture reads from lakefeed_two"):
            refused.start()
        writer.execute("INSERT INTO t VALUES (4)")
        again = Runtime(Postgres(dsn).bind("one"), store, key="k", options=OPTIONS)
        again.start()
        assert set(take_all(again)) == ({2, 3, 4} if in_snapshot else {4})
        again.stop()


def test_c04_a_table_that_was_altered_while_no_process_ran_is_announced_by_the_next_run(
    dsn: str, tmp_path: Path
) -> None:
    with psycopg.connect(dsn, autocommit=True) as writer, FileCheckpointStore(tmp_path, fsync=False) as store:
        writer.execute("CREATE TABLE t (id int PRIMARY KEY, v numeric); INSERT INTO t VALUES (1, 1.25)")
        for altered in (False, True):
            runtime = Runtime(Postgres(dsn).bind("one"), store, key="k", options=OPTIONS)
            runtime.start()
            if altered:
                writer.execute("INSERT INTO t VALUES (2, 7)")
                delivery = runtime.poll(wait_seconds=30)
                assert delivery is not None
                (change_set,) = delivery.change_sets
                assert (change_set.rows, [schema.table for schema in change_set.schemas]) == (1, [T])
                assert [(type(one), one.table) for one in change_set.notices] == [(RecopyNeeded, T)]
                runtime.commit(delivery.token)
                assert [schema.column("v").source_type for schema in runtime.schema_history[T]] == [
                    "numeric",
                    "numeric(10,0)",
                ]
            else:
                assert take_all(runtime) == [1]
                writer.execute("ALTER TABLE t ALTER v TYPE numeric(10, 0)")
            runtime.stop()
