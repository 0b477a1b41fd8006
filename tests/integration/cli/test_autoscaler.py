"""`strata autoscaler` beside a real node: KEDA sees lag and rates. And `strata probe`."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator

import grpc
import pytest

from strata.keda.v1 import externalscaler_pb2, externalscaler_pb2_grpc
from tests.integration.cli.conftest import STRATA, Node, StartNode
from tests.parts.ports import free_port

SENT = 3
RECEIVE = ("message", "receive", "orders", "--group", "workers")
LAG = {"metric": "lag", "group": "workers", "topic": "orders", "target": "10"}
WAIT_S = 30.0


class Autoscaler:
    """The process, and KEDA's view of it."""

    def __init__(self, endpoint: str) -> None:
        self.process = subprocess.Popen(
            [*STRATA, "autoscaler", "--port", "0", "--endpoint", endpoint, "--timeout", "2s"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ
            | {
                "STRATA_AUTOSCALER_READ_INTERVAL_MS": "100",
                "STRATA_AUTOSCALER_RATE_WINDOW_MS": "1000",
            },
        )
        assert self.process.stdout is not None
        fields = dict(part.split("=", 1) for part in self.process.stdout.readline().split()[1:])
        self.channel = grpc.insecure_channel(fields["listen"])
        self.keda = externalscaler_pb2_grpc.ExternalScalerStub(self.channel)

    def value(self, metadata: dict[str, str]) -> float:
        request = externalscaler_pb2.GetMetricsRequest(
            scaledObjectRef=reference(metadata), metricName="m"
        )
        [value] = self.keda.GetMetrics(request, timeout=WAIT_S).metricValues
        return value.metricValueFloat

    def until_value(self, metadata: dict[str, str], wanted: float) -> None:
        """Wait until the value is what it should be."""
        end_s = time.monotonic() + WAIT_S
        while (value := self.value(metadata)) != wanted:
            assert time.monotonic() < end_s, value
            time.sleep(0.05)

    def stop(self) -> tuple[int, str]:
        self.channel.close()
        self.process.terminate()
        _, errors = self.process.communicate(timeout=WAIT_S)
        return self.process.returncode, errors


def reference(metadata: dict[str, str]) -> externalscaler_pb2.ScaledObjectRef:
    return externalscaler_pb2.ScaledObjectRef(
        name="workers", namespace="mq", scalerMetadata=metadata
    )


@pytest.fixture
def node(start_node: StartNode) -> Node:
    return start_node("--metrics-port", "0")


@pytest.fixture
def autoscaler(node: Node) -> Iterator[Autoscaler]:
    started = Autoscaler(node.endpoint)
    yield started
    if started.process.poll() is None:
        started.stop()


def test_lag_and_rates_of_a_real_node(node: Node, autoscaler: Autoscaler) -> None:
    """The lag is the messages nobody acked; the rate falls to nothing when nobody sends."""
    node.json("topic", "create", "orders")
    node.json("group", "create", "workers")
    node.json(*RECEIVE, "--wait", "1s")
    for number in range(SENT):
        node.json("message", "send", "orders", "--body", f"order {number}")
    autoscaler.until_value(LAG, SENT)
    assert autoscaler.keda.IsActive(reference(LAG), timeout=WAIT_S).result
    stream = autoscaler.keda.StreamIsActive(reference(LAG), timeout=WAIT_S)
    assert next(stream).result
    # One receive may get less than there is: messages are in several queues.
    while autoscaler.value(LAG):
        node.json(*RECEIVE, "--count", str(SENT), "--ack", "--wait", "1s")
    assert not next(stream).result
    autoscaler.until_value(LAG, 0)
    autoscaler.until_value({"metric": "messages_per_second", "target": "1"}, 0)
    assert autoscaler.value({"metric": "bytes_per_second", "target": "1"}) >= 0
    assert autoscaler.value({"metric": "forecast", "target": "1"}) >= 0


def test_a_stopped_node_leaves_the_last_value(node: Node, autoscaler: Autoscaler) -> None:
    """KEDA keeps its replicas while no broker answers; what was never known is refused."""
    node.json("topic", "create", "orders")
    rate = {"metric": "messages_per_second", "target": "1", "topic": "orders"}
    autoscaler.until_value(rate, 0)
    node.stop()
    assert autoscaler.value(rate) == 0
    with pytest.raises(grpc.RpcError) as caught:
        autoscaler.value(LAG)
    assert isinstance(caught.value, grpc.Call)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    assert f"there is no value yet: cannot reach {node.endpoint}" in (caught.value.details() or "")
    code, errors = autoscaler.stop()
    assert code == 0
    assert "the cluster cannot be read" in errors


def test_a_group_that_does_not_exist_is_told(node: Node, autoscaler: Autoscaler) -> None:
    """The operator of KEDA reads the reason in the events of the ScaledObject."""
    with pytest.raises(grpc.RpcError) as caught:
        autoscaler.value(LAG)
    assert isinstance(caught.value, grpc.Call)
    assert "workers" in (caught.value.details() or "")


def test_probe_asks_the_metrics_port(start_node: StartNode) -> None:
    """Ready is exit code 0; nothing there is 5."""
    port = str(free_port())
    node = start_node("--metrics-port", port)
    assert node.strata("probe", "--port", port).stdout == "ready\n"
    assert node.strata("probe", "--port", port, "--state", "live").stdout == "live\n"
    node.stop()
    done = node.strata("probe", "--port", port)
    assert (done.returncode, done.stdout) == (5, "")
    assert f"127.0.0.1:{port} does not answer" in done.stderr
