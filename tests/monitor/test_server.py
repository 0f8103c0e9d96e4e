"""The HTTP server: what it answers, whom it answers, and that nothing that it shows can break out of its place."""

from __future__ import annotations

import base64
import http.client
import json
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.monitor.hostile import ERROR, NAME, REMEDY, hostile_findings, hostile_pipeline

from lakefeed.errors import ConfigError, JournalDamagedError
from lakefeed.flow.pipeline import Pipeline
from lakefeed.flow.status import PipelineStatus
from lakefeed.monitor.metrics import METRICS
from lakefeed.monitor.server import DashboardServer, is_loopback, parse_address
from lakefeed.monitor.watch import Watch

TOKEN = "a-token-of-some-length"
PATHS = ("/", "/page.css", "/page.js", "/icon.svg", "/status.json", "/metrics")


def ask(port: int, path: str, *, method: str = "GET", **headers: str) -> tuple[int, str, dict[str, str]]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
        answer = connection.getresponse()
        return answer.status, answer.read().decode(), dict(answer.getheaders())
    finally:
        connection.close()


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pipeline]:
    with hostile_pipeline(tmp_path_factory.mktemp("hostile")) as made:
        yield made


def watch_of(pipeline: Pipeline) -> Watch:
    return Watch("p", pipeline.root, pipeline.status, about={"source": "scripted"}, findings=hostile_findings)


@pytest.fixture(scope="module")
def server(pipeline: Pipeline) -> Iterator[DashboardServer]:
    with DashboardServer(watch_of(pipeline), "127.0.0.1:0") as served:
        yield served


@pytest.fixture(scope="module")
def guarded(pipeline: Pipeline) -> Iterator[DashboardServer]:
    with DashboardServer(watch_of(pipeline), "127.0.0.1:0", token=TOKEN) as served:
        yield served


@pytest.mark.parametrize("path", PATHS)
def test_every_address_answers_with_headers_that_keep_a_browser_inside(server: DashboardServer, path: str) -> None:
    status, body, headers = ask(server.port, path)
    assert (status, bool(body)) == (200, True)
    assert "default-src 'none'" in headers["Content-Security-Policy"]
    assert "unsafe" not in headers["Content-Security-Policy"]
    assert (headers["X-Content-Type-Options"], headers["Cache-Control"]) == ("nosniff", "no-store")
    assert "Python" not in headers["Server"]
    head, nothing, _ = ask(server.port, path, method="HEAD")
    assert (head, nothing) == (200, "")


def test_the_page_loads_nothing_from_anywhere_else(server: DashboardServer) -> None:
    for path in PATHS[:4]:
        text = ask(server.port, path)[1]
        addresses = [word for word in text.replace('"', " ").replace("'", " ").split() if "//" in word and ":" in word]
        assert set(addresses) <= {"http://www.w3.org/2000/svg"}, path
    page = ask(server.port, "/page.js")[1]
    assert not [
        word for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "eval(", "document.write") if word in page
    ]


def test_the_status_has_the_tables_the_last_hour_and_the_recent_change_sets(server: DashboardServer) -> None:
    document = json.loads(ask(server.port, "/status.json")[1])
    assert document["tables"][NAME]["error"] == ERROR
    assert document["tables"][NAME]["remedy"] == REMEDY
    assert document["about"] == {"source": "scripted"}
    assert len(document["history"]["applied"]) == 360
    assert sum(document["history"]["applied"]) == 1
    assert document["change_sets"][0]["rows"] == 1
    until = time.monotonic() + 20
    while not document["findings"]:  # asked beside everything else
        assert time.monotonic() < until
        document = json.loads(ask(server.port, "/status.json")[1])
    assert document["findings"][0]["remedy"] == REMEDY


def test_hostile_names_are_one_label_of_metrics_that_prometheus_reads(server: DashboardServer) -> None:
    families = {family.name: family for family in text_string_to_metric_families(ask(server.port, "/metrics")[1])}
    (failed,) = families["lakefeed_table_error"].samples
    assert (failed.labels, failed.value) == ({"pipeline": "p", "table": NAME}, 1.0)
    assert {metric.name.removesuffix("_total") for metric in METRICS} == set(families)
    captured = families["lakefeed_captured_rows"]
    assert (captured.type, captured.samples[0].value) == ("counter", 1.0)
    states = {sample.labels["state"]: sample.value for sample in families["lakefeed_table_state"].samples}
    assert (states["live"], states["blocked"]) == (1.0, 0.0)


def test_alive_is_not_ready(server: DashboardServer) -> None:
    assert ask(server.port, "/healthz")[:2] == (200, "ok\n")
    status, text, _ = ask(server.port, "/readyz")
    assert status == 503
    assert text.startswith("not ready: stalled")


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
def test_nothing_can_be_changed_through_it(server: DashboardServer, method: str) -> None:
    assert ask(server.port, "/status.json", method=method)[0] == 501


@pytest.mark.parametrize("path", ["/../server.py", "/%2e%2e/server.py", "/page.py", "//etc/passwd"])
def test_it_serves_no_other_file(server: DashboardServer, path: str) -> None:
    assert ask(server.port, path)[0] == 404


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8765", "192.168.1.7", ""])
def test_a_page_of_another_site_whose_name_points_here_reads_nothing(server: DashboardServer, host: str) -> None:
    for path in PATHS:
        status, body, _ = ask(server.port, path, Host=host)
        assert status == 421
        assert NAME not in body
    assert ask(server.port, "/healthz", Host=host)[:2] == (200, "ok\n")
    assert ask(server.port, "/", Host=f"localhost:{server.port}")[0] == 200


def test_a_server_with_a_token_answers_nobody_without_it(guarded: DashboardServer) -> None:
    wrong = ("Bearer", "Bearer wrong", "Basic !!", "Basic " + base64.b64encode(b"me:wrong").decode(), f"Token {TOKEN}")
    for path in PATHS:
        for headers in ({}, *({"Authorization": one} for one in wrong)):
            status, body, answered = ask(guarded.port, path, **headers)
            assert (status, NAME in body) == (401, False)
            assert answered["WWW-Authenticate"].startswith("Basic")
        for given in (f"Bearer {TOKEN}", "Basic " + base64.b64encode(f"me:{TOKEN}".encode()).decode()):
            assert ask(guarded.port, path, Authorization=given)[0] == 200
    assert ask(guarded.port, "/readyz")[:2] == (503, "not ready\n"), "a probe learns no more than that"


@pytest.mark.parametrize("address", ["0.0.0.0:0", "[::]:0", "example.org:0", "192.168.1.7:8765"])
def test_another_address_than_loopback_is_refused_without_a_token(pipeline: Pipeline, address: str) -> None:
    with pytest.raises(ConfigError, match="open to everybody") as refused:
        DashboardServer(watch_of(pipeline), address)
    assert "LAKEFEED_HTTP_TOKEN" in refused.value.remedy


def test_a_short_token_is_refused(pipeline: Pipeline) -> None:
    with pytest.raises(ConfigError, match="at least 16"):
        DashboardServer(watch_of(pipeline), "0.0.0.0:0", token="short")


def test_with_a_token_it_listens_everywhere(pipeline: Pipeline) -> None:
    with DashboardServer(watch_of(pipeline), "0.0.0.0:0", token=TOKEN) as served:
        assert ask(served.port, "/", Authorization=f"Bearer {TOKEN}")[0] == 200


def test_a_port_that_is_taken_is_a_sentence(server: DashboardServer, pipeline: Pipeline) -> None:
    with pytest.raises(ConfigError, match="cannot listen") as refused:
        DashboardServer(watch_of(pipeline), f"127.0.0.1:{server.port}")
    assert "--http 127.0.0.1:0" in refused.value.remedy


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("127.0.0.1:80", ("127.0.0.1", 80)),
        ("8765", ("127.0.0.1", 8765)),
        ("[::1]:0", ("::1", 0)),
        ("a.b:1", ("a.b", 1)),
    ],
)
def test_addresses(text: str, expected: tuple[str, int]) -> None:
    assert parse_address(text) == expected


@pytest.mark.parametrize("text", ["", ":80", "host", "127.0.0.1:", "127.0.0.1:x", "127.0.0.1:70000"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="not an address to listen on"):
        parse_address(text)


def test_what_is_loopback() -> None:
    assert all(map(is_loopback, ("127.0.0.1", "127.9.9.9", "::1", "localhost")))
    assert not any(map(is_loopback, ("0.0.0.0", "::", "10.0.0.1", "localhost.evil.example", "")))


def test_a_status_that_hangs_does_not_hang_the_server(tmp_path: Path) -> None:
    free = threading.Event()

    def hang() -> PipelineStatus:
        free.wait(60)
        raise AssertionError

    with DashboardServer(Watch("p", tmp_path, hang), "127.0.0.1:0") as served:
        began = time.monotonic()
        document = json.loads(ask(served.port, "/status.json")[1])
        assert time.monotonic() - began < 4
        assert document["verdict"] == "stalled"
        assert ask(served.port, "/healthz")[0] == 200
    free.set()


def test_a_status_that_fails_is_shown_with_its_remedy(tmp_path: Path) -> None:
    def fail() -> PipelineStatus:
        raise JournalDamagedError("commit 7 is damaged", remedy="Restore it.")

    with DashboardServer(Watch("p", tmp_path, fail), "127.0.0.1:0") as served:
        document: dict[str, Any] = json.loads(ask(served.port, "/status.json")[1])
        assert (document["verdict"], document["reason"], document["remedy"]) == (
            "stalled",
            "commit 7 is damaged",
            "Restore it.",
        )
        families = {family.name for family in text_string_to_metric_families(ask(served.port, "/metrics")[1])}
        assert "lakefeed_verdict" in families


def test_clients_that_keep_connections_open_do_not_lock_others_out_for_long(server: DashboardServer) -> None:
    idle = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(40)]
    for one in idle:
        one.close()
    until = time.monotonic() + 15
    while True:
        try:
            assert ask(server.port, "/healthz")[0] == 200
            return
        except (OSError, http.client.HTTPException):
            assert time.monotonic() < until
            time.sleep(0.1)
