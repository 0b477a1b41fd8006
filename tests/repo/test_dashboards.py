"""Dashboards and alerts name metrics and labels that exist; each alert has a page and a test."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml

from strata_cli.main import app
from strata_cli.reference import commands
from strata_runtime.observability import COMMON_LABELS

ROOT = Path(__file__).resolve().parents[2]
FILES = ROOT / "charts/strata/files"
RUNBOOKS = ROOT / "docs/runbooks"
ALERT_TESTS = ROOT / "tests/integration/observability/alerts_test.yaml"
REGISTRY: dict[str, dict[str, Any]] = {
    metric["name"]: metric
    for metric in json.loads((ROOT / "docs/metrics.json").read_text())["metrics"]
}
SCRAPED = {"up": {"job", "instance"}}
"""Labels that Prometheus itself adds to each target."""
_SUFFIX = re.compile(r"_(bucket|count|sum)$")
_MACRO = re.compile(r"\$__rate_interval")
_SERIES = re.compile(r"\b((?:strata|rocketmq)_[a-z0-9_]+|up)\b(?:\{([^}]*)\})?")
_MATCHER = re.compile(r"(\w+)\s*(?:=~|!~|!=|=)")


def dashboards() -> list[Path]:
    return sorted((FILES / "dashboards").glob("*.json"))


def alerts() -> list[dict[str, Any]]:
    groups = yaml.safe_load((FILES / "rules.yaml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def queries(board: dict[str, Any]) -> Iterator[str]:
    for panel in board["panels"]:
        for target in panel.get("targets", ()):
            yield target["expr"]


def check(query: str) -> None:
    """The query parses, and all its metrics and label matchers exist."""
    promql_parser.parse(_MACRO.sub("5m", query))
    named = list(_SERIES.finditer(query))
    assert named, f"{query} names no metric"
    for match in named:
        name = match[1]
        metric = REGISTRY.get(name) or REGISTRY.get(_SUFFIX.sub("", name))
        assert metric or name in SCRAPED, f"{query}: there is no metric {name}"
        labels = SCRAPED.get(name, set()) | {"le", "job", *COMMON_LABELS}
        labels |= set(metric["labels"]) if metric else set()
        unknown = set(_MATCHER.findall(match[2] or "")) - labels
        assert not unknown, f"{query}: {name} has no label {unknown}"
        if metric and name != metric["name"]:
            assert metric["kind"] == "histogram", f"{query}: {metric['name']} has no {name}"


def test_dashboards_are_fresh() -> None:
    command = [sys.executable, "-m", "scripts.dashboards", "--check"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    assert len(dashboards()) == 8


@pytest.mark.parametrize("path", dashboards(), ids=lambda path: path.stem)
def test_each_query_of_a_dashboard_names_what_exists(path: Path) -> None:
    board = json.loads(path.read_text())
    assert board["uid"] == path.stem
    found = list(queries(board))
    assert found
    for query in found:
        check(query)


@pytest.mark.parametrize("path", dashboards(), ids=lambda path: path.stem)
def test_panels_are_told_apart_and_described(path: Path) -> None:
    panels = json.loads(path.read_text())["panels"]
    numbers = [panel["id"] for panel in panels]
    assert len(set(numbers)) == len(numbers)
    assert all(panel["description"] for panel in panels if panel["type"] != "row")


@pytest.mark.parametrize("alert", alerts(), ids=lambda alert: alert["alert"])
def test_an_alert_names_what_exists_and_has_a_page(alert: dict[str, Any]) -> None:
    check(alert["expr"])
    name = alert["alert"]
    assert alert["labels"]["severity"] in ("critical", "warning", "info")
    page = ROOT / alert["annotations"]["runbook"]
    assert page == RUNBOOKS / f"{name}.md"
    text = page.read_text()
    assert text.startswith(f"# {name}\n")
    assert {"## Find out", "## Act"} <= set(text.splitlines())
    assert f"[{name}]({name}.md)" in (RUNBOOKS / "README.md").read_text()


def test_every_page_has_an_alert_and_every_alert_a_test() -> None:
    names = {alert["alert"] for alert in alerts()}
    assert {page.stem for page in RUNBOOKS.glob("*.md")} - {"README"} == names
    tests = yaml.safe_load(ALERT_TESTS.read_text())["tests"]
    tested = {each["alertname"] for test in tests for each in test["alert_rule_test"]}
    assert tested == names


def test_runbooks_name_commands_metrics_and_pages_that_exist() -> None:
    verbs = {words for words, _ in commands(app)}
    for page in RUNBOOKS.glob("*.md"):
        text = page.read_text()
        for words in re.findall(r"`strata ((?:[a-z][a-z-]* ?)+)", text):
            known = [verb for verb in verbs if words.strip() == verb or verb.startswith(words)]
            at_all = known or [verb for verb in verbs if words.startswith(verb)]
            assert at_all, f"{page.name}: strata {words}"
        for name in re.findall(r"`((?:strata|rocketmq)_[a-z0-9_]+)`", text):
            assert name in REGISTRY, f"{page.name}: {name}"
        for link in re.findall(r"\]\(([^)]+\.md)\)", text):
            assert (page.parent / link).exists(), f"{page.name}: {link}"
