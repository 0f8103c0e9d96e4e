"""A real Spark Connect server for tests: a process of its own, on loopback, with the jars of the table formats.

with SparkConnect.start() as server:
    SparkSession.builder.remote(server.remote).create()
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from lakefeed.lake.formats import FORMATS
from lakefeed.lake.spark.jars import coordinates_of, excludes_of, remembered_jars
from lakefeed.lake.spark.java import find_java
from lakefeed.testing.server.base import Server, free_port


class SparkConnect(Server):
    """Its tasks run in ``python``, with ``python_path``: they need the package, too."""

    orderly = signal.SIGTERM
    crash = signal.SIGKILL
    port_is_taken = "Address already in use"

    def __init__(self, directory: Path, port: int, settings: Mapping[str, str], python: str, python_path: str) -> None:
        super().__init__(directory, port)
        import pyspark

        self._home = Path(pyspark.__file__).parent
        self._settings = dict(settings)
        self._environment = {
            **os.environ,
            "SPARK_HOME": str(self._home),
            "JAVA_HOME": str(find_java().home),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYSPARK_PYTHON": python,
            "PYTHONPATH": python_path,
        }
        self._environment.pop("SPARK_REMOTE", None)
        self._environment.pop("SPARK_CONNECT_MODE_ENABLED", None)

    @classmethod
    def start(
        cls,
        settings: Mapping[str, str] | None = None,
        *,
        python: str = sys.executable,
        python_path: str | None = None,
        stores: tuple[str, ...] = (),
        formats: tuple[str, ...] = ("delta",),
    ) -> SparkConnect:
        wanted = coordinates_of(formats, stores)
        jars = {"spark.driver.extraClassPath": os.pathsep.join(remembered_jars(wanted))}
        if not remembered_jars(wanted):
            jars = {"spark.jars.packages": wanted} | ({"spark.jars.excludes": excludes_of(stores)} if stores else {})
        given = {
            "spark.master": "local[2]",
            "spark.driver.memory": "700m",
            **jars,
            "spark.sql.extensions": ",".join(FORMATS[name].extension for name in formats),
            **{key: value for name in formats for key, value in FORMATS[name].settings.items()},
            # As in a session that Lakefeed builds: Delta reads its log in 50 tasks by default.
            "spark.databricks.delta.snapshotPartitions": "2",
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.adaptive.enabled": "false",
            "spark.ui.enabled": "false",
            "spark.log.level": "ERROR",
            "spark.connect.grpc.binding.address": "127.0.0.1",
            # How soon a client sees that a job runs; two seconds by default.
            "spark.connect.progress.reportInterval": "100ms",
            **(settings or {}),
        }
        path = os.environ.get("PYTHONPATH", "") if python_path is None else python_path
        server = cls(Path(tempfile.mkdtemp(prefix="lakefeed-connect-")), free_port(), given, python, path)
        try:
            server.begin()
        except BaseException:
            server.close()
            raise
        return server

    @property
    def remote(self) -> str:
        return f"sc://127.0.0.1:{self.port}"

    def command(self) -> list[str]:
        settings = {**self._settings, "spark.connect.grpc.binding.port": str(self.port)}
        options = [part for name, value in settings.items() for part in ("--conf", f"{name}={value}")]
        name = "org.apache.spark.sql.connect.service.SparkConnectServer"
        return [str(self._home / "bin" / "spark-submit"), "--class", name, *options, "spark-internal"]

    def process_options(self) -> dict[str, Any]:
        return {"env": self._environment}

    def answers(self) -> bool:
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=1):
            return True
        return False

    def close(self) -> None:
        super().close()
        shutil.rmtree(self.directory, ignore_errors=True)
