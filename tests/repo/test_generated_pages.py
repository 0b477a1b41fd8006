"""Pages that come from code are fresh, and deployments set only keys that exist."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from types import ModuleType

import pytest

from strata_cli.processes.cluster_config import ClusterConfig
from strata_runtime.config import keys_of

ROOT = Path(__file__).resolve().parents[2]

ROCKETMQ_NAMES = """
messages_in_total messages_out_total throughput_in_total throughput_out_total message_size
consumer_lag_messages consumer_lag_latency consumer_inflight_messages consumer_queueing_latency
consumer_ready_messages send_to_dlq_messages_total commit_messages_total rollback_messages_total
finish_message_latency half_messages producer_connections consumer_connections topic_number
consumer_group_number processor_watermark broker_permission rpc_latency proxy_up
storage_size storage_flush_behind_bytes storage_dispatch_behind_bytes storage_message_reserve_time
timer_enqueue_lag timer_enqueue_latency timer_dequeue_lag timer_dequeue_latency timing_messages
timer_enqueue_total timer_dequeue_total timer_message_snapshot delay_message_latency
topic_create_execution_time consumer_group_create_execution_time
tiered_store_api_latency tiered_store_provider_rpc_latency tiered_store_provider_upload_bytes
tiered_store_provider_download_bytes tiered_store_dispatch_behind tiered_store_dispatch_latency
tiered_store_messages_dispatch_total tiered_store_messages_out_total
tiered_store_get_message_fallback_total tiered_store_read_ahead_cache_count
tiered_store_read_ahead_cache_bytes tiered_store_read_ahead_cache_access_total
tiered_store_read_ahead_cache_hit_total
"""
"""Metrics that RocketMQ 5 documents, and the newer names of its brokers."""


_INSTRUMENT = re.compile(
    r"(?:MetricSpec|\.counter|\.histogram|\.gauge|_histogram)"
    r'\(\s*(?:metrics,\s*)?"((?:strata|rocketmq)_[a-z0-9_]+)"'
)
"""A metric that is declared, or asked for by its name."""


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs", ROOT / "scripts/generate_docs.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def pages(generator: ModuleType) -> dict[str, str]:
    written: dict[str, str] = generator.pages()
    return written


@pytest.mark.parametrize("name", ["cli.md", "configuration.md", "metrics.md", "metrics.json"])
def test_page_is_what_the_code_says(pages: dict[str, str], name: str) -> None:
    """`make docs` would change nothing."""
    assert (ROOT / "docs" / name).read_text() == pages[name]


def test_every_name_of_rocketmq_is_there_or_explained(generator: ModuleType) -> None:
    """A documented metric of RocketMQ 5 is declared, or the page on metrics says why it is not."""
    declared = {spec.name for spec in generator.declared()}
    page = (ROOT / "docs" / "observability.md").read_text()
    names = [f"rocketmq_{name}" for name in ROCKETMQ_NAMES.split()]
    assert len(names) == len(set(names))
    assert [name for name in names if name not in declared and f"`{name}`" not in page] == []
    absent = page.partition("RocketMQ names are absent:")[2].partition("Clients:")[0]
    cells = [line.split("|")[1] for line in absent.splitlines() if line.startswith("|")]
    assert len(cells) > 2
    assert [name for name in declared for cell in cells if f"`{name}`" in cell] == []


def test_no_instrument_escapes_the_page(generator: ModuleType) -> None:
    """Every name that code declares or asks for as a metric is on the generated page."""
    declared = {spec.name for spec in generator.declared()}
    written: set[str] = set()
    for path in (*ROOT.glob("libs/*/strata_*/**/*.py"), *ROOT.glob("services/*/strata_*/**/*.py")):
        written.update(_INSTRUMENT.findall(path.read_text()))
    assert len(written) > 150
    assert written - declared == set()


def test_every_configuration_key_is_explained(generator: ModuleType) -> None:
    """No key of the configuration page has an empty meaning."""
    rows = re.findall(r"^\| `(\w+)` \| .* \| (.*) \|$", generator.configuration(), re.MULTILINE)
    assert len(rows) > 30
    assert [key for key, meaning in rows if not meaning.strip()] == []


@pytest.mark.parametrize("name", ["docker-compose.yml", "charts/strata/templates/_helpers.tpl"])
def test_deployments_set_only_keys_that_exist(name: str) -> None:
    """Each STRATA_ variable of the chart and of the compose file overrides a real key."""
    known = {variable for _, _, variable in keys_of(ClusterConfig)}
    used = set(re.findall(r"\bSTRATA_\w+", (ROOT / name).read_text()))
    assert used
    assert used <= known


def test_whoever_names_a_topic_names_its_namespace() -> None:
    """Namespaces isolate: a series of two tenants would add up what is not one thing."""
    specs = json.loads((ROOT / "docs" / "metrics.json").read_text())
    named = [each for each in specs["metrics"] if {"topic", "consumer_group"} & {*each["labels"]}]
    assert len(named) > 10
    assert [each["name"] for each in named if "namespace" not in each["labels"]] == []
