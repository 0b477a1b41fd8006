"""Answers from memory about leases: only a replica that still leads calls a handle void."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from unittest.mock import patch

import pytest

from strata.storage.v1 import storage_pb2 as pb
from strata_multiraft.base.errors import NotLeader
from strata_storage.base.errors import Refused
from strata_storage.leading.pops.lease_calls import LeaseRef, QueueHandles
from tests.unit.storage.serving_leader import KEY, ServingLeader
from tests.unit.storage.waiting_leader import DEAD_LETTER_TOPIC_ID

# A lease that another leader gave, of which this one knows nothing.
ELSEWHERE = LeaseRef(*KEY, 0, 1, 0, 0)


async def ack(node: ServingLeader) -> object:
    """Ack, and wait until the answer is certain."""
    valid, future = node.leading.leases.ack({ELSEWHERE.key: QueueHandles([0], [ELSEWHERE[3:]])})
    await node.leading.leases.settle(future)
    return valid


CALLS: dict[str, Callable[[ServingLeader], Awaitable[object]]] = {
    "ack": ack,
    "change": lambda node: node.leading.leases.change_invisible(ELSEWHERE, 1_000),
    "repeated change": lambda node: node.leading.leases.change_invisible(
        ELSEWHERE, 1_000, repeated=True
    ),
    "forward": lambda node: node.leading.dead_letters.forward(ELSEWHERE, DEAD_LETTER_TOPIC_ID),
    "release": lambda node: node.leading.leases.release([ELSEWHERE]),
}


@pytest.fixture(params=[False, True])
async def node(request: pytest.FixtureRequest) -> ServingLeader:
    """A leader that has nothing of the queue, or messages that nobody took."""
    made = ServingLeader()
    if request.param:
        made.submit([b"first"], queue=KEY[2])
        made.commit()
        made.lease_rows(0, [])
    return made


@pytest.mark.parametrize("call", CALLS)
async def test_a_leader_that_was_replaced_calls_no_handle_void(
    node: ServingLeader, call: str
) -> None:
    """It does not know it yet; its answer would be final, the true one is to ask elsewhere."""

    async def lost() -> int:
        raise NotLeader(2)

    with patch.object(node.replica, "read_barrier", lost), pytest.raises(Refused) as refused:
        await CALLS[call](node)
    assert refused.value.outcome == pb.OUTCOME_NOT_LEADER
    assert refused.value.leader_replica_id == 2


async def test_a_leader_that_leads_says_what_it_knows(node: ServingLeader) -> None:
    """The handle names nothing."""
    assert await ack(node) == [False]
    assert await CALLS["release"](node) == 0
    for call in ("change", "repeated change", "forward"):
        with pytest.raises(Refused) as refused:
            await CALLS[call](node)
        assert refused.value.outcome == pb.OUTCOME_INVALID_HANDLE
