"""A REST catalog server for tests: Apache Iceberg's own, in a JVM of its own, on loopback.

Iceberg publishes the server that its own tests run against as classes in the test jar of ``iceberg-core``. Spark's
resolver (Ivy) fetches it like the other jars; Spark cannot be asked for a jar with a classifier, so Ivy is run by
itself. What it found is remembered, so that later runs work offline.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyspark
from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway

from lakefeed.lake.spark.java import cache_directory, find_java

ICEBERG, JETTY, SQLITE, SDK = "1.11.0", "12.0.30", "3.50.3.0", "2.29.52"
_SPARK = Path(pyspark.__file__).parent / "jars"
_WANTED = f"""
<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">
  <info organisation="lakefeed" module="rest-catalog-server"/>
  <configurations><conf name="default"/></configurations>
  <dependencies defaultconf="default->master,runtime">
    <dependency org="org.apache.iceberg" name="iceberg-core" rev="{ICEBERG}">
      <artifact name="iceberg-core" type="jar"/>
      <artifact name="iceberg-core" type="jar" m:classifier="tests"/>
    </dependency>
    <dependency org="org.apache.iceberg" name="iceberg-aws" rev="{ICEBERG}"/>
    <dependency org="software.amazon.awssdk" name="s3" rev="{SDK}"/>
    <dependency org="software.amazon.awssdk" name="sts" rev="{SDK}"/>
    <dependency org="software.amazon.awssdk" name="url-connection-client" rev="{SDK}"/>
    <dependency org="software.amazon.awssdk" name="kms" rev="{SDK}"/>
    <dependency org="org.eclipse.jetty.ee10" name="jetty-ee10-servlet" rev="{JETTY}"/>
    <dependency org="org.xerial" name="sqlite-jdbc" rev="{SQLITE}"/>
  </dependencies>
</ivy-module>
"""


@contextmanager
def rest_catalog(
    place: Path,
    warehouse: str | None = None,
    file_io: Mapping[str, str] | None = None,
    hadoop: Mapping[str, str] | None = None,
    jars: Sequence[str] = (),
) -> Iterator[str]:
    """The address of a running server, which keeps its catalog in ``place`` and the tables in ``warehouse``, else in
    ``place/warehouse``. ``file_io`` are the properties by which it reaches an object store, ``hadoop`` those of
    Hadoop's connector, which is in ``jars``.
    """
    port, password, process = launch_gateway(
        classpath=":".join([*_class_path(), *jars]),
        jarpath=str(next(_SPARK.glob("py4j-*.jar"))),
        java_path=str(find_java().home / "bin" / "java"),
        die_on_exit=True,
        enable_auth=True,
        return_proc=True,
    )
    gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port, auth_token=password, auto_convert=True))
    try:
        server = _started(gateway.jvm, place, warehouse or f"file://{place / 'warehouse'}", file_io or {}, hadoop or {})
        yield f"http://127.0.0.1:{server.getURI().getPort()}"
        server.stop()
    finally:
        gateway.shutdown()
        process.stdin.close()  # the JVM ends with it
        _ended(process)


def _ended(process: Any) -> None:
    try:
        process.wait(timeout=120)
    except subprocess.TimeoutExpired:  # it would outlive the tests
        process.kill()
        process.wait()


def _started(jvm: Any, place: Path, warehouse: str, file_io: Mapping[str, str], hadoop: Mapping[str, str]) -> Any:
    properties = {
        **file_io,
        "catalog-impl": "org.apache.iceberg.jdbc.JdbcCatalog",
        "uri": f"jdbc:sqlite:{place / 'catalog.db'}",
        "jdbc.schema-version": "V1",
        "warehouse": warehouse,
    }
    iceberg, jetty = jvm.org.apache.iceberg, jvm.org.eclipse.jetty
    configuration = jvm.org.apache.hadoop.conf.Configuration()
    for name, value in hadoop.items():
        configuration.set(name, value)
    backend = iceberg.CatalogUtil.buildIcebergCatalog("backend", properties, configuration)
    servlet = iceberg.rest.RESTCatalogServlet(iceberg.rest.RESTCatalogAdapter(backend))
    handler = jetty.ee10.servlet.ServletContextHandler()
    handler.addServlet(jetty.ee10.servlet.ServletHolder(servlet), "/*")
    server = jetty.server.Server(jvm.java.net.InetSocketAddress("127.0.0.1", 0))
    server.setHandler(handler)
    server.start()
    return server


def _class_path() -> list[str]:
    """The server's jars, and Hadoop's, which Spark brings."""
    memory = cache_directory() / f"jars-rest-catalog-{ICEBERG}-{JETTY}-{SQLITE}-{SDK}.json"
    known: list[str] = json.loads(memory.read_text()) if memory.exists() else []
    if not known or not all(Path(jar).is_file() for jar in known):
        known = _resolved(cache_directory() / "ivy")
        memory.write_text(json.dumps(known, indent=1))
    return [*known, *map(str, _SPARK.glob("hadoop-client-*.jar"))]


def _resolved(cache: Path) -> list[str]:
    cache.mkdir(parents=True, exist_ok=True)
    wanted, found = cache / "rest-catalog.xml", cache / "rest-catalog.path"
    wanted.write_text(_WANTED)
    java, ivy = find_java().home / "bin" / "java", next(_SPARK.glob("ivy-*.jar"))
    where: list[str | Path] = ["-ivy", wanted, "-cache", cache, "-cachepath", found, "-warn"]
    command = [java, "-cp", ivy, "org.apache.ivy.Main", *where]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, f"the REST catalog server's jars could not be fetched: {done.stdout[-2000:]}"
    return found.read_text().strip().split(":")
