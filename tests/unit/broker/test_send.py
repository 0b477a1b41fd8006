"""SendMessage: what is stored, what is answered, what is refused."""

from __future__ import annotations

import asyncio
import hashlib

import pytest

from apache.rocketmq.v2 import definition_pb2, service_pb2
from strata.meta.v1 import meta_pb2
from strata.storage.v1 import storage_pb2
from strata_angelia.ports import UNAVAILABLE, AngeliaError
from strata_broker.app import BrokerApp
from strata_mq.slots import fifo_queue
from strata_testing import until
from strata_testing.broker.client import Client, id_of, message
from strata_testing.broker.fake_edge import FakeEdge
from strata_testing.broker.fake_meta import FakeMeta
from strata_testing.broker.fake_storage import FakeStorage
from tests.unit.broker.conftest import watermarks


async def test_a_message_is_stored_with_digest_and_answered(
    client: Client, storage: FakeStorage, meta: FakeMeta
) -> None:
    """The stored bytes parse to the sent message plus digest and encoding; the entry echoes ids."""
    sent = message("orders", 1, tag="blue", keys=["k1", "k2"])
    sent.user_properties["color"] = "grün"
    response = await client.send(sent)
    assert (response.status.code, response.status.message) == (definition_pb2.OK, "OK")
    (entry,) = response.entries
    assert entry.message_id == entry.transaction_id == sent.system_properties.message_id
    assert entry.offset == 0
    (stored,) = storage.messages(101)
    kept = definition_pb2.Message.FromString(stored.data)
    assert kept.body == sent.body
    assert dict(kept.user_properties) == {"color": "grün"}
    digest = kept.system_properties.body_digest
    assert digest.type == definition_pb2.MD5
    assert digest.checksum == hashlib.md5(b"body").hexdigest().upper()
    assert kept.system_properties.body_encoding == definition_pb2.IDENTITY
    assert kept.system_properties.tag == "blue"


async def test_answers_hold_one_entry_per_message_in_order(
    client: Client, storage: FakeStorage
) -> None:
    """A request of 32 gets 32 entries with consecutive offsets of one queue."""
    response = await client.send(*(message("orders", number) for number in range(1, 33)))
    assert [entry.offset for entry in response.entries] == list(range(32))
    assert [entry.message_id for entry in response.entries] == [
        id_of(number) for number in range(1, 33)
    ]
    assert storage.count("Append") == 1


async def test_requests_accumulate_while_an_append_is_under_way(
    app: BrokerApp, edge: FakeEdge, client: Client, storage: FakeStorage
) -> None:
    """Requests that come during one Append go out together in the next, a batch per raft group."""
    storage.gate = asyncio.Event()
    calls = []
    for number in range(1, 65):
        request = service_pb2.SendMessageRequest(messages=[message("orders", number)])
        calls.append(edge.begin("SendMessage", request))
        if number == 1:
            await storage.called("Append")
    await until(lambda: watermarks(app)["send"] == 64)
    storage.gate.set()
    answers = await asyncio.gather(*(call.answer for call in calls))
    assert len(answers) == 64
    assert watermarks(app)["send"] == 0
    assert storage.count("Append") == 2
    assert len(storage.messages(101)) == 64


async def test_fifo_messages_of_a_group_take_one_queue_in_order(
    client: Client, storage: FakeStorage, meta: FakeMeta
) -> None:
    """The queue is the group's hash, and the user property repeats the group."""
    messages = [
        message(
            "fifo",
            number,
            message_type=definition_pb2.FIFO,
            message_group=f"g{number % 3}",
            body=b"%d" % number,
        )
        for number in range(1, 13)
    ]
    response = await client.send(*messages)
    assert response.status.code == definition_pb2.OK
    for group in ("g0", "g1", "g2"):
        rows = storage.queues[102, fifo_queue(group, 4)]
        kept = [definition_pb2.Message.FromString(row.data) for row in rows]
        mine = [one for one in kept if one.system_properties.message_group == group]
        bodies = [int(one.body) for one in mine]
        assert bodies == sorted(bodies)
        assert len(bodies) == 4
        assert all(one.user_properties["__SHARDINGKEY"] == group for one in mine)


async def test_a_repeated_message_id_gets_the_first_offset(
    client: Client, storage: FakeStorage
) -> None:
    """A producer's retry meets the same raft group and is stored once."""
    first = await client.send(message("orders", 5))
    again = await client.send(message("orders", 5), message("orders", 6))
    assert again.entries[0].offset == first.entries[0].offset
    assert len(storage.messages(101)) == 2


@pytest.mark.parametrize(
    "trouble",
    [
        storage_pb2.Refusal(outcome=storage_pb2.OUTCOME_NOT_LEADER),
        storage_pb2.Refusal(outcome=storage_pb2.OUTCOME_NOT_READY),
        storage_pb2.Refusal(outcome=storage_pb2.OUTCOME_UNKNOWN_GROUP),
        AngeliaError(UNAVAILABLE, "gone"),
    ],
)
async def test_a_refusal_that_passes_is_repeated(
    client: Client, storage: FakeStorage, trouble: storage_pb2.Refusal | AngeliaError
) -> None:
    """The client sees latency, not an error; the repeat has the same sequence and bytes."""
    storage.trouble["Append"].extend([trouble, trouble])
    response = await client.send(message("orders", 1))
    assert response.status.code == definition_pb2.OK
    batches = [
        request.batches[0]
        for rpc, request in storage.calls
        if rpc == "Append" and isinstance(request, storage_pb2.AppendRequest)
    ]
    assert len(batches) == 3
    assert len({(batch.sequence, batch.batch) for batch in batches}) == 1


async def test_a_moved_queue_is_staged_again_in_a_new_batch(
    client: Client, storage: FakeStorage, meta: FakeMeta
) -> None:
    """A part refused with WRONG_GROUP goes to the raft group that the metadata name then."""
    for slot in range(len(storage.slots)):
        storage.slots[slot] = 2
    call = asyncio.ensure_future(client.send(*(message("orders", n) for n in range(1, 5))))
    await storage.called("Append")
    meta.put(meta_pb2.Change(slots=meta_pb2.SlotRange(first_slot=0, slot_count=4096, raft_group=2)))
    response = await call
    assert response.status.code == definition_pb2.OK
    assert len(storage.messages(101)) == 4


@pytest.mark.parametrize(
    ("outcome", "code"),
    [
        (storage_pb2.OUTCOME_DISK_FULL, definition_pb2.INTERNAL_SERVER_ERROR),
        (storage_pb2.OUTCOME_READ_ONLY, definition_pb2.INTERNAL_SERVER_ERROR),
        (storage_pb2.OUTCOME_OVERLOADED, definition_pb2.TOO_MANY_REQUESTS),
        (storage_pb2.OUTCOME_INVALID, definition_pb2.INTERNAL_SERVER_ERROR),
    ],
)
async def test_a_refusal_for_good_reaches_response_and_entries(
    client: Client,
    storage: FakeStorage,
    outcome: storage_pb2.Outcome.ValueType,
    code: definition_pb2.Code.ValueType,
) -> None:
    """Response and every entry carry the code, because clients look at different ones."""
    storage.trouble["Append"].append(storage_pb2.Refusal(outcome=outcome, reason="why"))
    response = await client.send(message("orders", 1), message("orders", 2))
    assert response.status.code == code
    assert [entry.status.code for entry in response.entries] == [code, code]


CHECKS = [
    (message("nowhere", 1), definition_pb2.TOPIC_NOT_FOUND,
     "CODE: 17  DESC: No topic route info in name server for the topic: nowhere"),
    (message("bad topic!", 1), definition_pb2.ILLEGAL_TOPIC,
     "The specified topic[bad topic!] contains illegal characters, "
     "allowing only ^[%|a-zA-Z0-9_-]+$"),
    (message("orders", 1, body=b""), definition_pb2.MESSAGE_BODY_EMPTY,
     "message body cannot be empty"),
    (message("orders", 1, body=bytes(4 * 1024 * 1024 + 1)), definition_pb2.MESSAGE_BODY_TOO_LARGE,
     "message body cannot exceed the max 4194304"),
    (message("orders", 1, message_type=definition_pb2.FIFO, message_group="g"),
     definition_pb2.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
     "TopicMessageType validate failed, the expected type is NORMAL, but actual type is FIFO"),
    (message("fifo", 1), definition_pb2.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
     "TopicMessageType validate failed, the expected type is FIFO, but actual type is NORMAL"),
    (message("fifo", 1, message_group="g" * 65), definition_pb2.ILLEGAL_MESSAGE_GROUP,
     "message group exceed the max size 64"),
    (message("orders", 1, message_id=" "), definition_pb2.ILLEGAL_MESSAGE_ID,
     "message id cannot be blank"),
    (message("orders", 1, tag="a|b"), definition_pb2.ILLEGAL_MESSAGE_TAG, "tag cannot contain '|'"),
]  # fmt: skip


@pytest.mark.parametrize(("sent", "code", "text"), CHECKS, ids=[text for _, _, text in CHECKS])
async def test_bad_messages_are_refused_with_the_real_code_and_text(
    client: Client,
    storage: FakeStorage,
    sent: definition_pb2.Message,
    code: definition_pb2.Code.ValueType,
    text: str,
) -> None:
    """Nothing of a bad request is stored; its response and entries say why."""
    response = await client.send(sent)
    assert (response.status.code, response.status.message) == (code, text)
    assert [entry.status.code for entry in response.entries] == [code]
    assert storage.count("Append") == 0


async def test_one_bad_message_refuses_the_whole_request(
    client: Client, storage: FakeStorage
) -> None:
    """A request is stored whole or refused whole."""
    response = await client.send(message("orders", 1), message("orders", 2, body=b""))
    assert [entry.status.code for entry in response.entries] == [
        definition_pb2.MESSAGE_BODY_EMPTY
    ] * 2
    assert storage.count("Append") == 0


async def test_messages_of_two_topics_and_none_are_refused(client: Client) -> None:
    """MESSAGE_CORRUPTED, as in the real product."""
    mixed = await client.send(message("orders", 1), message("fifo", 2))
    assert mixed.status.code == definition_pb2.MESSAGE_CORRUPTED
    assert (await client.send()).status.code == definition_pb2.MESSAGE_CORRUPTED


async def test_a_priority_is_the_queue_of_its_message(
    app: BrokerApp, client: Client, meta: FakeMeta, storage: FakeStorage
) -> None:
    """The last queue takes all that are higher; a message with several has the one it was sent."""
    meta.add_topic("levels", meta_pb2.TOPIC_TYPE_PRIORITY)
    assert await app.view.wait_for_revision(meta.revision, 60)
    topic = app.view.topic("", "levels")
    assert topic is not None and topic.queue_count == 4
    kind = definition_pb2.PRIORITY
    wanted = [0, 3, 2, 4, 2**31 - 1, 1, 0]
    response = await client.send(
        *(message("levels", n, message_type=kind, priority=p) for n, p in enumerate(wanted))
    )
    assert response.status.code == definition_pb2.OK
    stored = {
        queue: [
            definition_pb2.Message.FromString(row.data).system_properties.priority
            for row in storage.queues[topic.topic_id, queue]
        ]
        for queue in range(4)
    }
    assert stored == {0: [0, 0], 1: [1], 2: [2], 3: [3, 4, 2**31 - 1]}


async def test_priorities_that_do_not_fit_are_refused(
    app: BrokerApp, client: Client, meta: FakeMeta, storage: FakeStorage
) -> None:
    """RocketMQ's texts; a request is stored whole or refused whole."""
    meta.add_topic("levels", meta_pb2.TOPIC_TYPE_PRIORITY)
    assert await app.view.wait_for_revision(meta.revision, 60)
    good = message("levels", 1, message_type=definition_pb2.PRIORITY, priority=1)
    negative = message("levels", 2, message_type=definition_pb2.PRIORITY, priority=-1)
    response = await client.send(good, negative)
    assert response.status.code == definition_pb2.BAD_REQUEST
    assert response.status.message == "The priority must be greater than or equal to 0"
    grouped = message("levels", 4, priority=1, message_group="g")
    for wrong, actual in ((message("levels", 3), "NORMAL"), (grouped, "FIFO")):
        response = await client.send(wrong)
        assert response.status.code == definition_pb2.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE
        assert response.status.message == (
            "TopicMessageType validate failed, the expected type is PRIORITY, "
            f"but actual type is {actual}"
        )
    assert storage.count("Append") == 0


async def test_the_priority_of_a_message_of_another_type_is_not_kept(
    app: BrokerApp, client: Client, storage: FakeStorage
) -> None:
    """As in RocketMQ: a message with a message group and a priority is a FIFO message."""
    sent = message("fifo", 1, message_type=definition_pb2.FIFO, message_group="g", priority=2)
    assert (await client.send(sent)).status.code == definition_pb2.OK
    topic = app.view.topic("", "fifo")
    assert topic is not None
    rows = [
        row for (id_, _), rows in storage.queues.items() if id_ == topic.topic_id for row in rows
    ]
    (stored,) = [definition_pb2.Message.FromString(row.data) for row in rows]
    assert not stored.system_properties.HasField("priority")
    assert stored.system_properties.message_group == "g"


async def test_a_call_without_client_id_is_refused(edge: FakeEdge) -> None:
    """CLIENT_ID_REQUIRED with the real text."""
    request = service_pb2.SendMessageRequest(messages=[message("orders", 1)])
    call = edge.begin("SendMessage", request, {})
    response = service_pb2.SendMessageResponse.FromString((await call.answer)[0])
    assert response.status.code == definition_pb2.CLIENT_ID_REQUIRED
    assert response.status.message == "client id cannot be empty"


async def test_large_requests_are_split_into_batches_of_one_mebibyte(
    client: Client, storage: FakeStorage
) -> None:
    """Five messages of 400 KB: no batch is over 1 MiB, the entries stay in order."""
    response = await client.send(
        *(message("orders", number, body=bytes(400_000)) for number in range(1, 6))
    )
    assert response.status.code == definition_pb2.OK
    sizes = [
        len(batch.batch)
        for rpc, request in storage.calls
        if rpc == "Append" and isinstance(request, storage_pb2.AppendRequest)
        for batch in request.batches
    ]
    assert max(sizes) <= 1024 * 1024
    assert sum(sizes) > 5 * 400_000
    assert len(response.entries) == 5


async def test_namespaces_isolate_topics(app: BrokerApp, client: Client, meta: FakeMeta) -> None:
    """A topic of one namespace does not exist in another."""
    meta.add_topic("orders", namespace="tenant")
    other = meta.add_topic("only-there", namespace="tenant")
    assert other.namespace == "tenant"
    assert await app.view.wait_for_revision(meta.revision, 60)
    response = await client.send(message("only-there", 1, namespace="tenant"))
    assert response.status.code == definition_pb2.OK
    assert (
        await client.send(message("only-there", 1))
    ).status.code == definition_pb2.TOPIC_NOT_FOUND


async def test_a_namespace_in_the_metadata_only_counts_too(
    app: BrokerApp, client: Client, meta: FakeMeta
) -> None:
    """Node clients write it nowhere else; a resource's own namespace comes first."""
    meta.add_topic("only-there", namespace="tenant")
    assert await app.view.wait_for_revision(meta.revision, 60)
    client.metadata = {**client.metadata, "x-mq-namespace": "tenant"}
    response = await client.send(message("only-there", 1))
    assert response.status.code == definition_pb2.OK
    elsewhere = await client.send(message("only-there", 2, namespace="other"))
    assert elsewhere.status.code == definition_pb2.TOPIC_NOT_FOUND
    status, _ = await client.receive("only-there", "g", broker="strata-1")
    assert status.code in (definition_pb2.OK, definition_pb2.MESSAGE_NOT_FOUND)
