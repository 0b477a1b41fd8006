"""Answers of a leader's proposer to proposals when leadership is lost."""

from __future__ import annotations

import asyncio

import pytest

from strata.storage.v1 import storage_pb2 as pb
from strata_multiraft.base.errors import NotLeader
from strata_runtime.clock import SystemClock
from strata_storage.base.errors import Refused
from strata_storage.leading.proposer import Payload, Proposer


class FakeReplica:
    """A replica whose proposals the test decides."""

    read_only = ""
    disk_mark = 0
    is_handing_over = False
    installing = False
    leader_replica_id = 2

    def __init__(self) -> None:
        self.futures: list[asyncio.Future[int]] = []

    def is_sole(self) -> bool:
        return False

    def is_ready_leader(self) -> bool:
        return True

    def propose(self, payload: Payload) -> asyncio.Future[int]:
        self.futures.append(asyncio.get_running_loop().create_future())
        return self.futures[-1]

    async def read_barrier(self) -> int:
        return 0

    async def applied(self, index: int) -> None:
        assert index >= 0


@pytest.fixture
def replica() -> FakeReplica:
    return FakeReplica()


@pytest.fixture
def proposer(replica: FakeReplica) -> Proposer:
    return Proposer(replica, SystemClock(), 0)


async def test_settled_waits_for_what_is_under_way(
    replica: FakeReplica, proposer: Proposer
) -> None:
    """It returns once the last proposal is committed, at once when there is none."""
    await proposer.settled()
    proposer.propose((b"ack",))
    waiting = asyncio.ensure_future(proposer.settled())
    await asyncio.sleep(0)
    assert not waiting.done()
    replica.futures[0].set_result(7)
    await waiting


async def test_a_repeat_is_refused_with_the_first_one(
    replica: FakeReplica, proposer: Proposer
) -> None:
    """A caller that relied on a proposal hears that the proposal came to nothing."""
    first = proposer.propose((b"ack",))
    repeat = asyncio.ensure_future(proposer.settled())
    await asyncio.sleep(0)
    replica.futures[0].set_exception(NotLeader(2))
    with pytest.raises(Refused) as refused:
        await repeat
    assert (refused.value.outcome, first.done()) == (pb.OUTCOME_NOT_LEADER, True)


async def test_nothing_is_settled_after_leadership_was_lost(
    replica: FakeReplica, proposer: Proposer
) -> None:
    """Proposals that were dropped unseen may not be called settled."""
    proposer.propose((b"ack",))
    replica.futures[0].set_exception(NotLeader(2))
    proposer.drop()
    with pytest.raises(Refused, match="leadership was lost"):
        await proposer.settled()


async def test_what_was_decided_in_an_ended_term_is_not_proposed_in_the_next(
    replica: FakeReplica, proposer: Proposer
) -> None:
    """The replica may lead again by the time that slow work ends; its decisions are void."""
    proposer.drop()
    with pytest.raises(Refused) as refused:
        proposer.propose((b"trim",))
    assert refused.value.outcome == pb.OUTCOME_NOT_LEADER
    assert replica.futures == []
