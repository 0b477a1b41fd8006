"""Alerts and dashboards with a real Prometheus."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from strata_testing import until_blocking
from tests.parts.daemon import Daemon
from tests.parts.ports import free_port
from tests.parts.required import absent

ROOT = Path(__file__).resolve().parents[3]
FILES = ROOT / "charts/strata/files"
FILLED = (
    "strata_process_serving",
    "strata_cluster_status",
    "rocketmq_messages_in_total",
    "rocketmq_rpc_latency_bucket",
    "strata_raft_sync_thread_ms_bucket",
    "strata_storage_append_ms_bucket",
)
"""Series that a node which took a message must have."""


def program(name: str) -> str:
    return shutil.which(name) or absent(f"{name} is missing: make prometheus")


def test_alerts_fire_for_what_they_are_for() -> None:
    command = [
        program("promtool"),
        "test",
        "rules",
        str(Path(__file__).parent / "alerts_test.yaml"),
    ]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert result.returncode == 0, result.stdout + result.stderr


class Prometheus:
    """A server that scrapes one process every second."""

    def __init__(self, folder: Path, target: int) -> None:
        configuration = folder / "prometheus.yml"
        configuration.write_text(
            json.dumps(
                {
                    "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
                    "rule_files": [str(FILES / "rules.yaml")],
                    "scrape_configs": [
                        {
                            "job_name": "strata",
                            "static_configs": [{"targets": [f"127.0.0.1:{target}"]}],
                        }
                    ],
                }
            )
        )
        self.port = free_port()
        self.daemon = Daemon(
            [
                program("prometheus"),
                f"--config.file={configuration}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address=127.0.0.1:{self.port}",
            ],
            self.port,
            folder / "prometheus.log",
        )

    def is_ready(self) -> bool:
        try:
            self.get("status/runtimeinfo")
        except urllib.error.HTTPError:
            return False
        return True

    def get(self, path: str, **query: str) -> Any:
        url = f"http://127.0.0.1:{self.port}/api/v1/{path}?{urllib.parse.urlencode(query)}"
        with urllib.request.urlopen(url, timeout=10) as answer:
            return json.load(answer)["data"]

    def values(self, query: str) -> list[Any]:
        found: list[Any] = self.get("query", query=query)["result"]
        return found


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    folder = tmp_path_factory.mktemp("prometheus")
    metrics_port = free_port()
    node = subprocess.Popen(
        [
            *(sys.executable, "-m", "strata_cli.main", "standalone"),
            *("--data-dir", str(folder / "node"), "--grpc-port", "0"),
            *("--metrics-port", str(metrics_port)),
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert node.stdout is not None
        ready = node.stdout.readline()
        endpoint = re.search(r"grpc=(\S+)", ready)
        assert endpoint, ready
        for words in (("topic", "create", "t"), ("message", "send", "t", "--body", "hello")):
            command = [sys.executable, "-m", "strata_cli.main", *words, "--endpoint", endpoint[1]]
            subprocess.run(command, check=True, capture_output=True, timeout=60)
        server = Prometheus(folder, metrics_port)
        server.daemon.start()
        until_blocking(server.is_ready)
        try:
            yield server
        finally:
            server.daemon.stop()
    finally:
        node.terminate()
        node.communicate(timeout=30)


@pytest.mark.parametrize("series", FILLED)
def test_a_node_has_the_series_that_dashboards_show(prometheus: Prometheus, series: str) -> None:
    until_blocking(lambda: prometheus.values(series))


def test_each_query_of_the_dashboards_is_answered(prometheus: Prometheus) -> None:
    until_blocking(lambda: prometheus.values("strata_process_serving"))
    cluster = prometheus.values("strata_process_serving")[0]["metric"]["cluster"]
    for path in sorted((FILES / "dashboards").glob("*.json")):
        for panel in json.loads(path.read_text())["panels"]:
            for target in panel.get("targets", ()):
                query = target["expr"].replace("$__rate_interval", "1m")
                query = query.replace("$cluster", cluster)
                query = re.sub(r"\$(node_id|namespace|topic|consumer_group)", ".*", query)
                prometheus.values(query)


def test_a_share_of_sends_has_its_bucket(prometheus: Prometheus) -> None:
    """An objective counts sends within 250 ms by the bucket of that name."""
    query = 'rocketmq_rpc_latency_bucket{request_code="send_message",le=~"250(.0)?"}'
    until_blocking(lambda: prometheus.values(query))
    assert prometheus.values(query)[0]["metric"]["le"] == "250"


def test_rules_are_loaded_and_nothing_fires_on_a_healthy_node(prometheus: Prometheus) -> None:
    until_blocking(lambda: prometheus.values("strata_cluster_status == 0"))
    rules = [rule for group in prometheus.get("rules")["groups"] for rule in group["rules"]]
    assert len(rules) == len(re.findall(r"- alert:", (FILES / "rules.yaml").read_text()))
    assert all(rule["health"] in ("ok", "unknown") for rule in rules)
    firing = {alert["labels"]["alertname"] for alert in prometheus.get("alerts")["alerts"]}
    assert not firing


def test_each_rule_of_the_prometheus_adapter_is_answered(prometheus: Prometheus) -> None:
    """A HorizontalPodAutoscaler without KEDA gets a number from a node that took a message."""
    rules = yaml.safe_load((ROOT / "docs/examples/prometheus-adapter.yaml").read_text())
    known = {
        each["name"] for each in json.loads((ROOT / "docs/metrics.json").read_text())["metrics"]
    }
    for rule in rules["rules"]["external"]:
        series = rule["seriesQuery"]
        assert series in known
        query = rule["metricsQuery"].replace("<<.Series>>", series)
        query = query.replace("<<.LabelMatchers>>", 'topic=~".*"')
        if series.startswith("rocketmq_messages"):
            until_blocking(partial(prometheus.values, query))
        else:
            # The query is one that Prometheus understands; there may be nothing to show yet.
            prometheus.values(query)
