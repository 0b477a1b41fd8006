"""Requests of operators' tools over a scripted broker: what they ask, and what they tell."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest
from google.protobuf.message import Message

from strata.admin.v1 import admin_pb2
from strata.meta.v1 import meta_pb2
from strata_broker.access.principals import ANYBODY
from strata_broker.metadata.metadata import TopicRow
from strata_broker.remoting.addresses import broker_names
from strata_broker.remoting.admin.listing import ResourceListing
from strata_broker.remoting.admin.places import AdminPlaces
from strata_broker.remoting.admin.refusals import AdminRefusals
from strata_broker.remoting.admin.resets import AdminResets
from strata_broker.remoting.answers import RemotingRefusal
from strata_broker.remoting.exchange import Exchange
from strata_remoting import AdminCode, RemotingCommand, Serialization

TOPIC = TopicRow(meta_pb2.Topic(topic_id=1, name="orders", queue_count=2))


class ScriptedFace:
    """Answers calls of operators, and keeps their requests."""

    def __init__(self, **answers: Message) -> None:
        self.answers = answers
        self.requests: list[Message] = []

    async def call(self, rpc: str, request: Message, *_: object, **__: object) -> Message:
        """See `OperatorFace.call`."""
        self.requests.append(request)
        return self.answers[rpc]

    async def consumer_group(self, name: str, caller: object) -> Message:
        """See `OperatorFace.consumer_group`."""
        return self.answers["GetConsumerGroup"]


def exchange_of(code: AdminCode, **fields: str) -> Exchange:
    client = SimpleNamespace(client_id="c", language=0, peer="127.0.0.1:1")
    made = Exchange(RemotingCommand(code, 1, fields), cast(Any, client), Serialization.JSON)
    made.principal = ANYBODY
    return made


async def unforced_reset(*spans: tuple[int, int]) -> list[Message]:
    """Reset a group that is at offset 20 of queue 1; return what was moved."""
    face = ScriptedFace(
        GetConsumerGroup=admin_pb2.GetConsumerGroupResponse(
            queues=[admin_pb2.ConsumerQueueLag(topic="orders", queue=1, cursor=20)]
        ),
        ListQueueSpans=admin_pb2.ListQueueSpansResponse(
            spans=[
                admin_pb2.QueueSpan(queue=1, raft_group=number, first_offset=first, end_offset=end)
                for number, (first, end) in enumerate(spans)
            ]
        ),
        ResetConsumerGroup=admin_pb2.ResetConsumerGroupResponse(
            queues=[admin_pb2.ConsumerQueueLag(topic="orders", queue=1, cursor=15)]
        ),
    )
    places = SimpleNamespace(view=None, topic=lambda name: TOPIC)
    resets = AdminResets(cast(Any, face), cast(Any, places))
    code = AdminCode.INVOKE_BROKER_TO_RESET_OFFSET
    fields = {"group": "g", "topic": "orders", "timestamp": "7", "isForce": "false"}
    await resets.reset(exchange_of(code, **fields))
    return [one for one in face.requests if one.DESCRIPTOR.name == "ResetConsumerGroupRequest"]


async def test_a_reset_goes_to_the_first_message_of_a_queue_that_moved() -> None:
    """The raft group that the queue has left, with no message of that time, tells nothing."""
    assert await unforced_reset((10, 10), (15, 30)) == [
        admin_pb2.ResetConsumerGroupRequest(name="g", topic="orders", offset=15, queues=[1])
    ]


async def test_a_reset_that_moves_nothing_is_none() -> None:
    """Consumers would stop and ask for their positions again, for nothing."""
    assert await unforced_reset((30, 30)) == []


async def test_a_user_is_made_elsewhere() -> None:
    """The refusal names the command."""
    refuse = AdminRefusals().handlers()[AdminCode.AUTH_CREATE_USER]
    with pytest.raises(RemotingRefusal, match="strata user create, which also makes the secret"):
        await refuse(exchange_of(AdminCode.AUTH_CREATE_USER))


class PagedFace(ScriptedFace):
    """Has topics in pages of two, and counts turns of the event loop between the pages."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self._names = [f"t{number}" for number in range(count)]
        self.turns = 0

    async def call(self, rpc: str, request: Message, *_: object, **__: object) -> Message:
        """See `OperatorFace.call`."""
        assert isinstance(request, admin_pb2.ListTopicsRequest)
        asyncio.get_running_loop().call_soon(self._turn)
        first = int(request.page_token or 0)
        more = first + 2 < len(self._names)
        return admin_pb2.ListTopicsResponse(
            topics=[meta_pb2.Topic(name=name) for name in self._names[first : first + 2]],
            next_page_token=str(first + 2) if more else "",
        )

    def _turn(self) -> None:
        self.turns += 1


async def test_a_long_list_lets_others_have_a_turn() -> None:
    """The event loop runs other work between two pages."""
    face = PagedFace(6)
    listing = ResourceListing(cast(Any, face), max_frame_bytes=10_000)
    exchange = exchange_of(AdminCode.GET_ALL_TOPIC_CONFIG)
    assert await listing.topics(exchange, lambda row: row.name) == [f"t{n}" for n in range(6)]
    assert face.turns == 2


async def test_an_answer_that_fits_no_frame_is_refused() -> None:
    """The client would close the connection; the refusal names the limit."""
    listing = ResourceListing(cast(Any, PagedFace(1_000)), max_frame_bytes=2_048)
    with pytest.raises(RemotingRefusal, match=r"more than 2048 bytes \(remoting\.max_frame_bytes"):
        await listing.topics(exchange_of(AdminCode.GET_ALL_TOPIC_CONFIG), lambda row: row.name)


def test_the_names_of_a_broker_are_found_once() -> None:
    """Each name is behind one broker; all topics of a name are there."""
    addresses = SimpleNamespace(own="b:1", of=lambda name: "b:1" if name[-1] in "02" else "c:1")
    places = AdminPlaces(cast(Any, None), cast(Any, addresses), "cluster", 1)
    here = places.names_here()
    assert [name for name in broker_names() if name in here] == [
        f"strata-r{number:02d}" for number in (0, 2, 10, 12)
    ]
