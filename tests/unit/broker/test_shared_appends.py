"""One Append carries batches of many raft groups: none of them pays for another one."""

from __future__ import annotations

import asyncio

import pytest

from apache.rocketmq.v2 import definition_pb2, service_pb2
from strata.storage.v1 import storage_pb2
from strata_angelia.ports import DEADLINE_EXCEEDED, OVERLOADED, UNAVAILABLE, AngeliaError
from strata_broker.app import BrokerApp
from strata_broker.base.config import BrokerConfig
from strata_mq.slots import fifo_queue
from strata_testing import until
from strata_testing.broker import broker_config
from strata_testing.broker.client import message
from strata_testing.broker.fake_edge import FakeCall, FakeEdge
from strata_testing.broker.fake_storage import FakeStorage

OK = definition_pb2.OK


@pytest.fixture
def config() -> BrokerConfig:
    """Calls hold few bytes."""
    return broker_config(send={"max_bytes_per_call": 300_000})


def send(number: int, size_bytes: int = 10) -> tuple[str, service_pb2.SendMessageRequest]:
    one = message("fifo", number, body=bytes(size_bytes), message_group=f"g{number}")
    one.system_properties.message_type = definition_pb2.FIFO
    return "SendMessage", service_pb2.SendMessageRequest(messages=[one])


def numbers_of_two_raft_groups(app: BrokerApp) -> list[int]:
    """Return numbers of messages whose message groups are in different raft groups."""
    topic = app.view.topic("", "fifo")
    assert topic is not None
    owners = {
        app.view.owner(topic, fifo_queue(f"g{number}", topic.queue_count)): number
        for number in range(50)
    }
    assert len(owners) == 2
    return list(owners.values())


async def code_of(call: FakeCall) -> definition_pb2.Code.ValueType:
    return service_pb2.SendMessageResponse.FromString((await call.answer)[0]).status.code


def appends(storage: FakeStorage) -> list[storage_pb2.AppendRequest]:
    return [call for rpc, call in storage.calls if isinstance(call, storage_pb2.AppendRequest)]


async def test_a_raft_group_that_commits_slowly_does_not_hold_up_the_other(
    app: BrokerApp, edge: FakeEdge, storage: FakeStorage
) -> None:
    """Those of the other one are answered; its own go again with their number, to the same node."""
    storage.slow = {1}
    calls = edge.begin_turn(*map(send, range(8)))
    await until(lambda: len(appends(storage)) > 3)
    answered = [call for call in calls if call.answer.done()]
    assert 0 < len(answered) < len(calls)
    assert [await code_of(call) for call in answered] == [OK] * len(answered)
    repeats = {
        (batch.sequence, batch.batch)
        for request in appends(storage)
        for batch in request.batches
        if batch.raft_group == 1
    }
    assert len(repeats) == 1
    leaders = app._storage.leaders
    assert leaders.leader_of(1) == leaders.leader_of(2) != ""
    storage.slow = set()
    assert [await code_of(call) for call in calls] == [OK] * len(calls)


async def test_what_is_never_committed_is_answered_at_its_deadline(
    edge: FakeEdge, storage: FakeStorage
) -> None:
    """As if nobody had answered: a client must know whether it is worth another try."""
    storage.slow = {1, 2}
    method, request = send(1)
    call = edge.begin(method, request, time_left_s=0.05)
    assert await code_of(call) == definition_pb2.MASTER_PERSISTENCE_TIMEOUT


async def test_each_sender_of_a_batch_is_answered_at_its_own_deadline(
    edge: FakeEdge, storage: FakeStorage
) -> None:
    """Neither one who shares the batch nor one behind it waits as long as the most patient one."""
    storage.slow = {1, 2}
    method, request = send(1)
    patient = edge.begin(method, request, time_left_s=30)
    beside = edge.begin(method, send(1)[1], time_left_s=0.2)
    await until(lambda: appends(storage))
    behind = edge.begin(method, send(1)[1], time_left_s=0.2)
    async with asyncio.timeout(10):
        assert await code_of(beside) == definition_pb2.MASTER_PERSISTENCE_TIMEOUT
        assert await code_of(behind) == definition_pb2.MASTER_PERSISTENCE_TIMEOUT
    assert not patient.answer.done()
    storage.slow = set()
    assert await code_of(patient) == OK


async def test_a_call_that_is_too_large_is_divided(
    app: BrokerApp, edge: FakeEdge, storage: FakeStorage
) -> None:
    """Two batches that a node does not take together are taken one by one."""
    storage.append_max_bytes = 150_000
    one, other = numbers_of_two_raft_groups(app)
    calls = edge.begin_turn(send(one, 100_000), send(other, 100_000))
    assert [await code_of(call) for call in calls] == [OK, OK]
    assert [len(request.batches) for request in appends(storage)] == [2, 1, 1]


async def test_a_batch_that_is_too_large_alone_is_refused_alone(
    app: BrokerApp, edge: FakeEdge, storage: FakeStorage
) -> None:
    """The one that shared its call is stored."""
    storage.append_max_bytes = 150_000
    one, other = numbers_of_two_raft_groups(app)
    small, large = edge.begin_turn(send(one), send(other, 200_000))
    assert await code_of(large) == definition_pb2.PAYLOAD_TOO_LARGE
    assert await code_of(small) == OK


async def test_calls_are_bounded_in_bytes(
    app: BrokerApp, edge: FakeEdge, storage: FakeStorage
) -> None:
    """A batch that does not fit beside the others goes with the next call, a larger one alone."""
    calls = edge.begin_turn(*(send(number, 250_000) for number in range(6)))
    assert [await code_of(call) for call in calls] == [OK] * 6
    calls = edge.begin_turn(*(send(number, 200_000) for number in numbers_of_two_raft_groups(app)))
    assert [await code_of(call) for call in calls] == [OK] * 2
    sizes = [[len(batch.batch) for batch in request.batches] for request in appends(storage)]
    assert sum(map(len, sizes)) > 1
    assert all(len(batches) == 1 or sum(batches) <= 300_000 for batches in sizes), sizes


async def test_a_send_that_may_be_stored_is_never_called_refused(
    edge: FakeEdge, storage: FakeStorage
) -> None:
    """A leader took it and lost its place before it was committed: the next one may commit it."""
    timed_out = storage_pb2.Refusal(outcome=storage_pb2.OUTCOME_TIMEOUT)
    leads_no_more = storage_pb2.Refusal(outcome=storage_pb2.OUTCOME_NOT_LEADER)
    storage.trouble["Append"].extend([timed_out, *[leads_no_more] * 1_000])
    method, request = send(1)
    first = edge.begin(method, request, time_left_s=0.5)
    assert await code_of(first) == definition_pb2.MASTER_PERSISTENCE_TIMEOUT
    later = edge.begin(method, request, time_left_s=0.5)
    assert await code_of(later) == definition_pb2.HA_NOT_AVAILABLE


UNKNOWN = [
    AngeliaError(UNAVAILABLE, "gone"),
    AngeliaError(DEADLINE_EXCEEDED, "silent"),
    storage_pb2.Refusal(outcome=storage_pb2.OUTCOME_NOT_LEADER),
]


@pytest.mark.parametrize("first", UNKNOWN)
async def test_a_repeat_for_which_there_is_no_room_does_not_say_that_the_first_try_was_refused(
    edge: FakeEdge, storage: FakeStorage, first: AngeliaError | storage_pb2.Refusal
) -> None:
    """The first try may be stored: the client is not told that it was one request too many."""
    storage.trouble["Append"].extend([first, *[AngeliaError(OVERLOADED, "busy")] * 1_000])
    method, request = send(1)
    unknown = edge.begin(method, request, time_left_s=0.3)
    assert await code_of(unknown) in (
        definition_pb2.PROXY_TIMEOUT,
        definition_pb2.MASTER_PERSISTENCE_TIMEOUT,
    )
    later = edge.begin(method, request, time_left_s=0.3)
    assert await code_of(later) == definition_pb2.TOO_MANY_REQUESTS


@pytest.mark.parametrize("outcome", ["DISK_FULL", "OVERLOADED", "READ_ONLY"])
@pytest.mark.parametrize("first", UNKNOWN)
async def test_a_repeat_that_is_refused_does_not_say_that_the_first_try_was(
    edge: FakeEdge,
    storage: FakeStorage,
    first: AngeliaError | storage_pb2.Refusal,
    outcome: str,
) -> None:
    """A leader without room refuses before it looks for the number of the batch."""
    refusal = storage_pb2.Refusal(
        outcome=storage_pb2.Outcome.Value(f"OUTCOME_{outcome}"), reason="no free space"
    )
    storage.trouble["Append"].extend([first, refusal])
    method, request = send(1)
    assert await code_of(edge.begin(method, request)) == definition_pb2.PROXY_TIMEOUT
    storage.trouble["Append"].append(refusal)
    assert await code_of(edge.begin(method, request)) != definition_pb2.PROXY_TIMEOUT
