"""Resets of a consumer group whose members are connected by the remoting protocol.

Members keep positions of their own and store them every few seconds, so they have to take up the
new ones before anything that they store counts again.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from strata.admin.v1 import admin_pb2
from strata_remoting import AdminCode, RemotingCommand, RequestCode, ResponseCode
from strata_testing.broker.fake_edge import ADMIN
from strata_testing.remoting_client import RemotingClient
from tests.integration.broker.cluster_brokers import ClusterBroker
from tests.integration.broker.remoting_brokers import GROUP, clients
from tests.integration.broker.remoting_brokers import brokers as brokers
from tests.integration.broker.remoting_brokers import cluster as cluster
from tests.integration.broker.remoting_brokers import config as config

_IGNORED = "Offset has been previously reset"


def _place(queue: int = 0) -> dict[str, object]:
    return {"topic": "orders", "queueId": queue, "consumerGroup": GROUP}


async def store(client: RemotingClient, offset: int, queue: int = 0) -> RemotingCommand:
    """Store a position; the answer says whether it counts."""
    fields = _place(queue) | {"commitOffset": offset}
    return await client.call(RequestCode.UPDATE_CONSUMER_OFFSET, fields)


async def stored(client: RemotingClient, queue: int = 0) -> int:
    """Return the position of the group, as an operator's tool asks for it."""
    answer = await client.call(RequestCode.QUERY_CONSUMER_OFFSET, _place(queue))
    return int(answer.fields["offset"])


async def pulled(client: RemotingClient, offset: int, queue: int = 0) -> tuple[int, int]:
    """Pull; return the code of the answer and where to go on."""
    answer, _ = await client.pull("orders", GROUP, queue, offset)
    return answer.code, int(answer.fields["nextBeginOffset"])


async def reset(broker: ClusterBroker, *queues: int, **to: int | bool) -> None:
    """Reset the group on the topic, as `strata group reset` does."""
    request = admin_pb2.ResetConsumerGroupRequest(name=GROUP, topic="orders", queues=queues)
    for name, value in to.items():
        setattr(request, name, value)
    await broker.edge.call(
        ADMIN + "ResetConsumerGroup", request, admin_pb2.ResetConsumerGroupResponse
    )


async def consume(client: RemotingClient, client_id: str, messages: int) -> None:
    """Join the group and consume so many messages of queue 0."""
    await client.heartbeat(client_id, GROUP, {"orders": "*"})
    for number in range(messages):
        await client.send("orders", b"%d" % number)
    await store(client, messages)


@pytest.mark.parametrize("by", [0, 1])
async def test_a_reset_reaches_members_at_any_broker(
    brokers: Sequence[ClusterBroker], by: int
) -> None:
    """Positions from before it do not count; their next pull tells them where to go on."""
    async with clients(brokers, 2) as [consumer, tool]:
        await consume(consumer, "c-1", 3)
        await reset(brokers[by], earliest=True)
        assert (await store(consumer, 3)).remark == _IGNORED
        assert await stored(tool) == 0
        assert await pulled(consumer, 3) == (ResponseCode.PULL_OFFSET_MOVED, 0)
        assert (await store(consumer, 3)).remark == _IGNORED
        assert await pulled(consumer, 0) == (ResponseCode.SUCCESS, 3)
        assert (await store(consumer, 2)).remark != _IGNORED
        assert await stored(tool) == 2


async def test_a_reset_to_where_a_member_pulls_next_is_told_all_the_same(
    brokers: Sequence[ClusterBroker],
) -> None:
    """It has messages below that it has not consumed, and would store their positions."""
    async with clients(brokers, 2) as [consumer, tool]:
        await consume(consumer, "c-1", 3)
        await store(consumer, 1)
        await reset(brokers[0], latest=True)
        assert await pulled(consumer, 3) == (ResponseCode.PULL_OFFSET_MOVED, 3)
        assert (await store(consumer, 1)).remark == _IGNORED
        assert (await store(consumer, 3)).remark != _IGNORED
        assert await pulled(consumer, 3) == (ResponseCode.PULL_NOT_FOUND, 3)
        assert await stored(tool) == 3


async def test_only_queues_of_a_reset_are_concerned(brokers: Sequence[ClusterBroker]) -> None:
    """A member that asks for the position of one needs no other answer."""
    async with clients(brokers, 2) as [consumer, other]:
        await consume(consumer, "c-1", 3)
        await other.heartbeat("c-2", GROUP, {"orders": "*"})
        await store(consumer, 0, 1)
        await reset(brokers[1], 0, offset=1)
        assert (await store(consumer, 0, 1)).remark != _IGNORED
        assert (await store(consumer, 3)).remark == _IGNORED
        assert await stored(other) == 1
        assert await pulled(other, 1) == (ResponseCode.SUCCESS, 3)
        assert (await store(other, 2)).remark != _IGNORED
        assert await stored(consumer) == 2


async def test_a_group_without_members_has_nobody_to_tell(
    brokers: Sequence[ClusterBroker],
) -> None:
    """A client that is no member stores what it likes."""
    async with clients(brokers) as [tool]:
        await tool.send("orders", b"one")
        await store(tool, 1)
        await reset(brokers[0], earliest=True)
        assert await pulled(tool, 1) == (ResponseCode.PULL_NOT_FOUND, 1)
        assert (await store(tool, 1)).remark != _IGNORED


@pytest.mark.parametrize("back", [False, True])
async def test_a_reset_of_mqadmin_is_told_too(brokers: Sequence[ClusterBroker], back: bool) -> None:
    """Also one that moves each queue by itself: `-f false`, or a clone of another group."""
    async with clients(brokers, 2) as [consumer, tool]:
        await consume(consumer, "c-1", 3)
        fields = {"group": GROUP, "topic": "orders", "timestamp": 0, "isForce": str(not back)}
        await tool.call(AdminCode.INVOKE_BROKER_TO_RESET_OFFSET, fields)
        assert (await store(consumer, 3)).remark == _IGNORED
        assert await pulled(consumer, 3) == (ResponseCode.PULL_OFFSET_MOVED, 0)
        assert await stored(tool) == 0


async def test_a_reset_that_is_refused_leaves_positions_as_they_are(
    brokers: Sequence[ClusterBroker],
) -> None:
    """Members go on storing."""
    async with clients(brokers, 2) as [consumer, tool]:
        await consume(consumer, "c-1", 3)
        with pytest.raises(Exception, match="no target"):
            await reset(brokers[0])
        assert (await store(consumer, 2)).remark != _IGNORED
        assert await stored(tool) == 2
