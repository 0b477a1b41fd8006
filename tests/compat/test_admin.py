"""`apache.rocketmq.v2.Admin` about real clients: what brokers know of them, what they answer."""

import time
from collections.abc import Iterator

import grpc
import pytest

from apache.rocketmq.v2 import admin_pb2, admin_pb2_grpc, definition_pb2
from tests.compat.drivers import Driver
from tests.e2e.standalone import Standalone

# Answers of push consumers to commands; Python's say nothing, Node's stack trace is a made-up one.
STACK_TRACE_CODES = {
    "java": definition_pb2.OK,
    "go": definition_pb2.OK,
    "node": definition_pb2.OK,
    "python": definition_pb2.REQUEST_TIMEOUT,
}
VERIFY_CODES = {
    "java": definition_pb2.OK,
    "go": definition_pb2.NOT_IMPLEMENTED,
    "node": definition_pb2.REQUEST_TIMEOUT,
    "python": definition_pb2.REQUEST_TIMEOUT,
}


@pytest.fixture
def admin(node: Standalone) -> Iterator[admin_pb2_grpc.AdminStub]:
    """A connection to the Admin service."""
    with grpc.insecure_channel(node.endpoint, [("grpc.enable_http_proxy", 0)]) as channel:
        yield admin_pb2_grpc.AdminStub(channel)


def resource(name: str) -> definition_pb2.Resource:
    return definition_pb2.Resource(name=name)


def connected(
    admin: admin_pb2_grpc.AdminStub, group: str, topic: str
) -> admin_pb2.DescribeSubscriptionResponse.ClientSubscriptionInfo:
    """Wait until the group has a client that subscribes to the topic; return what is known."""
    request = admin_pb2.DescribeSubscriptionRequest(group=resource(group), topic=resource(topic))
    deadline_s = time.monotonic() + 30
    while time.monotonic() < deadline_s:
        found = admin.DescribeSubscription(request).client_subscription_info
        if found:
            return found[0]
        time.sleep(0.1)
    raise AssertionError(f"no client of {group} in 30 s")


def test_a_push_consumer_is_described(
    node: Standalone, driver: Driver, language: str, name: str, admin: admin_pb2_grpc.AdminStub
) -> None:
    """Its language, version, host and subscription."""
    topic, group = node.create_topic(name), node.create_group(name)
    consumer = driver.push(group, {topic: "a || b"})
    known = connected(admin, group, topic)
    consumer.begin_close()

    names = {"java": "JAVA", "go": "GOLANG", "python": "PYTHON", "node": "NODE_JS"}
    assert known.client_info.language == names[language]
    assert known.client_info.version
    assert known.client_info.egress_ip == "127.0.0.1"
    assert known.subscription_info.online
    assert known.subscription_info.expression.expression.replace(" ", "") == "a||b"


def test_commands_to_a_push_consumer(
    node: Standalone, driver: Driver, language: str, name: str, admin: admin_pb2_grpc.AdminStub
) -> None:
    """Its threads, and a stored message that it consumes once more: what it says is the answer."""
    topic, group = node.create_topic(name), node.create_group(name)
    sent = driver.producer(topic).send(b"to verify")
    consumer = driver.push(group, {topic: "*"})
    consumer.delivered(1)
    client_id = connected(admin, group, topic).client_info.client_id
    trace = admin.PrintThreadStackTrace(
        admin_pb2.PrintThreadStackTraceRequest(client_id=client_id, group=resource(group))
    )
    verified = admin.VerifyMessage(
        admin_pb2.VerifyMessageRequest(
            client_id=client_id,
            group=resource(group),
            topic=resource(topic),
            message_id=sent.message_id,
        )
    )
    consumer.begin_close()

    assert trace.status.code == STACK_TRACE_CODES[language], trace
    assert bool(trace.thread_stack_trace) == (trace.status.code == definition_pb2.OK)
    assert verified.status.code == VERIFY_CODES[language], verified
