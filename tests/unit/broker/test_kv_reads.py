"""Reads of tables at a broker: one that fails leaves the reads that share its calls alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from strata.kv.v1 import kv_pb2, kv_storage_pb2
from strata.storage.v1 import storage_pb2
from strata_broker.base import errors
from strata_broker.base.config import BrokerConfig
from strata_broker.kv.reads import Reads
from strata_broker.metadata.metadata import TopicRow
from strata_mq.requests import Code, RequestError
from strata_runtime.metrics import Metrics
from strata_runtime.tasks import RequestTasks
from strata_testing import ManualClock

LEADER, NEVER_S = kv_pb2.CONSISTENCY_LEADER, 1_000.0
TOPIC = cast(
    "TopicRow",
    SimpleNamespace(topic_id=5, slot_base=1, queue_count=1, is_dead_letter=False),
)


class Leader:
    """A storage node that has an item for each key, and cannot read some.

    Attributes:
        failing: keys of items that cannot be read.
        calls: the keys of each call.
    """

    def __init__(self) -> None:
        self.failing: set[bytes] = set()
        self.calls: list[list[bytes]] = []

    async def call(
        self, raft_group: int, rpc: str, request: kv_storage_pb2.ReadRequest, *_: Any, **more: Any
    ) -> kv_storage_pb2.ReadResponse:
        """Answer as storage does."""
        keys = [one.key for one in request.keys]
        self.calls.append(keys)
        response = kv_storage_pb2.ReadResponse()
        for key in keys:
            result = response.results.add(outcome=storage_pb2.OUTCOME_OK)
            if key not in self.failing:
                result.item.key, result.item.value = key, key.upper()
            elif len(keys) == 1:
                raise errors.refused(storage_pb2.OUTCOME_UNREADABLE, "no disk")
            else:
                result.outcome = storage_pb2.OUTCOME_OVERLOADED
        return response


class AtGroupOne:
    """All tables are at one raft group."""

    async def at_raft_group(self, topic: TopicRow, deadline_s: float, work: Any) -> Any:
        """Run `work` there."""
        return await work(1)


@pytest.fixture
def leader() -> Leader:
    return Leader()


@pytest.fixture
async def reads(leader: Leader) -> AsyncIterator[Reads]:
    requests = RequestTasks("test")
    calls = SimpleNamespace(
        config=BrokerConfig(), requests=requests, clock=ManualClock(0.0), metrics=Metrics.disabled()
    )
    cluster = SimpleNamespace(storage=SimpleNamespace(client=leader))
    parts = cast("Any", SimpleNamespace(cluster=cluster, calls=calls))
    yield Reads(parts, cast("Any", AtGroupOne()), BrokerConfig().kv)
    await requests.stop()


async def test_an_item_that_cannot_be_read_fails_its_own_read(reads: Reads, leader: Leader) -> None:
    """It is asked for again, alone: never "not there", and the others have their items."""
    leader.failing = {b"a"}
    async with asyncio.timeout(10):
        found = await asyncio.gather(
            *(reads.get(TOPIC, key, LEADER, NEVER_S) for key in (b"b", b"a", b"c")),
            return_exceptions=True,
        )
    assert isinstance(found[1], errors.UnreadableError)
    assert [cast("kv_pb2.Item", found[at]).value for at in (0, 2)] == [b"B", b"C"]
    assert leader.calls == [[b"b", b"a", b"c"], [b"a"]]
    assert reads.in_flight == 0


async def test_a_result_that_says_nothing_of_the_key_is_an_error(
    reads: Reads, leader: Leader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A caller that is told that a key is not there relies on it."""

    async def corrupt(*_: Any, **more: Any) -> kv_storage_pb2.ReadResponse:
        response = kv_storage_pb2.ReadResponse()
        response.results.add(outcome=storage_pb2.OUTCOME_CORRUPT)
        return response

    monkeypatch.setattr(leader, "call", corrupt)
    with pytest.raises(RequestError):
        await reads.get(TOPIC, b"a", LEADER, NEVER_S)


async def test_a_consistency_that_is_none_is_refused(reads: Reads, leader: Leader) -> None:
    """Each one has a lane of its own for as long as the broker lives."""
    for number in range(4, 100):
        consistency = kv_pb2.Consistency.ValueType(number)
        with pytest.raises(RequestError) as refused:
            await reads.get(TOPIC, b"a", consistency, NEVER_S)
        assert refused.value.code is Code.BAD_REQUEST
        with pytest.raises(RequestError) as refused:
            await reads.scan(TOPIC, kv_storage_pb2.ScanRequest(), consistency, NEVER_S)
        assert refused.value.code is Code.BAD_REQUEST
    for consistency in (kv_pb2.CONSISTENCY_UNSPECIFIED, LEADER):
        item = await reads.get(TOPIC, b"a", consistency, NEVER_S)
        assert item is not None
        assert item.value == b"A"
    assert len(reads._lanes._lanes) == 1
