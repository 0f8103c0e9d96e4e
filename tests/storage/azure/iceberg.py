"""Iceberg tables in Azure Blob Storage, by Azurite, through Apache's REST catalog: contract, pipeline, credentials.

Java writes through Hadoop's connector; pyiceberg, which reads back, through pyarrow.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.lake.iceberg_rest import rest_catalog
from tests.storage.azure.azurite import ADDRESSES, KEY, Azurite
from tests.storage.iceberg_on_store import Shop, require_every_step, theirs

from lakefeed import Iceberg
from lakefeed.change.table import TableId
from lakefeed.lake.base import TableFormat
from lakefeed.lake.location import file_io, iceberg_uri, spark_options
from lakefeed.lake.mode import Mirror, Mode
from lakefeed.lake.spark.jars import coordinates_of, remembered_jars
from lakefeed.storage.location import give_options
from lakefeed.testing.format_contract import TableFormatContract
from lakefeed.testing.mode_contract import MirrorContract

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(600)  # the server's jars may have to be fetched first


@pytest.fixture(scope="session")
def rest(spark: SparkSession, azurite: Azurite, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server whose tables are in the store. It needs the connector that the session has."""
    place = ADDRESSES[0]
    give_options(place, azurite.options)
    jars = [jar for jar in remembered_jars(coordinates_of(("delta", "iceberg"), ("azure",))) if "iceberg" not in jar]
    with rest_catalog(
        tmp_path_factory.mktemp("rest"), iceberg_uri(f"{place}/warehouse"), file_io(place), spark_options(place), jars
    ) as address:
        yield address


class InACatalog:
    """Each test has a namespace of its own, as it has a directory elsewhere."""

    @pytest.fixture(autouse=True)
    def _store(self, spark: SparkSession, azurite: Azurite, place: str, rest: str) -> None:
        self.spark, self.azurite, self.address, self.rest = spark, azurite, place, rest

    def make_format(self, root: Path, mode: Mode = Mirror()) -> TableFormat:  # noqa: B008
        lake = Iceberg(
            self.spark,
            f"{self.address}/{root.parent.name}/{root.name}",
            mode=mode,
            catalog={"type": "rest", "uri": self.rest},
            namespace=f"n{self.address.rpartition('/')[2]}{root.parent.name}.{{schema}}",
            storage_options=self.azurite.options,
        )
        return lake.bind("contract")

    def read_rows(self, tables: TableFormat, table: TableId) -> list[dict[str, Any]]:
        name = tables.table(tables.routes(table)[0]).location.partition(".")[2]
        rows: list[dict[str, Any]] = (
            theirs(self.rest, file_io(self.address)).load_table(name).scan().to_arrow().to_pylist()
        )
        return rows


class TestIcebergInAzure(InACatalog, TableFormatContract):
    pass


class TestMirrorInAzure(InACatalog, MirrorContract):
    pass


def test_every_step_of_a_pipeline_and_no_credential_is_written_down(
    spark: SparkSession, azurite: Azurite, place: str, rest: str, tmp_path: Path
) -> None:
    shop = Shop(tmp_path, spark, place, rest, azurite.options)
    require_every_step(shop, iceberg_uri(f"{ADDRESSES[0]}/warehouse"), KEY)
