"""A broker over three storage nodes: leaders die, stop, hand over; clients see latency only."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence

import pytest

from apache.rocketmq.v2 import definition_pb2, service_pb2
from strata.storage.v1 import storage_pb2
from strata_broker.base.config import BrokerConfig
from strata_testing import until
from strata_testing.broker import broker_config, broker_under_test, network_of
from strata_testing.broker.client import Client, message, receive_request, received
from strata_testing.broker.fake_cluster import NODES, FakeCluster
from strata_testing.broker.fake_edge import FakeCall, FakeEdge
from strata_testing.broker.fake_meta import RAFT_GROUPS, FakeMeta


@pytest.fixture
def config(request: pytest.FixtureRequest) -> BrokerConfig:
    """Tries of 50 ms, so that what takes a second elsewhere is quick; the parameter has more."""
    changes = {
        "try_timeout_ms": 50,
        "former_leader_grace_ms": 1,
        "distrust_ms": 20,
        "max_watch_retry_ms": 5,
    } | getattr(request, "param", {})
    receive = {"min_polling_ms": 100, "gone_grace_ms": 1}
    return broker_config(storage_client=changes, receive=receive)


@pytest.fixture
def meta() -> FakeMeta:
    """The nameserver, with raft groups of three replicas."""
    fake = FakeMeta(NODES)
    fake.add_topic("orders")
    return fake


@pytest.fixture
async def cluster(meta: FakeMeta) -> FakeCluster:
    """The storage nodes; the first one leads everything."""
    return FakeCluster(meta.slots)


@pytest.fixture
async def edge(
    config: BrokerConfig, meta: FakeMeta, cluster: FakeCluster
) -> AsyncIterator[FakeEdge]:
    """The edge of a broker that serves and knows the leaders."""
    network = network_of(meta, cluster.channel)
    async with broker_under_test(FakeEdge(), network, config=config) as broker:
        yield broker.edge


@pytest.fixture
async def client(edge: FakeEdge) -> Client:
    """A client of the broker."""
    return Client(edge)


def send_some(edge: FakeEdge, count: int = 8) -> list[asyncio.Future[Sequence[bytes]]]:
    """Begin sends to both raft groups."""
    calls = []
    for number in range(1, count + 1):
        request = service_pb2.SendMessageRequest(messages=[message("orders", number)])
        calls.append(edge.begin("SendMessage", request).answer)
    return calls


async def all_stored(cluster: FakeCluster, calls: list[asyncio.Future[Sequence[bytes]]]) -> None:
    """Every send is answered OK and stored once."""
    for answer in await asyncio.gather(*calls):
        response = service_pb2.SendMessageResponse.FromString(answer[0])
        assert response.status.code == definition_pb2.OK, response.status.message
    stored = [row.message_id for row in cluster.state.messages(101)]
    assert len(stored) == len(set(stored)) == len(calls)


async def test_a_dead_leader_costs_no_error(
    edge: FakeEdge, client: Client, cluster: FakeCluster
) -> None:
    """Sends begun while nobody leads are stored by the next leader, once each."""
    await client.send(message("orders", 99))
    cluster.state.queues.clear()
    cluster.nodes["storage-a"].die()
    for raft_group in RAFT_GROUPS:
        cluster.depose(raft_group)
    calls = send_some(edge)
    await until(lambda: "Append" in cluster.nodes["storage-c"].asked)
    assert not any(call.done() for call in calls)
    cluster.elect(1, "storage-c")
    cluster.elect(2, "storage-b")
    await all_stored(cluster, calls)


async def test_a_leader_that_nobody_names_is_found(edge: FakeEdge, cluster: FakeCluster) -> None:
    """Followers name the dead leader for a while; the new one is asked all the same."""
    cluster.nodes["storage-a"].die()
    for raft_group in RAFT_GROUPS:
        cluster.elect(raft_group, "storage-c", known=False)
    await all_stored(cluster, send_some(edge))


@pytest.mark.parametrize("config", [{"try_timeout_ms": 600_000}], indirect=True)
async def test_an_append_at_a_stopped_leader_is_given_up_when_another_one_leads(
    edge: FakeEdge, cluster: FakeCluster
) -> None:
    """The new leader's own word ends the try at once, with the same bytes and sequence."""
    cluster.nodes["storage-a"].paused = True
    calls = send_some(edge)
    await until(lambda: "Append" in cluster.nodes["storage-a"].asked)
    for raft_group in RAFT_GROUPS:
        cluster.elect(raft_group, "storage-b")
    await all_stored(cluster, calls)


async def test_an_append_at_a_silent_leader_is_tried_elsewhere_after_its_time(
    edge: FakeEdge, cluster: FakeCluster
) -> None:
    """Without any word of a new leader one try takes `try_timeout_ms`, not the whole deadline."""
    cluster.nodes["storage-a"].paused = True
    for node in cluster.nodes.values():
        node.changed = lambda: None  # type: ignore[method-assign]
    for raft_group in RAFT_GROUPS:
        cluster.elect(raft_group, "storage-b")
    await all_stored(cluster, send_some(edge))


async def test_deadlines_end_only_when_the_time_is_over(
    edge: FakeEdge, cluster: FakeCluster
) -> None:
    """With every node refusing, a send fails right before its client gives up, and not earlier."""
    for raft_group in RAFT_GROUPS:
        cluster.depose(raft_group)
        cluster.hints.pop(raft_group)
    request = service_pb2.SendMessageRequest(messages=[message("orders", 1)])
    began_s = time.monotonic()
    call = edge.begin("SendMessage", request, time_left_s=0.2)
    response = service_pb2.SendMessageResponse.FromString((await call.answer)[0])
    assert response.status.code == definition_pb2.HA_NOT_AVAILABLE
    assert time.monotonic() - began_s >= 0.19
    assert "raft group" in response.status.message


async def test_a_parked_receive_goes_to_the_next_leader(
    edge: FakeEdge, client: Client, cluster: FakeCluster
) -> None:
    """It waited at a leader that died; a message sent later reaches it through the new one."""
    cluster.state.park = True
    call = edge.begin("ReceiveMessage", receive_request("orders", "g"))
    await until(lambda: cluster.state.parked == 1)
    cluster.nodes["storage-a"].die()
    for raft_group in RAFT_GROUPS:
        cluster.elect(raft_group, "storage-b")
    await until(lambda: cluster.state.parked == 1 and "Pop" in cluster.nodes["storage-b"].asked)
    await asyncio.gather(*send_some(edge))
    status, messages = received(await call.answer)
    assert status.code == definition_pb2.OK
    assert messages


async def test_a_parked_receive_leaves_a_stopped_leader(
    edge: FakeEdge, cluster: FakeCluster
) -> None:
    """Its pop would be silent to the end of the wait; the new leader's word moves it."""
    cluster.nodes["storage-a"].paused = True
    call = edge.begin("ReceiveMessage", receive_request("orders", "g"))
    await until(lambda: "Pop" in cluster.nodes["storage-a"].asked)
    await asyncio.gather(*_sends_by_the_next_leader(edge, cluster))
    status, messages = received(await call.answer)
    assert status.code == definition_pb2.OK
    assert messages


def _sends_by_the_next_leader(
    edge: FakeEdge, cluster: FakeCluster
) -> list[asyncio.Future[Sequence[bytes]]]:
    for raft_group in RAFT_GROUPS:
        cluster.elect(raft_group, "storage-b")
    return send_some(edge)


@pytest.mark.parametrize("auto_renew", [False, True])
async def test_a_pop_whose_answer_was_lost_is_repeated_as_such(
    edge: FakeEdge, cluster: FakeCluster, auto_renew: bool
) -> None:
    """The repeat asks for what was leased: auto-renewed leases never come back by themselves.

    Others come back, and count as an attempt that nobody saw.
    """
    cluster.state.park = True
    edge.begin("ReceiveMessage", receive_request("orders", "g", auto_renew=auto_renew))
    await until(lambda: cluster.state.parked == 1)
    cluster.nodes["storage-a"].die()
    for raft_group in RAFT_GROUPS:
        cluster.elect(raft_group, "storage-b")
    cluster.state.park = False

    def pops() -> list[storage_pb2.PopRequest]:
        asked = [
            request
            for _, request in cluster.state.calls
            if isinstance(request, storage_pb2.PopRequest)
        ]
        return [pop for pop in asked if pop.raft_group == asked[0].raft_group]

    await until(lambda: len(pops()) >= 2)
    first, again = pops()[:2]
    assert (first.repeated, again.repeated) == (False, True)
    assert first.attempt == again.attempt != 0


@pytest.mark.parametrize("auto_renew", [False, True])
@pytest.mark.parametrize("goes", [False, True])
async def test_what_a_pop_took_whose_answer_was_lost_is_no_attempt(
    edge: FakeEdge, cluster: FakeCluster, auto_renew: bool, goes: bool
) -> None:
    """Its receive ended while nobody led: the next leader is asked, and gives it to another one."""
    await all_stored(cluster, send_some(edge, 1))
    cluster.nodes["storage-a"].loses_pops = True
    receive = receive_request("orders", "g", auto_renew=auto_renew)
    call = edge.begin("ReceiveMessage", receive, time_left_s=0.4)
    await until(lambda: cluster.state.leases)
    for raft_group in RAFT_GROUPS:
        cluster.depose(raft_group)
    if goes:
        call.leave()
    else:
        assert received(await call.answer)[1] == []
    for raft_group in RAFT_GROUPS:
        cluster.elect(raft_group, "storage-b")
    await until(lambda: cluster.state.waiting)
    (again,) = received(await edge.begin("ReceiveMessage", receive_request("orders", "g")).answer)[
        1
    ]
    assert again.system_properties.delivery_attempt == 1


@pytest.mark.parametrize("auto_renew", [False, True])
async def test_what_a_lost_pop_took_is_asked_for_also_if_its_repeat_is_refused(
    edge: FakeEdge, cluster: FakeCluster, auto_renew: bool
) -> None:
    """The next leader refuses, for instance because its disk is full: nobody has what it took."""
    await all_stored(cluster, send_some(edge, 1))
    cluster.nodes["storage-a"].loses_pops = True
    receive = receive_request("orders", "g", auto_renew=auto_renew)
    call = edge.begin("ReceiveMessage", receive)
    await until(lambda: cluster.state.leases)
    refusal = storage_pb2.Refusal(outcome=storage_pb2.OUTCOME_DISK_FULL, reason="no space")
    cluster.state.trouble["Pop"].append(refusal)
    for raft_group in RAFT_GROUPS:
        cluster.elect(raft_group, "storage-b")
    status, messages = received(await call.answer)
    assert (status.code, messages) == (definition_pb2.INTERNAL_SERVER_ERROR, [])
    await until(lambda: cluster.state.waiting)
    (again,) = received(await edge.begin("ReceiveMessage", receive).answer)[1]
    assert again.system_properties.delivery_attempt == 1


async def test_a_receive_with_no_leader_ends_as_an_empty_one_and_says_why(
    edge: FakeEdge, cluster: FakeCluster
) -> None:
    """At the end of the polling time there is no message, not an error; the raft group is named."""
    for raft_group in RAFT_GROUPS:
        cluster.depose(raft_group)
    call = edge.begin("ReceiveMessage", receive_request("orders", "g"), time_left_s=0.4)
    await until(lambda: "Pop" in cluster.nodes["storage-b"].asked)
    status, messages = received(await call.answer)
    assert (status.code, messages) == (definition_pb2.MESSAGE_NOT_FOUND, [])
    assert "no new message: storage did not answer: raft group " in status.message


@pytest.mark.parametrize("config", [{"call_timeout_ms": 600_000}], indirect=True)
async def test_a_pull_with_no_leader_says_why_before_its_client_gives_up(
    edge: FakeEdge, cluster: FakeCluster
) -> None:
    """The raft group is named within the client's time, which is shorter than a storage call's."""
    for raft_group in RAFT_GROUPS:
        cluster.depose(raft_group)
    request = service_pb2.PullMessageRequest(
        group=definition_pb2.Resource(name="g"),
        message_queue=definition_pb2.MessageQueue(
            topic=definition_pb2.Resource(name="orders"),
            broker=definition_pb2.Broker(name=f"strata-{RAFT_GROUPS[0]}"),
        ),
        batch_size=1,
    )
    request.long_polling_timeout.FromMilliseconds(200)
    info = FakeCall("PullMessage", b"", time_left_s=0.4)
    handler = edge.server_streams["/apache.rocketmq.v2.MessagingService/PullMessage"]
    async with asyncio.timeout(30):
        answers = [data async for data in handler(request.SerializeToString(), info)]
    status = service_pb2.PullMessageResponse.FromString(answers[0]).status
    assert status.code == definition_pb2.PROXY_TIMEOUT
    assert "storage did not answer in time: raft group " in status.message


async def test_a_receive_that_was_answered_blames_nobody(
    edge: FakeEdge, cluster: FakeCluster
) -> None:
    """An empty topic is no trouble, also when a leader was lost on the way."""
    cluster.depose(RAFT_GROUPS[0])
    call = edge.begin("ReceiveMessage", receive_request("orders", "g"), time_left_s=1.0)
    await until(lambda: "Pop" in cluster.nodes["storage-b"].asked)
    for raft_group in RAFT_GROUPS:
        cluster.elect(raft_group, "storage-c")
    status, messages = received(await call.answer)
    assert (status.code, messages) == (definition_pb2.MESSAGE_NOT_FOUND, [])
    assert status.message == "no new message"


async def test_acks_follow_the_leader(client: Client, cluster: FakeCluster) -> None:
    """An ack begun at a dead leader is settled by the next one."""
    await client.send(*(message("orders", number) for number in range(1, 5)))
    messages = await client.receive_all("orders", "g")
    cluster.nodes["storage-a"].die()
    for raft_group in RAFT_GROUPS:
        cluster.depose(raft_group)
    handles = [one.system_properties.receipt_handle for one in messages]
    acking = asyncio.ensure_future(client.ack("orders", "g", *handles))
    await until(lambda: "Ack" in cluster.nodes["storage-c"].asked)
    for raft_group in RAFT_GROUPS:
        cluster.elect(raft_group, "storage-c")
    response = await acking
    assert response.status.code == definition_pb2.OK
    assert not cluster.state.leases


async def test_one_raft_group_without_leader_does_not_hold_up_the_other(
    edge: FakeEdge, cluster: FakeCluster
) -> None:
    """Sends to the raft group that is led are answered meanwhile."""
    cluster.depose(1)
    calls = send_some(edge, 16)
    await until(lambda: any(call.done() for call in calls))
    assert not all(call.done() for call in calls)
    cluster.elect(1, "storage-a")
    await all_stored(cluster, calls)
