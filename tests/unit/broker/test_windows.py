"""Collecting the windows of storage nodes, and what is published of them."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from apache.rocketmq.v2 import definition_pb2, service_pb2
from strata.meta.v1 import meta_pb2
from strata.storage.v1 import storage_pb2
from strata_angelia.ports import UNAVAILABLE, AngeliaError
from strata_broker.base.metrics import METRICS
from strata_broker.base.window_options import WindowOptions
from strata_broker.operators.windows import OwnWindows, WindowCollector
from strata_metadata.errors import MetaRefused
from strata_runtime.metrics import Metrics
from strata_runtime.runtime import Runtime
from strata_runtime.windows import WINDOWS_TOPIC, WindowBatch, WindowKind, decode, encode

UP, DOWN = meta_pb2.NODE_STATE_UP, meta_pb2.NODE_STATE_DOWN


class _View:
    """Two brokers, some storage nodes, one topic, one consumer group."""

    def __init__(self, storage: int) -> None:
        self.brokers = [
            meta_pb2.Node(node_id=f"broker-{number}", kind=meta_pb2.NODE_KIND_BROKER, state=UP)
            for number in (1, 2)
        ]
        self.storage = [
            meta_pb2.Node(node_id=f"storage-{number}", kind=meta_pb2.NODE_KIND_STORAGE, rack="r")
            for number in range(storage)
        ]
        self.has_windows_topic = False
        self.looked_up = 0

    def nodes(self, kind: int) -> list[meta_pb2.Node]:
        return self.brokers if kind == meta_pb2.NODE_KIND_BROKER else self.storage

    def topic_by_id(self, topic_id: int) -> Any:
        self.looked_up += 1
        return SimpleNamespace(namespace="ns", name="orders") if topic_id == 7 else None

    def topic(self, namespace: str, name: str) -> Any:
        return SimpleNamespace() if self.has_windows_topic else None

    def consumer_group_by_id(self, consumer_group_id: int) -> meta_pb2.ConsumerGroup | None:
        group = meta_pb2.ConsumerGroup(consumer_group_id=3, name="g")
        return group if consumer_group_id == group.consumer_group_id else None

    def consumer_groups(self) -> list[meta_pb2.ConsumerGroup]:
        raise AssertionError("no window walks all consumer groups of the cluster")


class _Storage:
    """The channels to all storage nodes; each answers with one window, once."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, int]] = []
        self.silent: set[str] = set()
        self.window = _window()
        # Answers of nodes whose window is another one.
        self.windows: dict[str, storage_pb2.GetWindowResponse] = {}

    def to(self, node_id: str) -> Any:
        async def call(_: str, request: Any, __: Any, *, timeout_s: float) -> Any:
            self.asked.append((node_id, request.after_ms))
            if node_id in self.silent:
                raise AngeliaError(UNAVAILABLE, "silent")
            if request.after_ms >= 10_000:
                return storage_pb2.GetWindowResponse()
            return self.windows.get(node_id, self.window)

        return SimpleNamespace(call=call)


def _window(times: int = 1) -> storage_pb2.GetWindowResponse:
    """Topic 7 exists, topic 8 was deleted; consumer group 3 exists, 4 was deleted."""
    window = storage_pb2.GetWindowResponse(start_ms=10_000, length_ms=10_000)
    queues = window.queues
    for topic_id in (7, 8) * times:
        queues.topic_ids.append(topic_id)
        queues.queues.append(2)
        queues.raft_groups.append(5)
        queues.messages_in.append(10)
        queues.bytes_in.append(1_000)
        queues.messages_out.append(4)
        queues.bytes_out.append(400)
        queues.min_offsets.append(1)
        queues.end_offsets.append(11)
    groups = window.consumer_groups
    for group_id in (3, 4) * times:
        groups.consumer_group_ids.append(group_id)
        groups.topic_ids.append(7)
        groups.queues.append(2)
        groups.raft_groups.append(5)
        groups.messages_out.append(4)
        groups.lag_messages.append(9)
        groups.leases.append(3)
        groups.lag_ms.append(7_000)
        groups.queueing_ms.append(2_000)
    window.node.cpu_cores = 0.5
    window.node.syncs.p99_ms = 2.5
    return window


class _Sends:
    """Stores what it gets, but for the first `refused` messages."""

    def __init__(self) -> None:
        self.requests: list[service_pb2.SendMessageRequest] = []
        self.refused = 0

    async def send_own(self, request: service_pb2.SendMessageRequest) -> Any:
        code = definition_pb2.OK
        if self.refused:
            self.refused -= 1
            code = definition_pb2.INTERNAL_SERVER_ERROR
        else:
            self.requests.append(request)
        return service_pb2.SendMessageResponse(status=definition_pb2.Status(code=code))

    @property
    def ids(self) -> list[str]:
        """Ids of what was stored."""
        return [each.messages[0].system_properties.message_id for each in self.requests]


class _Operations:
    def __init__(self) -> None:
        self.made: list[meta_pb2.Topic] = []

    async def create_topic(self, topic: meta_pb2.Topic) -> meta_pb2.Topic:
        self.made.append(topic)
        return topic


class _World:
    def __init__(
        self, node_id: str = "broker-1", storage: int = 1, max_unpublished: int = 100
    ) -> None:
        self.view, self.storage = _View(storage), _Storage()
        self.sends, self.operations = _Sends(), _Operations()
        self.metrics = Metrics(METRICS)
        recorder = SimpleNamespace(
            messages_in=0, messages_out=0, total_bytes_in=0, total_bytes_out=0
        )
        clock = SimpleNamespace(monotonic_s=lambda: 1.0, wall_ms=lambda: 20_000)
        self.collector = WindowCollector(
            node_id,
            self.view,  # type: ignore[arg-type]
            channels=self.storage,  # type: ignore[arg-type]
            operations=self.operations,  # type: ignore[arg-type]
            sends=self.sends,  # type: ignore[arg-type]
            own=OwnWindows(node_id, "", [], recorder=recorder, clock=clock, metrics=self.metrics),  # type: ignore[arg-type]
            runtime=Runtime(clock, lambda: 0.5, self.metrics, lambda name, failure: None),
            options=WindowOptions(max_unpublished=max_unpublished),
        )


def _only_broker(world: _World) -> None:
    world.view.brokers[1].state = DOWN


async def test_each_storage_node_is_asked_by_one_broker() -> None:
    """Two brokers divide the storage nodes; when one is down the other asks them all."""
    first, second = _World("broker-1", 20), _World("broker-2", 20)
    await first.collector.collect()
    await second.collector.collect()
    one, two = ({node for node, _ in world.storage.asked} for world in (first, second))
    assert (len(one) + len(two), len(one | two)) == (20, 20)
    assert one
    assert two
    _only_broker(first)
    first.storage.asked.clear()
    await first.collector.collect()
    assert len(first.storage.asked) == 20


async def test_ids_become_names() -> None:
    """Rows say which topic and consumer group; what was deleted since is left out."""
    world = _World()
    _only_broker(world)
    batches = {batch.kind: batch for batch in await world.collector.collect()}
    (queue,) = batches[WindowKind.QUEUE].rows()
    assert (queue["namespace"], queue["topic"], queue["queue"]) == ("ns", "orders", 2)
    assert (queue["messages_in"], queue["bytes_out"], queue["end_offset"]) == (10, 400, 11)
    (group,) = batches[WindowKind.CONSUMER_GROUP].rows()
    assert (group["consumer_group"], group["lag_messages"], group["leases"]) == ("g", 9, 3)
    assert (group["lag_ms"], group["queueing_ms"]) == (7_000, 2_000)
    (node,) = batches[WindowKind.NODE].rows()
    assert (node["node_kind"], node["rack"]) == ("storage", "r")
    assert (node["cpu_cores"], node["sync_p99_ms"]) == (0.5, 2.5)
    assert batches[WindowKind.NODE].node_id == "storage-0"


async def test_an_older_storage_node_is_understood() -> None:
    """One that knows no ages says nothing of them; the rest of its window counts."""
    world = _World()
    _only_broker(world)
    groups = world.storage.window.consumer_groups
    del groups.lag_ms[:], groups.queueing_ms[:]
    batches = {batch.kind: batch for batch in await world.collector.collect()}
    (group,) = batches[WindowKind.CONSUMER_GROUP].rows()
    assert (group["lag_messages"], group["lag_ms"], group["queueing_ms"]) == (9, 0, 0)


async def test_a_window_is_taken_once() -> None:
    """The next question names what was seen; an empty answer is no window."""
    world = _World()
    _only_broker(world)
    assert await world.collector.collect()
    assert await world.collector.collect() == []
    assert world.storage.asked == [("storage-0", 0), ("storage-0", 10_000)]


async def test_lag_is_shown_while_it_is_known() -> None:
    """Under RocketMQ's names, until the storage node is silent."""
    world = _World()
    _only_broker(world)
    await world.collector.collect()
    world.metrics.read_gauges()
    text = world.metrics.render().decode()
    labels = '{consumer_group="g",namespace="ns",topic="orders"}'
    assert f"rocketmq_consumer_lag_messages{labels} 9.0" in text
    assert f"rocketmq_consumer_inflight_messages{labels} 3.0" in text
    assert f"rocketmq_consumer_ready_messages{labels} 6.0" in text
    assert f"rocketmq_consumer_lag_latency{labels} 7000.0" in text
    assert f"rocketmq_consumer_queueing_latency{labels} 2000.0" in text
    world.storage.silent.add("storage-0")
    await world.collector.collect()
    world.metrics.read_gauges()
    assert labels not in world.metrics.render().decode()


@pytest.mark.parametrize("exists", [True, False])
async def test_what_is_published_can_be_repeated(exists: bool) -> None:
    """Both brokers give a window the same message ids; the topic is made if it is not there."""
    ids = []
    for node_id in ("broker-1", "broker-2"):
        world = _World(node_id)
        world.view.brokers = [one for one in world.view.brokers if one.node_id == node_id]
        world.view.has_windows_topic = exists
        await world.collector.publish(await world.collector.collect())
        assert [topic.name for topic in world.operations.made] == [WINDOWS_TOPIC] * (not exists)
        messages = [request.messages[0] for request in world.sends.requests]
        assert [decode(message.body).kind for message in messages] == list(WindowKind)
        tags = [message.system_properties.tag for message in messages]
        assert tags == ["queue", "consumer_group", "node"]
        ids.append([message.system_properties.message_id for message in messages])
    assert ids[0] == ids[1]
    assert len(set(ids[0])) == 3


async def test_a_topic_that_another_broker_made_first_is_no_failure() -> None:
    """All brokers close their windows at the same time, and find no topic on the first day."""
    world = _World()
    _only_broker(world)

    async def made_already(topic: meta_pb2.Topic) -> meta_pb2.Topic:
        raise MetaRefused(meta_pb2.META_OUTCOME_ALREADY_EXISTS, "it exists")

    world.operations.create_topic = made_already  # type: ignore[method-assign]
    await world.collector.publish(await world.collector.collect())
    assert len(world.sends.requests) == len(WindowKind)


async def test_windows_that_were_not_stored_are_sent_again() -> None:
    """With the ids that they would have had: a storage node gives a window once."""
    ids = []
    for refused in (0, 2):
        world = _World()
        _only_broker(world)
        world.sends.refused = refused
        await world.collector.publish(await world.collector.collect())
        for _ in range(refused):
            await world.collector.publish([])
        ids.append(sorted(world.sends.ids))
    assert ids[0] == ids[1]
    assert len(set(ids[0])) == len(WindowKind)


async def test_windows_wait_for_their_topic() -> None:
    """No nameserver makes it now: what was measured meanwhile is there afterwards."""
    world = _World()
    _only_broker(world)
    make = world.operations.create_topic

    async def unavailable(topic: meta_pb2.Topic) -> meta_pb2.Topic:
        raise MetaRefused(meta_pb2.META_OUTCOME_UNAVAILABLE, "no leader")

    world.operations.create_topic = unavailable  # type: ignore[method-assign]
    await world.collector.publish(await world.collector.collect())
    assert world.sends.requests == []
    world.operations.create_topic = make  # type: ignore[method-assign]
    await world.collector.publish([])
    assert len(set(world.sends.ids)) == len(WindowKind)


async def test_waiting_windows_have_a_limit() -> None:
    """The oldest are lost, and counted."""
    world = _World(max_unpublished=2)
    _only_broker(world)
    world.sends.refused = 1
    await world.collector.publish(await world.collector.collect())
    await world.collector.publish([])
    tags = [each.messages[0].system_properties.tag for each in world.sends.requests]
    assert sorted(tags) == ["consumer_group", "node"]
    text = world.metrics.render().decode()
    for result, count in (("lost", 1), ("failed", 1), ("stored", 2)):
        assert f'strata_broker_windows_total{{result="{result}"}} {count}.0' in text


@pytest.mark.parametrize("columns", ["queues", "consumer_groups"])
async def test_a_window_with_odd_columns_is_left_out(columns: str) -> None:
    """A storage node of another version: the windows of the others are collected all the same."""
    world = _World(storage=2)
    _only_broker(world)
    odd = _window()
    getattr(odd, columns).raft_groups.append(5)
    world.storage.windows["storage-0"] = odd
    batches = await world.collector.collect()
    assert {batch.node_id for batch in batches} == {"storage-1"}
    assert (
        'strata_request_failures_total{component="windows"} 1.0' in world.metrics.render().decode()
    )


async def test_a_large_window_is_taken_in_by_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names and bytes of thousands of rows: a bounded part of them in a turn of the event loop."""
    world = _World()
    _only_broker(world)
    encoded: list[int] = []

    def counting(batch: WindowBatch) -> bytes:
        encoded.append(len(batch))
        return encode(batch)

    monkeypatch.setattr("strata_broker.operators.windows.encode", counting)
    world.storage.window = _window(2_500)
    taking = asyncio.ensure_future(world.collector.collect())
    looked_up = []
    while not taking.done():
        before = world.view.looked_up
        await asyncio.sleep(0)
        looked_up.append(world.view.looked_up - before)
    batches = taking.result()
    assert sum(looked_up) == 10_000
    assert 0 < max(looked_up) <= 600, "half of the rows have a name"
    assert sorted(len(batch) for batch in batches) == [1, 500, 500, 2_000, 2_000]
    publishing = asyncio.ensure_future(world.collector.publish(batches))
    at_once = []
    while not publishing.done():
        before = len(encoded)
        await asyncio.sleep(0)
        at_once.append(len(encoded) - before)
    assert (sum(at_once), max(at_once)) == (5, 1)
    assert [decode(one.messages[0].body).kind for one in world.sends.requests] == [
        batch.kind for batch in batches
    ]
