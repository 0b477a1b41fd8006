"""Streams that are open while policies and users change: what they are told, what they may say."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from apache.rocketmq.v2 import definition_pb2, service_pb2
from strata.meta.v1 import meta_pb2
from strata_broker.app import BrokerApp
from strata_broker.base.config import BrokerConfig
from strata_testing.broker import broker_config
from strata_testing.broker.client import Client
from strata_testing.broker.fake_edge import FakeEdge
from strata_testing.broker.fake_meta import FakeMeta
from strata_testing.broker.fake_storage import FakeStorage
from strata_testing.broker.keys import cluster_key_row, policy_row, signed, user_row
from tests.unit.broker.test_checks import check_all, send_half
from tests.unit.broker.test_telemetry import TELEMETRY, Stream, producer


@pytest.fixture
def config() -> BrokerConfig:
    return broker_config(
        access_control={"mode": "on", "time_zones": ["UTC"]},
        metadata={"auto_create_group": False},
    )


@pytest.fixture
def meta() -> FakeMeta:
    """`ann` and `bob` send transactions to `deals`, `bob` to `others`, too."""
    fake = FakeMeta()
    for name in ("deals", "others"):
        fake.add_topic(name, meta_pb2.TOPIC_TYPE_TRANSACTION)
    fake.put(
        cluster_key_row(),
        *(user_row(name) for name in ("ann", "bob")),
        policy_row(1, "ann", "topic:deals", "pub"),
        policy_row(2, "bob", "topic:deals", "pub"),
        policy_row(3, "bob", "topic:others", "pub"),
    )
    return fake


class SignedStream(Stream):
    """The client's side of a user's stream."""

    def __init__(self, edge: FakeEdge, user: str) -> None:
        super().__init__(edge)
        metadata = {"x-mq-client-id": f"client of {user}", "x-mq-language": "JAVA"}
        self.answers = edge.open_stream(TELEMETRY, self._requests(), metadata | signed(user))


def sender(edge: FakeEdge, user: str) -> Client:
    """A producer of a user."""
    client = Client(edge)
    client.metadata = {"x-mq-client-id": f"client of {user}", **signed(user)}
    return client


@pytest.fixture
async def streams(edge: FakeEdge) -> AsyncIterator[dict[str, Stream]]:
    """Telemetry streams of both, with settings for one topic each."""
    opened: dict[str, Stream] = {}
    for user, topic in (("ann", "deals"), ("bob", "others")):
        stream = opened[user] = SignedStream(edge, user)
        stream.say(producer(topic))
        assert (await stream.hear()).HasField("settings")
    yield opened
    for each in opened.values():
        each.hang_up()


async def test_a_producer_is_not_asked_about_a_topic_that_it_may_not_write_any_more(
    edge: FakeEdge,
    app: BrokerApp,
    meta: FakeMeta,
    storage: FakeStorage,
    streams: dict[str, Stream],
) -> None:
    """A question shows a message, and any producer of the topic may be asked."""
    await send_half(sender(edge, "bob"), 1)
    check_all(storage)
    asked = await streams["bob"].hear()
    assert asked.recover_orphaned_transaction_command.message.body == b"body"

    meta.put(policy_row(9, "bob", "topic:deals", "pub", allow=False))
    assert await app.view.wait_for_revision(meta.revision, 60)
    await send_half(sender(edge, "bob"), 2, topic="others")
    check_all(storage)
    async with asyncio.timeout(30):
        told = await streams["bob"].hear()
    assert told.recover_orphaned_transaction_command.message.topic.name == "others"


async def test_a_disabled_user_says_nothing_more_on_a_stream_that_is_open(
    edge: FakeEdge, app: BrokerApp, meta: FakeMeta, streams: dict[str, Stream]
) -> None:
    """Frames without settings take no right; but they are signs of life, and answers."""
    client = app.sessions.find("client of ann")
    assert client is not None
    heard_s = client.heard_s
    meta.put(user_row("ann", disabled=True))
    assert await app.view.wait_for_revision(meta.revision, 60)
    command = service_pb2.TelemetryCommand()
    command.thread_stack_trace.nonce = "nobody asked"
    streams["ann"].say_bytes(command.SerializeToString())
    async with asyncio.timeout(30):
        assert (await streams["ann"].hear()).status.code == definition_pb2.UNAUTHORIZED
    assert client.heard_s == heard_s
