"""A message counts as consumed for others once its ack is committed (rules 3 and 18)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from unittest.mock import patch

import pytest

from strata.storage.v1 import storage_pb2 as pb
from strata_multiraft.base import NotLeader
from strata_multiraft.replica.replica import Replica
from strata_testing.storage_node import (
    CONTEXT,
    GROUP,
    TOPIC,
    NodeUnderTest,
    lease_of,
    node_under_test,
)

# Whether a broker may go on to the next epoch of the queue; None: refused as by no leader.
Answer = bool | None


def not_led(refusal: pb.Refusal) -> bool:
    """Whether a call was refused, and why."""
    assert refusal.outcome in {pb.OUTCOME_UNSPECIFIED, pb.OUTCOME_NOT_LEADER}
    return refusal.outcome == pb.OUTCOME_NOT_LEADER


async def drained(node: NodeUnderTest, consumer_group_id: int = 5) -> Answer:
    """Ask as a broker does before it serves a newer epoch."""
    request = pb.GetConsumerStateRequest(
        raft_group=GROUP, consumer_group_id=consumer_group_id, topic=TOPIC, queues=[0]
    )
    response = await node.rpc.get_consumer_state(request, CONTEXT)
    if not_led(response.refusal):
        return None
    (state,) = response.queues
    return state.cursor == state.next_offset


async def consumed(node: NodeUnderTest) -> Answer:
    """Ask as a broker does before message groups leave a queue."""
    request = pb.RehashRequest(
        raft_group=GROUP, topic=TOPIC, queue=0, ended=True, consumer_group_ids=[5]
    )
    response = await node.rpc.rehash(request, CONTEXT)
    return None if not_led(response.refusal) else response.done


@asynccontextmanager
async def ack_under_way(
    node: NodeUnderTest, go_on: asyncio.Future[None]
) -> AsyncIterator[asyncio.Future[pb.GroupOutcomes]]:
    """Ack the only message; its entry is not committed before `go_on`, or lost if that fails."""
    await node.append([b"a"])
    (message,) = (await node.pop(fifo=True)).messages
    propose, proposed = Replica.propose, asyncio.Event()

    def held(self: Replica, payload: tuple[bytes, ...]) -> asyncio.Future[int]:
        committed = propose(self, payload)

        async def later() -> int:
            proposed.set()
            await asyncio.shield(go_on)
            return await committed

        return asyncio.ensure_future(later())

    with patch.object(Replica, "propose", held):
        acked = asyncio.ensure_future(node.ack(lease_of(message)))
        await proposed.wait()
    yield acked
    await acked


@pytest.mark.parametrize("ask", [drained, consumed])
@pytest.mark.parametrize("lost", [False, True])
async def test_what_is_consumed_is_told_when_its_ack_is_committed(
    tmp_path: Path, ask: Callable[[NodeUnderTest], Awaitable[Answer]], *, lost: bool
) -> None:
    """Not before: it may be lost with its leader. Other consumer groups need not wait for it."""
    go_on: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    async with node_under_test(tmp_path) as node, ack_under_way(node, go_on) as acked:
        asked = asyncio.ensure_future(ask(node))
        for _ in range(20):
            assert await drained(node, 6) is False
            await asyncio.sleep(0)
        assert not asked.done()
        assert not acked.done()
        if lost:
            go_on.set_exception(NotLeader(0))
        else:
            go_on.set_result(None)
        assert await asked is (None if lost else True)
