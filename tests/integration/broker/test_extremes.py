"""Every number that a client may choose, at its ends, over real storage nodes (rule 34).

For each RPC of the receive side: the answer is one that the protocol has for such a value, nothing
fails in the broker or in storage, and what others do works as before.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from apache.rocketmq.v2 import definition_pb2, service_pb2
from strata_broker.base.config import BrokerConfig
from strata_edge.ports import HOT_METHODS
from strata_mq.requests.handle import ReceiptHandle, decode_handle, encode_handle
from strata_mq.requests.pending_handle import HandleForm, PendingHandle, encode_pending_handle
from strata_testing.broker.client import resource
from strata_testing.broker.fake_edge import MESSAGING, METADATA, FakeCall
from tests.integration.broker.cluster_brokers import (
    ORDERS,
    ClusterBroker,
    brokers_over,
    drain,
    furnished_cluster,
    send_numbers,
)
from tests.integration.storage.storage_cluster import ClusterUnderTest

CALLS = 150
I32 = (0, 1, -1, 2**31 - 1, -(2**31), 2**16)
I64 = (0, 1, -1, 2**63 - 1, -(2**63), 2**32, -(2**32), 10**12)
U32 = (0, 1, 2, 2**31 - 1, 2**31, 2**32 - 1)
U64 = (0, 1, 2**32, 2**63 - 1, 2**63, 2**64 - 1)
# Until the deadline; an edge may say anything.
TIMES_LEFT_S = (None, 0.0, -5.0, 0.001, 1.0, 25.0, 1e9, 1e300)
CONFIG = BrokerConfig.model_validate(
    {
        "receive": {"min_polling_ms": 0, "max_polling_ms": 1_000, "max_parked_per_client": 1_000},
        "metadata": {"auto_create_group": False},
        "calls": {"max_timeout_ms": 2_000},
        "storage_client": {"call_timeout_ms": 1_000},
    }
)
FAILURES = (
    definition_pb2.CODE_UNSPECIFIED,
    definition_pb2.INTERNAL_ERROR,
    definition_pb2.INTERNAL_SERVER_ERROR,
)


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[ClusterUnderTest]:
    """Three nodes, two raft groups."""
    async for made in furnished_cluster(tmp_path):
        yield made


@pytest.fixture
async def broker(cluster: ClusterUnderTest) -> AsyncIterator[ClusterBroker]:
    """A broker with messages to receive; nothing in it may have failed at the end."""
    async with brokers_over(cluster, CONFIG, 1) as (made,):
        await send_numbers(made.client, "orders", range(8))
        yield made


class Chooser:
    """Chooses values for requests."""

    def __init__(self, handle: str) -> None:
        self._handle = decode_handle(handle)
        self.seed = random.randrange(1 << 32)
        self._random = random.Random(self.seed)

    def of(self, values: tuple[int, ...]) -> int:
        return self._random.choice(values)

    def time_left_s(self) -> float | None:
        return self._random.choice(TIMES_LEFT_S)

    def duration(self) -> Duration:
        return Duration(seconds=self.of(I64), nanos=self.of(I32))

    def timestamp(self) -> Timestamp:
        return Timestamp(seconds=self.of(I64), nanos=self.of(I32))

    def queue(self) -> definition_pb2.MessageQueue:
        named = self._random.random() < 0.5
        return definition_pb2.MessageQueue(
            topic=resource("orders"),
            id=1 if named else self.of(I32),
            broker=definition_pb2.Broker(name="strata-1", id=self.of(I32)),
        )

    def handle(self) -> str:
        """A real receipt handle with one to all of its fields replaced."""
        fields = self._handle._asdict()
        ends = dict.fromkeys(fields, U32) | {"offset": U64, "visible_at_ms": U64}
        del ends["auto_renewed"]
        # Mostly of a raft group, group and topic that there are: else nobody looks further.
        for name in self._random.sample(sorted(ends), self._random.randint(1, 4)):
            if name not in ("raft_group", "consumer_group_id", "topic_id") or self.of((0, 1)):
                fields[name] = self.of(ends[name])
        return encode_handle(ReceiptHandle(**fields))

    def pending_handle(self) -> str:
        """A recall handle or transaction id."""
        return encode_pending_handle(
            PendingHandle(
                self.of((1, 2, *U32)),
                self.of((ORDERS, ORDERS, ORDERS, *U32)),
                "01" * 17,
                self._random.choice(tuple(HandleForm)),
                self.of(U64),
                self.of(U32),
            )
        )


Maker = Callable[[Chooser], Message]


def receive(chosen: Chooser) -> Message:
    request = service_pb2.ReceiveMessageRequest(
        group=resource("g"),
        message_queue=chosen.queue(),
        batch_size=chosen.of(I32),
        auto_renew=bool(chosen.of((0, 1))),
    )
    request.filter_expression.expression = "*"
    request.filter_expression.type = chosen.of(I32)  # type: ignore[assignment]
    request.invisible_duration.CopyFrom(chosen.duration())
    if chosen.of((0, 1)):
        request.long_polling_timeout.CopyFrom(chosen.duration())
    return request


def acknowledge(chosen: Chooser) -> Message:
    return service_pb2.AckMessageRequest(
        group=resource("g"),
        topic=resource("orders"),
        entries=[
            service_pb2.AckMessageEntry(receipt_handle=chosen.handle())
            for _ in range(chosen.of((1, 5)))
        ],
    )


def change(chosen: Chooser) -> Message:
    return service_pb2.ChangeInvisibleDurationRequest(
        group=resource("g"),
        topic=resource("orders"),
        receipt_handle=chosen.handle(),
        invisible_duration=Duration(seconds=30) if chosen.of((0, 1)) else chosen.duration(),
    )


def forward(chosen: Chooser) -> Message:
    return service_pb2.ForwardMessageToDeadLetterQueueRequest(
        group=resource("g"),
        topic=resource("orders"),
        receipt_handle=chosen.handle(),
        delivery_attempt=chosen.of(I32),
        max_delivery_attempts=chosen.of(I32),
    )


def recall(chosen: Chooser) -> Message:
    return service_pb2.RecallMessageRequest(
        topic=resource("orders"), recall_handle=chosen.pending_handle()
    )


def end_transaction(chosen: Chooser) -> Message:
    return service_pb2.EndTransactionRequest(
        topic=resource("orders"),
        transaction_id=chosen.pending_handle(),
        resolution=chosen.of((1, 2, *I32)),  # type: ignore[arg-type]
        source=chosen.of(I32),  # type: ignore[arg-type]
    )


def pull(chosen: Chooser) -> Message:
    return service_pb2.PullMessageRequest(
        group=resource("g"),
        message_queue=chosen.queue(),
        offset=chosen.of(I64),
        batch_size=chosen.of(I32),
        long_polling_timeout=chosen.duration(),
    )


def get_offset(chosen: Chooser) -> Message:
    return service_pb2.GetOffsetRequest(group=resource("g"), message_queue=chosen.queue())


def update_offset(chosen: Chooser) -> Message:
    return service_pb2.UpdateOffsetRequest(
        group=resource("g"), message_queue=chosen.queue(), offset=chosen.of(I64)
    )


def query_offset(chosen: Chooser) -> Message:
    return service_pb2.QueryOffsetRequest(
        message_queue=chosen.queue(),
        query_offset_policy=chosen.of((2, 2, *I32)),  # type: ignore[arg-type]
        timestamp=chosen.timestamp(),
    )


RPCS: dict[str, Maker] = {
    "ReceiveMessage": receive,
    "AckMessage": acknowledge,
    "ChangeInvisibleDuration": change,
    "ForwardMessageToDeadLetterQueue": forward,
    "RecallMessage": recall,
    "EndTransaction": end_transaction,
    "PullMessage": pull,
    "GetOffset": get_offset,
    "UpdateOffset": update_offset,
    "QueryOffset": query_offset,
}


async def answer(
    broker: ClusterBroker, rpc: str, request: Message, left_s: float | None
) -> definition_pb2.Status:
    """Make a call; return its status."""
    data = request.SerializeToString()
    response: Message
    if rpc in HOT_METHODS:
        responses = await broker.edge.begin(rpc, data, METADATA, left_s).answer
        kind = getattr(service_pb2, f"{rpc}Response")
        response = kind.FromString(responses[0])
    elif rpc == "PullMessage":
        info = FakeCall(rpc, data, METADATA, time_left_s=left_s)
        stream = broker.edge.server_streams[MESSAGING + rpc](data, info)
        responses = [one async for one in stream]
        response = service_pb2.PullMessageResponse.FromString(responses[0])
    else:
        info = FakeCall(rpc, data, METADATA, time_left_s=left_s)
        kind = getattr(service_pb2, f"{rpc}Response")
        response = kind.FromString(await broker.edge.unary[MESSAGING + rpc](data, info))
    status: definition_pb2.Status = response.status  # type: ignore[attr-defined]
    return status


async def test_every_number_may_be_at_its_ends(broker: ClusterBroker) -> None:
    """1,500 requests of ten RPCs; then a message goes through as ever, and offsets are sane."""
    got = await broker.client.receive("orders", "g", batch_size=1, broker="strata-1")
    while not got[1]:
        got = await broker.client.receive("orders", "g", batch_size=1, broker="strata-1")
    chosen = Chooser(got[1][0].system_properties.receipt_handle)
    print(f"seed {chosen.seed}")
    for rpc, make in RPCS.items():
        calls = [(rpc, make(chosen), chosen.time_left_s()) for _ in range(CALLS)]
        statuses = await asyncio.gather(*(answer(broker, *call) for call in calls))
        for call, status in zip(calls, statuses, strict=True):
            assert status.code not in FAILURES, f"{call}: {status}"
    numbers = await send_numbers(broker.client, "orders", range(100, 104))
    assert all(0 <= offset < 1_000 for offset in numbers)
    expected = [*range(8), *range(100, 104)]
    assert sorted(await drain(broker.client, "orders", "ordered", len(expected))) == expected
