"""Large sends: a few megabytes at a time, clients in turns, and small sends pass them."""

from __future__ import annotations

import asyncio
import hashlib
from functools import partial
from typing import Any

import pytest

from apache.rocketmq.v2 import definition_pb2, service_pb2
from strata.meta.v1 import meta_pb2
from strata_broker.app import BrokerApp
from strata_broker.base.config import BrokerConfig
from strata_broker.sends.named_queue import QueuedCall
from strata_broker.storage_client.lite_directory import LiteDirectory
from strata_mq.requests import Code, RequestError
from strata_testing import until
from strata_testing.broker import broker_config
from strata_testing.broker.client import Client, message
from strata_testing.broker.fake_edge import METADATA, FakeCall, FakeEdge
from strata_testing.broker.fake_meta import FakeMeta
from strata_testing.broker.fake_storage import FakeStorage
from tests.unit.broker.conftest import watermarks

LARGE = 2_000
TOPIC_ID = 101


@pytest.fixture
def config() -> BrokerConfig:
    """One large request at a time; four may wait or have their turn."""
    return broker_config(
        send={
            "large_request_bytes": LARGE,
            "max_large_bytes_at_once": 1,
            "max_large_bytes_waiting": 4 * LARGE + 1_000,
            "large_turn_ms": 60_000,
        }
    )


def begin(
    edge: FakeEdge,
    number: int,
    client_id: str = "a",
    *,
    topic: str = "orders",
    time_left_s: float = 25.0,
    **properties: Any,
) -> FakeCall:
    """Send one large message."""
    sent = message(topic, number, body=b"%d" % number * LARGE, **properties)
    request = service_pb2.SendMessageRequest(messages=[sent])
    metadata = {**METADATA, "x-mq-client-id": client_id}
    return edge.begin("SendMessage", request, metadata, time_left_s)


def noted(answered: list[int], number: int, _: asyncio.Future[Any]) -> None:
    answered.append(number)


async def answer_to(call: FakeCall) -> service_pb2.SendMessageResponse:
    return service_pb2.SendMessageResponse.FromString((await call.answer)[0])


def stored_bodies(storage: FakeStorage) -> list[bytes]:
    """Return the first byte of each body, sorted."""
    stored = [
        definition_pb2.Message.FromString(one.data).body for one in storage.messages(TOPIC_ID)
    ]
    return sorted(body[:1] for body in stored)


async def test_a_large_message_is_stored_whole(edge: FakeEdge, storage: FakeStorage) -> None:
    call = begin(edge, 1, tag="blue")
    assert (await answer_to(call)).status.code == definition_pb2.OK
    (stored,) = storage.messages(TOPIC_ID)
    kept = definition_pb2.Message.FromString(stored.data)
    assert kept.body == b"1" * LARGE
    assert kept.system_properties.tag == "blue"
    digest = hashlib.md5(kept.body).hexdigest().upper()
    assert kept.system_properties.body_digest.checksum == digest


async def test_clients_take_turns_and_small_sends_pass(
    client: Client, edge: FakeEdge, storage: FakeStorage
) -> None:
    """The second client waits for one large message of the first one, not for both."""
    storage.gate = asyncio.Event()
    calls = [begin(edge, 1)]
    await storage.called("Append")
    calls += [begin(edge, 2), begin(edge, 3), begin(edge, 4, "b")]
    answered: list[int] = []
    small = asyncio.ensure_future(client.send(message("orders", 5, body=b"s")))
    waited: list[asyncio.Future[Any]] = [*(call.answer for call in calls), small]
    for number, future in enumerate(waited, 1):
        future.add_done_callback(partial(noted, answered, number))
    storage.gate.set()
    await asyncio.gather(small, *map(answer_to, calls))
    assert stored_bodies(storage) == [b"1", b"2", b"3", b"4", b"s"]
    assert answered.index(5) < answered.index(2) < answered.index(4) < answered.index(3)


async def test_what_waits_is_limited(edge: FakeEdge, storage: FakeStorage) -> None:
    """A refused one is not stored; those that waited are."""
    storage.gate = asyncio.Event()
    calls = [begin(edge, number) for number in range(1, 5)]
    refused = await answer_to(begin(edge, 5))
    assert refused.status.code == definition_pb2.TOO_MANY_REQUESTS
    assert [entry.status.code for entry in refused.entries] == [definition_pb2.TOO_MANY_REQUESTS]
    storage.gate.set()
    await asyncio.gather(*map(answer_to, calls))
    assert stored_bodies(storage) == [b"1", b"2", b"3", b"4"]
    # Their bytes were given back.
    assert (await answer_to(begin(edge, 6))).status.code == definition_pb2.OK


async def test_who_has_gone_stores_nothing(edge: FakeEdge, storage: FakeStorage) -> None:
    """A large request whose client leaves while it waits."""
    storage.gate = asyncio.Event()
    first = begin(edge, 1)
    await storage.called("Append")
    second, third = begin(edge, 2), begin(edge, 3)
    second.leave()
    storage.gate.set()
    await asyncio.gather(answer_to(first), answer_to(third))
    assert stored_bodies(storage) == [b"1", b"3"]


async def test_a_bad_one_is_refused_in_its_turn(edge: FakeEdge, storage: FakeStorage) -> None:
    """Its code and text are those of a small message, and the next one has its turn."""
    bad = await answer_to(begin(edge, 1, tag="a|b"))
    assert bad.status.code == definition_pb2.ILLEGAL_MESSAGE_TAG
    assert (await answer_to(begin(edge, 2))).status.code == definition_pb2.OK
    assert stored_bodies(storage) == [b"2"]


class QueuedFakeCall(QueuedCall, FakeCall):
    """A call that names a queue, as those of remoting clients do."""

    def __init__(self, queue: int, request: bytes) -> None:
        QueuedCall.__init__(self, queue)
        FakeCall.__init__(self, "SendMessage", request)


@pytest.mark.parametrize("queue", range(4))
async def test_a_large_message_goes_to_the_queue_that_it_names(
    edge: FakeEdge, storage: FakeStorage, queue: int
) -> None:
    """The client is told an offset of that queue."""
    sent = message("orders", 1, body=bytes(LARGE))
    request = service_pb2.SendMessageRequest(messages=[sent])
    call = QueuedFakeCall(queue, request.SerializeToString())
    assert edge.hot is not None
    edge.hot.handle([call])
    assert (await answer_to(call)).status.code == definition_pb2.OK
    assert [key for key, messages in storage.queues.items() if messages] == [(TOPIC_ID, queue)]


async def test_time_counts_from_the_arrival(edge: FakeEdge, storage: FakeStorage) -> None:
    """A call has less time left when its turn comes; its deadline is the same moment as before."""
    storage.gate = asyncio.Event()
    first = begin(edge, 1)
    await storage.called("Append")
    second = begin(edge, 2)
    # Asked for again, it would be taken off a second time.
    second._time_left_s = 0.0
    storage.gate.set()
    codes = [(await answer_to(call)).status.code for call in (first, second)]
    assert codes == [definition_pb2.OK] * 2
    assert stored_bodies(storage) == [b"1", b"2"]


async def test_one_whose_time_is_over_is_not_stored(edge: FakeEdge, storage: FakeStorage) -> None:
    """Its time is over when its turn comes."""
    storage.gate = asyncio.Event()
    first = begin(edge, 1)
    await storage.called("Append")
    late = begin(edge, 2, time_left_s=0.0)
    storage.gate.set()
    assert (await answer_to(first)).status.code == definition_pb2.OK
    assert (await answer_to(late)).status.code == definition_pb2.PROXY_TIMEOUT
    assert stored_bodies(storage) == [b"1"]


@pytest.mark.parametrize(
    ("failure", "code"),
    [
        (RequestError(Code.LITE_TOPIC_QUOTA_EXCEEDED, "too many"), "LITE_TOPIC_QUOTA_EXCEEDED"),
        (None, "INTERNAL_SERVER_ERROR"),
    ],
)
async def test_a_turn_ends_when_the_look_up_of_a_lite_topic_fails(
    app: BrokerApp,
    edge: FakeEdge,
    meta: FakeMeta,
    monkeypatch: pytest.MonkeyPatch,
    failure: RequestError | None,
    code: str,
) -> None:
    """The next large message does not wait for the longest time of a turn.

    Without a failure of the look-up, the lite topic has ended when the message is staged.
    """

    async def numbers(*_: object) -> None:
        if failure is not None:
            raise failure

    monkeypatch.setattr(LiteDirectory, "numbers", numbers)
    meta.add_topic("parent", meta_pb2.TOPIC_TYPE_LITE)
    assert await app.view.wait_for_revision(meta.revision, 60)
    refused = begin(edge, 1, topic="parent", lite_topic="l", message_type=definition_pb2.LITE)
    next_one = begin(edge, 2)
    assert (await answer_to(refused)).status.code == definition_pb2.Code.Value(code)
    async with asyncio.timeout(10):
        assert (await answer_to(next_one)).status.code == definition_pb2.OK


class TestSlowRaftGroup:
    """A raft group that does not answer keeps large messages of others waiting only for a turn."""

    @pytest.fixture
    def config(self) -> BrokerConfig:
        return broker_config(
            send={"large_request_bytes": LARGE, "max_large_bytes_at_once": 1, "large_turn_ms": 1}
        )

    async def test_others_go_on(self, app: BrokerApp, edge: FakeEdge, storage: FakeStorage) -> None:
        storage.gate = asyncio.Event()
        calls = [begin(edge, number) for number in range(1, 5)]
        # All of them are staged, although none is answered.
        await until(lambda: watermarks(app)["send"] == 4)
        storage.gate.set()
        await asyncio.gather(*map(answer_to, calls))
        assert stored_bodies(storage) == [b"1", b"2", b"3", b"4"]
