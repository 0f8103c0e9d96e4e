"""pyiceberg's access to Azure through pyarrow, with addresses as catalogs have them."""

from __future__ import annotations

from typing import Any

from pyiceberg.io.pyarrow import PyArrowFileIO


class AzureFileIO(PyArrowFileIO):
    """pyiceberg takes ``container@account.dfs.core.windows.net`` for the name of a container."""

    @staticmethod
    def parse_location(location: str, properties: Any = None) -> tuple[str, str, str]:
        scheme, host, path = PyArrowFileIO.parse_location(location, properties or {})
        return scheme, host, path.replace(host, host.partition("@")[0], 1)
