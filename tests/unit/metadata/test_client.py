"""Calls find the leader: by hints, by asking round, by waiting; and end with their deadline."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from google.protobuf.message import Message

from strata.meta.v1 import meta_pb2
from strata_angelia.inproc import InprocNetwork
from strata_angelia.ports import DEADLINE_EXCEEDED, AngeliaError
from strata_metadata import MetadataClient, MetadataClientOptions, MetaRefused
from strata_runtime.metrics import Metrics
from strata_testing import until

if TYPE_CHECKING:
    from tests.unit.metadata.conftest import Source


OPTIONS = MetadataClientOptions(
    call_timeout_ms=300, try_timeout_ms=40, first_retry_ms=1, max_retry_ms=4
)


def not_leader(endpoint: str = "") -> meta_pb2.MetaStatus:
    return meta_pb2.MetaStatus(
        outcome=meta_pb2.META_OUTCOME_NOT_LEADER, reason="not me", leader_endpoint=endpoint
    )


@pytest.fixture
def client(network: InprocNetwork, sources: list[Source]) -> MetadataClient:
    return MetadataClient(
        [source.endpoint for source in sources],
        network.channel,
        OPTIONS,
        random=lambda: 0.0,
        metrics=Metrics.disabled(),
    )


async def create(client: MetadataClient, name: str = "t") -> str:
    response = await client.call(
        "CreateTopic",
        meta_pb2.CreateTopicRequest(topic=meta_pb2.Topic(name=name)),
        meta_pb2.CreateTopicResponse,
    )
    return response.topic.name


def calls(sources: list[Source]) -> list[int]:
    return [len(source.calls) for source in sources]


async def test_a_hint_is_followed_and_remembered(
    client: MetadataClient, sources: list[Source]
) -> None:
    """The first call goes by the hint, the second one straight to the leader."""
    sources[0].status = sources[1].status = not_leader(sources[2].endpoint)

    assert await create(client) == "t"
    assert calls(sources) == [1, 0, 1]
    assert await create(client) == "t"
    assert calls(sources) == [1, 0, 2]


async def test_without_a_hint_everybody_is_asked(
    client: MetadataClient, sources: list[Source]
) -> None:
    """One that is gone, one that does not know, then the leader."""
    await sources[0].stop()
    sources[1].status = not_leader()
    await create(client)

    assert calls(sources) == [0, 1, 1]


async def test_a_hint_to_a_dead_leader_is_left(
    client: MetadataClient, sources: list[Source]
) -> None:
    """The others are asked until one of them leads."""
    await sources[2].stop()
    sources[0].status = sources[1].status = not_leader(sources[2].endpoint)
    call = asyncio.ensure_future(create(client))
    await until(lambda: len(sources[0].calls) >= 3)
    sources[1].status = meta_pb2.MetaStatus(outcome=meta_pb2.META_OUTCOME_OK)

    assert await call == "t"


async def test_a_paused_leader_costs_one_try(client: MetadataClient, sources: list[Source]) -> None:
    """A nameserver that does not answer must not use up the call's time."""
    sources[0].paused.clear()

    assert await create(client) == "t"
    assert calls(sources) == [1, 1, 0]


async def test_short_calls_leave_a_paused_leader_too(
    client: MetadataClient, sources: list[Source]
) -> None:
    """A call with less time than a try has, like a heartbeat, must not stick to it."""
    sources[0].paused.clear()
    response = await client.call(
        "CreateTopic",
        meta_pb2.CreateTopicRequest(topic=meta_pb2.Topic(name="t")),
        meta_pb2.CreateTopicResponse,
        timeout_s=0.03,
    )

    assert response.topic.name == "t"
    assert await create(client) == "t"
    assert calls(sources) == [1, 2, 0]


async def test_a_refusal_is_the_answer(client: MetadataClient, sources: list[Source]) -> None:
    """Any outcome but NOT_LEADER is told with its reason and not tried elsewhere."""
    sources[0].status = meta_pb2.MetaStatus(
        outcome=meta_pb2.META_OUTCOME_ALREADY_EXISTS, reason="it exists"
    )
    with pytest.raises(MetaRefused, match="it exists") as caught:
        await create(client)

    assert caught.value.outcome == meta_pb2.META_OUTCOME_ALREADY_EXISTS
    assert calls(sources) == [1, 0, 0]


async def test_the_deadline_ends_a_call_and_says_what_was_last(
    client: MetadataClient, sources: list[Source]
) -> None:
    """Nobody leads: DEADLINE_EXCEEDED with the last reason, after the call's own time."""
    for source in sources:
        source.status = not_leader()
    with pytest.raises(AngeliaError, match="not me") as caught:
        await create(client)

    assert caught.value.code == DEADLINE_EXCEEDED
    assert min(calls(sources)) > 1


async def test_an_unknown_method_fails_at_once(
    client: MetadataClient, sources: list[Source]
) -> None:
    """A method that no nameserver can answer is not tried at all of them."""
    with pytest.raises(AngeliaError, match="unknown_method"):
        await client.call("NoSuchRpc", meta_pb2.CreateTopicRequest(), meta_pb2.CreateTopicResponse)


async def test_concurrent_calls_share_what_one_found(
    client: MetadataClient, sources: list[Source]
) -> None:
    """Sixteen calls to a follower end at the leader it names."""
    sources[0].status = sources[1].status = not_leader(sources[2].endpoint)
    async with asyncio.TaskGroup() as group:
        made = [group.create_task(create(client, f"t{n}")) for n in range(16)]

    assert [task.result() for task in made] == [f"t{n}" for n in range(16)]
    assert len(sources[2].calls) == 16
    await client.close()


async def test_all_tries_of_a_call_have_one_id_and_other_calls_have_others(
    client: MetadataClient, sources: list[Source], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A nameserver that has carried the call out knows a repeat by it; heartbeats need none."""
    seen: list[Message] = []
    open_channel = client._channels._factory

    class Noting:
        def __init__(self, endpoint: str) -> None:
            self._channel = open_channel(endpoint)

        async def call(self, method: str, request: Message, *more: Any, **options: Any) -> Any:
            seen.append(request)
            return await self._channel.call(method, request, *more, **options)

        async def close(self) -> None:
            await self._channel.close()

    monkeypatch.setattr(client._channels, "_factory", Noting)
    request = meta_pb2.CreateTopicRequest(topic=meta_pb2.Topic(name="t"))
    sources[0].paused.clear()
    for _ in range(2):
        await client.call("CreateTopic", request, meta_pb2.CreateTopicResponse)
    request.call_id = b"of the caller"
    await client.call("CreateTopic", request, meta_pb2.CreateTopicResponse)
    beat = meta_pb2.HeartbeatRequest(node_id="n")
    await client.call("Heartbeat", beat, meta_pb2.HeartbeatResponse)

    first, again, second, own, heartbeat = seen
    assert isinstance(first, meta_pb2.CreateTopicRequest)
    assert isinstance(second, meta_pb2.CreateTopicRequest)
    assert (first, first.topic) == (again, request.topic)
    assert [len(first.call_id), len(second.call_id)] == [16, 16]
    assert len({first.call_id, second.call_id}) == 2
    assert (own, heartbeat) == (request, beat)
