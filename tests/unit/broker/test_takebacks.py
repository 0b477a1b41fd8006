"""Messages that a receive gives to nobody are taken back; a receive too many costs nothing."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from apache.rocketmq.v2 import definition_pb2
from strata.meta.v1 import meta_pb2
from strata.storage.v1 import storage_pb2
from strata_angelia.ports import TOO_LARGE, UNAVAILABLE, AngeliaError
from strata_broker.app import BrokerApp
from strata_broker.base.receive_config import ReceiveSection
from strata_broker.receives.deliver import Given
from strata_broker.receives.takebacks import Takebacks
from strata_mq.slots import slot_of
from strata_runtime.clock import SystemClock
from strata_runtime.metrics import Metrics
from strata_runtime.tasks import RequestTasks
from strata_testing import until
from strata_testing.broker import broker_config
from strata_testing.broker.broker import waiting_receives
from strata_testing.broker.client import Client, message, receive_request, received
from strata_testing.broker.fake_edge import METADATA, FakeEdge
from strata_testing.broker.fake_meta import FakeMeta
from strata_testing.broker.fake_storage import FakeStorage
from tests.unit.broker.conftest import watermarks

LONG_GRACE = broker_config(receive={"gone_grace_ms": 60_000})


def releases(storage: FakeStorage) -> list[storage_pb2.ReleaseRequest]:
    """The releases that storage was asked for."""
    return [
        request for _, request in storage.calls if isinstance(request, storage_pb2.ReleaseRequest)
    ]


def pops(storage: FakeStorage) -> list[storage_pb2.PopRequest]:
    """The pops that storage was asked for."""
    return [request for _, request in storage.calls if isinstance(request, storage_pb2.PopRequest)]


@pytest.mark.parametrize("auto_renew", [False, True])
async def test_an_answer_that_is_not_taken_is_released_in_one_call(
    client: Client, storage: FakeStorage, auto_renew: bool
) -> None:
    """All its messages are delivered to somebody else, as the first attempt."""
    await client.send(*(message("fifo", number, message_group="a", message_type=definition_pb2.FIFO)
                        for number in range(1, 33)))  # fmt: skip
    calls = [
        client.begin_receive("fifo", "g", auto_renew=auto_renew, broker=f"strata-{number}")
        for number in (1, 2)
    ]
    counts = [len(received(await call.answer)[1]) for call in calls]
    assert sorted(counts) == [0, 32]
    for call in calls:
        call.refuse_answer()
    await until(lambda: len(storage.waiting) == 32)
    (release,) = releases(storage)
    assert len(release.undelivered) == 32
    again = await client.receive_all("fifo", "g")
    assert [one.system_properties.delivery_attempt for one in again] == [1] * 32


async def test_a_release_outlives_its_receive_and_a_change_of_leader(
    client: Client, storage: FakeStorage
) -> None:
    """Nothing that ends the call ends it, and it is repeated until somebody takes it."""
    await client.send(message("orders", 1))
    storage.trouble["Release"].extend(
        [storage_pb2.Refusal(outcome=storage_pb2.OUTCOME_NOT_LEADER)] * 300
        + [AngeliaError(UNAVAILABLE, "gone")] * 300
    )
    calls = [client.begin_receive("orders", "g", broker=f"strata-{n}") for n in (1, 2)]
    (taken,) = [one for one in calls if received(await one.answer)[1]]
    taken.refuse_answer()
    await until(lambda: storage.waiting)
    assert storage.count("Release") == 601


@pytest.mark.parametrize("config", [LONG_GRACE])
async def test_a_long_poll_whose_client_goes_is_ended_in_storage(
    client: Client, storage: FakeStorage, app: BrokerApp
) -> None:
    """At once, and what comes a moment later is nobody's attempt."""
    calls = [client.begin_receive("orders", "g", broker=f"strata-{n}") for n in (1, 2)]
    await until(lambda: waiting_receives(app) == 2)
    for call in calls:
        call.leave()
    await until(lambda: watermarks(app)["pull"] == 0)
    assert waiting_receives(app) == 0
    await client.send(message("orders", 1))
    (got,) = await client.receive_all("orders", "g")
    assert got.system_properties.delivery_attempt == 1
    assert not releases(storage)


async def test_what_a_lost_pop_took_is_asked_for_and_released(
    client: Client, storage: FakeStorage
) -> None:
    """Storage does not end it in time: who holds auto-renewed leases lives, so nobody else will."""
    storage.park = True
    call = client.begin_receive("orders", "g", auto_renew=True)
    await until(lambda: storage.parked == 1)
    (first,) = pops(storage)
    storage.park = False
    storage.trouble["EndPops"].append(AngeliaError(UNAVAILABLE, "gone"))
    call.leave()
    await until(lambda: storage.count("Pop") == 2)
    repeat = pops(storage)[1]
    assert (repeat.repeated, repeat.wait_ms, repeat.attempt) == (True, 0, first.attempt)


async def test_a_take_back_leaves_what_the_receive_got_at_the_same_raft_group(
    client: Client, storage: FakeStorage, meta: FakeMeta, app: BrokerApp
) -> None:
    """A pop of any queue is lost, that of a queue that moved there gives: both are one attempt."""
    await client.send(message("orders", 1))
    ((topic_id, queue),) = [key for key, rows in storage.queues.items() if rows]
    topic = app.view.topic("", "orders")
    assert topic is not None
    slot = slot_of(topic.slot_base, queue)
    there = 3 - meta.slots[slot]
    epoch = meta_pb2.Epoch(epoch=1, raft_group=there)
    override = meta_pb2.QueueOverride(topic_id=topic_id, queue=queue, epochs=[epoch])
    meta.put(meta_pb2.Change(queue_override=override))
    assert await app.view.wait_for_revision(meta.revision, 60)
    storage.slots = list(storage.slots)
    storage.slots[slot] = 0
    storage.trouble["Pop"].append(AngeliaError(UNAVAILABLE, "gone"))
    _, (got,) = await client.receive("orders", "g", broker=f"strata-{there}")
    await until(lambda: any(pop.taken_only for pop in pops(storage)))
    lost, *_, given, asked = pops(storage)
    assert [(pop.raft_group, pop.queue) for pop in (lost, given, asked)] == [
        (there, -1),
        (there, queue),
        (there, -1),
    ]
    await app.requests.drain(1)
    assert releases(storage) == []
    handle = got.system_properties.receipt_handle
    (entry,) = (await client.ack("orders", "g", handle)).entries
    assert entry.status.code == definition_pb2.OK


async def test_what_a_pop_took_whose_answer_cannot_be_sent_is_asked_for_and_released(
    client: Client, storage: FakeStorage
) -> None:
    """The receive fails; its leases would end with their holder only."""
    storage.trouble["Pop"].append(AngeliaError(TOO_LARGE, "an answer of 70 MiB"))
    call = client.begin_receive("orders", "g", auto_renew=True)
    assert received(await call.answer)[0].code == definition_pb2.PAYLOAD_TOO_LARGE
    await until(lambda: any(pop.taken_only for pop in pops(storage)))
    first, asked = pops(storage)
    assert (asked.repeated, asked.attempt) == (True, first.attempt)


class Releases:
    """A `Deliverer` that notes what is released."""

    def __init__(self) -> None:
        self.given: list[Given] = []

    async def release(self, given: Given, timeout_s: float) -> None:
        self.given.append(given)


async def test_leases_that_a_repeat_of_the_attempt_got_stay() -> None:
    """Storage gives those of an ordered group to the second try, too; the last one's go."""
    releases = Releases()
    tasks = RequestTasks("test")
    takebacks = Takebacks(
        releases,  # type: ignore[arg-type]
        None,  # type: ignore[arg-type]
        1.0,
        config=ReceiveSection(),
        clock=SystemClock(),
        requests=tasks,
        metrics=Metrics.disabled(),
    )
    given = Given(1, 5, 101, bytes(28))
    first, second = takebacks.receive_of(5, 77), takebacks.receive_of(5, 77)
    other = takebacks.receive_of(6, 77)
    takebacks.take_back(given, 77, first)
    await tasks.drain(1)
    assert releases.given == []
    takebacks.take_back(given, 77, second)
    takebacks.take_back(given._replace(consumer_group_id=6), 77, other)
    await tasks.drain(1)
    assert [one.consumer_group_id for one in releases.given] == [5, 6]
    await tasks.stop()
    takebacks.take_back(given)


class SilentStorage:
    """It answers no pop, and notes them."""

    def __init__(self) -> None:
        self.pops: list[storage_pb2.PopRequest] = []

    async def pop(
        self, request: storage_pb2.PopRequest, *_: object, **__: object
    ) -> storage_pb2.PopResponse:
        self.pops.append(request)
        return await asyncio.Future[storage_pb2.PopResponse]()


async def test_take_backs_of_one_turn_keep_to_their_limit() -> None:
    """All receives of a lost leader end together: no more of them ask than the limit says."""
    storage, tasks = SilentStorage(), RequestTasks("test")
    takebacks = Takebacks(
        Releases(),  # type: ignore[arg-type]
        storage,  # type: ignore[arg-type]
        1.0,
        config=ReceiveSection(max_unseen_take_backs=3),
        clock=SystemClock(),
        requests=tasks,
        metrics=Metrics.disabled(),
    )
    for number in range(1, 10):
        takebacks.take_back_unseen(storage_pb2.PopRequest(attempt=number))
    await until(lambda: storage.pops)
    assert [request.attempt for request in storage.pops] == [1, 2, 3]
    await tasks.stop()


@pytest.mark.parametrize(
    "config",
    [broker_config(receive={"max_parked_per_client": 3, "surplus_pause_ms": 50})],
)
async def test_a_receive_too_many_is_refused_before_it_is_parsed(
    edge: FakeEdge, client: Client, storage: FakeStorage, app: BrokerApp
) -> None:
    """After a pause; garbage is not even looked at; another client is served meanwhile."""
    parked = [client.begin_receive("orders", "g") for _ in range(3)]
    await until(lambda: waiting_receives(app) == 3)
    surplus = [edge.begin("ReceiveMessage", b"\xff garbage") for _ in range(5)]
    assert not any(call.done() for call in surplus)
    other = METADATA | {"x-mq-client-id": "client-2"}
    more = edge.begin("ReceiveMessage", receive_request("orders", "g"), other)
    await until(lambda: waiting_receives(app) == 4)
    codes = Counter([received(await call.answer)[0].code for call in surplus])
    assert codes == {definition_pb2.TOO_MANY_REQUESTS: 5}
    for call in (*parked, more):
        call.leave()
    await until(lambda: watermarks(app)["pull"] == 0)
    status, _ = received(await edge.begin("ReceiveMessage", b"\xff garbage").answer)
    assert status.code == definition_pb2.BAD_REQUEST
    assert watermarks(app)["pull"] == 0


@pytest.mark.parametrize(
    ("config", "client_ids"),
    [
        (
            broker_config(receive={limit: 2, "surplus_pause_ms": 0}),
            ids,
        )
        for limit, ids in (
            ("max_parked_per_connection", ("a", "b", "c")),
            ("max_parked_per_address", ("a", "b", "c")),
            ("max_parked_per_namespace", ("a", "b", "c")),
            ("max_parked", ("a", "b", "c")),
        )
    ],
)
async def test_many_client_ids_do_not_help(
    edge: FakeEdge, storage: FakeStorage, app: BrokerApp, client_ids: tuple[str, ...]
) -> None:
    """Connection, address and namespace have shares, too."""
    calls = [
        edge.begin(
            "ReceiveMessage",
            receive_request("orders", "g"),
            METADATA | {"x-mq-client-id": client_id},
        )
        for client_id in client_ids
    ]
    status, _ = received(await calls[2].answer)
    assert status.code == definition_pb2.TOO_MANY_REQUESTS
    assert not calls[0].done()
    for call in calls:
        call.leave()
    await until(lambda: waiting_receives(app) == 0)


@pytest.mark.parametrize(
    "config",
    [broker_config(receive={"max_parked_bytes_per_client": 9_000})],
)
async def test_parked_requests_are_bounded_in_bytes(
    edge: FakeEdge, storage: FakeStorage, app: BrokerApp
) -> None:
    """Unknown fields are kept as long as their receive waits; too large a request is refused."""
    padded = receive_request("orders", "g").SerializeToString() + b"\xfa\x3f\xa0\x1f" + bytes(4_000)
    calls = [edge.begin("ReceiveMessage", padded) for _ in range(3)]
    status, _ = received(await calls[2].answer)
    assert status.code == definition_pb2.TOO_MANY_REQUESTS
    huge = edge.begin("ReceiveMessage", bytes(200_000))
    status, _ = received(await huge.answer)
    assert status.code == definition_pb2.PAYLOAD_TOO_LARGE
    for call in calls:
        call.leave()
    await until(lambda: waiting_receives(app) == 0)


async def test_a_call_that_ends_before_it_begins_leaves_nothing(
    client: Client, storage: FakeStorage, app: BrokerApp
) -> None:
    """Its client goes in the same turn in which it came, 300 times."""
    for _ in range(300):
        client.begin_receive("orders", "g").leave()
        await asyncio.sleep(0)
    await until(lambda: watermarks(app)["pull"] == 0)
    assert app._receiver._waiting == {}
