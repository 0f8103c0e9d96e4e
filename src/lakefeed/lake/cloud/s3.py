"""S3 and stores with its protocol, at ``s3://bucket/path`` or ``s3a://bucket/path``."""

from __future__ import annotations

import os
from functools import cache
from typing import Any
from urllib.parse import urlsplit

from pyarrow import fs

from lakefeed.lake.cloud.base import Cloud, Options, Place

_SDK = "2.29.52"
_BY_SERVICE_ACCOUNT = "software.amazon.awssdk.auth.credentials.WebIdentityTokenFileCredentialsProvider"


class S3(Cloud):
    name = "s3"
    packages = (
        "org.apache.hadoop:hadoop-aws:3.4.2",
        *(f"software.amazon.awssdk:{module}:{_SDK}" for module in ("s3", "s3-transfer-manager", "sts")),
    )
    # 2 MB. Iceberg's bundle of Amazon's library has 69 MB, in another version than the connector's: they conflict.
    iceberg_packages = tuple(f"software.amazon.awssdk:{module}:{_SDK}" for module in ("kms", "url-connection-client"))
    # All of Amazon's library, 642 MB, which the connector asks for; the modules above need 15 MB.
    excluded = ("software.amazon.awssdk:bundle",)
    log_store = "io.delta.storage.S3SingleDriverLogStore"
    is_log_store_safe = False  # it asks whether there is an entry, and then puts it

    def deltalake_uri(self, place: Place) -> str:
        """deltalake knows S3 by the scheme ``s3`` alone."""
        return f"s3://{place.address.partition('://')[2]}"

    def spark_uri(self, place: Place) -> str:
        return f"s3a://{place.address.partition('://')[2]}"  # Hadoop's name for it

    def spark_settings(self, place: Place) -> dict[str, str]:
        options = _short(place.options)
        endpoint = _endpoint(options)
        # Does this process get its keys by the token of a Kubernetes service account, and by nothing that comes first?
        has_keys = "access_key_id" in options or os.environ.get("AWS_ACCESS_KEY_ID")
        by_account = not has_keys and os.environ.get("AWS_WEB_IDENTITY_TOKEN_FILE") and os.environ.get("AWS_ROLE_ARN")
        values = {
            "access.key": options.get("access_key_id"),
            "secret.key": options.get("secret_access_key"),
            "session.token": options.get("session_token"),
            "endpoint": endpoint,
            "endpoint.region": options.get("region"),
            "path.style.access": "true" if endpoint else None,
            "connection.ssl.enabled": "false" if endpoint and endpoint.startswith("http:") else None,
            # Of the ways without a key, the only one that Hadoop's connector does not try by itself.
            "aws.credentials.provider": _BY_SERVICE_ACCOUNT if by_account else None,
        }
        bucket = urlsplit(place.address).netloc
        return {f"fs.s3a.bucket.{bucket}.{name}": value for name, value in values.items() if value is not None}

    def filesystem(self, place: Place) -> tuple[Any, str]:
        uri = self.deltalake_uri(place)
        if place.options:
            return _filesystem(tuple(sorted(place.options.items()))), uri.removeprefix("s3://")
        found: tuple[Any, str] = fs.FileSystem.from_uri(uri)
        return found

    def iceberg_uri(self, place: Place) -> str:
        return self.deltalake_uri(place)

    def file_io(self, place: Place) -> dict[str, str]:
        """Iceberg takes what is missing from the environment, as Lakefeed does."""
        options = _short(place.options)
        endpoint = _endpoint(options)
        values = {
            "io-impl": "org.apache.iceberg.aws.s3.S3FileIO",
            "http-client.type": "urlconnection",  # of its three, the one that Hadoop's connector does not use
            "client.region": options.get("region") or ("us-east-1" if endpoint else None),  # it needs one to start
            "s3.endpoint": endpoint,
            "s3.path-style-access": "true" if endpoint else None,
            "s3.access-key-id": options.get("access_key_id"),
            "s3.secret-access-key": options.get("secret_access_key"),
            "s3.session-token": options.get("session_token"),
        }
        return {name: value for name, value in values.items() if value is not None}


def _short(options: Options) -> dict[str, str]:
    return {name.removeprefix("aws_"): value for name, value in options.items()}


def _endpoint(options: Options) -> str | None:
    return options.get("endpoint") or options.get("endpoint_url")


@cache
def _filesystem(given: tuple[tuple[str, str], ...]) -> Any:
    options = _short(dict(given))
    endpoint = _endpoint(options)
    parts = urlsplit(endpoint) if endpoint else None
    kind: Any = fs.S3FileSystem  # the stubs lack the last option, with which a small file takes one request, not three
    return kind(
        access_key=options.get("access_key_id"),
        secret_key=options.get("secret_access_key"),
        session_token=options.get("session_token"),
        region=options.get("region"),
        endpoint_override=parts.netloc if parts else None,
        scheme="http" if parts and parts.scheme == "http" else "https",
        request_timeout=20,
        connect_timeout=5,
        allow_delayed_open=True,
    )
