"""Google Cloud Storage, at ``gs://bucket/path``.

Each library finds the credentials of the environment by itself: the file that ``GOOGLE_APPLICATION_CREDENTIALS`` names,
of a service account or of gcloud's login, or else the metadata server of the machine.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pyarrow import fs

from lakefeed.errors import ConfigError
from lakefeed.lake.cloud.base import Cloud, Options, Place

_FILE = "GOOGLE_APPLICATION_CREDENTIALS"
_ENDPOINTS = ("google_base_url", "base_url")
_ANONYMOUS = ("google_skip_signature", "skip_signature")
_SERVICE_ACCOUNTS = tuple(
    f"{prefix}service_account{part}" for prefix in ("google_", "") for part in ("", "_path", "_key")
)
"""Options of obstore; those with ``google_`` are variables of the environment, too."""


class Google(Cloud):
    name = "google"
    packages = ("com.google.cloud.bigdataoss:gcs-connector:hadoop3-2.2.22",)
    # Of these Spark has newer versions; instead of the last one it has the same classes under another name.
    excluded = (
        "com.google.guava:guava",
        "com.google.guava:failureaccess",
        "com.google.code.gson:gson",
        "com.fasterxml.jackson.core:jackson-core",
        "commons-codec:commons-codec",
        "org.apache.httpcomponents:httpclient",
        "org.apache.httpcomponents:httpcore",
        "commons-logging:commons-logging",
    )
    log_store = "io.delta.storage.GCSLogStore"
    is_log_store_safe = True  # the connector puts an entry of generation 0: one that there is not

    def spark_uri(self, place: Place) -> str:
        return place.address

    def spark_settings(self, place: Place) -> dict[str, str]:
        _require_known(place)
        _require_found_by_spark(place)
        options = place.options
        endpoint, is_anonymous = _first(options, _ENDPOINTS), _is_anonymous(options)
        values = {"fs.gs.impl": "com.google.cloud.hadoop.fs.gcs.GoogleHadoopFileSystem"}
        if is_anonymous:
            values |= {"fs.gs.auth.service.account.enable": "false", "fs.gs.auth.null.enable": "true"}
        return values | ({"fs.gs.storage.root.url": f"{endpoint.rstrip('/')}/"} if endpoint else {})

    def filesystem(self, place: Place) -> tuple[Any, str]:
        _require_known(place)
        options = place.options
        parts = urlsplit(place.address)
        system = _filesystem(_first(options, _ENDPOINTS), _is_anonymous(options))
        return system, f"{parts.netloc}/{parts.path.strip('/')}".rstrip("/")

    def iceberg_uri(self, place: Place) -> str:
        return place.address

    def file_io(self, place: Place) -> dict[str, str]:
        """Java writes through Hadoop's connector; pyiceberg finds the credentials as pyarrow does."""
        _require_known(place)
        options = place.options
        endpoint = _first(options, _ENDPOINTS)
        found = {"io-impl": "org.apache.iceberg.hadoop.HadoopFileIO"}
        return found | ({"gcs.service.host": endpoint} if endpoint else {})


def _require_known(place: Place) -> None:
    variables = [name.upper() for name in _SERVICE_ACCOUNTS if name.startswith("google_")]
    named = [name for name in place.options if name.lower() in _SERVICE_ACCOUNTS]
    named += [name for name in variables if os.environ.get(name)]
    if named:
        raise ConfigError(
            f"tables at {place.address} cannot be written with the credentials of {named[0]}: pyarrow and Spark do not "
            "know it",
            remedy=f"Name the service account's file in the environment: export {_FILE}=/path/to/key.json",
        )


def _require_found_by_spark(place: Place) -> None:
    """Spark's connector does not look for the login of gcloud, and would come as the machine's own account."""
    login = Path.home() / ".config/gcloud/application_default_credentials.json"
    if _is_anonymous(place.options) or os.environ.get(_FILE) or not login.exists():
        return
    raise ConfigError(
        f"tables at {place.address} cannot be written with the login of gcloud alone: Spark does not find it",
        remedy=f"Name its file in the environment: export {_FILE}={login}",
    )


def _first(options: Options, names: tuple[str, ...]) -> str | None:
    return next((value for name, value in options.items() if name.lower() in names), None)


def _is_anonymous(options: Options) -> bool:
    return (_first(options, _ANONYMOUS) or "").lower() == "true"


@cache
def _filesystem(endpoint: str | None, is_anonymous: bool) -> Any:
    parts = urlsplit(endpoint) if endpoint else None
    return fs.GcsFileSystem(
        anonymous=is_anonymous,
        scheme=parts.scheme if parts else "https",
        endpoint_override=parts.netloc if parts else None,
    )
