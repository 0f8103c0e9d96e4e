"""Azure Blob Storage and Data Lake Storage: ``abfss://container@account.dfs.core.windows.net/path``, or
``az://container/path`` with the account's name in the options or the environment.

Obstore and deltalake read Azure's variables of the environment, pyarrow some, and Hadoop's connector none. So this
module reads them once, with obstore's names and order, and gives pyarrow and the connector the same credentials: the
account's key, a workload identity's token (AKS), a service principal's secret, a SAS token, or else the managed
identity of the machine.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any
from urllib.parse import urlsplit

from pyarrow import fs

from lakefeed.errors import ConfigError
from lakefeed.lake.cloud.base import Cloud, Options, Place

_DOMAIN = "dfs.core.windows.net"
_LOGIN = "https://login.microsoftonline.com"
_NAMES: Mapping[str, tuple[str, ...]] = {
    "account_name": ("azure_storage_account_name", "account_name"),
    "account_key": (
        "azure_storage_account_key", "azure_storage_access_key", "azure_storage_master_key",
        "account_key", "access_key", "master_key",
    ),
    "sas_token": ("azure_storage_sas_key", "azure_storage_sas_token", "sas_key", "sas_token"),
    "tenant_id": (
        "azure_storage_tenant_id", "azure_storage_authority_id", "azure_tenant_id", "azure_authority_id",
        "tenant_id", "authority_id",
    ),
    "client_id": ("azure_storage_client_id", "azure_client_id", "client_id"),
    "client_secret": ("azure_storage_client_secret", "azure_client_secret", "client_secret"),
    "federated_token_file": ("azure_federated_token_file", "federated_token_file"),
    "authority_host": ("azure_storage_authority_host", "azure_authority_host", "authority_host"),
    "endpoint": ("azure_storage_endpoint", "azure_endpoint", "endpoint"),
    "use_emulator": ("azure_storage_use_emulator", "object_store_use_emulator", "use_emulator"),
    "use_azure_cli": ("azure_use_azure_cli", "use_azure_cli"),
    "token": ("azure_storage_token", "bearer_token", "token"),
}  # fmt: skip
"""What obstore calls each option. A name that begins with ``azure_`` is a variable of the environment, too."""
_LOGINS = {
    "key": {"account_key"},
    "workload": {"client_id", "tenant_id", "federated_token_file"},
    "secret": {"client_id", "tenant_id", "client_secret"},
    "sas": {"sas_token"},
}
_OTHERS_CANNOT = {
    "use_azure_cli": "the login of the Azure CLI",
    "token": "a bearer token",
    "use_emulator": "the setting use_emulator",
}
"""Ways that obstore has and Hadoop's connector or pyarrow has not."""


class Azure(Cloud):
    name = "azure"
    packages = ("org.apache.hadoop:hadoop-azure:3.4.2",)
    # What the older connector (wasb:) needs, which is in the same jar; and what Spark has.
    excluded = (
        "com.microsoft.azure:azure-storage",
        "org.eclipse.jetty:jetty-util-ajax",
        "org.apache.hadoop.thirdparty:hadoop-shaded-guava",
    )
    log_store = "io.delta.storage.AzureLogStore"
    is_log_store_safe = True  # it renames a file to the entry's name, and the store refuses a name that is taken

    def spark_uri(self, place: Place) -> str:
        """``abfss://container@account…``, the only form that the connector knows."""
        return _Container.of(place).uri

    def spark_settings(self, place: Place) -> dict[str, str]:
        at = _Container.of(place)
        given, authority = at.given, at.given.get("authority_host", _LOGIN).rstrip("/")
        by_token, found = "fs.azure.account.oauth2", dict[str, str]()
        match at.login:
            case "key":
                kind, found["fs.azure.account.key"] = "SharedKey", given["account_key"]
            case "sas":
                kind, found["fs.azure.sas.fixed.token"] = "SAS", given["sas_token"].removeprefix("?")
            case "workload":
                kind, provider = "OAuth", "WorkloadIdentityTokenProvider"
                found[f"{by_token}.msi.tenant"] = given["tenant_id"]
                found[f"{by_token}.msi.authority"] = f"{authority}/"
                found[f"{by_token}.token.file"] = given["federated_token_file"]
            case "secret":
                kind, provider = "OAuth", "ClientCredsTokenProvider"
                found[f"{by_token}.client.endpoint"] = f"{authority}/{given['tenant_id']}/oauth2/token"
                found[f"{by_token}.client.secret"] = given["client_secret"]
            case _:
                kind, provider = "OAuth", "MsiTokenProvider"
        found["fs.azure.account.auth.type"] = kind
        if kind == "OAuth":
            found["fs.azure.account.oauth.provider.type"] = f"org.apache.hadoop.fs.azurebfs.oauth2.{provider}"
            found |= {f"{by_token}.client.id": given["client_id"]} if "client_id" in given else {}
        if at.server is not None:
            # A server that is asked by its own name has the account's in the path, and only the interface of blobs.
            found["fs.azure.abfs.endpoint"] = at.server
            found["fs.azure.fns.account.service.type"] = "BLOB"
            found["fs.azure.account.hns.enabled"] = "false"
        found = {f"{name}.{at.host}": value for name, value in found.items()}
        if not at.is_secure:
            found["fs.azure.always.use.https"] = "false"  # the connector asks for no account's own
        return found

    def filesystem(self, place: Place) -> tuple[Any, str]:
        at = _Container.of(place)
        settings = {
            "blob_storage_authority": at.server or f".{_blob(at.domain)}",
            "dfs_storage_authority": at.server or f".{at.domain}",
            "blob_storage_scheme": at.scheme,
            "dfs_storage_scheme": at.scheme,
            **{name.replace("-", "_"): value for name, value in at.credentials().items()},
        }
        return _filesystem(at.account, tuple(settings.items())), f"{at.container}/{at.path}".rstrip("/")

    def iceberg_uri(self, place: Place) -> str:
        return self.spark_uri(place)

    def file_io(self, place: Place) -> dict[str, str]:
        """Java writes through Hadoop's connector, which has its credentials in the session's settings. The others are
        pyiceberg's."""
        at = _Container.of(place)
        own = {
            "account-name": at.account,
            "blob-storage-authority": at.server or f".{_blob(at.domain)}",
            "dfs-storage-authority": at.server or f".{at.domain}",
            "blob-storage-scheme": at.scheme,
            "dfs-storage-scheme": at.scheme,
            **at.credentials(),
        }
        return {
            "io-impl": "org.apache.iceberg.hadoop.HadoopFileIO",
            "py-io-impl": "lakefeed.lake.iceberg.azure.AzureFileIO",
            **{f"adls.{name}": value for name, value in own.items()},
        }


@dataclass(frozen=True, slots=True)
class _Container:
    """An address, taken apart. ``given`` are the options and the environment's, by the keys of ``_NAMES``.

    ``server`` is the host and port of a store that has the account's name in the path, as emulators do; else the host
    is ``<account>.<domain>``.
    """

    container: str
    account: str
    path: str
    domain: str
    server: str | None
    is_secure: bool
    given: Mapping[str, str]

    @classmethod
    def of(cls, place: Place) -> _Container:
        parts, given = urlsplit(place.address), _given(place.options)
        container, separator, host = parts.netloc.rpartition("@")
        account, _, domain = host.partition(".")
        if not separator:
            container, account, domain = host, given.get("account_name", ""), ""
        if not account:
            raise ConfigError(
                f"{place.address} names no storage account",
                remedy="Write abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/…, or set storage.account_name, or "
                "AZURE_STORAGE_ACCOUNT_NAME in the environment.",
            )
        for name, what in _OTHERS_CANNOT.items():
            if given.get(name, "false").lower() not in ("false", "0", ""):
                raise ConfigError(
                    f"tables at {place.address} cannot be written with {what}: not every library that writes there "
                    "knows it",
                    remedy="Use an account key, a SAS token, a service principal or a managed identity: "
                    "docs/object-stores.md. Only the journal may be there so: set journal.path.",
                )
        server, is_secure = None, True
        if endpoint := given.get("endpoint"):
            host = urlsplit(endpoint).netloc
            is_secure = not endpoint.startswith("http:")
            if host.startswith(f"{account}."):
                domain = host.removeprefix(f"{account}.")
            else:
                server = host
        return cls(container, account, parts.path.strip("/"), _dfs(domain) or _DOMAIN, server, is_secure, given)

    @property
    def host(self) -> str:
        return f"{self.account}.{self.domain}"

    @property
    def scheme(self) -> str:
        return "https" if self.is_secure else "http"

    @property
    def uri(self) -> str:
        return f"{'abfss' if self.is_secure else 'abfs'}://{self.container}@{self.host}/{self.path}".rstrip("/")

    @property
    def login(self) -> str:
        """The first that is complete, in obstore's order: one process must not come as two users."""
        there = self.given.keys()
        return next((login for login, needs in _LOGINS.items() if needs <= there), "managed")

    def credentials(self) -> dict[str, str]:
        """Those for pyarrow and pyiceberg."""
        given = self.given
        match self.login:
            case "key":
                return {"account-key": given["account_key"]}
            case "sas":
                return {"sas-token": f"?{given['sas_token'].removeprefix('?')}"}  # pyarrow appends it to an address
            case "secret":
                return {name.replace("_", "-"): given[name] for name in ("tenant_id", "client_id", "client_secret")}
            case "managed" if "client_id" in given:
                return {"client-id": given["client_id"]}
        return {}  # Azure's library finds a workload's token in the environment, and a managed identity


def _dfs(domain: str) -> str:
    return f"dfs.{domain.removeprefix('blob.')}" if domain.startswith("blob.") else domain


def _blob(domain: str) -> str:
    return f"blob.{domain.removeprefix('dfs.')}" if domain.startswith("dfs.") else domain


def _given(options: Options) -> dict[str, str]:
    """The options, else the environment's, by the keys of ``_NAMES``."""
    lower = {name.lower(): value for name, value in options.items()}
    found: dict[str, str] = {}
    for key, names in _NAMES.items():
        places = [lower.get(name) for name in names]
        places += [os.environ.get(name.upper()) for name in names if name.startswith("azure_")]
        if (value := next(filter(None, places), None)) is not None:
            found[key] = value
    return found


@cache
def _filesystem(account: str, settings: tuple[tuple[str, str], ...]) -> Any:
    kind: Any = getattr(fs, "AzureFileSystem", None)  # the stubs have other names for some arguments
    if kind is None:
        raise ConfigError(
            "this build of pyarrow has no file system for Azure", remedy="Install PyPI's: pip install --force pyarrow"
        )
    return kind(account, **dict(settings))
