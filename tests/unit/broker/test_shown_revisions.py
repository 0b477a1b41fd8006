"""Creations of one broker can be used at another one as soon as they are answered."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from types import SimpleNamespace
from typing import Any, NoReturn, cast
from unittest.mock import patch

import pytest

from apache.rocketmq.v2 import definition_pb2
from strata.admin.v1 import admin_pb2
from strata.kv.v1 import kv_pb2
from strata.meta.v1 import meta_pb2
from strata_broker.app import BrokerApp
from strata_broker.kv.tables import Tables
from strata_broker.metadata import shown_revisions
from strata_broker.metadata.shown_revisions import ShownRevisions
from strata_edge.ports import CallError
from strata_kv.names import topic_of
from strata_mq.requests import Code, RequestError
from strata_testing import until
from strata_testing.broker import broker_config
from strata_testing.broker.client import Client, message
from strata_testing.broker.fake_edge import ADMIN, FakeEdge
from strata_testing.broker.fake_meta import FakeMeta
from strata_testing.broker.fake_storage import FakeStorage
from tests.unit.broker.two_brokers import two_brokers

CONFIG = broker_config(plugins=["kv"], metadata={"auto_create_topic": True})


class World:
    """Two brokers; the second one hears of changes when a test says so."""

    def __init__(self, edges: list[FakeEdge], apps: list[BrokerApp]) -> None:
        self.first, self.second = edges
        self.view = apps[1].view
        self._view: Any = self.view
        self._apply = self._view.apply
        self._late: list[meta_pb2.WatchResponse] = []

    def hold(self) -> None:
        """Let the second broker hear of nothing."""
        self._view.apply = self._late.append

    def release(self) -> None:
        """Let it hear of everything."""
        self._view.apply = self._apply
        for response in self._late:
            self._apply(response)


@pytest.fixture
async def world(meta: FakeMeta, storage: FakeStorage) -> AsyncIterator[World]:
    """Two brokers that know each other."""
    async with two_brokers(meta, storage, CONFIG) as (edges, apps):
        yield World(list(edges.values()), apps)


async def create_topic(edge: FakeEdge) -> None:
    topic = meta_pb2.Topic(name="new", type=meta_pb2.TOPIC_TYPE_NORMAL, queue_count=4)
    await edge.call(
        ADMIN + "CreateTopic",
        admin_pb2.CreateTopicRequest(topic=topic),
        admin_pb2.CreateTopicResponse,
    )


async def create_topics(edge: FakeEdge) -> None:
    topic = meta_pb2.Topic(name="new", type=meta_pb2.TOPIC_TYPE_NORMAL, queue_count=4)
    await edge.call(
        ADMIN + "CreateTopics",
        admin_pb2.CreateTopicsRequest(topics=[topic]),
        admin_pb2.CreateTopicsResponse,
    )


async def send_to_new(edge: FakeEdge) -> None:
    response = await Client(edge).send(message("new", 1))
    assert response.status.code == definition_pb2.OK


async def create_group(edge: FakeEdge) -> None:
    await edge.call(
        ADMIN + "CreateConsumerGroup",
        admin_pb2.CreateConsumerGroupRequest(consumer_group=meta_pb2.ConsumerGroup(name="new")),
        admin_pb2.CreateConsumerGroupResponse,
    )


async def receive_as_new(edge: FakeEdge) -> None:
    await Client(edge).receive("orders", "new", polling_s=0)


async def write_to_new_table(edge: FakeEdge) -> None:
    def written(*_: object) -> NoReturn:
        raise RequestError(Code.NOT_FOUND, "nothing is written to it")

    request = kv_pb2.PutRequest(table=kv_pb2.TableName(name="new"), key=b"k", value=b"v")
    with patch.object(Tables, "get", written), suppress(CallError):
        await edge.call("/strata.kv.v1.KvService/Put", request, kv_pb2.PutResponse)


@pytest.mark.parametrize(
    ("create", "name"),
    [
        (create_topic, "new"),
        (create_topics, "new"),
        (send_to_new, "new"),
        (create_group, "%DLQ%new"),
        (receive_as_new, "%DLQ%new"),
        (write_to_new_table, topic_of("new")),
    ],
)
async def test_a_creation_is_answered_when_all_brokers_know_of_it(
    world: World, create: Callable[[FakeEdge], Awaitable[None]], name: str
) -> None:
    """Whether an operator wants it or a call names it."""
    world.hold()
    creating = asyncio.ensure_future(create(world.first))
    await asyncio.sleep(0.05)
    assert not creating.done()
    world.release()
    await creating
    assert world.view.topic("", name) is not None


async def test_a_broker_that_is_late_is_passed_over(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody can create anything without it otherwise."""
    monkeypatch.setattr(shown_revisions, "MOST_WAIT_S", 0.01)
    world.hold()
    await create_topic(world.first)
    assert world.view.topic("", "new") is None


class Rounds:
    """Other brokers, which know a revision when a test says so."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.known = asyncio.Event()

    async def await_revision(self, revision: int, timeout_s: float) -> None:
        self.asked.append(revision)
        await self.known.wait()


async def test_one_round_of_calls_is_for_all_that_wait() -> None:
    """Many creations at once would else be as many calls of each broker to each other one."""
    peers, view = Rounds(), SimpleNamespace(revision=7)
    shown = ShownRevisions(cast(Any, view))
    shown.known_by(peers)
    first = asyncio.ensure_future(shown.everywhere())
    await until(lambda: peers.asked == [7])
    later = []
    for view.revision in (8, 9, 10):
        later.append(asyncio.ensure_future(shown.everywhere()))
        await asyncio.sleep(0)
    peers.known.set()
    await asyncio.gather(first, *later)
    assert peers.asked == [7, 10]
