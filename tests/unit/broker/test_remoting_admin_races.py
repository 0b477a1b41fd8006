"""Operators' requests while another broker changes the same things, or is slow."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from google.protobuf.message import Message

from strata.admin.v1 import admin_pb2
from strata.meta.v1 import meta_pb2
from strata_broker.access.principals import ANYBODY
from strata_broker.metadata.metadata import MetadataView, TopicRow
from strata_broker.remoting.addresses import broker_names
from strata_broker.remoting.admin.groups import AdminGroups
from strata_broker.remoting.admin.operator_face import AlreadyThere, OperatorFace
from strata_broker.remoting.admin.places import AdminPlaces
from strata_broker.remoting.admin.progress import AdminProgress
from strata_broker.remoting.admin.topics import AdminTopics
from strata_broker.remoting.answers import RemotingRefusal
from strata_broker.remoting.exchange import Exchange
from strata_broker.servicers import admin_rpc
from strata_edge.ports import CallError
from strata_mq.requests import Code, RequestError
from strata_remoting import AdminCode, RemotingCommand, ResponseCode, Serialization

MOST = 10_000


class RacingFace:
    """Answers calls of operators by functions of the test, and keeps their requests."""

    def __init__(self, **answers: Callable[[Any], Message]) -> None:
        self.answers = answers
        self.asked: list[tuple[str, Message]] = []

    async def call(self, rpc: str, request: Message, *_: object, **__: object) -> Message:
        """See `OperatorFace.call`."""
        self.asked.append((rpc, request))
        return self.answers[rpc](request)

    async def consumer_group(self, name: str, caller: object) -> Message:
        """See `OperatorFace.consumer_group`."""
        return self.answers["GetConsumerGroup"](name)


def exchange_of(code: AdminCode, body: object = None, **fields: str) -> Exchange:
    """A request that anybody may make."""
    client = SimpleNamespace(client_id="c", language=0, peer="127.0.0.1:1")
    data = b"" if body is None else json.dumps(body).encode()
    made = Exchange(RemotingCommand(code, 1, fields, data), cast(Any, client), Serialization.JSON)
    made.principal = ANYBODY
    return made


def row_of(name: str, queue_count: int = 2) -> TopicRow:
    """A topic as a broker sees it."""
    kind = meta_pb2.TOPIC_TYPE_NORMAL
    return TopicRow(meta_pb2.Topic(topic_id=1, name=name, queue_count=queue_count, type=kind))


def exists_already(_: object) -> Message:
    """Refuse to make what another broker has made."""
    raise AlreadyThere(ResponseCode.SYSTEM_ERROR, "it exists already")


class LateView:
    """A view that shows topics only to those that wait for them."""

    def __init__(self, *rows: TopicRow) -> None:
        self._rows = {row.name: row for row in rows}
        self._seen: set[str] = set()

    def topic(self, name: str) -> TopicRow | None:
        """See `AdminPlaces.topic`."""
        return self._rows[name] if name in self._seen else None

    async def new_topic(self, name: str) -> TopicRow | None:
        """See `AdminPlaces.new_topic`."""
        if name in self._rows:
            self._seen.add(name)
        return self.topic(name)


def topics_over(face: object, places: object) -> AdminTopics:
    """Requests about topics."""
    return AdminTopics(cast(Any, face), cast(Any, places), cast(Any, None), max_json_bytes=MOST)


WANTED = {"readQueueNums": "4", "writeQueueNums": "4"}


async def test_a_topic_that_was_made_a_moment_ago_is_changed() -> None:
    """The tool asked two brokers: the second one answers as if it was asked later."""
    face = RacingFace(
        CreateTopic=exists_already, UpdateTopic=lambda _: admin_pb2.UpdateTopicResponse()
    )
    exchange = exchange_of(AdminCode.UPDATE_AND_CREATE_TOPIC, topic="orders", **WANTED)
    answer = await topics_over(face, LateView(row_of("orders"))).put(exchange)
    assert answer.code == ResponseCode.SUCCESS
    rpc, update = face.asked[-1]
    assert rpc == "UpdateTopic"
    assert isinstance(update, admin_pb2.UpdateTopicRequest)
    assert (update.topic.queue_count, list(update.update_mask)) == (4, ["queue_count"])


async def test_a_topic_that_is_never_seen_is_refused() -> None:
    """It was made and deleted; the tool learns why it was not made."""
    exchange = exchange_of(AdminCode.UPDATE_AND_CREATE_TOPIC, topic="orders", **WANTED)
    with pytest.raises(RemotingRefusal, match="exists already"):
        await topics_over(RacingFace(CreateTopic=exists_already), LateView()).put(exchange)


async def test_a_list_of_topics_is_made_by_one_change() -> None:
    """A topic that exists with other settings is changed; a refused one is told with its reason."""

    def made(request: admin_pb2.CreateTopicsRequest) -> Message:
        failures = [
            admin_pb2.TopicFailure(position=at, name=topic.name, reason=f"{topic.name} is refused")
            for at, topic in enumerate(request.topics)
            if topic.name in ("late", "bad")
        ]
        return admin_pb2.CreateTopicsResponse(created=2, failures=failures)

    names = ("a", "late", "b", "bad")
    face = RacingFace(CreateTopics=made, UpdateTopic=lambda _: admin_pb2.UpdateTopicResponse())
    body = {"topicConfigList": [{"topicName": name, **WANTED} for name in names]}
    exchange = exchange_of(AdminCode.UPDATE_AND_CREATE_TOPIC_LIST, body)
    with pytest.raises(RemotingRefusal, match="bad is refused"):
        await topics_over(face, LateView(row_of("late"))).put_all(exchange)
    [(first, created), (second, changed)] = face.asked
    assert (first, second) == ("CreateTopics", "UpdateTopic")
    assert isinstance(created, admin_pb2.CreateTopicsRequest)
    assert [topic.name for topic in created.topics] == list(names)
    assert isinstance(changed, admin_pb2.UpdateTopicRequest)
    assert changed.topic.name == "late"


async def test_a_consumer_group_that_was_made_a_moment_ago_is_changed() -> None:
    """Likewise."""
    face = RacingFace(
        CreateConsumerGroup=exists_already,
        UpdateConsumerGroup=lambda _: admin_pb2.UpdateConsumerGroupResponse(),
    )
    places = SimpleNamespace(view=MetadataView())
    groups = AdminGroups(cast(Any, face), cast(Any, places), cast(Any, None), max_json_bytes=MOST)
    exchange = exchange_of(AdminCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {"groupName": "g"})
    assert (await groups.put(exchange)).code == ResponseCode.SUCCESS
    assert [rpc for rpc, _ in face.asked] == ["CreateConsumerGroup", "UpdateConsumerGroup"]


async def test_a_broker_that_is_behind_waits_for_a_new_topic() -> None:
    """Until it sees the topic, or its patience ends."""
    view = MetadataView()
    places = AdminPlaces(view, cast(Any, None), "cluster", 0.0)
    assert await places.new_topic("orders") is None
    patient = AdminPlaces(view, cast(Any, None), "cluster", 60)
    topic = meta_pb2.Topic(topic_id=1, name="orders", queue_count=2)
    change = meta_pb2.WatchResponse(revision=1, changes=[meta_pb2.Change(topic=topic)])
    asyncio.get_running_loop().call_soon(view.apply, change)
    found = await patient.new_topic("orders")
    assert found is not None
    assert found.name == "orders"


async def test_what_exists_is_told_apart_from_other_refusals() -> None:
    """Its code stays that of any failure, as RocketMQ's tools know it."""
    face = OperatorFace()

    async def refuse(request: bytes, caller: object) -> bytes:
        raise CallError("ALREADY_EXISTS", "topic orders exists already")

    face.add_unary(f"/{admin_rpc.SERVICE}/CreateTopic", refuse)
    with pytest.raises(AlreadyThere) as refused:
        await face.call(
            "CreateTopic",
            admin_pb2.CreateTopicRequest(),
            admin_pb2.CreateTopicResponse,
            cast(Any, None),
        )
    assert refused.value.code == ResponseCode.SYSTEM_ERROR


def progress_over(face: object, groups: list[str], timeout_s: float) -> AdminProgress:
    """Requests about progress; the metadata has no consumer group any more."""
    every = frozenset(broker_names())
    places = SimpleNamespace(
        view=MetadataView(), names_here=lambda: every, addresses=SimpleNamespace(own="b:1")
    )

    async def listed(*_: object) -> list[str]:
        return groups

    listing = SimpleNamespace(groups=listed)
    return AdminProgress(
        cast(Any, face), cast(Any, places), cast(Any, listing), timeout_s=timeout_s
    )


@pytest.mark.parametrize(
    "gone",
    [
        RemotingRefusal(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "gone"),
        RequestError(Code.CONSUMER_GROUP_NOT_FOUND, "gone"),
    ],
)
async def test_a_group_that_vanished_meanwhile_is_left_out(gone: Exception) -> None:
    """The progress of the other groups is shown."""

    def group(name: str) -> Message:
        if name == "gone":
            raise gone
        return admin_pb2.GetConsumerGroupResponse()

    progress = progress_over(RacingFace(GetConsumerGroup=group), ["a", "gone", "b"], 60)
    answer = await progress.of_broker(exchange_of(AdminCode.GET_BROKER_CONSUME_STATS))
    assert answer.code == ResponseCode.SUCCESS


async def test_the_progress_of_a_broker_has_a_deadline() -> None:
    """A tool has left long before all groups of a slow cluster were asked."""

    class SlowFace(RacingFace):
        async def consumer_group(self, name: str, caller: object) -> Message:
            await asyncio.Event().wait()
            raise AssertionError("nobody wakes it")

    progress = progress_over(SlowFace(), ["a"], 0.0)
    with pytest.raises(RemotingRefusal, match=r"1 consumer groups was not found in 0 s") as refused:
        await progress.of_broker(exchange_of(AdminCode.GET_BROKER_CONSUME_STATS))
    assert refused.value.code == ResponseCode.SYSTEM_BUSY
