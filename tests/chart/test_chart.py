"""The Helm chart: it lints, renders to valid Kubernetes objects, and agrees with the code."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import helm_python
import kubernetes_validate
import pytest
import yaml

CHART = Path(__file__).resolve().parents[2] / "charts" / "strata"
KUBERNETES_VERSION = "1.31"


@pytest.fixture(scope="module")
def chart() -> Iterator[helm_python.Chart]:
    with helm_python.Chart.load(str(CHART)) as loaded:
        yield loaded


def objects(chart: helm_python.Chart, values: dict[str, Any] | None = None) -> list[dict[str, Any]]:
    rendered = chart.render(values or {}, name="demo", namespace="messaging")
    found: list[dict[str, Any]] = []
    for path, text in rendered.items():
        if path.endswith(".yaml"):
            found.extend(item for item in yaml.safe_load_all(text) if item)
    return found


def of_kind(items: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    (item,) = [item for item in items if item["kind"] == kind]
    return item


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"tls": {"secretName": "own"}},
        {"standalone": {"persistence": {"enabled": False}, "config": {"broker": {"a": 1}}}},
    ],
)
def test_every_object_is_valid_for_kubernetes(
    chart: helm_python.Chart, values: dict[str, Any]
) -> None:
    """Each rendered object passes the API's schema, unknown fields refused."""
    items = objects(chart, values)
    assert {item["kind"] for item in items} == {"ConfigMap", "Service", "StatefulSet"}
    for item in items:
        kubernetes_validate.validate(item, KUBERNETES_VERSION, strict=True)


def test_service_monitor_only_when_asked_for(chart: helm_python.Chart) -> None:
    """The ServiceMonitor needs a CRD, so it is off until a value turns it on."""
    values = {"metrics": {"serviceMonitor": {"enabled": True}}}
    assert of_kind(objects(chart, values), "ServiceMonitor")["spec"]["endpoints"] == [
        {"port": "metrics", "interval": "15s"}
    ]


@pytest.mark.parametrize(
    "values",
    [
        {"standalone": {"ports": {"grpc": 0}}},
        {"standalone": {"persistence": {"size": "lots"}}},
        {"service": {"type": "Gateway"}},
        {"unknown": 1},
    ],
)
def test_bad_values_are_refused(chart: helm_python.Chart, values: dict[str, Any]) -> None:
    """The values schema names what is wrong before anything is rendered."""
    with pytest.raises(helm_python.HelmValuesError):
        chart.validate_schema(values)


def test_configuration_reaches_the_node_as_toml(chart: helm_python.Chart) -> None:
    """`standalone.config` becomes the file that --config names."""
    config = {"storage": {"segment_bytes": 1048576}}
    items = objects(chart, {"standalone": {"config": config}})
    text = of_kind(items, "ConfigMap")["data"]["strata.toml"]
    assert tomllib.loads(text) == config
    container = of_kind(items, "StatefulSet")["spec"]["template"]["spec"]["containers"][0]
    assert "--config=/etc/strata/strata.toml" in container["args"]


def test_chart_version_is_the_products(chart: helm_python.Chart) -> None:
    """The chart installs the version that the command reports."""
    cli = tomllib.loads((CHART.parents[1] / "services/cli/pyproject.toml").read_text())
    assert (
        yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"]
        == (cli["project"]["version"])
    )
