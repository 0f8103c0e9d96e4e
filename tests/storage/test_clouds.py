"""What each library is told about each cloud: addresses, credentials. No test makes a request."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from lakefeed.app.output import with_file
from lakefeed.errors import ConfigError, StorageUnavailableError
from lakefeed.lake.cloud.azure import Azure
from lakefeed.lake.cloud.base import Place
from lakefeed.lake.cloud.google import Google
from lakefeed.lake.cloud.registry import CLOUDS, cloud_of
from lakefeed.lake.location import delta_uri, file_io, filesystem, iceberg_uri, spark_options, spark_path, stores_of
from lakefeed.lake.spark.error import first_line
from lakefeed.lake.spark.jars import coordinates_of, excludes_of
from lakefeed.storage.location import SCHEMES, give_options, options_of, removal

ACCOUNT = "abfss://box@shop.dfs.core.windows.net/lake"
HOST = "shop.dfs.core.windows.net"
OAUTH = "org.apache.hadoop.fs.azurebfs.oauth2"
KEY, SAS = "a2V5", "sv=2026&sig=abc%3D"
PRINCIPAL = {"tenant_id": "t1", "client_id": "c1", "client_secret": "s1"}


@pytest.fixture(autouse=True)
def no_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    for name in os.environ:
        if name.startswith(("AZURE_", "GOOGLE_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))


def azure(options: Mapping[str, str], address: str = ACCOUNT) -> dict[str, str]:
    """The settings of Spark, without the account in their names."""
    found = Azure().spark_settings(Place(address, options))
    return {name.removesuffix(f".{HOST}").removeprefix("fs.azure."): value for name, value in found.items()}


def test_every_scheme_of_a_storage_has_a_cloud() -> None:
    assert all(cloud_of(f"{scheme}://x/y") is not None for scheme in SCHEMES)
    assert cloud_of("/a/directory") is None
    assert cloud_of("file:///a") is None
    assert set(CLOUDS) == {"s3", "azure", "google"}


def test_nothing_of_a_cloud_is_downloaded_for_a_lake_elsewhere() -> None:
    assert stores_of("/lake") == ()
    assert "hadoop" not in coordinates_of(("delta",), stores_of("/lake"))
    assert "azure" not in coordinates_of(("delta",), stores_of("s3://b/lake"))
    assert "hadoop-azure" in coordinates_of(("delta",), stores_of(ACCOUNT))
    assert "azure-storage" in excludes_of(stores_of(ACCOUNT))
    assert "gcs-connector" in coordinates_of(("delta",), stores_of("gs://b/lake"))
    assert "com.google.guava:guava" in excludes_of(stores_of("gs://b/lake"))


@pytest.mark.parametrize(
    ("address", "options", "spark"),
    [
        (ACCOUNT, {}, ACCOUNT),
        ("abfs://box@shop.dfs.core.windows.net/lake/", {}, ACCOUNT),  # encrypted, unless the endpoint is not
        ("abfss://box@shop.blob.core.windows.net/lake", {}, ACCOUNT),
        ("az://box/lake", {"account_name": "shop"}, ACCOUNT),
        ("abfs://box/lake", {"azure_storage_account_name": "shop"}, ACCOUNT),
        (ACCOUNT, {"endpoint": "http://127.0.0.1:10000/shop"}, f"abfs://box@{HOST}/lake"),
        (
            "az://box/lake",
            {"account_name": "shop", "endpoint": "https://shop.blob.core.chinacloudapi.cn"},
            "abfss://box@shop.dfs.core.chinacloudapi.cn/lake",
        ),
    ],
)
def test_an_address_of_azure_as_spark_has_it(address: str, options: dict[str, str], spark: str) -> None:
    assert Azure().spark_uri(Place(address, options)) == spark
    assert Azure().iceberg_uri(Place(address, options)) == spark
    assert Azure().filesystem(Place(address, {"account_key": KEY, **options}))[1] == "box/lake"


def test_an_address_without_an_account_says_how_to_name_one(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="az://box/lake names no storage account") as caught:
        spark_path("az://box/lake")
    assert "AZURE_STORAGE_ACCOUNT_NAME" in str(caught.value.remedy)
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "shop")
    assert spark_path("az://box/lake") == ACCOUNT
    assert delta_uri("az://box/lake") == "az://box/lake"


@pytest.mark.parametrize(
    ("options", "expected", "iceberg"),
    [
        ({"account_key": KEY}, {"account.auth.type": "SharedKey", "account.key": KEY}, {"account-key": KEY}),
        ({"sas_token": f"?{SAS}"}, {"account.auth.type": "SAS", "sas.fixed.token": SAS}, {"sas-token": f"?{SAS}"}),
        (
            PRINCIPAL,
            {
                "account.auth.type": "OAuth",
                "account.oauth.provider.type": f"{OAUTH}.ClientCredsTokenProvider",
                "account.oauth2.client.endpoint": "https://login.microsoftonline.com/t1/oauth2/token",
                "account.oauth2.client.id": "c1",
                "account.oauth2.client.secret": "s1",
            },
            {"tenant-id": "t1", "client-id": "c1", "client-secret": "s1"},
        ),
        (
            {"tenant_id": "t1", "client_id": "c1", "federated_token_file": "/token", "authority_host": "https://l/"},
            {
                "account.auth.type": "OAuth",
                "account.oauth.provider.type": f"{OAUTH}.WorkloadIdentityTokenProvider",
                "account.oauth2.msi.tenant": "t1",
                "account.oauth2.msi.authority": "https://l/",
                "account.oauth2.token.file": "/token",
                "account.oauth2.client.id": "c1",
            },
            {},
        ),
        (
            {"client_id": "c1"},
            {
                "account.auth.type": "OAuth",
                "account.oauth.provider.type": f"{OAUTH}.MsiTokenProvider",
                "account.oauth2.client.id": "c1",
            },
            {"client-id": "c1"},
        ),
        ({}, {"account.auth.type": "OAuth", "account.oauth.provider.type": f"{OAUTH}.MsiTokenProvider"}, {}),
    ],
    ids=["key", "sas", "principal", "workload", "one of several identities", "identity"],
)
def test_credentials_of_azure_from_options_and_from_the_environment(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, str], expected: dict[str, str], iceberg: dict[str, str]
) -> None:
    assert azure(options) == expected
    found = Azure().file_io(Place(ACCOUNT, options))
    places = {"io-impl", "py-io-impl", "adls.account-name", *(f"adls.{kind}-storage-{part}" for kind in ("blob", "dfs")
              for part in ("authority", "scheme"))}  # fmt: skip
    assert {name: value for name, value in found.items() if name not in places} == {
        f"adls.{name}": value for name, value in iceberg.items()
    }
    Azure().filesystem(Place(ACCOUNT, options))  # pyarrow takes them
    for name, value in options.items():
        prefix = "AZURE_STORAGE_" if name in ("account_key", "sas_token") else "AZURE_"
        monkeypatch.setenv(f"{prefix}{name.upper()}", value)
    assert azure({}) == expected


def test_of_several_credentials_all_libraries_take_the_same_as_obstore(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", KEY)
    assert azure({"sas_token": SAS, **PRINCIPAL})["account.auth.type"] == "SharedKey"
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_KEY")
    assert azure({"sas_token": SAS, **PRINCIPAL})["account.auth.type"] == "OAuth"


@pytest.mark.parametrize("options", [{"use_azure_cli": "true"}, {"bearer_token": "x"}, {"use_emulator": "true"}])
def test_what_not_every_library_can_do_is_refused(options: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="not every library that writes there knows it"):
        azure(options)


def test_a_server_with_the_account_in_the_path_is_asked_as_emulators_are() -> None:
    found = azure({"account_key": KEY, "endpoint": "http://127.0.0.1:10000/shop"})
    assert found["abfs.endpoint"] == "127.0.0.1:10000"
    assert found["fns.account.service.type"] == "BLOB"
    assert found["account.hns.enabled"] == "false"
    assert found["always.use.https"] == "false"
    assert "abfs.endpoint" not in azure({"account_key": KEY})
    assert "always.use.https" not in azure({"account_key": KEY})


def test_google_is_reached_with_the_credentials_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    address = "gs://box/lake"
    assert spark_path(address) == delta_uri(address) == iceberg_uri(address) == address
    assert spark_options(address) == {"fs.gs.impl": "com.google.cloud.hadoop.fs.gcs.GoogleHadoopFileSystem"}
    assert file_io(address) == {"io-impl": "org.apache.iceberg.hadoop.HadoopFileIO"}
    monkeypatch.setenv("GOOGLE_SERVICE_ACCOUNT", "/key.json")
    with pytest.raises(ConfigError, match="GOOGLE_SERVICE_ACCOUNT: pyarrow and Spark") as caught:
        filesystem(address)
    assert "GOOGLE_APPLICATION_CREDENTIALS" in str(caught.value.remedy)


def test_a_login_of_gcloud_that_spark_would_not_find_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    login = tmp_path / ".config/gcloud/application_default_credentials.json"
    login.parent.mkdir(parents=True)
    login.write_text("{}")
    with pytest.raises(ConfigError, match="gs://box/lake cannot be written with the login of gcloud alone") as caught:
        spark_options("gs://box/lake")
    name, _, value = str(caught.value.remedy).rpartition("export ")[2].partition("=")
    monkeypatch.setenv(name, value)
    assert "fs.gs.impl" in spark_options("gs://box/lake")


def test_google_with_another_endpoint() -> None:
    options: dict[str, Any] = {"google_base_url": "http://127.0.0.1:4443", "google_skip_signature": "true"}
    found = Google().spark_settings(Place("gs://box/lake", options))
    assert found["fs.gs.storage.root.url"] == "http://127.0.0.1:4443/"
    assert (found["fs.gs.auth.service.account.enable"], found["fs.gs.auth.null.enable"]) == ("false", "true")
    assert Google().filesystem(Place("gs://box/lake", options))[1] == "box/lake"


@pytest.mark.parametrize("name", ["account_name", "azure_storage_account_name", ""])
def test_options_of_a_container_hold_for_each_of_its_names(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    options = {"account_key": KEY, **({name: "shop"} if name else {})}
    if not name:
        monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "shop")
    box = f"named-{name or 'elsewhere'}".replace("_", "-")
    give_options(f"az://{box}/lake", options)
    assert options_of(spark_path(f"az://{box}/other")) == options
    assert options_of(f"abfs://{box}@shop.blob.core.windows.net/lake") == options
    assert options_of(f"abfss://{box}@another.dfs.core.windows.net/lake") == {}, "another account's container"


def test_other_accounts_do_not_get_the_options_of_one() -> None:
    give_options("abfss://two@first.dfs.core.windows.net/a", {"account_key": "b25l"})
    give_options("abfss://two@second.dfs.core.windows.net/a", {"account_key": "dHdv"})
    assert options_of("abfss://two@first.dfs.core.windows.net/b") == {"account_key": "b25l"}
    assert options_of("abfss://two@second.dfs.core.windows.net/b") == {"account_key": "dHdv"}


@pytest.mark.parametrize(
    ("address", "command"),
    [
        ("/lake/a b.json", "rm '/lake/a b.json'"),
        ("s3a://box/a b.json", "aws s3 rm 's3://box/a b.json'"),
        ("gs://box/a.json", "gcloud storage rm gs://box/a.json"),
        ("az://box/l/a.json", "az storage blob delete --container-name box --name l/a.json"),
        (
            "abfss://box@shop.dfs.core.windows.net/l/a.json",
            "az storage blob delete --account-name shop --container-name box --name l/a.json",
        ),
    ],
)
def test_the_command_that_removes_a_file_of_a_store(address: str, command: str) -> None:
    assert removal(address) == command


def test_messages_do_not_have_the_signature_of_a_sas_token() -> None:
    """obstore, deltalake and pyarrow show the whole address that they asked."""
    text = "PUT http://shop/box/a?sv=2026&sig=2TlrxW0V%2BSs9%3D&se=1 failed"
    for shown in (str(StorageUnavailableError(text)), first_line(OSError(text)), with_file(text)):
        assert "2TlrxW0V" not in shown
        assert "sig=…&se=1 failed" in shown
