"""The runtime over a binlog: GTID sets in its checkpoint, which the server must have."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.mysql.actor import MysqlActor

from lakefeed.capture.mysql.source import Mysql
from lakefeed.change.mysql import MariadbGtid, MysqlGtid
from lakefeed.embed.checkpoint import PositionType
from lakefeed.embed.options import RuntimeOptions
from lakefeed.embed.runtime import Runtime
from lakefeed.embed.store import MemoryCheckpointStore
from lakefeed.errors import PositionLostError
from lakefeed.testing.runtime_contract import take_all
from lakefeed.testing.server.mysql import MysqlServer

FOREIGN = {"mysql": "3e11fa47-71ca-11e1-9e33-c80aa9429562:1-5", "mariadb": "77-9-123456"}


def test_c22_c23_an_interrupted_copy_goes_on_and_gtids_that_the_server_does_not_have_are_refused(
    server: MysqlServer, database: str, tmp_path: Path
) -> None:
    actor, store = MysqlActor(server, database), MemoryCheckpointStore()
    source = Mysql(server.dsn, kind=server.flavour, tables=[f"{database}.*"], state=tmp_path)
    options = RuntimeOptions(snapshot_tables=(actor.table,), chunk_rows=1, wait_seconds=0)

    def started() -> Runtime:
        runtime = Runtime(source.bind("one"), store, key="k", options=options)
        runtime.start()
        return runtime

    for key in (1, 2, 3):
        actor.put(actor.table, key, "a")
    runtime = started()
    first = runtime.poll()
    assert first is not None
    runtime.commit(first.token)
    runtime.force_stop()
    saved = store.load("k")
    assert saved is not None
    assert (saved.source_type, saved.position_type) == (f"{server.flavour}_snapshot", PositionType.GTID)
    actor.put(actor.table, 4, "a")
    runtime = started()
    assert set(take_all(runtime)) == {2, 3, 4}
    runtime.stop()
    saved = store.load("k")
    assert saved is not None
    assert saved.source_type == server.flavour
    kind = MysqlGtid if server.flavour == "mysql" else MariadbGtid
    assert isinstance(saved.decoded, kind)
    store.delete("k")
    store.save("k", replace(saved, position=f"{saved.position},{FOREIGN[server.flavour]}"))
    with pytest.raises(PositionLostError, match=FOREIGN[server.flavour]):
        started()
    actor.close()
