"""`strata autoscaler`: asks a broker for what pods are scaled by, and serves it to KEDA."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

from strata.admin.v1 import admin_pb2
from strata_cli.client import AdminClient
from strata_cli.errors import CliError
from strata_cli.metric_windows import PAGE_SIZE, WindowReading
from strata_cli.options import Common
from strata_cli.processes.cluster_config import ClusterConfig
from strata_cli.processes.ready_line import ReadyLine
from strata_placement.autoscaling.follower import Parts
from strata_placement.autoscaling.reader import ClusterUnreadableError, Past
from strata_placement.autoscaling.scaler import Scaler
from strata_placement.autoscaling.server import AutoscalerServer
from strata_placement.autoscaling.trigger import Trigger
from strata_placement.windows import is_of_storage
from strata_runtime import logs, loop
from strata_runtime.clock import SystemClock
from strata_runtime.errors import one_line
from strata_runtime.health import ProcessHealth
from strata_runtime.lifecycle import Lifecycle, Service
from strata_runtime.listening import endpoint_of
from strata_runtime.metrics import Metrics
from strata_runtime.metrics_server import MetricsServer, MetricsServerOptions
from strata_runtime.windows import WindowKind

_GRACE_S = 5.0

Result = TypeVar("Result")


class BrokerReader:
    """Reads a cluster through one broker; a `ClusterReader`.

    The client blocks, so each reading runs in a thread.

    Args:
        client: calls the broker.
    """

    def __init__(self, client: AdminClient) -> None:
        self._client = client
        self._log = logs.get_logger("autoscaler")

    async def lag(self, trigger: Trigger) -> float:
        """See `ClusterReader`."""
        request = admin_pb2.GetConsumerGroupRequest(namespace=trigger.namespace, name=trigger.group)
        answer = await _in_thread(
            lambda: self._client.call(self._client.admin.GetConsumerGroup, request)
        )
        return float(
            sum(
                each.lag
                for each in answer.queues
                if not trigger.topics or each.topic in trigger.topics
            )
        )

    async def stored(self, trigger: Trigger, max_topics: int) -> float:
        """See `ClusterReader`."""
        return await _in_thread(lambda: self._stored(trigger, max_topics))

    async def bytes_per_s(self) -> float:
        """See `ClusterReader`."""
        request = admin_pb2.GetPlacementRequest()
        answer = await _in_thread(
            lambda: self._client.call(self._client.admin.GetPlacement, request)
        )
        return float(sum(load.bytes_per_s for load in answer.loads))

    async def past(self, trigger: Trigger, since_ms: int, step_ms: int) -> Past:
        """See `ClusterReader`."""
        return await _in_thread(lambda: self._past(trigger, since_ms, step_ms))

    def _stored(self, trigger: Trigger, max_topics: int) -> float:
        client = self._client
        names = [(trigger.namespace, name) for name in trigger.topics]
        if not names:
            request = admin_pb2.ListTopicsRequest(page_size=min(PAGE_SIZE, max_topics + 1))
            page = client.call(client.admin.ListTopics, request)
            names = [(topic.namespace, topic.name) for topic in page.topics]
            if page.next_page_token or len(names) > max_topics:
                raise ClusterUnreadableError(
                    f"the cluster has more than {max_topics} topics (autoscaler.max_topics): name "
                    "topics in the trigger, or use bytes_per_second"
                )
        total = 0
        for namespace, name in names:
            wanted = admin_pb2.GetTopicRequest(namespace=namespace, name=name)
            answer = client.call(client.admin.GetTopic, wanted)
            total += sum(queue.next_offset for queue in answer.queues)
        return float(total)

    def _past(self, trigger: Trigger, since_ms: int, step_ms: int) -> Past:
        counted: dict[int, float] = {}
        last = 0
        column = "messages_in" if trigger.rate == "messages_per_second" else "bytes_in"
        more = "bytes_out" if column == "bytes_in" else None
        reading = WindowReading(self._client, int(time.time() * 1_000) - since_ms)
        for batch in reading:
            at = batch.start_ms // step_ms
            if is_of_storage(batch):
                # It writes windows of itself while all of its queues are idle, too.
                last = max(last, at)
            if batch.kind is not WindowKind.QUEUE:
                continue
            for row in batch.rows():
                if not trigger.topics or (
                    row["namespace"] == trigger.namespace and row["topic"] in trigger.topics
                ):
                    amount = float(row[column]) + (float(row[more]) if more else 0.0)
                    counted[at] = counted.get(at, 0.0) + amount
        if notes := reading.notes():
            self._log.warning("not all metric windows count for a forecast", reasons=notes)
        if not counted:
            return Past(since_ms)
        first = min(counted)
        # The newest window is still being written.
        values = [counted.get(at, 0.0) * 1_000 / step_ms for at in range(first, last)]
        return Past(first * step_ms, values)


async def _in_thread(read: Callable[[], Result]) -> Result:
    """Call a broker in a thread.

    Raises:
        ClusterUnreadableError: the broker refuses, or does not answer.
    """
    try:
        return await asyncio.to_thread(read)
    except CliError as error:
        raise ClusterUnreadableError(one_line(error)) from error


def run(config: ClusterConfig, common: Common) -> None:
    """Run the autoscaler until it is told to stop.

    Args:
        config: its sections `node` and `autoscaler` count.
        common: broker, keys and certificates.

    Raises:
        StrataError: it cannot start, or failed.
    """
    logs.configure(level=config.node.log_level)
    loop.run(_serve(config, AdminClient(common)))


async def _serve(config: ClusterConfig, client: AdminClient) -> None:
    metrics = Metrics(service="strata-autoscaler")
    node, options = config.node, config.autoscaler.options()
    lifecycle: Lifecycle
    scaler = Scaler(
        Parts(BrokerReader(client), options, SystemClock()),
        metrics,
        on_fatal=lambda name, failure: lifecycle.on_fatal(name, failure),
    )
    server = AutoscalerServer(
        node.host,
        config.autoscaler.port,
        scaler,
        metrics=metrics,
        max_streams=options.max_streams,
    )
    health = ProcessHealth(metrics)
    health.follow(server.health)
    services: list[Service] = [scaler, server]
    if node.metrics_port is not None:
        at = MetricsServerOptions(host=node.host, port=node.metrics_port)
        services.insert(0, MetricsServer(metrics, at, health=health))
    fields = ReadyLine(
        lambda: {"listen": endpoint_of(node.host, server.port), "broker": client.endpoint}, health
    )
    lifecycle = Lifecycle([*services, fields], grace_s=_GRACE_S)
    try:
        await lifecycle.run()
    finally:
        client.close()
        metrics.close()
