"""OpenTelemetry and OpenLineage, sent to a real collector over HTTP: what arrives, and that nothing waits for it."""

from __future__ import annotations

import gzip
import json
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from lakefeed.app import cli


class Collector(ThreadingHTTPServer):
    """Takes whatever is posted, and says that it is well."""

    daemon_threads = True

    def __init__(self) -> None:
        received: list[tuple[str, bytes]] = []

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                received.append((self.path, gzip.decompress(body) if body[:2] == b"\x1f\x8b" else body))
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        super().__init__(("127.0.0.1", 0), Handler)
        self.received = received
        self.url = f"http://127.0.0.1:{self.server_address[1]}"


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server
        server.shutdown()


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    with closing(sqlite3.connect(tmp_path / "shop.db")) as connection, connection:
        connection.execute("CREATE TABLE items (id INTEGER PRIMARY KEY, name TEXT)")
        connection.execute("INSERT INTO items VALUES (1, 'a'), (2, 'b')")
    file = tmp_path / "shop.yaml"
    file.write_text(
        "pipeline: shop\nsource: {kind: sqlite, path: shop.db, tables: ['*']}\nlake: {path: ./lake}\n"
        "monitor: {traces: true, lineage: true}\n"
    )
    return file


def test_a_sync_is_spans_and_a_lineage_run(
    shop: Path, collector: Collector, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
    monkeypatch.setenv("OPENLINEAGE_URL", collector.url)
    assert cli.execute(["sync", str(shop)]) == 0, capsys.readouterr()
    events = [json.loads(body) for path, body in collector.received if path.startswith("/api/v1/lineage")]
    assert [event["eventType"] for event in events] == ["START", "RUNNING", "COMPLETE"]
    assert len({event["run"]["runId"] for event in events}) == 1
    copied = events[1]
    assert [(one["namespace"], one["name"]) for one in copied["inputs"]] == [
        ("file", f"{shop.parent / 'shop.db'}/main.items")
    ]
    (output,) = copied["outputs"]
    assert (output["namespace"], output["name"]) == ("file", str(shop.parent / "lake" / "main" / "items"))
    assert output["outputFacets"]["outputStatistics"]["rowCount"] == 2

    spans: dict[str, Any] = {}
    for path, body in collector.received:
        if path == "/v1/traces":
            sent = ExportTraceServiceRequest.FromString(body)
            spans |= {span.name: span for one in sent.resource_spans for each in one.scope_spans for span in each.spans}
    assert {"copy table", "apply", "apply table"} <= set(spans)
    attributes = {one.key: one.value for one in spans["copy table"].attributes}
    assert attributes["lakefeed.table"].string_value == "main.items"
    assert attributes["lakefeed.rows"].int_value == 2
    assert spans["apply table"].parent_span_id == spans["apply"].span_id


def test_a_run_that_fails_is_a_lineage_run_that_failed(
    shop: Path, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
    monkeypatch.setenv("OPENLINEAGE_URL", collector.url)
    (shop.parent / "shop.db").unlink()
    assert cli.execute(["sync", str(shop)]) != 0
    events = [json.loads(body) for path, body in collector.received if path.startswith("/api/v1/lineage")]
    assert [event["eventType"] for event in events] == ["START", "FAIL"]
    assert "shop.db" in events[1]["run"]["facets"]["errorMessage"]["message"]


@pytest.mark.filterwarnings("ignore")
def test_a_collector_that_is_away_neither_stops_nor_delays_a_sync_for_long(
    shop: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    monkeypatch.setenv("OPENLINEAGE_URL", "http://127.0.0.1:9")
    began = time.monotonic()
    assert cli.execute(["sync", str(shop), "-v"]) == 0
    assert time.monotonic() - began < 30
    assert "could not be sent" in caplog.text


@pytest.mark.parametrize(
    ("missing", "extra"), [("opentelemetry.sdk.trace", "otel"), ("openlineage.client", "openlineage")]
)
def test_an_extra_that_is_not_installed_is_named_with_the_command(
    shop: Path, missing: str, extra: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    key = {"otel": "traces", "openlineage": "lineage"}[extra]
    shop.write_text(shop.read_text().replace("{traces: true, lineage: true}", f"{{{key}: true}}"))
    monkeypatch.setitem(__import__("sys").modules, missing, None)
    assert cli.execute(["sync", str(shop)]) == 2
    assert f"pip install 'lakefeed[{extra}]'" in capsys.readouterr().err
