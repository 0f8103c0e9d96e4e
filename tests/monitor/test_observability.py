"""The page, the Grafana dashboard and the alert rules speak of the metrics that there are, and of all of them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import yaml

from lakefeed.monitor.metrics import METRICS, STATES, VERDICTS

ROOT = Path(__file__).parents[2]
NAMES = {metric.name for metric in METRICS}
RULES = yaml.safe_load((ROOT / "deploy" / "alerts.yml").read_text())["groups"][0]["rules"]
GRAFANA = json.loads((ROOT / "deploy" / "grafana.json").read_text())


def used(text: str) -> set[str]:
    return set(re.findall(r"\blakefeed_[a-z_]+", text))


def test_the_page_lists_exactly_the_metrics_that_there_are() -> None:
    page = (ROOT / "docs" / "observability.md").read_text()
    rows = re.findall(r"^\| `(lakefeed_[a-z_]+)` \| (.+) \| (.+) \|$", page, re.MULTILINE)
    assert sorted(name for name, _, _ in rows) == sorted(NAMES)
    assert all(says and advice for _, says, advice in rows)


def test_names_follow_prometheus() -> None:
    assert len(NAMES) == len(METRICS)
    for metric in METRICS:
        assert (metric.kind == "counter") == metric.name.endswith("_total"), metric.name


def test_alert_rules_use_metrics_states_and_verdicts_that_there_are_and_have_a_remedy() -> None:
    for rule in RULES:
        assert used(rule["expr"])
        assert used(rule["expr"]) <= NAMES, rule["alert"]
        assert rule["annotations"]["summary"]
        assert rule["annotations"]["remedy"]
        assert set(re.findall(r'verdict="([a-z ]+)"', rule["expr"])) <= set(VERDICTS)
        assert set(re.findall(r'state="([a-z ]+)"', rule["expr"])) <= set(STATES)


def test_the_grafana_dashboard_uses_metrics_that_there_are() -> None:
    expressions = [target["expr"] for panel in GRAFANA["panels"] for target in panel["targets"]]
    queries = [one["query"] for one in GRAFANA["templating"]["list"]]
    assert len(expressions) > 10
    assert used(" ".join([*expressions, *queries])) <= NAMES
