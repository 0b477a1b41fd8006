"""No RPC tells a user whether a resource exists to which the user has no right."""

from __future__ import annotations

from typing import Any

import pytest

from apache.rocketmq.v2 import admin_pb2 as rocketmq_admin_pb2
from apache.rocketmq.v2 import definition_pb2, service_pb2
from strata.admin.v1 import admin_pb2
from strata.meta.v1 import meta_pb2
from strata_broker.access.table import all_paths
from strata_broker.base.config import BrokerConfig
from strata_edge.ports import HOT_METHODS, CallError
from strata_testing.broker import broker_config
from strata_testing.broker.fake_edge import FakeCall, FakeEdge
from strata_testing.broker.fake_meta import FakeMeta
from strata_testing.broker.keys import cluster_key_row, policy_row, signed, user_row
from tests.integration.broker.access_calls import (
    GROUP,
    NAMESPACE,
    TABLE,
    TOPIC,
    request_of,
    ruled,
)

# Names of nothing; each is as long as the name that it stands for.
NO_TOPIC, NO_GROUP, NO_TABLE = "absent", "missing", "nobody"
_STREAMS = ("/Telemetry", "/PullMessage", "/Watch", "/Export")


@pytest.fixture
def config() -> BrokerConfig:
    return broker_config(plugins=("kv",), access_control={"mode": "on", "time_zones": ["UTC"]})


@pytest.fixture
def meta() -> FakeMeta:
    """Users who have every right on the group and none on the topic, and the other way round."""
    fake = FakeMeta()
    fake.add_topic(TOPIC, namespace=NAMESPACE)
    fake.add_group(meta_pb2.ConsumerGroup(namespace=NAMESPACE, name=GROUP))
    fake.put(
        cluster_key_row(),
        *(user_row(name) for name in ("grouped", "topical", "neither")),
        policy_row(1, "grouped", f"group:{NAMESPACE}/{GROUP}", "all"),
        policy_row(2, "grouped", f"group:{NAMESPACE}/{NO_GROUP}", "all"),
        policy_row(3, "topical", f"topic:{NAMESPACE}/{TOPIC}", "all"),
        policy_row(4, "topical", f"topic:{NAMESPACE}/{NO_TOPIC}", "all"),
    )
    return fake


def full_request(path: str) -> Any:
    """Return a request that names a topic and a consumer group wherever it can."""
    request: Any = request_of(path)
    match request:
        case admin_pb2.ResetConsumerGroupRequest():
            request.latest = True
        case rocketmq_admin_pb2.ResetGroupOffsetRequest():
            request.reset_timestamp.GetCurrentTime()
        case (
            rocketmq_admin_pb2.DescribeGroupAccumulationRequest()
            | rocketmq_admin_pb2.QueryTimeSpanRequest()
        ):
            request.topics.add(resource_namespace=NAMESPACE, name=TOPIC)
        case service_pb2.ChangeInvisibleDurationRequest():
            request.receipt_handle = "handle"
            request.invisible_duration.seconds = 10
        case service_pb2.AckMessageRequest():
            request.entries.add(message_id="1", receipt_handle="handle")
        case service_pb2.ReceiveMessageRequest():
            request.invisible_duration.seconds = 30
            request.filter_expression.type = definition_pb2.TAG
            request.filter_expression.expression = "*"
        case service_pb2.HeartbeatRequest():
            request.client_type = definition_pb2.PUSH_CONSUMER
    return request


async def answer_of(edge: FakeEdge, path: str, user: str, data: bytes) -> str:
    """Return how a call ended: its refusal, or its code and text, or its whole response."""
    headers = {"x-mq-client-id": f"client of {user}", "x-mq-language": "JAVA", **signed(user)}
    response: Any = ruled(path).response_type()
    try:
        method = path.rpartition("/")[2]
        if method in HOT_METHODS and "MessagingService" in path:
            first, *_ = await edge.begin(method, data, headers).answer
        elif path in edge.server_streams:
            first = await anext(edge.server_streams[path](data, FakeCall("", b"", headers)))
        else:
            first = await edge.unary[path](data, FakeCall("", b"", headers))
    except CallError as refused:
        return str(refused)
    response.ParseFromString(first)
    status = getattr(response, "status", None)
    if isinstance(status, definition_pb2.Status):
        return f"{definition_pb2.Code.Name(status.code)}: {status.message}"
    return str(response)


def cases() -> list[tuple[str, str, str, str]]:
    """Return (path, user, name of something that the user may not see, name of nothing)."""
    pairs = [
        ("grouped", TOPIC, NO_TOPIC),
        ("topical", GROUP, NO_GROUP),
        ("neither", TOPIC, NO_TOPIC),
        ("neither", GROUP, NO_GROUP),
        ("neither", TABLE, NO_TABLE),
    ]
    return [
        (path, user, there, not_there)
        for path in all_paths()
        if not path.endswith(_STREAMS) and "PeerService" not in path and "Container" not in path
        for user, there, not_there in pairs
        if there.encode() in full_request(path).SerializeToString()
    ]


@pytest.mark.parametrize(("path", "user", "there", "not_there"), cases())
async def test_an_absent_resource_is_answered_as_a_forbidden_one(
    edge: FakeEdge, path: str, user: str, there: str, not_there: str
) -> None:
    """The answers differ in the name that the caller said, and in nothing else."""
    request = full_request(path).SerializeToString()
    answers = [
        await answer_of(edge, path, user, request.replace(there.encode(), name.encode()))
        for name in (there, not_there)
    ]
    assert answers[1].replace(not_there, there) == answers[0]
