"""Lanes of acks while one raft group has calls under way at two nodes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest

from strata.meta.v1 import meta_pb2
from strata.storage.v1 import storage_pb2
from strata_angelia.ports import UNAVAILABLE, AngeliaError
from strata_broker.base.metrics import METRICS
from strata_broker.base.storage_client_config import StorageClientSection
from strata_broker.storage_client.ack_lanes import Acker
from strata_broker.storage_client.leaders import LeaderMap
from strata_mq.requests import Code
from strata_runtime.clock import SystemClock
from strata_runtime.metrics import Metrics
from strata_runtime.runtime import Runtime
from strata_runtime.tasks import RequestTasks, Tasks
from strata_testing import until

RAFT_GROUP = 1
LEASE = storage_pb2.LeaseRef(consumer_group_id=1, topic_id=1, queue=0, offset=1)
LEASES = (storage_pb2.GroupLeases(leases=[LEASE]).SerializeToString(),)


class Waiting:
    """One ack that waits for its outcome."""

    def __init__(self) -> None:
        self.outcome: object = None

    def settled(self, numbers: Sequence[int], failures: Mapping[int, object]) -> None:
        self.outcome = dict(failures) or "OK"

    def failed(self) -> None:
        self.outcome = "failed"

    def gone(self, number: int) -> bool:
        return False


class Channel:
    """A node that answers when the test says so."""

    def __init__(self) -> None:
        self.calls: list[tuple[storage_pb2.AckRequest, asyncio.Future[Any]]] = []

    async def call(
        self, path: str, request: storage_pb2.AckRequest, response_type: type, *, timeout_s: float
    ) -> object:
        answer = asyncio.get_running_loop().create_future()
        self.calls.append((request, answer))
        async with asyncio.timeout(timeout_s):
            return await answer

    def answer(
        self,
        number: int,
        *,
        leads: str = "",
        refusal: storage_pb2.Outcome.ValueType = storage_pb2.OUTCOME_OK,
    ) -> None:
        """Answer a call: all is done or refused, or another node leads."""
        response = storage_pb2.AckResponse()
        for group in self.calls[number][0].groups:
            result = response.groups.add(raft_group=group.raft_group)
            if leads:
                result.refusal.outcome = storage_pb2.OUTCOME_NOT_LEADER
                result.refusal.leader_node_id = leads
            elif refusal != storage_pb2.OUTCOME_OK:
                result.refusal.outcome = refusal
            else:
                result.outcomes.extend([storage_pb2.OUTCOME_OK] * len(group.leases))
        self.calls[number][1].set_result(response)


class Lanes:
    """An acker, and the nodes A and B with replicas of one raft group."""

    def __init__(self) -> None:
        self.nodes = {name: Channel() for name in "AB"}
        replicas = [meta_pb2.Replica(node_id=name) for name in self.nodes]
        row = meta_pb2.RaftGroup(replicas=replicas)
        view = SimpleNamespace(raft_group=lambda _: row, node=lambda _: meta_pb2.Node())
        metrics = Metrics()
        metrics.declare(METRICS)
        self.fatal: list[tuple[str, BaseException]] = []
        config, clock = StorageClientSection(), SystemClock()
        self.leaders = LeaderMap(cast(Any, view), config, clock)
        self.tasks = Tasks("broker", lambda name, failure: self.fatal.append((name, failure)))
        self.acker = Acker(
            self.leaders,
            cast(Any, SimpleNamespace(to=self.nodes.__getitem__)),
            config,
            max_waiting=100,
            runtime=Runtime(clock, lambda: 0.5, metrics, lambda *_: None),
            tasks=self.tasks,
            requests=RequestTasks("requests"),
        )
        self.clock = clock

    def ack(self, raft_group: int = RAFT_GROUP) -> Waiting:
        waiting = Waiting()
        deadline_s = self.clock.monotonic_s() + 10
        self.acker.ack(raft_group, LEASES, cast(Any, waiting), (0,), deadline_s)
        return waiting


@pytest.fixture
async def lanes() -> AsyncIterator[Lanes]:
    made = Lanes()
    made.leaders.leads("A", [RAFT_GROUP])
    yield made
    await made.tasks.stop()
    assert not made.fatal


async def test_a_lane_stays_while_any_of_its_calls_is_under_way(lanes: Lanes) -> None:
    """The old leader answers after the new one was asked: acks at the new one are not forgotten."""
    a, b = lanes.nodes["A"], lanes.nodes["B"]
    acks = [lanes.ack()]
    await until(lambda: len(a.calls) == 1)
    # A send was refused by A.
    lanes.leaders.refused(RAFT_GROUP, "A", "B")
    acks.append(lanes.ack())
    await until(lambda: len(b.calls) == 1)
    a.answer(0)
    await until(lambda: acks[0].outcome)
    assert lanes.acker.lane_count == 1
    acks.append(lanes.ack())
    # B names itself: it leads, and is not ready yet.
    b.answer(0, leads="B")
    for number in range(1, 20):
        await until(partial(_asked_or_done, b, number, acks))
        if len(b.calls) > number:
            b.answer(number)
    assert [ack.outcome for ack in acks] == ["OK"] * 3
    await until(lambda: lanes.acker.lane_count == 0)
    assert lanes.acker._limit.used == 0


def _asked_or_done(node: Channel, number: int, acks: Sequence[Waiting]) -> bool:
    return len(node.calls) > number or all(ack.outcome for ack in acks)


async def test_acks_behind_a_call_to_a_former_leader_do_not_wait_for_its_end(lanes: Lanes) -> None:
    """The call is of another raft group, whose leader is silent; the new one is asked at once."""
    a, b = lanes.nodes["A"], lanes.nodes["B"]
    other = RAFT_GROUP + 1
    lanes.leaders.leads("A", [RAFT_GROUP, other])
    beside = lanes.ack(other)
    await until(lambda: len(a.calls) == 1)
    behind = lanes.ack()
    lanes.leaders.leads("B", [RAFT_GROUP])
    for _ in range(10):
        await asyncio.sleep(0)
    assert len(b.calls) == 1
    b.answer(0)
    await until(lambda: behind.outcome)
    assert beside.outcome is None
    a.answer(0)
    await until(lambda: beside.outcome)
    assert [behind.outcome, beside.outcome] == ["OK", "OK"]
    await until(lambda: lanes.acker.lane_count == 0)
    assert len(a.calls) == 1


async def test_a_repeat_that_is_refused_tells_nothing_of_the_first_try(lanes: Lanes) -> None:
    """The lease may be gone; one that came with the repeat is refused."""
    a, b = lanes.nodes["A"], lanes.nodes["B"]
    repeated = lanes.ack()
    await until(lambda: len(a.calls) == 1)
    a.calls[0][1].set_exception(AngeliaError(UNAVAILABLE, "gone"))
    await until(lambda: lanes.acker._groups[RAFT_GROUP].pause)
    fresh = lanes.ack()
    await until(lambda: len(b.calls) == 1)
    b.answer(0, refusal=storage_pb2.OUTCOME_OVERLOADED)
    await until(lambda: fresh.outcome)
    codes = [one.outcome[0].code for one in (repeated, fresh)]  # type: ignore[index]
    assert codes == [Code.PROXY_TIMEOUT, Code.TOO_MANY_REQUESTS]
