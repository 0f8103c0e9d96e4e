"""Debezium's embedded engine as a peer: fetched by Maven into the scratch directory, never into the project."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from bench.peer import maven

VERSIONS = {"postgres": "3.6.1", "mysql": "3.6.1", "mariadb": "3.5.0"}
"""The newest of each connector that Maven's central repository has."""
_HERE = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Debezium:
    """Compiled and ready in ``place``."""

    place: Path

    def drain_postgres(self, port: int, slot: str, publication: str, *, table: str, changes: int) -> float:
        """See ``_drain``. Everything behind a slot."""
        settings = {
            "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
            "database.port": port, "database.user": "postgres", "database.password": "none",
            "database.dbname": "postgres", "plugin.name": "pgoutput", "slot.name": slot,
            "publication.name": publication, "publication.autocreate.mode": "disabled",
            "table.include.list": f"public.{table}", "snapshot.mode": "no_data",
        }  # fmt: skip
        return self._drain(settings, table, changes)

    def drain_mysql(self, flavour: str, port: int, *, schema: str, table: str, changes: int) -> float:
        """See ``_drain``. The whole binlog of a server, which has the tables' definitions."""
        name = {"mysql": "mysql.MySqlConnector", "mariadb": "mariadb.MariaDbConnector"}[flavour]
        settings = {
            "connector.class": f"io.debezium.connector.{name}",
            "database.port": port, "database.user": "root", "database.password": "", "database.server.id": 4711,
            "database.ssl.mode": "disabled" if flavour == "mysql" else "disable",
            "table.include.list": f"{schema}.{table}", "snapshot.mode": "configuration_based",
            "snapshot.mode.configuration.based.snapshot.schema": "false",
            "snapshot.mode.configuration.based.snapshot.data": "false",
            "snapshot.mode.configuration.based.start.stream": "true",
            "schema.history.internal": "io.debezium.relational.history.MemorySchemaHistory",
        }  # fmt: skip
        return self._drain(settings, table, changes)

    def _drain(self, settings: Mapping[str, object], table: str, changes: int) -> float:
        """Seconds from its first record to its last: the start of the JVM and of the connector do not count."""
        java = ["java", "-Xmx4g", "-XX:+UseParallelGC", "-cp", f"{self.place}:{self.place}/lib/*", "DebeziumCount"]
        arguments = [table, str(changes), *(f"{name}={value}" for name, value in settings.items())]
        done = subprocess.run([*java, *arguments], capture_output=True, text=True)
        assert done.returncode == 0, f"Debezium ended with {done.stdout[-300:]}{done.stderr[-3000:]}"
        seen, seconds = done.stdout.split()[-2:]
        assert int(seen) == changes, f"Debezium saw {seen} changes"
        return float(seconds)


def fetch(place: Path, connector: str) -> Debezium | str:
    """Debezium with one of its connectors, or why it cannot be had."""
    properties = (f"-Dconnector={connector}", f"-Ddebezium={VERSIONS[connector]}")
    return maven.build(place, _HERE / "pom.xml", _HERE / "DebeziumCount.java", properties) or Debezium(place)
