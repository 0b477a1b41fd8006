"""Transaction checks: which producer is asked, what it is shown, what happens without one."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest

from apache.rocketmq.v2 import definition_pb2, service_pb2
from strata.meta.v1 import meta_pb2
from strata.storage.v1 import storage_pb2
from strata_broker.app import BrokerApp
from strata_broker.base.config import BrokerConfig
from strata_mq.requests.names import dead_letter_topic
from strata_testing import ManualClock, until
from strata_testing.broker import broker_config
from strata_testing.broker.client import Client, id_of, message
from strata_testing.broker.fake_edge import MESSAGING, FakeEdge
from strata_testing.broker.fake_meta import FakeMeta
from strata_testing.broker.fake_storage import FakeStorage
from tests.unit.broker.test_telemetry import Stream, producer

SMALL: Mapping[str, dict[str, object]] = {
    "transaction": {"max_checks_waiting": 4, "max_given_up_waiting": 2, "check_patience_ms": 50},
    "metadata": {"auto_create_group": False},
}


@pytest.fixture
def config() -> BrokerConfig:
    """Little room for checks, little patience."""
    return broker_config(**SMALL)


@pytest.fixture(autouse=True)
async def patience(app: BrokerApp, monkeypatch: pytest.MonkeyPatch) -> ManualClock:
    """The clock by which checks wait too long: on a slow machine none does before a test says."""
    clock = ManualClock()
    monkeypatch.setattr(app.checker, "_clock", clock)
    return clock


@pytest.fixture(autouse=True)
async def topics(app: BrokerApp, meta: FakeMeta) -> None:
    """TRANSACTION topics `deals` (103), `others` (104) and `deals` of a tenant (105)."""
    meta.add_topic("deals", meta_pb2.TOPIC_TYPE_TRANSACTION)
    meta.add_topic("others", meta_pb2.TOPIC_TYPE_TRANSACTION)
    meta.add_topic("deals", meta_pb2.TOPIC_TYPE_TRANSACTION, namespace="tenant")
    assert await app.view.wait_for_revision(meta.revision, 60)


async def send_half(client: Client, number: int = 1, topic: str = "deals") -> str:
    """Send a transactional message; return its transaction id."""
    sent = message(topic, number, message_type=definition_pb2.TRANSACTION, tag="t")
    entry = (await client.send(sent)).entries[0]
    assert entry.status.code == definition_pb2.OK
    return entry.transaction_id


def check_all(storage: FakeStorage, *, exhausted: bool = False, wants_report: bool = True) -> None:
    """Send a check of every half that waits."""
    checks = [
        storage_pb2.TransactionCheck(
            raft_group=name[0],
            pending=storage_pb2.PendingRef(index=name[1], ordinal=name[2]),
            topic_id=half.key.topic_id,
            check_count=1,
            exhausted=exhausted,
            store_time_ms=1_700_000_000_123,
            message=half.data,
            wants_report=wants_report,
        )
        for name, half in storage.pending.waiting.items()
    ]
    storage.checks.put_nowait(storage_pb2.WatchResponse(checks=checks))


async def connected(edge: FakeEdge, client_id: str, *topics: str) -> Stream:
    """A producer whose settings were answered."""
    stream = Stream(edge, client_id)
    stream.say(producer(*topics))
    assert (await stream.hear()).HasField("settings")
    return stream


async def asked(stream: Stream) -> service_pb2.RecoverOrphanedTransactionCommand:
    """Return the next check on a stream."""
    async with asyncio.timeout(30):
        command = await stream.hear()
    assert command.WhichOneof("command") == "recover_orphaned_transaction_command"
    return command.recover_orphaned_transaction_command


async def test_a_producer_of_the_topic_is_asked(
    edge: FakeEdge, client: Client, storage: FakeStorage
) -> None:
    """It is shown the message as delivered, without receipt handle; its answer ends it."""
    await send_half(client)
    other = await connected(edge, "p2", "others", "orders")
    stream = await connected(edge, "p1", "deals")
    check_all(storage)
    check = await asked(stream)
    shown = check.message.system_properties
    assert check.message.body == b"body"
    assert (shown.message_id, shown.tag) == (id_of(1), "t")
    assert shown.body_digest.type == definition_pb2.MD5
    assert shown.body_encoding == definition_pb2.IDENTITY
    assert shown.store_timestamp.ToMilliseconds() == 1_700_000_000_123
    assert shown.store_host == "127.0.0.1:18081"
    assert not shown.HasField("receipt_handle")
    request = service_pb2.EndTransactionRequest(
        topic=check.message.topic,
        message_id=shown.message_id,
        transaction_id=check.transaction_id,
        resolution=definition_pb2.COMMIT,
        source=definition_pb2.SOURCE_SERVER_CHECK,
    )
    answer = await edge.call(
        MESSAGING + "EndTransaction", request, service_pb2.EndTransactionResponse
    )
    assert answer.status.code == definition_pb2.OK
    assert len(storage.messages(103)) == 1
    stream.hang_up()
    other.hang_up()


async def test_producers_are_asked_in_turn(
    edge: FakeEdge, client: Client, storage: FakeStorage
) -> None:
    """Two of the same topic answer half each."""
    for number in range(1, 5):
        await send_half(client, number)
    streams = [await connected(edge, f"p{number}", "deals") for number in range(2)]
    check_all(storage)
    shown = [
        (await asked(stream)).message.system_properties.message_id
        for stream in streams
        for _ in range(2)
    ]
    assert sorted(shown) == [id_of(number) for number in range(1, 5)]


async def test_who_sent_transactions_is_asked_first(
    edge: FakeEdge, client: Client, storage: FakeStorage
) -> None:
    """A producer without a checker would ignore the check; a bare stream says nothing."""
    bare = Stream(edge, "client-1")
    listening = asyncio.ensure_future(bare.hear())
    await asyncio.sleep(0)
    await connected(edge, "no-checker", "deals")
    await send_half(client)
    for _ in range(2):
        check_all(storage)
        command = await asyncio.wait_for(listening, 60)
        assert command.HasField("recover_orphaned_transaction_command")
        listening = asyncio.ensure_future(bare.hear())
    listening.cancel()


async def test_storage_is_told_which_topics_have_a_producer(
    app: BrokerApp, edge: FakeEdge, storage: FakeStorage
) -> None:
    """Topics with transactions only; at once when the first one comes or the last one goes."""
    await app.liveness.report()
    assert storage.reports[-1].producer_topic_ids == []
    stream = await connected(edge, "p1", "orders", "deals", "nowhere")
    other = await connected(edge, "p2", "deals")
    await until(lambda: list(storage.reports[-1].producer_topic_ids) == [103])
    assert storage.reports[-1].producer_topics_set
    await app.liveness.report()
    assert not storage.reports[-1].producer_topics_set
    for leaving in (stream, other):
        leaving.hang_up()
        with pytest.raises(StopAsyncIteration):
            await leaving.hear()
    await until(lambda: storage.reports[-1].producer_topics_set)
    assert storage.reports[-1].producer_topic_ids == []


async def test_a_producer_that_said_goodbye_is_not_asked(
    edge: FakeEdge, client: Client, storage: FakeStorage
) -> None:
    """Also when its stream stays open, as those of Go clients do."""
    await send_half(client)
    gone = await connected(edge, "client-1", "deals")
    listening = asyncio.ensure_future(gone.hear())
    stream = await connected(edge, "p2", "deals")
    goodbye = service_pb2.NotifyClientTerminationRequest()
    await edge.call(
        MESSAGING + "NotifyClientTermination",
        goodbye,
        service_pb2.NotifyClientTerminationResponse,
    )
    check_all(storage)
    await asked(stream)
    assert not listening.done()
    listening.cancel()


async def test_a_producer_that_does_not_read_is_given_nothing(
    app: BrokerApp, edge: FakeEdge, client: Client, storage: FakeStorage, patience: ManualClock
) -> None:
    """It gets a check when it took all before; those that wait too long are forgotten."""
    for number in range(1, 5):
        await send_half(client, number)
    stream = await connected(edge, "p1", "deals")
    check_all(storage)
    for _ in range(3):
        await asked(stream)
    assert app.checker.waiting_count == 1
    patience.advance(60)
    await until(lambda: app.checker.waiting_count == 0)
    listening = asyncio.ensure_future(asked(stream))
    await asyncio.sleep(0)
    check_all(storage)
    await listening


async def test_checks_without_room_or_producer_are_left_to_the_next(
    app: BrokerApp, edge: FakeEdge, client: Client, storage: FakeStorage
) -> None:
    """Four of eight fit in; without a producer they are forgotten at once."""
    for number in range(1, 9):
        await send_half(client, number)
    stream = await connected(edge, "p1", "deals")
    check_all(storage)
    await until(lambda: app.checker.waiting_count == 4)
    stream.hang_up()
    while (await anext(stream.answers, None)) is not None:
        pass
    check_all(storage)
    await until(lambda: app.checker.waiting_count == 0)


PATIENT = 600_000


@pytest.mark.parametrize(
    "config",
    [
        broker_config(transaction={"max_checks_waiting": 4, "check_patience_ms": PATIENT}),
        broker_config(transaction={"max_check_bytes_waiting": 4_500, "check_patience_ms": PATIENT}),
    ],
)
async def test_a_producer_that_does_not_read_keeps_no_room_from_others(
    app: BrokerApp, edge: FakeEdge, client: Client, storage: FakeStorage
) -> None:
    """Its checks fill all room, by their number or their bytes; those that came first go."""
    for number in range(1, 9):
        half = message("deals", number, message_type=definition_pb2.TRANSACTION, body=bytes(900))
        assert (await client.send(half)).status.code == definition_pb2.OK
    stuck, other = await connected(edge, "p1", "deals"), await connected(edge, "p2", "others")
    check_all(storage)
    check_all(storage)
    await until(lambda: storage.checks.empty() and app.checker.waiting_count == 4)
    storage.pending.waiting.clear()
    for number in (10, 11):
        await send_half(client, number, "others")
    check_all(storage)
    for number in (10, 11):
        assert (await asked(other)).message.system_properties.message_id == id_of(number)
    await until(lambda: app.checker.waiting_count <= 3)
    for stream in (stuck, other):
        stream.hang_up()


async def test_a_transaction_nobody_knows_becomes_a_dead_letter(
    app: BrokerApp, client: Client, storage: FakeStorage, meta: FakeMeta
) -> None:
    """In a topic of its namespace, made on first use whatever is said of other groups."""
    await send_half(client)
    client.metadata = {**client.metadata, "x-mq-namespace": "tenant"}
    await send_half(client, 2)
    check_all(storage, exhausted=True)
    await until(lambda: len(storage.pending.ended) == 2)
    requests = [
        request
        for _, request in storage.calls
        if isinstance(request, storage_pb2.EndTransactionRequest)
    ]
    ends = {(request.topic_id, request.end) for request in requests}
    assert ends == {
        (103, storage_pb2.TRANSACTION_END_GIVE_UP),
        (105, storage_pb2.TRANSACTION_END_GIVE_UP),
    }
    for namespace, topic_id in (("", 103), ("tenant", 105)):
        group = app.view.consumer_group(namespace, "TRANS_CHECK_MAX_TIME_TOPIC")
        assert group is not None
        (request,) = (one for one in requests if one.topic_id == topic_id)
        assert request.dead_letter_topic_id == group.dead_letter_topic_id
        letters = app.view.topic(namespace, dead_letter_topic("TRANS_CHECK_MAX_TIME_TOPIC"))
        assert letters is not None
        assert letters.topic_id == group.dead_letter_topic_id


async def test_a_received_check_is_not_changed(
    app: BrokerApp, client: Client, storage: FakeStorage
) -> None:
    """In one process it is storage's own object: neither a question nor giving up changes it."""
    await send_half(client)
    check_all(storage, exhausted=True)
    check = storage.checks.get_nowait().checks[0]
    for exhausted in (True, False):
        check.exhausted = exhausted
        before = check.SerializeToString()
        app.checker.take("node", [check])
        assert check.SerializeToString() == before
    await until(lambda: storage.pending.ended)
    assert check.message


async def test_giving_up_is_tried_again(
    app: BrokerApp, client: Client, storage: FakeStorage
) -> None:
    """A failure stops nothing: storage asks again; what there is no room for waits there."""
    for number in range(1, 6):
        await send_half(client, number)
    storage.trouble["EndTransaction"].append(
        storage_pb2.Refusal(outcome=storage_pb2.OUTCOME_OVERLOADED)
    )
    rounds = 0
    while storage.pending.waiting:
        check_all(storage, exhausted=True)
        rounds += 1
        await until(storage.checks.empty)
        await asyncio.sleep(0.01)
        await until(lambda: app.checker._given_up_count.used == 0)
        assert rounds < 10
    assert rounds >= 3


async def test_storage_is_told_of_checks_that_a_producer_was_given(
    app: BrokerApp, edge: FakeEdge, client: Client, storage: FakeStorage
) -> None:
    """Not of those that found no producer; a node of an earlier version does not ask for it."""
    await send_half(client, 1, "others")
    check_all(storage)
    await until(lambda: storage.checks.empty() and app.checker.waiting_count == 0)
    storage.pending.waiting.clear()
    await send_half(client)
    stream = await connected(edge, "p1", "deals")
    check_all(storage, wants_report=False)
    await asked(stream)
    check_all(storage)
    await asked(stream)
    await until(lambda: storage.given_checks)
    (name,) = storage.pending.waiting
    assert [
        (given.raft_group, given.pending.index, given.pending.ordinal, given.check_count)
        for given in storage.given_checks
    ] == [(*name, 1)]
    stream.hang_up()
