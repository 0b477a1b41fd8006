"""Collects the metric windows of storage nodes, adds names, and publishes them.

One live broker, chosen by rendezvous hash, asks each storage node, so that a dead broker is
replaced within a window. A window is sent to the topic `__strata_metrics` (see
`strata_runtime.windows`). Its message ids are made of node, time and kind, so that a window that
two brokers publish is stored once. The broker adds the window of its own process. Rows get their
names and bytes in pieces, between which the event loop does other work.

The lag of consumer groups is also shown as metrics (`ConsumerLags`), for the storage nodes that
this broker asks: the sum over brokers is the cluster's lag.
"""

from __future__ import annotations

import asyncio
import resource
import time
from collections import deque
from collections.abc import Iterable, Iterator
from hashlib import md5
from itertools import islice
from typing import TypeVar
from zlib import crc32

from apache.rocketmq.v2 import definition_pb2, service_pb2
from strata.meta.v1 import meta_pb2
from strata.storage.v1 import storage_pb2
from strata_angelia.ports import AngeliaError
from strata_broker.base.failures import passed_over
from strata_broker.base.window_options import WindowOptions
from strata_broker.clients.sessions import Sessions
from strata_broker.metadata.metadata import MetadataView
from strata_broker.metadata.recorder import Recorder
from strata_broker.operators.consumer_lags import ConsumerLags, Row
from strata_broker.operators.topics import Operations
from strata_broker.sends.internal_sends import InternalSends
from strata_broker.storage_client.channels import NodeChannels
from strata_broker.storage_client.storage_client import SERVICE
from strata_metadata.errors import MetaRefused
from strata_mq.requests import RequestError
from strata_mq.slots import rendezvous
from strata_runtime.clock import Clock
from strata_runtime.logs import get_logger
from strata_runtime.metrics import Metrics
from strata_runtime.quantiles import HistogramWindow
from strata_runtime.runtime import Runtime
from strata_runtime.tasks import RequestTasks
from strata_runtime.windows import (
    WINDOWS_TOPIC,
    Value,
    WindowBatch,
    WindowKind,
    batches_of,
    encode,
)

_GET_WINDOW = SERVICE + "GetWindow"
_NAME = ("", WINDOWS_TOPIC)
Item = TypeVar("Item")
# Rows that get their names in one turn of the event loop.
_ROWS_PER_STEP = 250


class WindowCollector:
    """See the module docstring."""

    def __init__(
        self,
        node_id: str,
        view: MetadataView,
        *,
        channels: NodeChannels,
        operations: Operations,
        sends: InternalSends,
        own: OwnWindows,
        runtime: Runtime,
        options: WindowOptions,
    ) -> None:
        metrics = runtime.metrics
        self._node_id = node_id
        self._view = view
        self._channels = channels
        self._operations = operations
        self._sends = sends
        self._clock = runtime.clock
        self._options = options
        self._own = own
        # node -> start of the last window that it sent
        self._seen: dict[str, int] = {}
        self._lags = ConsumerLags(metrics)
        self._unpublished: deque[service_pb2.SendMessageRequest] = deque()
        self._requests = RequestTasks("windows", metrics)
        self._published = metrics.counter("strata_broker_windows_total")
        self._logger = get_logger("windows")

    async def run(self) -> None:
        """Collect until cancelled."""
        length_ms = self._options.length_ms
        own_due_ms = (self._clock.wall_ms() // length_ms + 1) * length_ms
        while True:
            await asyncio.sleep(length_ms / 2_000)
            batches = await self.collect()
            if self._clock.wall_ms() >= own_due_ms:
                batches.append(self._own.close(own_due_ms - length_ms, length_ms))
                own_due_ms = (self._clock.wall_ms() // length_ms + 1) * length_ms
            if self._options.publish and (batches or self._unpublished):
                await self.publish(batches)

    async def collect(self) -> list[WindowBatch]:
        """Ask this broker's storage nodes for windows that it has not seen."""
        nodes = {node.node_id: node for node in self._mine()}
        self._lags.keep_only(nodes)
        self._seen = {node: start for node, start in self._seen.items() if node in nodes}
        async with asyncio.TaskGroup() as calls:
            # One task per storage node: a silent node must not delay the others.
            asked = [calls.create_task(self._ask(node)) for node in nodes.values()]
        await self._lags.show()
        return [batch for task in asked for batch in task.result()]

    async def publish(self, batches: Iterable[WindowBatch]) -> None:
        """Send windows to the topic; create the topic if it does not exist.

        Windows that are not stored are sent again later: a storage node gives each one once.
        """
        waiting = self._unpublished
        for batch, number in _numbered(batches):
            waiting.append(_message_of(batch, number))
            if len(waiting) > self._options.max_unpublished:
                waiting.popleft()
                self._published.add(1, {"result": "lost"})
            # Thousands of rows become bytes.
            await asyncio.sleep(0)
        try:
            await self._make_topic()
        except (MetaRefused, AngeliaError, RequestError) as failure:
            self._logger.warning("no topic for metric windows", reason=str(failure))
            self._published.add(1, {"result": "failed"})
            return
        while waiting:
            response = await self._sends.send_own(waiting[0])
            if response.status.code != definition_pb2.OK:
                self._published.add(1, {"result": "failed"})
                # Another one comes first next time: this one may never be taken.
                waiting.rotate(-1)
                return
            waiting.popleft()
            self._published.add(1, {"result": "stored"})

    async def _make_topic(self) -> None:
        if self._view.topic(*_NAME) is not None:
            return
        try:
            await self._operations.create_topic(
                meta_pb2.Topic(
                    name=WINDOWS_TOPIC,
                    type=meta_pb2.TOPIC_TYPE_NORMAL,
                    queue_count=self._options.queue_count,
                    retention_ms=self._options.retention_ms,
                )
            )
        except MetaRefused as refused:
            # Another broker was faster: all brokers close their windows at the same time.
            if refused.outcome != meta_pb2.META_OUTCOME_ALREADY_EXISTS:
                raise

    def _mine(self) -> Iterator[meta_pb2.Node]:
        """Yield the storage nodes that this broker asks."""
        up = meta_pb2.NODE_STATE_UP
        brokers = {
            crc32(node.node_id.encode()): node.node_id
            for node in self._view.nodes(meta_pb2.NODE_KIND_BROKER)
            if node.state == up or node.node_id == self._node_id
        }
        brokers[crc32(self._node_id.encode())] = self._node_id
        for node in self._view.nodes(meta_pb2.NODE_KIND_STORAGE):
            if brokers[rendezvous(node.node_id.encode(), list(brokers))] == self._node_id:
                yield node

    async def _ask(self, node: meta_pb2.Node) -> list[WindowBatch]:
        try:
            window = await self._channels.to(node.node_id).call(
                _GET_WINDOW,
                storage_pb2.GetWindowRequest(after_ms=self._seen.get(node.node_id, 0)),
                storage_pb2.GetWindowResponse,
                timeout_s=self._options.call_timeout_ms / 1_000,
            )
        except AngeliaError:
            # The lag at a silent node is not known any more.
            self._lags.forget(node.node_id)
            return []
        if not window.start_ms:
            return []
        self._seen[node.node_id] = window.start_ms
        with passed_over(self._requests, "read a metric window"):
            return await self._batches_of(node, window)
        # Columns of different lengths, from a node of another version: its lag is not known.
        self._lags.forget(node.node_id)
        return []

    async def _batches_of(
        self, node: meta_pb2.Node, window: storage_pb2.GetWindowResponse
    ) -> list[WindowBatch]:
        consumers = await _in_pieces(self._consumer_rows(window.consumer_groups))
        await self._lags.take(node.node_id, consumers)
        rows = {
            WindowKind.QUEUE: await _in_pieces(self._queue_rows(window.queues)),
            WindowKind.CONSUMER_GROUP: consumers,
            WindowKind.NODE: [_node_row(node, window.node)],
        }
        return await _in_pieces(
            (
                batch
                for kind, of_kind in rows.items()
                for batch in batches_of(
                    kind, node.node_id, window.start_ms, window.length_ms, of_kind
                )
            ),
            size=1,
        )

    # Names --------------------------------------------------------------------------------------

    def _queue_rows(self, columns: storage_pb2.QueueWindows) -> Iterator[Row]:
        for topic_id, queue, raft_group, *numbers in zip(
            columns.topic_ids,
            columns.queues,
            columns.raft_groups,
            columns.messages_in,
            columns.bytes_in,
            columns.messages_out,
            columns.bytes_out,
            columns.min_offsets,
            columns.end_offsets,
            strict=True,
        ):
            place = self._place(topic_id, queue, raft_group)
            if place is not None:
                yield place | dict(zip(_QUEUE_NUMBERS, numbers, strict=True))

    def _consumer_rows(self, columns: storage_pb2.ConsumerGroupWindows) -> Iterator[Row]:
        # From a storage node that is older than this broker.
        unknown = [0] * len(columns.leases)
        for group_id, topic_id, queue, raft_group, *numbers in zip(
            columns.consumer_group_ids,
            columns.topic_ids,
            columns.queues,
            columns.raft_groups,
            columns.messages_out,
            columns.lag_messages,
            columns.leases,
            columns.lag_ms or unknown,
            columns.queueing_ms or unknown,
            strict=True,
        ):
            place = self._place(topic_id, queue, raft_group)
            group = self._view.consumer_group_by_id(group_id)
            if place is not None and group is not None:
                place["consumer_group"] = group.name
                yield place | dict(zip(_CONSUMER_NUMBERS, numbers, strict=True))

    def _place(self, topic_id: int, queue: int, raft_group: int) -> dict[str, Value] | None:
        """Return the columns that name the queue; None: its topic is gone."""
        topic = self._view.topic_by_id(topic_id)
        if topic is None:
            return None
        return {
            "namespace": topic.namespace,
            "topic": topic.name,
            "topic_id": topic_id,
            "queue": queue,
            "raft_group": raft_group,
        }


_QUEUE_NUMBERS = (
    "messages_in",
    "bytes_in",
    "messages_out",
    "bytes_out",
    "min_offset",
    "end_offset",
)
_CONSUMER_NUMBERS = ("messages_out", "lag_messages", "leases", "lag_ms", "queueing_ms")


class OwnWindows:
    """The windows of the broker's own process."""

    def __init__(
        self,
        node_id: str,
        rack: str,
        sessions: Sessions,
        *,
        recorder: Recorder,
        clock: Clock,
        metrics: Metrics,
    ) -> None:
        self._node_id = node_id
        self._rack = rack
        self._sessions = sessions
        self._recorder = recorder
        self._clock = clock
        self._appends = HistogramWindow(metrics.histogram("strata_broker_append_latency"))
        self._before = self._totals()
        self._cpu_s, self._since_s = time.process_time(), clock.monotonic_s()

    def close(self, start_ms: int, length_ms: int) -> WindowBatch:
        """Return the window that ends now."""
        totals, before = self._totals(), self._before
        cpu_s, now_s = time.process_time(), self._clock.monotonic_s()
        appends = self._appends.take()
        row: dict[str, Value] = {
            "node_kind": "broker",
            "rack": self._rack,
            **{name: totals[name] - before[name] for name in totals},
            "appends": appends.count,
            "append_p50_ms": appends.p50,
            "append_p95_ms": appends.p95,
            "append_p99_ms": appends.p99,
            "cpu_cores": (cpu_s - self._cpu_s) / max(now_s - self._since_s, 1e-3),
            # Linux counts in KiB.
            "memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            "clients": len(self._sessions),
        }
        self._before, self._cpu_s, self._since_s = totals, cpu_s, now_s
        (batch,) = batches_of(WindowKind.NODE, self._node_id, start_ms, length_ms, [row])
        return batch

    def _totals(self) -> dict[str, int]:
        recorder = self._recorder
        return {
            "messages_in": recorder.messages_in,
            "bytes_in": recorder.total_bytes_in,
            "messages_out": recorder.messages_out,
            "bytes_out": recorder.total_bytes_out,
        }


async def _in_pieces(items: Iterable[Item], size: int = _ROWS_PER_STEP) -> list[Item]:
    """Return what an iterator makes, `size` items in each turn of the event loop."""
    made: list[Item] = []
    rest = iter(items)
    while piece := list(islice(rest, size)):
        made += piece
        await asyncio.sleep(0)
    return made


def _node_row(node: meta_pb2.Node, window: storage_pb2.NodeWindow) -> Row:
    appends, syncs = window.appends, window.syncs
    return {
        "node_kind": "storage",
        "rack": node.rack,
        "messages_in": window.messages_in,
        "bytes_in": window.bytes_in,
        "messages_out": window.messages_out,
        "bytes_out": window.bytes_out,
        "append_p50_ms": appends.p50_ms,
        "append_p95_ms": appends.p95_ms,
        "append_p99_ms": appends.p99_ms,
        "appends": appends.count,
        "sync_p50_ms": syncs.p50_ms,
        "sync_p95_ms": syncs.p95_ms,
        "sync_p99_ms": syncs.p99_ms,
        "syncs": syncs.count,
        "cpu_cores": window.cpu_cores,
        "memory_bytes": window.memory_bytes,
        "loop_lag_max_ms": window.loop_lag_max_ms,
        "disk_free_bytes": window.disk_free_bytes,
        "disk_total_bytes": window.disk_total_bytes,
        "log_bytes": window.log_bytes,
        "raft_groups": window.raft_groups,
        "leaders": window.leaders,
        "leases": window.leases,
        "lag_messages": window.lag_messages,
    }


def _numbered(batches: Iterable[WindowBatch]) -> Iterator[tuple[WindowBatch, int]]:
    """Yield batches with their numbers among the batches of the same node, time and kind."""
    counts: dict[tuple[str, int, int], int] = {}
    for batch in batches:
        key = (batch.node_id, batch.start_ms, batch.kind)
        counts[key] = counts.get(key, -1) + 1
        yield batch, counts[key]


def _message_of(batch: WindowBatch, number: int) -> service_pb2.SendMessageRequest:
    named = f"{batch.node_id}/{batch.start_ms}/{batch.kind}/{number}".encode()
    request = service_pb2.SendMessageRequest()
    message = request.messages.add(body=encode(batch))
    message.topic.name = WINDOWS_TOPIC
    properties = message.system_properties
    properties.message_id = f"01{md5(named, usedforsecurity=False).hexdigest().upper()}"
    properties.message_type = definition_pb2.NORMAL
    properties.body_encoding = definition_pb2.IDENTITY
    properties.born_timestamp.FromMilliseconds(batch.start_ms)
    properties.tag = batch.kind.name.lower()
    properties.keys.append(batch.node_id)
    return request
