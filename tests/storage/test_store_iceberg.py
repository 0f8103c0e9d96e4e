"""Iceberg tables in an object store, through a REST catalog: the contract of every table format, each step of a
pipeline, and where credentials do not get to. A SQL catalog does the same in tests/lake/test_iceberg_catalog.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.lake.iceberg_rest import rest_catalog
from tests.storage.iceberg_on_store import Shop, require_every_step, theirs

from lakefeed import Iceberg
from lakefeed.change.table import TableId
from lakefeed.errors import ConfigError
from lakefeed.flow.options import PipelineOptions
from lakefeed.lake.base import TableFormat
from lakefeed.lake.iceberg.catalog import IcebergCatalog
from lakefeed.lake.location import file_io
from lakefeed.lake.maintenance import MaintenanceOptions
from lakefeed.lake.mode import Mirror, Mode
from lakefeed.storage.location import give_options
from lakefeed.testing.format_contract import TableFormatContract
from lakefeed.testing.mode_contract import KeylessContract, MirrorContract
from lakefeed.testing.server.object_store import OPTIONS, Seaweed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]  # the server's jars may have to be fetched first
EAGER = PipelineOptions(maintenance=MaintenanceOptions(most_files=0, keep_hours=0.0))


@pytest.fixture(scope="session")
def rest(seaweed: Seaweed, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server whose tables are in the store."""
    place = tmp_path_factory.mktemp("rest")
    give_options("s3://lakefeed", seaweed.options)
    with rest_catalog(place, "s3://lakefeed/warehouse", file_io("s3://lakefeed")) as address:
        yield address


class InACatalog:
    """Each test has a namespace of its own, as it has a directory elsewhere."""

    @pytest.fixture(autouse=True)
    def _store(self, spark: SparkSession, seaweed: Seaweed, address: str, rest: str) -> None:
        self.spark, self.seaweed, self.address, self.rest = spark, seaweed, address, rest

    def make_format(self, root: Path, mode: Mode = Mirror()) -> TableFormat:  # noqa: B008
        lake = Iceberg(
            self.spark,
            f"{self.address}/{root.parent.name}/{root.name}",
            mode=mode,
            catalog={"type": "rest", "uri": self.rest},
            namespace=f"n{self.address.rpartition('/')[2]}{root.parent.name}.{{schema}}",
            storage_options=self.seaweed.options,
        )
        return lake.bind("contract")

    def read_rows(self, tables: TableFormat, table: TableId) -> list[dict[str, Any]]:
        name = tables.table(tables.routes(table)[0]).location.partition(".")[2]
        rows: list[dict[str, Any]] = (
            theirs(self.rest, file_io("s3://lakefeed")).load_table(name).scan().to_arrow().to_pylist()
        )
        return rows


@pytest.mark.slow
class TestIcebergInAStore(InACatalog, TableFormatContract):
    pass


@pytest.mark.slow
class TestMirrorInAStore(InACatalog, MirrorContract):
    pass


@pytest.mark.slow
class TestKeylessInAStore(InACatalog, KeylessContract):
    pass


@pytest.mark.slow
def test_every_step_of_a_pipeline_and_no_credential_is_written_down(
    spark: SparkSession, seaweed: Seaweed, address: str, rest: str, tmp_path: Path
) -> None:
    shop = Shop(tmp_path, spark, address, rest, seaweed.options)
    require_every_step(shop, "s3://lakefeed/warehouse", OPTIONS["secret_access_key"])


def test_a_hadoop_catalog_in_a_store_is_refused_with_the_reason(spark: SparkSession) -> None:
    with pytest.raises(ConfigError, match=r"commits by a rename, which is not atomic in an object store") as refused:
        Iceberg(spark, "s3://lakefeed/lake")
    assert "type: rest" in refused.value.remedy


def test_credentials_are_not_shown_with_a_catalog(seaweed: Seaweed) -> None:
    give_options("s3://lakefeed", seaweed.options)
    catalog = IcebergCatalog.of({"type": "rest", "uri": "http://c"}, "s3://lakefeed/lake", "{schema}")
    assert catalog.properties["s3.secret-access-key"] == OPTIONS["secret_access_key"]
    assert OPTIONS["secret_access_key"] not in repr(catalog)
