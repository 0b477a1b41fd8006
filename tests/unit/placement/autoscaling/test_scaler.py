"""Answers to KEDA: values, kept values while the cluster cannot be read, limits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from strata.keda.v1 import externalscaler_pb2, externalscaler_pb2_grpc
from strata_placement.autoscaling.follower import Parts
from strata_placement.autoscaling.options import AutoscalerOptions
from strata_placement.autoscaling.reader import ClusterUnreadableError, Past
from strata_placement.autoscaling.scaler import Scaler
from strata_placement.autoscaling.server import AutoscalerServer
from strata_placement.autoscaling.trigger import Trigger
from strata_runtime.metrics import Metrics
from strata_testing import ManualClock, until

OPTIONS = AutoscalerOptions(
    read_interval_ms=5,
    keep_last_ms=60_000,
    first_value_timeout_ms=2_000,
    max_triggers=2,
    max_streams=1,
)
LAG = {"metric": "lag", "group": "workers", "target": "10"}
RATE = {"metric": "messages_per_second", "target": "100"}


class FakeCluster:
    """A `ClusterReader` whose numbers a test sets."""

    def __init__(self) -> None:
        self.messages = 0.0
        self.count = 0.0
        self.bytes = 0.0
        self.windows = Past(0)
        self.failure = ""
        self.reads = 0

    async def lag(self, trigger: Trigger) -> float:
        return self._read(self.messages)

    async def stored(self, trigger: Trigger, max_topics: int) -> float:
        return self._read(self.count)

    async def bytes_per_s(self) -> float:
        return self._read(self.bytes)

    async def past(self, trigger: Trigger, since_ms: int, step_ms: int) -> Past:
        return self.windows

    def _read(self, value: float) -> float:
        self.reads += 1
        if self.failure:
            raise ClusterUnreadableError(self.failure)
        return value


class World:
    """A scaler on a port, its cluster and its clock."""

    def __init__(self) -> None:
        self.cluster = FakeCluster()
        self.clock = ManualClock()
        self.metrics = Metrics()

        def fail(name: str, failure: BaseException) -> None:
            raise AssertionError(name) from failure

        self.scaler = Scaler(Parts(self.cluster, OPTIONS, self.clock), self.metrics, on_fatal=fail)
        self.server = AutoscalerServer(
            *("127.0.0.1", 0, self.scaler),
            metrics=self.metrics,
            max_streams=OPTIONS.max_streams,
        )

    async def start(self) -> None:
        await self.scaler.start()
        await self.server.start()
        self.channel = grpc.aio.insecure_channel(f"127.0.0.1:{self.server.port}")
        self.keda = externalscaler_pb2_grpc.ExternalScalerStub(self.channel)

    async def stop(self) -> None:
        await self.channel.close()
        await self.server.stop(1.0)
        await self.scaler.stop(1.0)
        self.metrics.close()

    async def value(self, metadata: dict[str, str], name: str = "brokers") -> float:
        request = externalscaler_pb2.GetMetricsRequest(
            scaledObjectRef=reference(metadata, name), metricName="m"
        )
        [value] = (await self.keda.GetMetrics(request)).metricValues
        return value.metricValueFloat

    async def read_again(self) -> None:
        """Wait until the cluster was read twice more."""
        wanted = self.cluster.reads + 2
        await until(lambda: self.cluster.reads >= wanted)


def reference(
    metadata: dict[str, str], name: str = "brokers"
) -> externalscaler_pb2.ScaledObjectRef:
    return externalscaler_pb2.ScaledObjectRef(name=name, namespace="mq", scalerMetadata=metadata)


@pytest.fixture
async def world() -> AsyncIterator[World]:
    made = World()
    await made.start()
    yield made
    await made.stop()


async def test_a_lag_is_told_with_its_target(world: World) -> None:
    """Value, target and activity belong together; the value follows the cluster."""
    world.cluster.messages = 35
    [spec] = (await world.keda.GetMetricSpec(reference(LAG))).metricSpecs
    assert (spec.metricName, spec.targetSize, spec.targetSizeFloat) == ("strata-lag", 10, 10.0)
    assert await world.value(LAG) == 35
    assert (await world.keda.IsActive(reference(LAG))).result
    world.cluster.messages = 0
    await world.read_again()
    assert await world.value(LAG) == 0
    assert not (await world.keda.IsActive(reference(LAG))).result


async def test_many_calls_read_the_cluster_once(world: World) -> None:
    """Calls are answered from memory, however many there are."""
    await world.value(LAG)
    before = world.cluster.reads
    world.cluster.failure = "stop"
    await asyncio.gather(*(world.value(LAG) for _ in range(50)))
    assert world.cluster.reads - before < 50


async def test_the_last_value_holds_while_the_cluster_cannot_be_read(world: World) -> None:
    """For a time it is served, and metrics and health say so; then KEDA gets the reason."""
    world.cluster.messages = 35
    assert await world.value(LAG) == 35
    world.cluster.failure = "cannot reach brokers:8081"
    await until(lambda: bool(world.scaler.failures))
    assert await world.value(LAG) == 35
    world.metrics.read_gauges()
    text = world.metrics.render().decode()
    assert 'strata_autoscaler_answers_total{metric="lag",result="kept"} 1.0' in text
    assert 'result="failed"' in text
    [problem] = world.server.health().problems
    assert (problem.name, problem.state) == ("mq/brokers", "UNREADABLE")
    world.clock.advance(OPTIONS.keep_last_ms / 1_000 + 1)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await world.value(LAG)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    assert "cannot reach brokers:8081" in (caught.value.details() or "")
    assert "autoscaler.keep_last_ms allows 60 s" in (caught.value.details() or "")
    world.cluster.failure = ""
    await until(lambda: not world.scaler.failures)
    assert await world.value(LAG) == 35


async def test_a_cluster_that_was_never_read_is_an_error(world: World) -> None:
    """No value is made up."""
    world.cluster.failure = "user autoscaler may not read group workers"
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await world.value(LAG)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    assert caught.value.details() == f"there is no value yet: {world.cluster.failure}"


async def test_a_stream_tells_each_change_of_activity(world: World) -> None:
    """A push trigger learns at once that its target is needed, and that it no longer is."""
    stream: Any = world.keda.StreamIsActive(reference(LAG))
    assert not (await stream.read()).result
    world.cluster.messages = 1
    assert (await stream.read()).result
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await world.keda.StreamIsActive(reference(LAG)).read()
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    world.cluster.messages = 0
    assert not (await stream.read()).result
    stream.cancel()


async def test_triggers_have_a_limit(world: World) -> None:
    """The error names the key of the limit; triggers that are known go on."""
    await world.value(LAG, "a")
    await world.value(LAG, "b")
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await world.value(LAG, "c")
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "autoscaler.max_triggers" in (caught.value.details() or "")
    assert await world.value(LAG, "a") == 0


async def test_a_trigger_that_nobody_asks_for_is_forgotten(world: World) -> None:
    """A deleted ScaledObject costs nothing for long."""
    await world.value(LAG, "a")
    await world.value(LAG, "b")
    world.clock.advance(OPTIONS.forget_after_ms / 1_000 + 1)
    await until(lambda: "triggers 0.0" in rendered(world.metrics))
    await world.value(LAG, "c")


async def test_a_wrong_trigger_is_refused(world: World) -> None:
    """KEDA shows the text in the events of the ScaledObject."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await world.value({"metric": "lag", "target": "1"})
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "a lag needs a consumer group" in (caught.value.details() or "")


async def test_a_rate_waits_for_its_second_reading(world: World) -> None:
    """The first answer is a rate, not an error."""
    asked = asyncio.ensure_future(world.value(RATE))
    await until(lambda: world.cluster.reads >= 1)
    world.cluster.count = 500
    world.clock.advance(2)
    assert await asked == pytest.approx(250)


async def test_a_forecast_prepares_for_what_the_windows_promise(world: World) -> None:
    """The value is the peak to come, within what was ever seen; never less than the rate now."""
    step_ms = OPTIONS.forecast_window_ms
    world.cluster.windows = Past(world.clock.wall_ms() - 30 * step_ms, [800.0] * 30)
    world.cluster.bytes = 10
    forecast = {"metric": "forecast", "of": "bytes_per_second", "target": "100"}
    assert await world.value(forecast) == pytest.approx(800)
    world.cluster.bytes = 5_000
    await world.read_again()
    assert await world.value(forecast) == pytest.approx(5_000)


def rendered(metrics: Metrics) -> str:
    metrics.read_gauges()
    return metrics.render().decode()
