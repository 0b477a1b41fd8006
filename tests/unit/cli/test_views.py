"""JSON of the CLI: the keys that docs/cli.md promises are those that are printed."""

from __future__ import annotations

import base64
import gzip
import re

from apache.rocketmq.v2 import definition_pb2
from strata.admin.v1 import admin_pb2
from strata.meta.v1 import meta_pb2
from strata_cli.messaging import new_message_id
from strata_cli.reference import JSON_KEYS
from strata_cli.views import (
    found_message_view,
    group_view,
    lag_view,
    member_view,
    message_view,
    queue_status_view,
    topic_view,
)


def promised(command: str) -> set[str]:
    """Return the keys that the page names for a command."""
    return set(re.findall(r"`([a-z0-9_]+)`", JSON_KEYS[command]))


def message(body: bytes = b"") -> definition_pb2.Message:
    made = definition_pb2.Message(
        topic=definition_pb2.Resource(name="orders"), user_properties={"a": "b"}, body=body
    )
    properties = made.system_properties
    properties.message_id = "01AB"
    properties.tag = "food"
    properties.keys.append("order-1")
    properties.message_type = definition_pb2.FIFO
    properties.message_group = "customer-1"
    properties.queue_id, properties.queue_offset, properties.delivery_attempt = 3, 42, 2
    properties.receipt_handle = "handle"
    properties.born_timestamp.FromMilliseconds(1_700_000_000_123)
    properties.store_timestamp.FromMilliseconds(1_700_000_000_456)
    return made


def test_a_topic_has_the_promised_keys() -> None:
    """Type names come without prefix; the page names every key and no other."""
    topic = meta_pb2.Topic(name="t", type=meta_pb2.TOPIC_TYPE_FIFO, queue_count=8, topic_id=3)
    view = topic_view(topic)

    assert set(view) == promised("topic create")
    assert (view["type"], view["queues"], view["topic_id"]) == ("FIFO", 8, 3)
    status = queue_status_view(admin_pb2.QueueStatus(queue=1, next_offset=9))
    assert set(status) | {"queue_status"} == promised("topic show")


def test_a_group_has_the_promised_keys() -> None:
    """Both kinds of backoff and none can be told apart."""
    plain = meta_pb2.ConsumerGroup(name="g")
    customized = meta_pb2.ConsumerGroup(customized=meta_pb2.CustomizedBackoff(next_ms=[1, 2]))
    exponential = meta_pb2.ConsumerGroup(
        exponential=meta_pb2.ExponentialBackoff(initial_ms=1, max_ms=9, multiplier=2)
    )

    backoffs = [group_view(group)["backoff"] for group in (plain, customized, exponential)]
    assert backoffs == [
        None,
        {"kind": "customized", "next_ms": [1, 2]},
        {"kind": "exponential", "initial_ms": 1, "max_ms": 9, "multiplier": 2.0},
    ]
    inner = {key for backoff in backoffs if backoff for key in backoff}
    assert set(group_view(plain)) | inner == promised("group create")
    show = promised("group show") - {"lag", "in_flight", "queues", "members"}
    lags = set(lag_view(admin_pb2.ConsumerQueueLag())) - {"lag", "in_flight"}
    assert lags | set(member_view(admin_pb2.GroupMember())) == show


def test_a_message_has_the_promised_keys() -> None:
    """Everything a consumer sees is there, times in milliseconds."""
    dead = message(body=b"two pizzas")
    dead.system_properties.dead_letter_queue.topic = "orders"
    view = message_view(dead) | {"acked": True}

    assert set(view) == promised("message receive") - {"messages"}
    assert (view["body"], view["body_base64"]) == ("two pizzas", "dHdvIHBpenphcw==")
    assert (view["queue"], view["offset"], view["delivery_attempt"]) == (3, 42, 2)
    assert view["properties"] == {"a": "b"}
    assert view["born_time_ms"] == 1_700_000_000_123
    assert view["dead_letter_of"] == {"topic": "orders", "message_id": ""}


def test_a_body_is_unpacked_or_given_as_it_is() -> None:
    """GZIP is undone; bytes that are no text are null in `body` and whole in `body_base64`."""
    packed = message(body=gzip.compress(b"hello"))
    packed.system_properties.body_encoding = definition_pb2.GZIP
    torn = message(body=gzip.compress(b"hello")[:-6])
    torn.system_properties.body_encoding = definition_pb2.GZIP

    assert message_view(packed)["body"] == "hello"
    assert message_view(torn)["body"] is None
    assert message_view(message(body=b"\xff"))["body"] is None
    assert message_view(message(body=b"\xff"))["body_base64"] == "/w=="


def test_a_body_that_unpacks_to_gigabytes_is_shown_packed() -> None:
    """Nobody's machine runs out of memory by a look at a message."""
    bomb = message(body=gzip.compress(bytes(100 * 1024 * 1024)))
    bomb.system_properties.body_encoding = definition_pb2.GZIP
    view = message_view(bomb)
    assert view["body"] is None
    assert view["body_base64"] == base64.b64encode(bomb.body).decode()


def test_a_found_message_has_no_handle() -> None:
    """Place and time of a found message come from the store, not from a delivery."""
    found = admin_pb2.FoundMessage(
        queue=5, offset=7, store_time_ms=9, message=message().SerializeToString()
    )
    view = found_message_view(found)

    assert (view["queue"], view["offset"], view["store_time_ms"]) == (5, 7, 9)
    assert not {"receipt_handle", "delivery_attempt"} & set(view)


def test_message_ids_have_the_official_form() -> None:
    """34 upper-case hex digits that start with 01, never twice the same."""
    ids = {new_message_id() for _ in range(1_000)}

    assert len(ids) == 1_000
    assert all(re.fullmatch(r"01[0-9A-F]{32}", one) for one in ids)
