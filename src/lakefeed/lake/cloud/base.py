"""What a cloud's object stores need from a lake, once for every library that reads or writes there.

To add a cloud, add a module beside ``s3`` and its schemes to ``registry``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Options = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Place:
    """An address, as a user writes it, with the options of obstore that somebody has given for it.

    What the environment says is not among them: each library reads it itself, or the cloud does for those that cannot.
    """

    address: str
    options: Options = field(repr=False)


class Cloud(ABC):
    """No method makes a request. ConfigError if a library cannot use what is given, or lacks something."""

    name: str
    """As ``spark_session(stores=…)`` has it."""

    packages: tuple[str, ...]
    """Maven coordinates of Hadoop's connector, in the version of Spark's Hadoop, and of what it uses."""

    iceberg_packages: tuple[str, ...] = ()
    """What Iceberg's own file system needs besides, if tables use that and not the connector."""

    excluded: tuple[str, ...]
    """``group:artifact`` of what the connector asks for and Lakefeed does not use, or Spark has."""

    log_store: str
    """The class of the log store that Delta has for these addresses."""

    is_log_store_safe: bool
    """Does it refuse an entry that is there already, whoever has made it meanwhile? Else Lakefeed has one that does:
    ``spark.log_store``."""

    def deltalake_uri(self, place: Place) -> str:
        return place.address

    @abstractmethod
    def spark_uri(self, place: Place) -> str:
        """For Hadoop's connector. Spark reports files by such addresses."""

    @abstractmethod
    def spark_settings(self, place: Place) -> dict[str, str]:
        """The settings of a session that can reach the place. They may have secrets."""

    @abstractmethod
    def filesystem(self, place: Place) -> tuple[Any, str]:
        """pyarrow's file system, and the path in it."""

    @abstractmethod
    def iceberg_uri(self, place: Place) -> str:
        """As a catalog has it for a table."""

    @abstractmethod
    def file_io(self, place: Place) -> dict[str, str]:
        """The properties with which Iceberg, in Java and in Python, reaches the place. They may have secrets."""
