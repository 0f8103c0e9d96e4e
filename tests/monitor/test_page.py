"""The dashboard in a real browser. ``make browser`` runs these; they need Chromium."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.monitor.chromium import Visit, visit
from tests.monitor.hostile import ERROR, NAME, REMEDY, hostile_findings, hostile_pipeline
from tests.monitor.test_dashboard_command import ROWS, serving, shop, wait_for_live

from lakefeed.flow.pipeline import Pipeline
from lakefeed.monitor.server import DashboardServer
from lakefeed.monitor.watch import Watch

__all__ = ["shop"]  # a fixture

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pipeline]:
    with hostile_pipeline(tmp_path_factory.mktemp("hostile")) as made:
        yield made


@pytest.fixture(scope="module")
def page(pipeline: Pipeline) -> Iterator[Visit]:
    watch = Watch("p", pipeline.root, pipeline.status, about={"source": "scripted"}, findings=hostile_findings)
    with DashboardServer(watch, "127.0.0.1:0") as served:
        watch.document()
        watch.look()
        yield visit(served.url)


def text_of(page: Visit) -> str:
    return html.unescape(re.sub(r"<[^>]+>", "\n", page.dom))


def test_hostile_names_errors_and_remedies_are_text_and_run_nothing(page: Visit) -> None:
    assert "<title>p: stalled · Lakefeed</title>" in page.dom, "none of the scripts in the names has changed it"
    assert "<img src=x" not in page.dom
    assert "<svg onload" not in page.dom
    shown = html.unescape(page.dom)
    for text in (NAME, ERROR, REMEDY):
        assert text in shown


def test_the_page_violates_no_policy_and_logs_no_error(page: Visit) -> None:
    assert page.console == ()


def test_the_page_shows_verdict_rates_charts_tables_and_change_sets(page: Visit) -> None:
    shown = text_of(page)
    for text in ("stalled", "Needs attention", "Throughput", "1 change set", "0 of 1 table live", "Recent change sets"):
        assert text in shown, text
    assert page.dom.count("<polyline") == 4
    assert "live" in shown


def test_the_page_of_a_real_pipeline_shows_its_tables_live(shop: Path) -> None:
    with serving(shop, "run", "shop.yaml") as url:
        wait_for_live(url)
        page = visit(url)
    assert page.console == ()
    shown = text_of(page)
    for text in ("1 of 1 table live", "main.items", str(ROWS), f"sqlite {shop / 'shop.db'}"):
        assert text in shown, text
