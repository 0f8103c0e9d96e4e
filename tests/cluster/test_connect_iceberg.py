"""Iceberg tables in a REST catalog, written through a real Spark Connect server. Both are processes of their own.

Tables are read by pyiceberg, which is not Spark.
"""

from __future__ import annotations

import signal
import uuid
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import CommitStateUnknownException
from tests.cluster.connect_shop import CHUNK, Shop, change_everything, shop_with_rows
from tests.lake.iceberg_rest import rest_catalog
from tests.lake.test_delta import copy_of

from lakefeed.change.table import Column, TableId, TableSchema
from lakefeed.errors import CommitFailedError, RebuildNeededError, TableStoppedError
from lakefeed.lake.base import Applied, TableFormat
from lakefeed.lake.iceberg import Iceberg
from lakefeed.lake.iceberg.rest import RestAddition, RestTable
from lakefeed.lake.iceberg.schema import Add, Describe, Drop, Move, Rename, Widen
from lakefeed.lake.layout import Layout
from lakefeed.lake.maintenance import MaintenanceOptions
from lakefeed.lake.mode import Mirror, Mode, Temporal
from lakefeed.lake.route import Rule
from lakefeed.lake.spark.error import ConcurrentModification
from lakefeed.lake.spark.session import connect_session
from lakefeed.testing.builders import batch, table
from lakefeed.testing.format_contract import TableFormatContract, one
from lakefeed.testing.mode_contract import AppendContract, KeylessContract, MirrorContract
from lakefeed.testing.scripted_log import ScriptedLog
from lakefeed.testing.server.object_store import Seaweed
from lakefeed.testing.server.spark_connect import SparkConnect
from lakefeed.testing.temporal_contract import TemporalContract

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]
ICEBERG = ("iceberg",)


@pytest.fixture(scope="module")
def server() -> Iterator[SparkConnect]:
    with SparkConnect.start(formats=ICEBERG) as started:
        yield started


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with rest_catalog(tmp_path_factory.mktemp("catalog")) as address:
        yield address


@pytest.fixture(scope="module")
def spark(server: SparkConnect) -> Any:
    return connect_session(server.remote, formats=ICEBERG)


class _OnConnect:
    """Each test has a namespace of its own: the catalog serves all of them."""

    @pytest.fixture(autouse=True)
    def _servers(self, spark: Any, catalog: str) -> None:
        self.spark, self.catalog, self.namespaces = spark, catalog, dict[str, str]()

    def bound(self, root: Path, **given: Any) -> TableFormat:
        namespace = self.namespaces.setdefault(str(root), f"n{uuid.uuid4().hex}")
        properties = {"name": "prod", "type": "rest", "uri": self.catalog}
        return Iceberg(self.spark, root, catalog=properties, namespace=f"{namespace}.{{schema}}", **given).bind(
            "contract"
        )

    def read_rows(self, tables: TableFormat, wanted: TableId) -> list[dict[str, Any]]:
        name = tables.table(tables.routes(wanted)[0]).location.split(".")[1:]
        rows: list[dict[str, Any]] = theirs(self.catalog, *name).scan().to_arrow().to_pylist()
        return rows


def theirs(address: str, *name: str) -> Any:
    """A table, by a client that has nothing of ours."""
    return load_catalog("theirs", type="rest", uri=address).load_table(name)


class TestIcebergOnConnect(_OnConnect, TableFormatContract):
    def make_format(self, root: Path) -> TableFormat:
        return self.bound(root)


class _ModeOnConnect(_OnConnect):
    def make_format(self, root: Path, mode: Mode) -> TableFormat:
        return self.bound(root, mode=mode)


class TestMirrorOnConnect(_ModeOnConnect, MirrorContract):
    pass


class TestAppendOnConnect(_ModeOnConnect, AppendContract):
    pass


class TestKeylessOnConnect(_ModeOnConnect, KeylessContract):
    pass


class TestTemporalOnConnect(_ModeOnConnect, TemporalContract):
    pass


# The commit


class Pair(_OnConnect):
    """A table of two rows that is copied, and its log."""

    @pytest.fixture
    def log(self, tmp_path: Path) -> ScriptedLog:
        return ScriptedLog(tmp_path)

    @pytest.fixture
    def schema(self, log: ScriptedLog) -> TableSchema:
        return log.schema_of(table("main.t", {"id": pa.int64(), "v": pa.string()}, key=("id",)))

    def copied(self, schema: TableSchema, root: Path, **given: Any) -> Any:
        found = one(self.bound(root / "lake", **given), schema)
        found.load(copy_of(schema, [{"id": 1, "v": "0"}, {"id": 2, "v": "0"}], root), lambda _: None)
        return found

    def stored(self, root: Path) -> Any:
        return theirs(self.catalog, self.namespaces[str(root / "lake")], "main", "t")

    def library(self, found: Any) -> RestTable:
        library = found._store.library
        assert isinstance(library, RestTable)
        return library


class TestCommit(Pair):
    def test_two_writers_who_staged_the_same_window_publish_it_once(
        self, log: ScriptedLog, schema: TableSchema, tmp_path: Path
    ) -> None:
        """The second one is a server that went on with the statement of a client that was killed."""
        found = self.copied(schema, tmp_path)
        log.add(batch(schema, [("insert", {"id": 3, "v": "n"})]))
        library, late = self.library(found), []
        publish = library.publish

        def after_another(snapshot: int) -> None:
            late.append(snapshot)
            library.publish = publish  # type: ignore[method-assign]
            again = one(self.bound(tmp_path / "lake"), schema)
            assert again.apply(log.window(schema.table, 0, 1), 1).number == 1
            publish(snapshot)

        library.publish = after_another  # type: ignore[method-assign]
        assert found.apply(log.window(schema.table, 0, 1), 1).number == 1
        with pytest.raises(ConcurrentModification):
            library.publish(late[0])
        rows = self.stored(tmp_path).scan().to_arrow().to_pylist()
        assert sorted((row["id"], row["v"]) for row in rows) == [(1, "0"), (2, "0"), (3, "n")]

    def test_a_step_that_is_staged_and_not_published_is_seen_by_nobody(
        self, log: ScriptedLog, schema: TableSchema, tmp_path: Path
    ) -> None:
        found = self.copied(schema, tmp_path)
        before = self.stored(tmp_path).metadata
        self.library(found).stage_nothing({"lakefeed.attempt": "x"})
        after = self.stored(tmp_path).metadata
        assert after.current_snapshot_id == before.current_snapshot_id
        assert len(after.snapshots) == len(before.snapshots) + 1
        assert found.applied(1) == Applied(number=0, schema_version=1, rows=2)

    def test_a_commit_whose_answer_is_lost_is_read_back(
        self, log: ScriptedLog, schema: TableSchema, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        found = self.copied(schema, tmp_path)
        library = self.library(found)
        commit = library.commit

        def lost(*given: Any) -> None:
            commit(*given)
            raise CommitStateUnknownException("504 Gateway Timeout")

        log.add(batch(schema, [("insert", {"id": 3, "v": "n"})]))
        monkeypatch.setattr(library, "commit", lost)
        assert found.apply(log.window(schema.table, 0, 1), 1) == Applied(number=1, schema_version=1, rows=3)
        assert self.stored(tmp_path).scan().count() == 3

    def test_a_copy_that_another_process_went_on_with_adds_nothing_twice(
        self, log: ScriptedLog, schema: TableSchema, tmp_path: Path
    ) -> None:
        found = self.copied(schema, tmp_path)
        addition = self.library(found).appending()
        log.add(batch(schema, [("insert", {"id": 3, "v": "n"})]))
        found.apply(log.window(schema.table, 0, 1), 1)
        with pytest.raises(ConcurrentModification, match="another process has gone on"):
            addition.commit([], {"lakefeed.owner": "x"}, {}, lambda: found.applied(1).number == 0)
        assert found.applied(1) == Applied(number=1, schema_version=1, rows=3)

    def test_a_table_that_was_made_and_not_copied_is_copied_by_the_next_process(
        self, schema: TableSchema, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def killed(*_: Any) -> None:
            raise CommitFailedError("the process was killed here")

        with monkeypatch.context() as patch:
            patch.setattr(RestAddition, "commit", killed)
            with pytest.raises(CommitFailedError):
                self.copied(schema, tmp_path)
        assert self.stored(tmp_path).current_snapshot() is None
        assert self.copied(schema, tmp_path).applied(1) == Applied(number=0, schema_version=1, rows=2)
        assert not list((tmp_path / "lake" / "_lakefeed").rglob("*.parquet")), "what Spark has read is gone"

    def test_owner_keeps_ref_settings(self, log: ScriptedLog, schema: TableSchema, tmp_path: Path) -> None:
        found = self.copied(schema, tmp_path)
        name = ".".join(f"`{part}`" for part in found.location.split("."))
        session = found._sessions.child()
        session.sql(f"ALTER TABLE {name} CREATE OR REPLACE BRANCH main RETAIN 7 DAYS").collect()
        kept = self.stored(tmp_path).metadata.refs["main"].max_ref_age_ms
        log.add(batch(schema, [("insert", {"id": 3, "v": "n"})]))
        found.apply(log.window(schema.table, 0, 1), 1)
        assert self.stored(tmp_path).metadata.refs["main"].max_ref_age_ms == kept


# Columns, layout, maintenance


DEFAULTS: dict[str, tuple[pa.DataType, str, Any]] = {
    "b": (pa.bool_(), "true", True),
    "i": (pa.int32(), "7", 7),
    "l": (pa.int64(), "8", 8),
    "f": (pa.float64(), "1.5", 1.5),
    "s": (pa.string(), "x'y", "x'y"),
    "n": (pa.decimal128(9, 2), "1.2", Decimal("1.20")),
    "d": (pa.date32(), "2024-02-29", date(2024, 2, 29)),
    "t": (pa.timestamp("us"), "2024-02-29 01:02:03.5", datetime(2024, 2, 29, 1, 2, 3, 500000)),
    "z": (pa.timestamp("us", tz="UTC"), "2024-02-29 01:02:03+02:00", datetime(2024, 2, 28, 23, 2, 3, tzinfo=UTC)),
    "y": (pa.binary(), "ab", b"ab"),
}


class TestTable(Pair):
    def test_columns_with_defaults_are_metadata_and_read_alike_by_spark_and_pyiceberg(
        self, log: ScriptedLog, schema: TableSchema, tmp_path: Path
    ) -> None:
        found = self.copied(schema, tmp_path)
        added = tuple(Column(name, kind, default=text) for name, (kind, text, _) in DEFAULTS.items())
        wider = log.schema_of(TableSchema(schema.table, (*schema.columns, *added), schema.key))
        log.add(batch(wider, [("delete", {"id": 2})]))
        assert found.apply(log.window(schema.table, 0, 1), 1) == Applied(number=1, schema_version=2, rows=1)
        (row,) = self.stored(tmp_path).scan().to_arrow().to_pylist()
        wanted = {name: value for name, (_, _, value) in DEFAULTS.items()}
        assert {name: row[name] for name in wanted} == wanted
        assert len(list(self.stored(tmp_path).scan().plan_files())) == 1, "no file was written again"
        name = ".".join(f"`{part}`" for part in found.location.split("."))
        (seen,) = found._sessions.child().table(name).collect()
        assert (seen["n"], seen["s"], seen["d"]) == (Decimal("1.20"), "x'y", date(2024, 2, 29))

    def test_columns_are_altered_in_one_commit(self, schema: TableSchema, tmp_path: Path) -> None:
        found = self.copied(schema, tmp_path)
        before = len(self.stored(tmp_path).metadata.metadata_log)
        kinds = {"type": "list", "element-id": 1, "element-required": False, "element": "int"}
        self.library(found).alter(
            [
                Rename("v", "w.x"), Add("a", kinds), Add("g", "int", 5), Widen("a.element", "long"), Widen("g", "long"),
                Describe("g", "said"), Drop("w.x"), Move("g", None), Move("a", "id"),
            ],
            {"lakefeed.schema-version": "2"},
            {"lakefeed.generation": "1", "lakefeed.schema-version": "1"},
        )  # fmt: skip
        stored = self.stored(tmp_path)
        assert [(str(one.name), str(one.field_type), one.doc) for one in stored.schema().fields] == [
            ("g", "long", "said"), ("id", "long", None), ("a", "list<long>", None),
        ]  # fmt: skip
        assert stored.properties["lakefeed.schema-version"] == "2"
        assert len(stored.metadata.metadata_log) == before + 1
        assert len({one.field_id for one in stored.schema().fields}) == 3

    def test_columns_of_another_generation_are_not_altered(self, schema: TableSchema, tmp_path: Path) -> None:
        library = self.library(self.copied(schema, tmp_path))
        with pytest.raises(ConcurrentModification, match=r"lakefeed\.generation is 1, not 2"):
            library.alter([Drop("v")], {}, {"lakefeed.generation": "2"})
        assert self.stored(tmp_path).schema().column_names == ["id", "v"]

    def test_metadata_that_a_copy_may_read_is_kept_from_before_its_first_rows(
        self, schema: TableSchema, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        found = self.copied(schema, tmp_path)
        kept = "write.metadata.previous-versions-max"
        with self.stored(tmp_path).transaction() as change:
            change.set_properties({kept: "3"})
        seen = []

        def begun(*_: Any) -> None:
            seen.append(self.stored(tmp_path).properties)
            raise CommitFailedError("nothing is written")

        copy = copy_of(schema, [{"id": 5, "v": "5"}], tmp_path, generation=2)
        with monkeypatch.context() as patch:
            patch.setattr(RestAddition, "commit", begun)
            with pytest.raises(CommitFailedError):
                found.load(copy, lambda _: None)
        assert seen[0][kept] == "12", "two of a group, and ten"
        found.load(copy, lambda _: None)
        assert self.stored(tmp_path).properties[kept] == "3"

    @pytest.mark.parametrize(("mode", "error"), [(Mirror(), RebuildNeededError), (Temporal(), TableStoppedError)])
    def test_a_type_that_needs_other_rows_is_not_written_in_place(
        self, log: ScriptedLog, schema: TableSchema, tmp_path: Path, mode: Mode, error: type[TableStoppedError]
    ) -> None:
        """The server may go on with it after its client is gone, and take back what was committed meanwhile."""
        found = self.copied(schema, tmp_path, mode=mode)
        columns = (Column("id", pa.decimal128(20, 0), nullable=schema.columns[0].nullable), schema.columns[1])
        wider = log.schema_of(TableSchema(schema.table, columns, schema.key))
        log.add(batch(wider, [("delete", {"id": Decimal(2)})]))
        with pytest.raises(error, match="not safe on Spark Connect") as refused:
            found.apply(log.window(schema.table, 0, 1), 1)
        assert type(refused.value) is error
        assert found.applied(1) == Applied(number=0, schema_version=1, rows=2)
        found.load(copy_of(wider, [{"id": Decimal(7), "v": "7"}], tmp_path, generation=2), lambda _: None)
        assert [row["id"] for row in self.stored(tmp_path).scan().to_arrow().to_pylist()] == [Decimal(7)]

    def test_a_layout_is_the_tables_and_changes_with_a_new_copy(self, schema: TableSchema, tmp_path: Path) -> None:
        rule = Rule("t", layout=Layout(partition_by=("bucket(4, id)",), cluster_by=("v",)))
        self.copied(schema, tmp_path, rules=[rule])
        assert [str(one) for one in self.stored(tmp_path).spec().fields] == ["1000: id_bucket: bucket[4](1)"]
        assert [one.source_id for one in self.stored(tmp_path).sort_order().fields] == [2]
        other = Rule("t", layout=Layout(partition_by=("v", "truncate(2, v)"), cluster_by=("id",)))
        found = one(self.bound(tmp_path / "lake", rules=[other]), schema)
        found.load(copy_of(schema, [{"id": 5, "v": "abc"}], tmp_path, generation=2), lambda _: None)
        assert [one.name for one in self.stored(tmp_path).spec().fields] == ["v", "v_trunc"]
        assert [one.source_id for one in self.stored(tmp_path).sort_order().fields] == [1]
        assert self.stored(tmp_path).scan().to_arrow().to_pylist() == [{"id": 5, "v": "abc"}]
        assert found.laid_out_otherwise() == ()
        again = one(self.bound(tmp_path / "lake", rules=[rule]), schema)
        again.load(copy_of(schema, [{"id": 6, "v": "d"}], tmp_path, generation=3), lambda _: None)
        assert again.laid_out_otherwise() == (), "what it had before is taken again"

    def test_maintenance_packs_and_expires_and_the_record_stays(
        self, log: ScriptedLog, schema: TableSchema, tmp_path: Path
    ) -> None:
        found = self.copied(schema, tmp_path)
        for number in range(3, 16):
            log.add(batch(schema, [("insert", {"id": number, "v": "n"}), ("update", {"id": 1, "v": str(number)})]))
            found.apply(log.window(schema.table, number - 3, number - 2), 1)
        assert self.library(found).marked_files()
        result = found.maintain(MaintenanceOptions(most_files=0, keep_hours=0.0, marked_share=0.01), schema.key)
        assert result.packed, result
        assert len(self.stored(tmp_path).metadata.snapshots) < 20
        assert found.applied(1) == Applied(number=13, schema_version=1, rows=15)
        assert len(list(self.stored(tmp_path).scan().plan_files())) == 1


# The command line

CONFIG = """
pipeline: shop
source: {source}
lake:
  path: ./lake
  format: iceberg
  catalog: {{name: prod, type: rest, uri: "CATALOG"}}
  namespace: NAMESPACE.{{schema}}
  tables:
    - {{match: account}}
    - {{match: account, name: marked}}
    - {{match: account, name: history, mode: temporal}}
    - {{match: account, name: log, mode: append}}
    - {{match: account, name: even, where: "id % 2 = 0", transform: {{twice: "balance * 2"}}}}
spark: {{remote: "{remote}"}}
"""


class IcebergShop(Shop):
    def __init__(self, directory: Path, server: SparkConnect, catalog: str, config: str = CONFIG) -> None:
        self.catalog, self.namespace = catalog, f"n{uuid.uuid4().hex}"
        super().__init__(
            directory, server, config=config.replace("CATALOG", catalog).replace("NAMESPACE", self.namespace)
        )

    def rows(self, table: str) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = (
            theirs(self.catalog, self.namespace, self.schema, table).scan().to_arrow().to_pylist()
        )
        return rows


def test_evolution_maintenance_verify_and_rebuild(server: SparkConnect, catalog: str, tmp_path: Path) -> None:
    shop = IcebergShop(tmp_path, server, catalog)
    assert "ready" in shop_with_rows(shop, 5000).lakefeed("check", "shop.yaml").lower()
    shop.sync()
    change_everything(shop)
    shop.lakefeed("maintain", "shop.yaml")
    shop.require_equal("remark")
    shop.lakefeed("verify", "shop.yaml")
    shop.lakefeed("rebuild", "shop.yaml", "main.account", "--from-source")
    shop.sync()
    shop.lakefeed("rebuild", "shop.yaml", "main.history")
    shop.sync()
    shop.require_equal("remark")


@pytest.mark.parametrize("moment", ["lake.during_load=kill@1", "lake.during_commit=kill@1", "lake.after_commit=kill@1"])
def test_a_client_that_is_killed(server: SparkConnect, catalog: str, tmp_path: Path, moment: str) -> None:
    """What it asked of the server may go on there: no change is applied twice."""
    shop = shop_with_rows(IcebergShop(tmp_path, server, catalog), CHUNK * 9 if "load" in moment else 5000)
    if "load" not in moment:
        shop.sync()
        shop.sql("UPDATE account SET balance = -balance WHERE id % 3 = 0", "DELETE FROM account WHERE id % 7 = 0")
    shop.lakefeed("sync", "shop.yaml", expected=-signal.SIGKILL, LAKEFEED_FAILPOINTS=moment)
    shop.sync()
    shop.require_equal()


PYTHON = """
import sqlite3, sys
from pyspark.sql import SparkSession
import lakefeed
from lakefeed import Iceberg, Pipeline, Sqlite

remote, address = sys.argv[1:]
database = sqlite3.connect("shop.db", isolation_level=None)

def write(*statements):
    for statement in statements:
        database.execute(statement)

def source(table):
    return sorted(database.execute(f"SELECT id, balance FROM {table}").fetchall())

def rows(frame):
    return sorted((row["id"], row["balance"]) for row in frame.select("id", "balance").collect())

write("CREATE TABLE account (id INTEGER PRIMARY KEY, balance INTEGER)", "INSERT INTO account VALUES (1, 1), (2, 2)")
spark = SparkSession.builder.remote(remote).getOrCreate()
lake = Iceberg(spark, "lake", catalog={"name": "prod", "type": "rest", "uri": address}, namespace="python.{schema}")
before = source("account")
with Pipeline(Sqlite("shop.db"), lake, name="shop") as pipeline:
    pipeline.sync_once()
    first = pipeline.status().tables["main.account"].applied
    write("UPDATE account SET balance = 10 WHERE id = 1", "INSERT INTO account VALUES (3, 3)")
    pipeline.sync_once()
    assert rows(lakefeed.table(spark, lake, "main.account")) == source("account")
    assert rows(lakefeed.read_at(spark, lake, "main.account", change_set=first)) == before
    assert rows(lakefeed.snapshot(spark, lake)["main.account"]) == source("account")
    write("UPDATE account SET balance = 11 WHERE id = 1")
    assert rows(lakefeed.current(spark, lake, "main.account")), "whatever the journal has"
print("read")
try:
    Iceberg(spark, "other").bind("shop")
except lakefeed.SparkSetupError as error:
    print(error, error.remedy)
"""


def test_a_session_that_python_hands_in(server: SparkConnect, catalog: str, tmp_path: Path) -> None:
    (tmp_path / "main.py").write_text(PYTHON)
    said = IcebergShop(tmp_path, server, catalog).python("main.py", server.remote, catalog)
    assert "read" in said
    assert "tables of an Iceberg catalog of type hadoop are committed through the JVM" in said
    assert "type: rest" in said


STORE = (
    CONFIG.replace("path: ./lake", "path: s3://lakefeed/lake")
    + """
storage:
  endpoint: ENDPOINT
  region: us-east-1
  access_key_id: lakefeed
  secret_access_key: ${{STORE_SECRET}}
  allow_http: true
"""
)


def test_journal_and_tables_in_an_object_store(tmp_path: Path) -> None:
    (tmp_path / "server").mkdir()
    with Seaweed.start() as store, SparkConnect.start(stores=("s3",), formats=ICEBERG) as server:
        store.bucket("lakefeed")
        io = {
            "io-impl": "org.apache.iceberg.aws.s3.S3FileIO",
            "http-client.type": "urlconnection",
            "client.region": "us-east-1",
            "s3.endpoint": store.options["endpoint"],
            "s3.path-style-access": "true",
            "s3.access-key-id": "lakefeed",
            "s3.secret-access-key": "lakefeed-secret",
        }
        with rest_catalog(tmp_path / "server", "s3://lakefeed/warehouse", io) as address:
            shop = IcebergShop(tmp_path, server, address, STORE.replace("ENDPOINT", store.options["endpoint"]))
            shop_with_rows(shop)
            reader = load_catalog(
                "theirs", type="rest", uri=address, **{key: io[key] for key in io if key[:3] == "s3."}
            )
            for change in (
                "UPDATE account SET balance = -balance WHERE id % 1000 = 0",
                "ALTER TABLE account ADD COLUMN note TEXT DEFAULT 'x'",
                "DELETE FROM account WHERE id % 1777 = 0",
            ):
                shop.lakefeed("sync", "shop.yaml", STORE_SECRET="lakefeed-secret")
                found = reader.load_table((shop.namespace, "main", "account")).scan().to_arrow().to_pylist()
                assert sorted(tuple(row.values()) for row in found) == shop.query("SELECT * FROM account ORDER BY id")
                shop.sql(change, "UPDATE account SET balance = 1 WHERE id = 3")
            shop.lakefeed("maintain", "shop.yaml", STORE_SECRET="lakefeed-secret")
