"""CPU of the broker's hot paths behind the edge, against a storage that answers at once.

Run: `.venv/bin/python bench/micro_broker.py`; prints one JSON object. Figures are microseconds of
process CPU per message: everything between the bytes of a request and the bytes of its answer,
without edge and without storage.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

from google.protobuf.message import Message

from apache.rocketmq.v2 import definition_pb2, service_pb2
from strata.meta.v1 import meta_pb2
from strata.storage.v1 import storage_pb2
from strata_broker.app import BrokerApp
from strata_broker.base.access_config import AccessControlSection
from strata_broker.base.config import BrokerConfig
from strata_broker.base.identity import BrokerIdentity
from strata_broker.base.wire import stored_message
from strata_broker.storage_client.channels import BrokerNetwork
from strata_edge.choice import installed_passes
from strata_edge.ports import HotHandler
from strata_mq.layout import BatchView
from strata_mq.layout.id_times import ID_EPOCH_S
from strata_mq.traces import store_fragment
from strata_runtime.clock import SystemClock
from strata_runtime.health import Health
from strata_runtime.metrics import Metrics
from strata_runtime.runtime import Runtime

METADATA = {
    "x-mq-client-id": "bench@1@0@abc",
    "x-mq-language": "JAVA",
    "x-mq-protocol": "v2",
    "x-mq-client-version": "5.2.0",
    "x-mq-request-id": "00000000-0000-0000-0000-000000000000",
    "x-mq-date-time": "20260101T000000Z",
    "user-agent": "grpc-java",
}
TOPIC = meta_pb2.Topic(
    topic_id=1, name="bench", type=meta_pb2.TOPIC_TYPE_NORMAL, queue_count=8, slot_base=0
)
GROUP = meta_pb2.ConsumerGroup(consumer_group_id=2, name="bench")


class InstantCluster:
    """A nameserver with one topic and a storage node, both answering in the same turn."""

    def __init__(self) -> None:
        self._offset = 0
        self._pop = storage_pb2.PopResponse()

    async def call(
        self, method: str, request: Any, response_type: type[Any], *, timeout_s: float | None = None
    ) -> Any:
        """See `strata_angelia.ports.Channel`."""
        match request:
            case storage_pb2.AppendRequest():
                return self._append(request)
            case storage_pb2.PopRequest():
                return self._pop
            case storage_pb2.AckRequest():
                response = storage_pb2.AckResponse()
                for group in request.groups:
                    outcomes = [storage_pb2.OUTCOME_OK] * len(group.leases)
                    response.groups.add(raft_group=group.raft_group, outcomes=outcomes)
                return response
        message: Message = response_type()
        if isinstance(message, meta_pb2.RegisterNodeResponse):
            message.status.outcome = meta_pb2.META_OUTCOME_OK
        return message

    def _append(self, request: storage_pb2.AppendRequest) -> storage_pb2.AppendResponse:
        response = storage_pb2.AppendResponse()
        for batch in request.batches:
            view = BatchView(batch.batch, lambda _: 0, verify=False)
            result = response.results.add(raft_group=batch.raft_group, store_time_ms=1)
            for part in view.parts:
                result.parts.add(queue=0, base_offset=self._offset, outcome=storage_pb2.OUTCOME_OK)
                self._offset += part.count
        return response

    def fill_pop(self, message: bytes) -> None:
        """Let every pop answer with 32 copies of a message."""
        for offset in range(32):
            self._pop.messages.add(
                queue=1,
                offset=offset,
                attempt_count=1,
                lease_number=1,
                generation=1,
                visible_at_ms=1_700_000_000_000,
                store_time_ms=1_700_000_000_000,
                message=message,
            )

    async def stream(
        self, method: str, request: Message, response_type: type[Any]
    ) -> AsyncIterator[Any]:
        """Give everything once, then nothing."""
        if method.endswith("StorageService/Watch"):
            yield storage_pb2.WatchResponse(led_groups=(1, 2))
            await asyncio.Event().wait()
        node = meta_pb2.Node(node_id="s", kind=meta_pb2.NODE_KIND_STORAGE, endpoints=["inproc:s"])
        changes = [
            meta_pb2.Change(topic=TOPIC),
            meta_pb2.Change(consumer_group=GROUP),
            meta_pb2.Change(node=node),
        ]
        for number in (1, 2):
            row = meta_pb2.RaftGroup(raft_group=number, broker_name=f"strata-{number}")
            row.replicas.add(replica_id=number, node_id="s")
            changes.append(meta_pb2.Change(raft_group=row))
        for slot in range(4096):
            run = meta_pb2.SlotRange(first_slot=slot, slot_count=1, raft_group=slot % 2 + 1)
            changes.append(meta_pb2.Change(slots=run))
        yield meta_pb2.WatchResponse(revision=1, snapshot=True, changes=changes)
        await asyncio.Event().wait()

    async def close(self) -> None:
        """Nothing to close."""


class BenchCall:
    """A hot call as the edge makes one."""

    __slots__ = ("_done", "method", "request")

    def __init__(
        self, method: str, request: bytes, done: Callable[[Sequence[bytes]], None]
    ) -> None:
        self.method = method
        self.request = request
        self._done = done

    @property
    def metadata(self) -> Mapping[str, str]:
        """Headers."""
        return METADATA

    peer = "127.0.0.1:1"

    def time_left_s(self) -> float | None:
        """As a push consumer sets it."""
        return 25.0

    def done(self) -> bool:
        """Never before its answer."""
        return False

    def on_gone(self, callback: Callable[[], None]) -> None:
        """The client never goes."""

    def complete(
        self, responses: Sequence[bytes], on_not_taken: Callable[[], None] | None = None
    ) -> None:
        """Count the answer; it is always taken."""
        self._done(responses)

    def fail(self, status: str, reason: str) -> None:
        """Never: what is measured succeeds."""
        raise AssertionError(f"{status}: {reason}")


class BenchEdge:
    """Keeps the hot handler; with the native passes, if they are installed."""

    passes = installed_passes()
    handover = None
    hot: HotHandler

    def add_unary(self, path: str, handler: object) -> None:
        """Not measured."""

    add_server_stream = add_stream = add_unary

    def set_hot_handler(self, service: str, handler: HotHandler) -> None:
        """Keep it."""
        self.hot = handler

    async def start(self) -> int:
        """Listen nowhere."""
        return 1

    def health(self) -> Health:
        """Nothing is wrong."""
        return Health()

    def connections(self) -> int | None:
        """Nobody is connected."""
        return None

    async def send_away(self, most: int) -> Sequence[str]:
        """Nobody is connected."""
        return ()

    async def drain(self, timeout_s: float) -> None:
        """Nobody is connected."""

    async def stop(self, grace_s: float) -> None:
        """Nothing runs."""


def send_requests(count: int, messages: int, body_bytes: int, *, first: int = 0) -> list[bytes]:
    """Serialised SendMessageRequests with official ids and about 200 B of properties.

    Messages count on from `first`, whose high bits are the process of the client.
    """
    requests = []
    made_s = int(time.time()) - ID_EPOCH_S
    for number in range(first, first + count):
        request = service_pb2.SendMessageRequest()
        for position in range(messages):
            message = request.messages.add(body=bytes(body_bytes))
            message.topic.name = "bench"
            message.user_properties["trace"] = "x" * 60
            message.user_properties["source"] = "y" * 60
            properties = message.system_properties
            counted = (number & 0xFFFF_FFFF) * messages + position
            properties.message_id = f"01{1:012X}{number >> 32:04X}{made_s:08X}{counted:08X}"
            properties.message_type = definition_pb2.NORMAL
            properties.tag = "tag-a"
            properties.keys.append(f"key-{number}")
            properties.body_encoding = definition_pb2.IDENTITY
            properties.born_timestamp.GetCurrentTime()
            properties.born_host = "bench-host"
        requests.append(request.SerializeToString())
    return requests


def first_message_id(request: bytes) -> str:
    """Return the id of the first message of a serialised SendMessageRequest."""
    message = service_pb2.SendMessageRequest.FromString(request).messages[0]
    return message.system_properties.message_id


async def measure(
    hot: HotHandler, method: str, requests: Sequence[bytes], in_flight: int, messages: int
) -> tuple[float, Sequence[bytes]]:
    """Return (CPU microseconds per message, the last answer)."""
    finished = asyncio.Event()
    left = len(requests)
    last: Sequence[bytes] = ()

    def done(responses: Sequence[bytes]) -> None:
        nonlocal left, last
        left -= 1
        last = responses
        if left % in_flight == 0:
            finished.set()

    started = time.process_time()
    for first in range(0, len(requests), in_flight):
        finished.clear()
        hot.handle([BenchCall(method, data, done) for data in requests[first : first + in_flight]])
        await finished.wait()
    used = time.process_time() - started
    return used / (len(requests) * messages) * 1e6, last


async def run() -> dict[str, float]:
    """Measure every path once warm."""
    cluster, edge = InstantCluster(), BenchEdge()
    app = BrokerApp(
        BrokerIdentity("b", 1, "127.0.0.1"),
        BrokerConfig(access_control=AccessControlSection(mode="off")),
        edge,
        network=BrokerNetwork(["inproc:n"], lambda endpoint: cluster, lambda endpoints: cluster),
        runtime=Runtime(
            SystemClock(),
            lambda: 0.5,
            Metrics(),
            lambda name, failure: print("failed", name, failure),
        ),
    )
    await app.start()
    figures: dict[str, float] = {}
    for name, count, messages, in_flight in (
        ("send_unary_64_in_flight_us", 12_800, 1, 64),
        ("send_unary_1_in_flight_us", 2_000, 1, 1),
        ("send_requests_of_32_us", 640, 32, 16),
    ):
        requests = send_requests(count, messages, 1024)
        await measure(edge.hot, "SendMessage", requests[: count // 4], in_flight, messages)
        figures[name], _ = await measure(edge.hot, "SendMessage", requests, in_flight, messages)
    stored = service_pb2.SendMessageRequest.FromString(send_requests(1, 1, 1024)[0]).messages[0]
    own = stored.system_properties.SerializeToString()
    stored.ClearField("system_properties")
    cluster.fill_pop(stored_message(own, store_fragment("A" * 32), stored.SerializeToString()))
    receive = service_pb2.ReceiveMessageRequest(
        group=definition_pb2.Resource(name="bench"),
        message_queue=definition_pb2.MessageQueue(
            topic=definition_pb2.Resource(name="bench"),
            broker=definition_pb2.Broker(name="strata-1"),
        ),
        filter_expression=definition_pb2.FilterExpression(type=definition_pb2.TAG, expression="*"),
        batch_size=32,
        auto_renew=True,
    ).SerializeToString()
    figures["receive_of_32_us"], answer = await measure(
        edge.hot, "ReceiveMessage", [receive] * 640, 16, 32
    )
    handles = [
        service_pb2.ReceiveMessageResponse.FromString(data).message.system_properties
        for data in answer[1:-1]
    ]
    for name, size, count in (("ack_of_32_us", 32, 640), ("ack_single_us", 1, 6_400)):
        ack = service_pb2.AckMessageRequest(
            group=definition_pb2.Resource(name="bench"),
            topic=definition_pb2.Resource(name="bench"),
            entries=[
                service_pb2.AckMessageEntry(
                    message_id=one.message_id, receipt_handle=one.receipt_handle
                )
                for one in handles[:size]
            ],
        ).SerializeToString()
        figures[name], _ = await measure(edge.hot, "AckMessage", [ack] * count, 16, size)
    await app.stop(0)
    return {name: round(figure, 2) for name, figure in figures.items()}


if __name__ == "__main__":
    print(json.dumps(asyncio.run(run())))
