"""The clouds by the schemes of their addresses."""

from __future__ import annotations

from lakefeed.lake.cloud.azure import Azure
from lakefeed.lake.cloud.base import Cloud
from lakefeed.lake.cloud.google import Google
from lakefeed.lake.cloud.s3 import S3

_S3, _AZURE, _GOOGLE = S3(), Azure(), Google()
_BY_SCHEME: dict[str, Cloud] = {
    "s3": _S3,
    "s3a": _S3,
    "gs": _GOOGLE,
    "abfs": _AZURE,
    "abfss": _AZURE,
    "az": _AZURE,
}
CLOUDS: dict[str, Cloud] = {cloud.name: cloud for cloud in _BY_SCHEME.values()}
"""By name, for the jars of a Spark session."""


def cloud_of(address: str) -> Cloud | None:
    """The cloud of an address; None for a path, and for a scheme that Lakefeed has no storage for."""
    scheme, separator, _ = address.partition("://")
    return _BY_SCHEME.get(scheme.lower()) if separator else None
