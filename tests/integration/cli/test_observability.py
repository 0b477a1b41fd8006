"""Metrics and traces of a node as Prometheus and an OpenTelemetry collector get them."""

from __future__ import annotations

import asyncio
import json
import re
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import grpc
import pytest
from google.protobuf.message import Message
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2, metrics_service_pb2_grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.proto.trace.v1 import trace_pb2
from prometheus_client.parser import text_string_to_metric_families

from apache.rocketmq.v2 import definition_pb2 as definition
from apache.rocketmq.v2 import service_pb2 as service
from strata_runtime.observability import COMMON_LABELS
from strata_runtime.windows import WINDOWS_TOPIC, Value, WindowKind, decode
from strata_testing import until_blocking
from tests.e2e.client import REQUEST_TIMEOUT_S, Client, RefusedError, check_status
from tests.integration.cli.test_membership import Scraped
from tests.parts.ports import free_port

if TYPE_CHECKING:
    from tests.integration.cli.conftest import StartNode

TRACE_ID, SPAN_ID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SAMPLED = f"00-{TRACE_ID}-{SPAN_ID}-01"
REGISTRY = Path(__file__).resolve().parents[3] / "docs" / "metrics.json"


class Collector(
    trace_service_pb2_grpc.TraceServiceServicer, metrics_service_pb2_grpc.MetricsServiceServicer
):
    """Takes OTLP over gRPC and keeps everything."""

    def __init__(self) -> None:
        self.spans: list[trace_pb2.Span] = []
        self.metrics: dict[str, dict[str, str]] = {}
        self._server = grpc.server(ThreadPoolExecutor(2))
        for add in (
            trace_service_pb2_grpc.add_TraceServiceServicer_to_server,
            metrics_service_pb2_grpc.add_MetricsServiceServicer_to_server,
        ):
            add(self, self._server)  # type: ignore[no-untyped-call]
        self.endpoint = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        self._server.start()

    def Export(self, request: Message, context: grpc.ServicerContext) -> Message:
        """Serve both services: their methods have one name."""
        if isinstance(request, trace_service_pb2.ExportTraceServiceRequest):
            scopes = [scope for each in request.resource_spans for scope in each.scope_spans]
            self.spans += [span for scope in scopes for span in scope.spans]
            return trace_service_pb2.ExportTraceServiceResponse()
        assert isinstance(request, metrics_service_pb2.ExportMetricsServiceRequest)
        for each in request.resource_metrics:
            labels = {pair.key: pair.value.string_value for pair in each.resource.attributes}
            for scope in each.scope_metrics:
                self.metrics |= {metric.name: labels for metric in scope.metrics}
        return metrics_service_pb2.ExportMetricsServiceResponse()

    def stop(self) -> None:
        """Close the port."""
        self._server.stop(0).wait()


@pytest.fixture
def collector() -> Iterator[Collector]:
    """A collector on a free port."""
    made = Collector()
    yield made
    made.stop()


async def _send(client: Client, topic: str, trace_context: str, **properties: str) -> None:
    request = service.SendMessageRequest()
    message = request.messages.add(body=b"traced", user_properties=properties)
    message.topic.name = topic
    message.system_properties.message_id = client.new_message_id()
    message.system_properties.message_type = definition.NORMAL
    message.system_properties.body_encoding = definition.IDENTITY
    if trace_context:
        message.system_properties.trace_context = trace_context
    response = await client.stub.SendMessage(
        request, metadata=client.metadata, timeout=REQUEST_TIMEOUT_S
    )
    check_status(response.status)


async def test_a_trace_follows_a_message_through_all_tiers(
    start_node: StartNode, collector: Collector
) -> None:
    """Send, append, commit and delivery of a traced message are spans of its client's trace."""
    node = start_node(
        STRATA_OBSERVABILITY_OTLP_ENDPOINT=collector.endpoint,
        STRATA_OBSERVABILITY_OTLP_INTERVAL_MS="200",
        STRATA_OBSERVABILITY_TRACE_SPAN_INTERVAL_MS="50",
        STRATA_OBSERVABILITY_TRACE_CLIENTS="true",
    )
    node.json("topic", "create", "traced", "--queues", "1")
    async with Client(node.endpoint) as client:
        await _send(client, "traced", "")
        await _send(client, "traced", "", traceparent=SAMPLED)
        for queue in await client.queues("traced"):
            delivered = await client.receive(queue, "traced-g")
            assert len(delivered) == 2
    until_blocking(lambda: len(collector.spans) >= 5)
    spans = {span.name: span for span in collector.spans}
    assert len(collector.spans) == 5, "only the traced one has spans"
    assert {span.trace_id.hex() for span in collector.spans} == {TRACE_ID}
    parents = [
        (SPAN_ID, "traced send"),
        (spans["traced send"].span_id.hex(), "append"),
        (spans["append"].span_id.hex(), "storage append"),
        (spans["storage append"].span_id.hex(), "raft commit"),
        (spans["traced send"].span_id.hex(), "traced receive"),
    ]
    assert [(spans[name].parent_span_id.hex(), name) for _, name in parents] == parents
    assert all(span.end_time_unix_nano > span.start_time_unix_nano for span in spans.values())
    until_blocking(lambda: "rocketmq_messages_in_total" in collector.metrics)
    assert collector.metrics["rocketmq_messages_in_total"]["service.name"] == "strata-standalone"
    assert "strata_log_sync_ms" in collector.metrics


def test_nothing_is_exported_by_default(start_node: StartNode) -> None:
    """Without a collector the process has no exporter and no thread of one."""
    node = start_node()
    threads = Path(f"/proc/{node.process.pid}/task")
    names = {(thread / "comm").read_text().strip() for thread in threads.iterdir()}
    assert not [name for name in names if "otlp" in name.lower() or "Otel" in name], names


def test_a_scrape_is_prometheus_text_and_declared(start_node: StartNode) -> None:
    """Every family parses, is in the registry of names, and has the registry's labels."""
    port = free_port()
    node = start_node(STRATA_NODE_METRICS_PORT=str(port), STRATA_OBSERVABILITY_CLUSTER="orders-eu")
    node.json("topic", "create", "counted", "--queues", "1")
    node.json("message", "send", "counted", "--body", "x")
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as response:
        families = list(text_string_to_metric_families(response.read().decode()))
    registry = {metric["name"]: metric for metric in json.loads(REGISTRY.read_text())["metrics"]}
    for family in families:
        name = f"{family.name}_total" if family.type == "counter" else family.name
        assert name in registry
        assert family.type == registry[name]["kind"], name
        for sample in family.samples:
            labels = set(sample.labels) - set(COMMON_LABELS) - {"le"}
            assert labels == set(registry[name]["labels"]), name
            assert sample.labels["cluster"] == "orders-eu"
            assert sample.labels["node_type"] == "standalone"
            assert re.fullmatch("storage-[0-9a-f]+", sample.labels["node_id"])
    found = {family.name: family for family in families}
    (messages,) = found["rocketmq_messages_in"].samples
    assert messages.value == 1
    assert messages.labels["topic"] == "counted"
    (permission,) = found["rocketmq_broker_permission"].samples
    assert permission.value == 6
    processors = {
        each.labels["processor"] for each in found["rocketmq_processor_watermark"].samples
    }
    assert processors == {"send", "ack", "pull", "lite_pull", "client_manager"}
    for name in ("size", "flush_behind_bytes", "dispatch_behind_bytes"):
        (sample,) = found[f"rocketmq_storage_{name}"].samples
        assert sample.labels["storage_type"] == "local"


async def test_metric_windows_say_what_happened(start_node: StartNode) -> None:
    """The internal topic gets what queues, consumer groups and nodes did, and lag is a metric."""
    port = free_port()
    node = start_node(
        STRATA_OBSERVABILITY_WINDOWS="true",
        STRATA_OBSERVABILITY_WINDOW_MS="500",
        STRATA_STORAGE_WINDOW_MS="500",
        STRATA_NODE_METRICS_PORT=str(port),
    )
    node.json("topic", "create", "busy", "--queues", "1")
    rows: dict[WindowKind, list[dict[str, Value]]] = {kind: [] for kind in WindowKind}
    async with Client(node.endpoint) as client:
        for number in range(5):
            await client.send("busy", [(client.new_message_id(), bytes(100))])
            if number == 1:
                (queue,) = await client.queues("busy")
                first, _ = await client.receive(queue, "busy-g")
                await client.ack("busy", "busy-g", [first])
        deadline_s = time.monotonic() + 60
        while (
            sum(int(row["messages_in"]) for row in rows[WindowKind.QUEUE]) < 5
            or not any(row["lag_messages"] == 4 for row in rows[WindowKind.CONSUMER_GROUP])
            or not any(row.get("appends") for row in rows[WindowKind.NODE])
        ):
            assert time.monotonic() < deadline_s, rows
            await asyncio.sleep(0.3)
            for batch in map(decode, await _windows(client)):
                of_topic = (row for row in batch.rows() if row.get("topic", "busy") == "busy")
                rows[batch.kind] += of_topic
    # The sends may fall into several windows, and windows come from several queues.
    stored = rows[WindowKind.QUEUE]
    assert sum(int(row["messages_in"]) for row in stored) == 5
    assert sum(int(row["bytes_in"]) for row in stored) >= 500
    assert max(int(row["end_offset"]) for row in stored) == 5
    assert sum(int(row["messages_out"]) for row in stored) == 2
    (consumer,) = {str(row["consumer_group"]) for row in rows[WindowKind.CONSUMER_GROUP]}
    assert consumer == "busy-g"
    lagging = [row for row in rows[WindowKind.CONSUMER_GROUP] if row["lag_messages"] == 4]
    assert lagging[0]["leases"] == 1
    kinds = {row["node_kind"] for row in rows[WindowKind.NODE]}
    assert kinds == {"storage", "broker"}
    storage = [row for row in rows[WindowKind.NODE] if row["node_kind"] == "storage"]
    assert any(row["appends"] and float(row["append_p99_ms"]) > 0 for row in storage)
    assert all(float(row["cpu_cores"]) > 0 for row in storage)
    # The first windows may end before both raft groups are led.
    assert storage[-1]["leaders"] == 2
    # The group that reads the windows has a row, too.
    mine = '{consumer_group="busy-g",namespace="",topic="busy"}'
    names = ("lag_messages", "lag_latency", "queueing_latency")
    scraped = Scraped(port).at_once(*(f"rocketmq_consumer_{name}" for name in names))
    lag, lag_ms, queueing_ms = (values[mine] for values in scraped)
    assert lag == 4
    assert 60_000 > lag_ms >= queueing_ms > 0


async def _windows(client: Client) -> list[bytes]:
    """Receive what is new in the topic of windows; nothing while it is not there."""
    bodies = []
    try:
        for queue in await client.queues(WINDOWS_TOPIC):
            delivered = await client.receive(queue, "windows-g", poll_s=1)
            if delivered:
                await client.ack(WINDOWS_TOPIC, "windows-g", delivered)
            bodies += [message.body for message in delivered]
    except RefusedError as refused:
        assert refused.code == definition.TOPIC_NOT_FOUND
    return bodies
