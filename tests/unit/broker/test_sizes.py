"""Everything a client writes has a size: it is counted, refused or passed over, never just kept."""

from __future__ import annotations

from typing import Any

import google_crc32c
import pytest

from apache.rocketmq.v2 import definition_pb2, service_pb2
from strata_broker.app import BrokerApp
from strata_broker.base.wire import length_delimited
from strata_broker.metadata.requests import MAX_CLIENT_ID_LENGTH, caller_of
from strata_broker.operators import redrive
from strata_broker.operators.message_queries import QueuePosition
from strata_mq.layout import hashing
from strata_mq.layout.hashing import key_hash, text_hash
from strata_mq.requests.errors import Code, RequestError
from strata_testing.broker.client import Client, message
from strata_testing.broker.fake_edge import FakeEdge
from strata_testing.broker.fake_storage import FakeStorage

LARGE = "x" * 100_000


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"message_id": LARGE}, definition_pb2.ILLEGAL_MESSAGE_ID),
        ({"born_host": LARGE}, definition_pb2.MESSAGE_PROPERTIES_TOO_LARGE),
        ({"trace_context": LARGE}, definition_pb2.MESSAGE_PROPERTIES_TOO_LARGE),
        ({"body_digest": {"checksum": LARGE}}, definition_pb2.MESSAGE_PROPERTIES_TOO_LARGE),
        ({"tag": LARGE}, definition_pb2.MESSAGE_PROPERTIES_TOO_LARGE),
        ({"keys": [LARGE]}, definition_pb2.MESSAGE_PROPERTIES_TOO_LARGE),
        ({"lite_topic": LARGE}, definition_pb2.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
    ],
)
async def test_every_field_of_a_message_counts(
    client: Client, fields: dict[str, Any], code: definition_pb2.Code.ValueType
) -> None:
    """It is refused alone; the next one is stored."""
    sent = await client.send(message("orders", 1, **fields))
    assert sent.status.code == code, sent.status.message
    assert (await client.send(message("orders", 2))).status.code == definition_pb2.OK


@pytest.mark.parametrize("path", [(), (3,), (1,)])
async def test_fields_that_nobody_knows_count(edge: FakeEdge, path: tuple[int, ...]) -> None:
    """In the message, in its system properties and in its topic."""
    unknown = length_delimited(999, LARGE.encode())
    for field in reversed(path):
        unknown = length_delimited(field, unknown)
    data = message("orders", 1).SerializeToString() + unknown
    call = edge.begin("SendMessage", length_delimited(1, data))
    response = service_pb2.SendMessageResponse.FromString((await call.answer)[0])
    assert response.status.code == definition_pb2.MESSAGE_PROPERTIES_TOO_LARGE


async def test_what_only_servers_say_is_not_kept(client: Client, storage: FakeStorage) -> None:
    """A message that is sent on as it was received costs and tells nothing of its last life."""
    one = message("orders", 1, store_host=LARGE, receipt_handle=LARGE, delivery_attempt=7)
    one.system_properties.dead_letter_queue.topic = LARGE
    one.system_properties.invisible_duration.seconds = 5
    assert (await client.send(one)).status.code == definition_pb2.OK
    [got] = await client.receive_all("orders", "g", polling_s=0)
    properties = got.system_properties
    assert properties.delivery_attempt == 1
    assert LARGE not in (properties.store_host, properties.receipt_handle)
    assert not properties.HasField("dead_letter_queue")
    assert not properties.HasField("invisible_duration")


async def test_the_budget_counts_what_memory_holds(
    client: Client, app: BrokerApp, storage: FakeStorage
) -> None:
    """The request, and what is stored of it, until it is answered."""
    body = b"x" * 100_000
    request = service_pb2.SendMessageRequest(messages=[message("orders", 1, body=body)])
    call = client.edge.begin("SendMessage", request)
    assert app.send_budget.used_bytes > 200_000
    await call.answer
    assert app.send_budget.used_bytes == 0


def test_a_caller_has_a_short_id() -> None:
    """Values of the headers are kept as long as the client lives."""
    fine = {"x-mq-client-id": "c" * MAX_CLIENT_ID_LENGTH, "x-mq-namespace": "n" * 127}
    assert caller_of(fine).client_id == fine["x-mq-client-id"]
    for header, length in (("client-id", 256), ("namespace", 128), ("language", 256)):
        with pytest.raises(RequestError) as refused:
            caller_of(fine | {f"x-mq-{header}": "x" * length})
        assert refused.value.code is Code.REQUEST_HEADER_FIELDS_TOO_LARGE


def test_long_texts_are_not_remembered() -> None:
    """Their hash is the same as ever; what is kept of short ones has a number and a length."""
    remembered = hashing._cached_hash
    remembered.cache_clear()
    for text in ("tag", "x" * 256, "x" * 257, LARGE):
        assert text_hash(text) == key_hash(text)
    assert remembered.cache_info().currsize == 2
    assert remembered.cache_info().maxsize == 4_096


async def test_attempt_ids_push_out_nothing_that_repeats(client: Client) -> None:
    """Each is another one: it is hashed, and not remembered."""
    await client.receive("orders", "g", attempt_id="first")
    before = hashing._cached_hash.cache_info()
    for number in range(5):
        await client.receive("orders", "g", attempt_id=f"attempt {number}")
    assert hashing._cached_hash.cache_info().misses == before.misses


async def test_a_redriven_message_whose_count_is_nonsense_counts_anew() -> None:
    """Python refuses to read a number of more than 4,300 digits."""
    letter = message("orders", 1)
    letter.user_properties[redrive.COUNT_PROPERTY] = "9" * 5_000
    again = redrive.redriven_message(letter, "%DLQ%g", "m", "c", google_crc32c.value)
    kept = definition_pb2.Message.FromString(again.stored)
    assert kept.user_properties[redrive.COUNT_PROPERTY] == "1"


@pytest.mark.parametrize("token", ["9" * 5_000 + ":1", "1:" + "9" * 5_000, "1:1" * 20, "x", "1"])
def test_a_page_token_is_short(token: str) -> None:
    """BAD_REQUEST, also for numbers that Python does not read."""
    with pytest.raises(RequestError) as refused:
        QueuePosition.parse(token)
    assert refused.value.code is Code.BAD_REQUEST
    assert len(refused.value.text) < 100
    most = f"{(1 << 64) - 1}:{(1 << 64) - 1}"
    assert str(QueuePosition.parse(most)) == most
