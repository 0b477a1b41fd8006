"""ReceiveMessage, AckMessage, ChangeInvisibleDuration, ForwardMessageToDeadLetterQueue."""

from __future__ import annotations

import asyncio

import pytest

from apache.rocketmq.v2 import definition_pb2, service_pb2
from strata.meta.v1 import meta_pb2
from strata.storage.v1 import storage_pb2
from strata_angelia.ports import DEADLINE_EXCEEDED, OVERLOADED, UNAVAILABLE, AngeliaError
from strata_broker.app import BrokerApp
from strata_mq.layout.hashing import text_hash
from strata_testing import until
from strata_testing.broker import broker_config
from strata_testing.broker.broker import waiting_receives
from strata_testing.broker.client import Client, message, receive_request, received, resource
from strata_testing.broker.fake_edge import MESSAGING, FakeEdge
from strata_testing.broker.fake_meta import FakeMeta
from strata_testing.broker.fake_storage import FakeStorage
from tests.unit.broker.conftest import watermarks
from tests.unit.broker.popping import waits_of


async def test_a_delivered_message_is_what_was_sent_plus_its_delivery(
    client: Client, storage: FakeStorage
) -> None:
    """Body, tag, keys and properties come back; every delivery field is set."""
    sent = message("orders", 1, tag="t", keys=["k"], body=b"\x00payload\xff")
    sent.user_properties["emoji"] = "🙂"
    # A client cannot forge what the broker says.
    sent.system_properties.receipt_handle = "forged"
    sent.system_properties.delivery_attempt = 99
    await client.send(sent)
    (got,) = await client.receive_all("orders", "g")
    assert got.topic == sent.topic
    assert got.body == sent.body
    assert dict(got.user_properties) == {"emoji": "🙂"}
    properties = got.system_properties
    assert properties.message_id == sent.system_properties.message_id
    assert (properties.tag, list(properties.keys)) == ("t", ["k"])
    assert properties.delivery_attempt == 1
    assert properties.HasField("queue_offset")
    assert properties.queue_offset == 0
    assert properties.store_timestamp.ToMilliseconds() == 1_700_000_000_123
    assert properties.store_host == "127.0.0.1:18081"
    assert len(properties.receipt_handle) == 60


async def test_an_unknown_consumer_group_is_made_once_on_first_receive(
    client: Client, meta: FakeMeta
) -> None:
    """Ten receives at once make one consumer group; all are answered."""
    calls = [client.begin_receive("orders", "new-group") for _ in range(10)]
    for call in calls:
        status, _ = received(await call.answer)
        assert (status.code, status.message) == (definition_pb2.MESSAGE_NOT_FOUND, "no new message")
    assert meta.calls.count("CreateConsumerGroup") == 1


async def test_receives_that_wait_share_a_limit_of_bytes(
    client: Client, app: BrokerApp, meta: FakeMeta, storage: FakeStorage
) -> None:
    """Answered at once, many receives must not fill the memory: most ask for places only."""
    for number in range(64):
        meta.add_group(meta_pb2.ConsumerGroup(name=f"g{number}"))
    await until(lambda: app.view.consumer_group("", "g63"))
    storage.pop_gate = asyncio.Event()
    calls = [client.begin_receive("orders", f"g{number}", polling_s=0) for number in range(64)]
    await until(lambda: storage.count("Pop") >= 64)
    asked = [request for _, request in storage.calls if isinstance(request, storage_pb2.PopRequest)]
    with_bytes = [request.max_bytes for request in asked if not request.places_only]
    assert with_bytes == [8 * 1024 * 1024] * 4
    assert len(asked) == 64
    storage.pop_gate.set()
    for call in calls:
        await call.answer
    await client.receive("orders", "g", polling_s=0)
    last = storage.calls[-1][1]
    assert isinstance(last, storage_pb2.PopRequest)
    assert not last.places_only, "the room of the others is free again"


async def test_a_pop_says_what_the_leader_must_know(
    client: Client, storage: FakeStorage, meta: FakeMeta
) -> None:
    """Group policy, holder and filter reach storage; no pop waits there."""
    await client.receive("orders", "g", attempt_id="try-1", tags="a||b")
    pop, _ = [request for rpc, request in storage.calls if rpc == "Pop"]
    assert isinstance(pop, storage_pb2.PopRequest)
    assert pop.holder == text_hash("client-1")
    assert pop.attempt
    assert pop.wait_ms == 0
    assert pop.tell_stream > 0
    assert pop.invisible_ms == 30_000
    assert not pop.auto_renew
    assert pop.max_attempts == 17
    assert pop.filter.kind == storage_pb2.FILTER_KIND_TAG
    assert pop.filter.expression == "a||b"
    assert pop.start == storage_pb2.START_POSITION_EARLIEST
    assert pop.dead_letter_topic_id


@pytest.mark.parametrize("auto_renew", [True, False])
async def test_receives_of_one_attempt_have_names_of_their_own(
    client: Client, storage: FakeStorage, auto_renew: bool
) -> None:
    """Else the leases of a repeat would be taken back with those that nobody got of the first.

    Only in ordered groups a client that repeats its attempt gets the same messages.
    """
    names: list[set[int]] = []
    for _ in range(2):
        await client.receive("orders", "g", attempt_id="try-1", auto_renew=auto_renew, polling_s=0)
        pops = [each for _, each in storage.calls if isinstance(each, storage_pb2.PopRequest)]
        names.append({pop.attempt for pop in pops})
        storage.calls.clear()
    assert [len(each) for each in names] == [1, 1]
    assert len(names[0] | names[1] | {0, text_hash("try-1")}) == 4


@pytest.mark.parametrize(
    ("auto_renew", "queue_id", "expected"),
    [(True, -1, -1), (True, 0, -1), (True, 1, "first"), (False, 1, -1), (False, -1, -1)],
)
async def test_public_queue_ids_stand_for_queues(
    client: Client,
    storage: FakeStorage,
    app: BrokerApp,
    auto_renew: bool,
    queue_id: int,
    expected: int | str,
) -> None:
    """Rule 20: ids up to 0 mean any queue, id i the i-th; a simple consumer reads any."""
    await client.receive("orders", "g", auto_renew=auto_renew, queue_id=queue_id)
    pop, *elsewhere = [request for rpc, request in storage.calls if rpc == "Pop"]
    assert isinstance(pop, storage_pb2.PopRequest)
    topic = app.view.topic("", "orders")
    assert topic is not None
    home = app.view.home(topic, "strata-1")
    assert home is not None
    assert pop.queue == (home.queues[0] if expected == "first" else expected)
    assert pop.raft_group == 1
    assert len(elsewhere) == (expected != "first"), "any queue is any of the topic"


REFUSALS = [
    ({"group": "bad group!"}, definition_pb2.ILLEGAL_CONSUMER_GROUP, "illegal characters"),
    ({"topic": "nowhere"}, definition_pb2.TOPIC_NOT_FOUND, "CODE: 17  DESC: No topic route info"),
    ({"invisible_s": 1}, definition_pb2.ILLEGAL_INVISIBLE_TIME,
     "the invisibleTime is too small. min is 10000"),
    ({"invisible_s": 43_201}, definition_pb2.ILLEGAL_INVISIBLE_TIME,
     "the invisibleTime is too large. max is 43200000"),
    ({"broker": "strata-9"}, definition_pb2.FORBIDDEN, "no readable queue"),
    ({"queue_id": 9, "auto_renew": True}, definition_pb2.FORBIDDEN, "no readable queue"),
    ({"tags": "||"}, definition_pb2.ILLEGAL_FILTER_EXPRESSION, "names no tag"),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "code", "text"), REFUSALS)
async def test_bad_receives_are_refused(
    client: Client,
    storage: FakeStorage,
    fields: dict[str, object],
    code: definition_pb2.Code.ValueType,
    text: str,
) -> None:
    """The status says why, the delivery timestamp still ends the stream, nothing is popped."""
    arguments: dict[str, object] = {"topic": "orders", "group": "g", **fields}
    status, messages = await client.receive(**arguments)  # type: ignore[arg-type]
    assert status.code == code
    assert text in status.message
    assert messages == []
    assert storage.count("Pop") == 0


@pytest.mark.parametrize(
    ("kind", "expression", "text"),
    [
        (definition_pb2.SQL, " ", "is empty"),
        (definition_pb2.SQL, "a > 'x'", "SQL92 filter is wrong at character 5: only numbers"),
        (definition_pb2.SQL, "a >", "SQL92 filter is wrong at character 4: expected a value"),
    ],
)
async def test_bad_filters_are_refused_before_anything_is_popped(
    client: Client,
    storage: FakeStorage,
    kind: definition_pb2.FilterType.ValueType,
    expression: str,
    text: str,
) -> None:
    """ILLEGAL_FILTER_EXPRESSION says where a SQL92 expression is wrong, every time."""
    request = receive_request("orders", "g")
    request.filter_expression.type = kind
    request.filter_expression.expression = expression
    for _ in range(2):
        status, messages = received(await client.edge.begin("ReceiveMessage", request).answer)
        assert status.code == definition_pb2.ILLEGAL_FILTER_EXPRESSION
        assert text in status.message
        assert messages == []
    assert storage.count("Pop") == 0


async def test_a_sql_filter_reaches_storage(client: Client, storage: FakeStorage) -> None:
    """Kind and expression go along with the pop; only what matches comes back."""
    small, large = message("orders", 1), message("orders", 2)
    small.user_properties["amount"] = "5"
    large.user_properties["amount"] = "50"
    await client.send(small, large)
    request = receive_request("orders", "g")
    request.filter_expression.type = definition_pb2.SQL
    request.filter_expression.expression = "amount > 10"
    status, (got,) = received(await client.edge.begin("ReceiveMessage", request).answer)
    assert status.code == definition_pb2.OK
    assert got.user_properties["amount"] == "50"
    (pop,) = [request for rpc, request in storage.calls if rpc == "Pop"]
    assert isinstance(pop, storage_pb2.PopRequest)
    assert pop.filter == storage_pb2.Filter(
        kind=storage_pb2.FILTER_KIND_SQL, expression="amount > 10"
    )


@pytest.mark.parametrize(
    ("left_s", "wait_ms"), [(None, 20_000), (25.0, 20_000), (9.0, 8_900), (4.0, None)]
)
@pytest.mark.parametrize("config", [broker_config(receive={"min_polling_ms": 5_000})])
async def test_the_wait_fits_the_deadline(
    edge: FakeEdge, monkeypatch: pytest.MonkeyPatch, left_s: float | None, wait_ms: int | None
) -> None:
    """A long poll ends 100 ms before the deadline; less than 5 s is ILLEGAL_POLLING_TIME."""
    waits = waits_of(monkeypatch)
    request = receive_request("orders", "g", polling_s=20)
    call = edge.begin("ReceiveMessage", request, time_left_s=left_s)
    status, _ = received(await call.answer)
    if wait_ms is None:
        assert status.code == definition_pb2.ILLEGAL_POLLING_TIME
        return
    (waited_ms,) = waits
    # The call's deadline comes closer until the request is checked.
    assert wait_ms - 1_000 < waited_ms <= wait_ms


async def test_the_batch_size_is_clamped(client: Client, storage: FakeStorage) -> None:
    """100,000 is taken as 32."""
    await client.send(*(message("orders", number) for number in range(1, 41)))
    await client.receive("orders", "g", batch_size=100_000)
    (pop,) = [request for rpc, request in storage.calls if rpc == "Pop"]
    assert isinstance(pop, storage_pb2.PopRequest)
    assert pop.max_messages == 32


async def test_acks_end_leases_and_echo_entries(client: Client, storage: FakeStorage) -> None:
    """One call to storage, one status per entry, the name of the common code on top."""
    await client.send(*(message("orders", number) for number in range(1, 6)))
    got = await client.receive_all("orders", "g")
    handles = [one.system_properties.receipt_handle for one in got]
    response = await client.ack("orders", "g", *handles)
    assert (response.status.code, response.status.message) == (definition_pb2.OK, "OK")
    assert [entry.receipt_handle for entry in response.entries] == handles
    assert {entry.status.code for entry in response.entries} == {definition_pb2.OK}
    assert storage.count("Ack") == 1
    assert storage.leases == {}


async def test_a_bad_handle_fails_its_entry_only(client: Client, storage: FakeStorage) -> None:
    """Mixed outcomes fold to MULTIPLE_RESULTS; one bad entry alone gives its own code's name."""
    await client.send(message("orders", 1))
    (got,) = await client.receive_all("orders", "g")
    response = await client.ack("orders", "g", got.system_properties.receipt_handle, "nonsense")
    assert response.status.code == definition_pb2.MULTIPLE_RESULTS
    assert [entry.status.code for entry in response.entries] == [
        definition_pb2.OK,
        definition_pb2.INVALID_RECEIPT_HANDLE,
    ]
    alone = await client.ack("orders", "g", "nonsense")
    assert alone.status.message == "INVALID_RECEIPT_HANDLE"


async def test_a_handle_of_another_group_or_topic_is_invalid(
    client: Client, storage: FakeStorage
) -> None:
    """Nobody acks for another consumer group by mistake."""
    await client.send(message("orders", 1))
    (got,) = await client.receive_all("orders", "g")
    await client.receive_all("orders", "other")
    handle = got.system_properties.receipt_handle
    for topic, group in (("orders", "other"), ("fifo", "g"), ("orders", "unknown")):
        response = await client.ack(topic, group, handle)
        assert response.status.code == definition_pb2.INVALID_RECEIPT_HANDLE
    assert len(storage.leases) == 2


async def test_acks_are_repeated_after_a_refusal(client: Client, storage: FakeStorage) -> None:
    """A leader change costs time only."""
    await client.send(message("orders", 1))
    (got,) = await client.receive_all("orders", "g")
    storage.trouble["Ack"].append(storage_pb2.Refusal(outcome=storage_pb2.OUTCOME_NOT_LEADER))
    response = await client.ack("orders", "g", got.system_properties.receipt_handle)
    assert response.status.code == definition_pb2.OK


async def change(
    client: Client, handle: str, seconds: int
) -> service_pb2.ChangeInvisibleDurationResponse:
    """Change when a message is visible again."""
    request = service_pb2.ChangeInvisibleDurationRequest(
        group=resource("g"), topic=resource("orders"), receipt_handle=handle
    )
    request.invisible_duration.seconds = seconds
    return await client.edge.call(
        MESSAGING + "ChangeInvisibleDuration", request, service_pb2.ChangeInvisibleDurationResponse
    )


async def test_a_change_gives_a_new_handle_and_zero_makes_it_visible(
    client: Client, storage: FakeStorage
) -> None:
    """The old handle is void, the redelivery is attempt 2 or later and its handle acks."""
    await client.send(message("orders", 1))
    (got,) = await client.receive_all("orders", "g")
    old = got.system_properties.receipt_handle
    response = await change(client, old, 0)
    assert response.status.code == definition_pb2.OK
    assert response.receipt_handle != old
    assert (
        await client.ack("orders", "g", old)
    ).status.code == definition_pb2.INVALID_RECEIPT_HANDLE
    (again,) = await client.receive_all("orders", "g")
    assert again.system_properties.delivery_attempt > 1
    handle = again.system_properties.receipt_handle
    assert (await client.ack("orders", "g", handle)).status.code == definition_pb2.OK


@pytest.mark.parametrize(
    ("handle", "seconds", "code"),
    [
        ("nonsense", 5, definition_pb2.INVALID_RECEIPT_HANDLE),
        ("nonsense", -1, definition_pb2.ILLEGAL_INVISIBLE_TIME),
        ("nonsense", 43_201, definition_pb2.ILLEGAL_INVISIBLE_TIME),
    ],
)
async def test_a_refused_change_gives_the_old_handle_back(
    client: Client, handle: str, seconds: int, code: definition_pb2.Code.ValueType
) -> None:
    """Python clients take the handle of any answer."""
    await client.receive("orders", "g")
    response = await change(client, handle, seconds)
    assert response.status.code == code
    assert response.receipt_handle == handle


@pytest.mark.parametrize(
    ("trouble", "repeated"),
    [
        (AngeliaError(UNAVAILABLE, "gone"), True),
        (AngeliaError(DEADLINE_EXCEEDED, "silent"), True),
        (storage_pb2.Refusal(outcome=storage_pb2.OUTCOME_NOT_LEADER), True),
        (AngeliaError(OVERLOADED, "busy"), False),
        (storage_pb2.Refusal(outcome=storage_pb2.OUTCOME_NOT_READY), False),
    ],
)
async def test_a_repeat_says_that_it_is_one(
    client: Client,
    storage: FakeStorage,
    trouble: AngeliaError | storage_pb2.Refusal,
    repeated: bool,
) -> None:
    """Where nobody knows whether the first try was carried out; else it was not."""
    await client.send(message("orders", 1))
    (got,) = await client.receive_all("orders", "g")
    storage.trouble["ChangeInvisible"].append(trouble)
    response = await change(client, got.system_properties.receipt_handle, 30)
    assert response.status.code == definition_pb2.OK
    tries = [
        request
        for _, request in storage.calls
        if isinstance(request, storage_pb2.ChangeInvisibleRequest)
    ]
    assert [one.repeated for one in tries] == [False, repeated]


async def test_a_forwarded_message_is_read_from_the_dead_letter_topic(
    client: Client, storage: FakeStorage, app: BrokerApp
) -> None:
    """It keeps id, body and properties, names its origin, and has the dead-letter topic's name."""
    sent = message("orders", 1, body=b"dead")
    sent.user_properties["p"] = "v"
    await client.send(sent)
    (got,) = await client.receive_all("orders", "g")
    response = await client.edge.call(
        MESSAGING + "ForwardMessageToDeadLetterQueue",
        service_pb2.ForwardMessageToDeadLetterQueueRequest(
            group=resource("g"),
            topic=resource("orders"),
            receipt_handle=got.system_properties.receipt_handle,
        ),
        service_pb2.ForwardMessageToDeadLetterQueueResponse,
    )
    assert (response.status.code, response.status.message) == (definition_pb2.OK, "OK")
    topic = app.view.topic("", "%DLQ%g")
    assert topic is not None
    assert topic.topic_type == meta_pb2.TOPIC_TYPE_DEAD_LETTER
    (dead,) = await client.receive_all("%DLQ%g", "undertaker")
    assert dead.topic.name == "%DLQ%g"
    assert (dead.body, dead.user_properties["p"]) == (b"dead", "v")
    origin = dead.system_properties.dead_letter_queue
    assert (origin.topic, origin.message_id) == ("orders", sent.system_properties.message_id)


async def test_the_pop_of_a_gone_client_is_cancelled(
    app: BrokerApp, client: Client, storage: FakeStorage
) -> None:
    """A parked pop ends soon after its client went away, and is shown no longer."""
    call = client.begin_receive("orders", "g")
    await until(lambda: waiting_receives(app) == 1)
    assert watermarks(app) == {"send": 0, "ack": 0, "pull": 1, "lite_pull": 0, "client_manager": 0}
    call.leave()
    await until(lambda: waiting_receives(app) == 0)
    await until(lambda: watermarks(app)["pull"] == 0)
    assert storage.leases == {}


@pytest.mark.parametrize("config", [broker_config(receive={"gone_grace_ms": 60_000})])
async def test_messages_popped_for_a_gone_client_are_released(
    client: Client, storage: FakeStorage
) -> None:
    """They are visible again at once for another consumer, though storage does not end the pops."""
    storage.park = True
    storage.trouble["EndPops"].extend([AngeliaError(UNAVAILABLE, "gone")] * 2)
    calls = [client.begin_receive("orders", "g", polling_s=20) for _ in range(2)]
    await until(lambda: storage.parked == 1)
    for call in calls:
        call.leave()
    # The first in line looks at one raft group: what comes there is given to it.
    for number in range(1, 9):
        await client.send(message("orders", number))
    await until(lambda: storage.waiting)
    storage.park = False
    again = await client.receive_all("orders", "g")
    assert len(again) == 8
    assert {one.system_properties.delivery_attempt for one in again} == {1}


async def test_too_many_parked_receives_of_a_client_are_refused(
    client: Client, storage: FakeStorage
) -> None:
    """The 257th receive of one client is TOO_MANY_REQUESTS with "flow limit"."""
    await client.edge.call(
        MESSAGING + "Heartbeat", service_pb2.HeartbeatRequest(), service_pb2.HeartbeatResponse
    )
    calls = [client.begin_receive("orders", "g") for _ in range(257)]
    status, _ = received(await calls[256].answer)
    assert (status.code, status.message) == (definition_pb2.TOO_MANY_REQUESTS, "flow limit")
    for call in calls:
        call.leave()


@pytest.mark.parametrize(
    ("outcome", "code"),
    [
        (storage_pb2.OUTCOME_TOO_MANY_WAITERS, definition_pb2.TOO_MANY_REQUESTS),
        (storage_pb2.OUTCOME_CORRUPT, definition_pb2.INTERNAL_SERVER_ERROR),
        (storage_pb2.OUTCOME_TIMEOUT, definition_pb2.PROXY_TIMEOUT),
    ],
)
async def test_storage_refusals_of_a_pop(
    client: Client,
    storage: FakeStorage,
    outcome: storage_pb2.Outcome.ValueType,
    code: definition_pb2.Code.ValueType,
) -> None:
    """One table maps them."""
    storage.trouble["Pop"].append(storage_pb2.Refusal(outcome=outcome, reason="why"))
    status, _ = await client.receive("orders", "g")
    assert status.code == code


@pytest.mark.parametrize(
    ("language", "auto_renew", "limited"),
    [("GO", True, True), ("GO", False, False), ("JAVA", True, False)],
)
async def test_go_push_consumers_get_one_message_of_a_message_group(
    client: Client, storage: FakeStorage, language: str, auto_renew: bool, limited: bool
) -> None:
    """They would go on with a batch before a failed message's retry."""
    client.metadata = {**client.metadata, "x-mq-language": language}
    await client.receive("orders", "g", auto_renew=auto_renew)
    pop, _ = [call for rpc, call in storage.calls if rpc == "Pop"]
    assert isinstance(pop, storage_pb2.PopRequest)
    assert pop.one_per_message_group is limited


async def test_a_stopping_broker_answers_parked_receives(
    client: Client, storage: FakeStorage, app: BrokerApp
) -> None:
    """Nobody waits for the end of a long poll: the answer is "nothing", at once."""
    parked = client.begin_receive("orders", "g")
    await storage.called("Pop")
    await app.stop(5)
    status, messages = received(await parked.answer)
    assert (status.code, messages) == (definition_pb2.MESSAGE_NOT_FOUND, [])
