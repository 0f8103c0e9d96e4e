"""A real standalone Spark cluster for tests: a master and workers as processes of their own, on loopback.

with SparkCluster.start(workers=2) as cluster:
    spark_session(master=cluster.master)
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Self

from lakefeed.lake.spark.java import find_java
from lakefeed.testing.server.base import free_port

_START_SECONDS = 60.0


class SparkCluster:
    """``processes[0]`` is the master, the others are workers of one core each."""

    def __init__(self, directory: Path) -> None:
        import pyspark

        self.directory = directory
        self.port, self._page = free_port(), free_port()
        self.processes: list[subprocess.Popen[bytes]] = []
        home = str(Path(pyspark.__file__).parent)
        self._class = str(Path(home, "bin", "spark-class"))
        self._environment = {
            **os.environ,
            "SPARK_HOME": home,
            "JAVA_HOME": str(find_java().home),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_DAEMON_MEMORY": "256m",
            "PYSPARK_PYTHON": sys.executable,
        }

    @property
    def master(self) -> str:
        return f"spark://127.0.0.1:{self.port}"

    @classmethod
    def start(cls, *, workers: int = 2) -> SparkCluster:
        cluster = cls(Path(tempfile.mkdtemp(prefix="lakefeed-cluster-")))
        try:
            cluster._run("master.Master", "--port", str(cluster.port), "--webui-port", str(cluster._page))
            for _ in range(workers):
                cluster.add_worker()
            cluster.wait_for_workers(workers)
        except BaseException:
            cluster.close()
            raise
        return cluster

    def add_worker(self) -> subprocess.Popen[bytes]:
        place = self.directory / f"worker-{len(self.processes)}"
        options = ["--cores", "1", "--memory", "700m", "--work-dir", str(place)]
        return self._run("worker.Worker", *options, "--webui-port", str(free_port()), self.master)

    def wait_for_workers(self, count: int) -> None:
        until = time.monotonic() + _START_SECONDS
        while self._alive() < count:
            assert time.monotonic() < until, (self.directory / "log").read_text(errors="replace")[-4000:]
            time.sleep(0.2)

    def close(self) -> None:
        for process in reversed(self.processes):
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)  # a worker's executors are in its group
            process.wait()
        shutil.rmtree(self.directory, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _run(self, name: str, *options: str) -> subprocess.Popen[bytes]:
        command = [self._class, f"org.apache.spark.deploy.{name}", "--host", "127.0.0.1", *options]
        with (self.directory / "log").open("ab") as log:
            process = subprocess.Popen(
                command, env=self._environment, stdout=log, stderr=log, cwd=self.directory, start_new_session=True
            )
        self.processes.append(process)
        return process

    def _alive(self) -> int:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._page}/json/", timeout=2) as answer:
                return int(answer.read().count(b'"ALIVE"')) - 1  # the master reports itself, too
        except OSError:
            return 0
