"""Protos as the dicts that `-o json` prints; the keys are a contract (docs/cli.md)."""

from __future__ import annotations

import base64
import zlib
from typing import Any

from google.protobuf.timestamp_pb2 import Timestamp

from apache.rocketmq.v2 import definition_pb2
from strata.admin.v1 import admin_pb2
from strata.meta.v1 import meta_pb2

_GZIP = zlib.MAX_WBITS | 16
_MAX_BODY_BYTES = 64 * 1024 * 1024

View = dict[str, Any]


def topic_view(topic: meta_pb2.Topic) -> View:
    """Return a topic's row."""
    return {
        "name": topic.name,
        "namespace": topic.namespace,
        "type": meta_pb2.TopicType.Name(topic.type).removeprefix("TOPIC_TYPE_"),
        "queues": topic.queue_count,
        "previous_queues": topic.previous_queue_count,
        "retention_ms": topic.retention_ms,
        "attributes": dict(topic.attributes),
        "topic_id": topic.topic_id,
        "created_at_ms": topic.created_at_ms,
        "updated_at_ms": topic.updated_at_ms,
        "revision": topic.revision,
    }


def lite_topic_view(status: admin_pb2.LiteTopicStatus) -> View:
    """Return the place and the content of a lite topic."""
    return {
        "name": status.name,
        "raft_group": status.raft_group,
        "queue": status.queue,
        "min_offset": status.min_offset,
        "next_offset": status.next_offset,
        "last_active_ms": status.last_active_ms,
    }


def queue_status_view(status: admin_pb2.QueueStatus) -> View:
    """Return the place and the content of a queue."""
    return {
        "queue": status.queue,
        "raft_group": status.raft_group,
        "broker_name": status.broker_name,
        "min_offset": status.min_offset,
        "next_offset": status.next_offset,
        "last_store_time_ms": status.last_store_time_ms,
    }


def group_view(group: meta_pb2.ConsumerGroup) -> View:
    """Return a consumer group's row."""
    backoff: View | None = None
    if group.WhichOneof("backoff") == "exponential":
        backoff = {
            "kind": "exponential",
            "initial_ms": group.exponential.initial_ms,
            "max_ms": group.exponential.max_ms,
            "multiplier": group.exponential.multiplier,
        }
    elif group.WhichOneof("backoff") == "customized":
        backoff = {"kind": "customized", "next_ms": list(group.customized.next_ms)}
    return {
        "name": group.name,
        "namespace": group.namespace,
        "fifo": group.fifo,
        "broadcast": group.broadcast,
        "max_attempts": group.max_attempts,
        "backoff": backoff,
        "lite_topic": group.lite_topic,
        "lite_exclusive": group.lite_exclusive,
        "pop_topics": list(group.pop_topics),
        "consumer_group_id": group.consumer_group_id,
        "dead_letter_topic_id": group.dead_letter_topic_id,
        "created_at_ms": group.created_at_ms,
        "updated_at_ms": group.updated_at_ms,
        "revision": group.revision,
    }


def lag_view(lag: admin_pb2.ConsumerQueueLag) -> View:
    """Return the progress of a consumer group on one queue."""
    return {
        "topic": lag.topic,
        "queue": lag.queue,
        "min_offset": lag.min_offset,
        "next_offset": lag.next_offset,
        "cursor": lag.cursor,
        "in_flight": lag.in_flight,
        "lag": lag.lag,
    }


def member_view(member: admin_pb2.GroupMember) -> View:
    """Return one client of a consumer group."""
    return {
        "client_id": member.client_id,
        "language": member.language,
        "version": member.version,
        "client_type": member.client_type,
        "subscriptions": dict(member.subscriptions),
        "last_heartbeat_ms": member.last_heartbeat_ms,
    }


def message_view(message: definition_pb2.Message) -> View:
    """Return a message; `body` is None when it is no UTF-8 text, `body_base64` always holds it."""
    properties = message.system_properties
    body = _plain_body(message)
    try:
        text: str | None = body.decode()
    except UnicodeDecodeError:
        text = None
    dead_letter = properties.dead_letter_queue
    view: View = {
        "message_id": properties.message_id,
        "topic": message.topic.name,
        "tag": properties.tag,
        "keys": list(properties.keys),
        "body": text,
        "body_base64": base64.b64encode(body).decode(),
        "message_group": properties.message_group,
        "priority": properties.priority if properties.HasField("priority") else None,
        "type": definition_pb2.MessageType.Name(properties.message_type),
        "properties": dict(message.user_properties),
        "queue": properties.queue_id,
        "offset": properties.queue_offset,
        "delivery_attempt": properties.delivery_attempt,
        "receipt_handle": properties.receipt_handle,
        "born_time_ms": _ms(properties.born_timestamp),
        "store_time_ms": _ms(properties.store_timestamp),
    }
    if properties.HasField("dead_letter_queue"):
        view["dead_letter_of"] = {
            "topic": dead_letter.topic,
            "message_id": dead_letter.message_id,
        }
    return view


def found_message_view(found: admin_pb2.FoundMessage) -> View:
    """Return a stored message; it was not delivered, so it has no handle and no attempt."""
    view = message_view(definition_pb2.Message.FromString(found.message))
    del view["receipt_handle"], view["delivery_attempt"]
    view["queue"] = found.queue
    view["offset"] = found.offset
    view["store_time_ms"] = found.store_time_ms
    return view


def dead_letter_topic_view(topic: admin_pb2.DeadLetterTopic) -> View:
    """Return the counts of a dead-letter topic."""
    return {
        "namespace": topic.namespace,
        "consumer_group": topic.consumer_group,
        "topic": topic.topic,
        "messages": topic.messages,
        "waiting": topic.waiting,
        "last_store_time_ms": topic.last_store_time_ms,
    }


def dead_letter_view(letter: admin_pb2.DeadLetter) -> View:
    """Return a dead letter; its topic is the one it came from."""
    return found_message_view(letter.stored) | {"redriven": letter.redriven}


def redriven_view(redriven: admin_pb2.RedrivenMessage) -> View:
    """Return the result, or the expected result, of redriving a dead letter."""
    return {
        "message_id": redriven.message_id,
        "new_message_id": redriven.new_message_id,
        "topic": redriven.topic,
        "offset": redriven.offset if redriven.new_message_id else None,
        "error": redriven.error,
    }


def trace_view(traced: admin_pb2.TracedMessage) -> View:
    """Return a message's trace: sent, stored, and the steps of consumer groups."""
    message = definition_pb2.Message.FromString(traced.stored.message)
    return {
        "message_id": message.system_properties.message_id,
        "topic": message.topic.name,
        "sent_by": traced.sender_client_id,
        "born_host": traced.born_host,
        "born_time_ms": traced.born_time_ms,
        "store_time_ms": traced.stored.store_time_ms,
        "raft_group": traced.raft_group,
        "raft_index": traced.raft_index,
        "queue": traced.stored.queue,
        "offset": traced.stored.offset,
        "truncated": traced.truncated,
        "steps": [
            {
                "time_ms": step.time_ms,
                "consumer_group": step.consumer_group,
                "what": step.what,
                "attempt": step.attempt or None,
                "client_id": step.client_id,
                "visible_at_ms": step.visible_at_ms or None,
            }
            for step in traced.steps
        ],
    }


def _plain_body(message: definition_pb2.Message) -> bytes:
    """Return the body, unpacked if its producer packed it and it can be."""
    if message.system_properties.body_encoding != definition_pb2.GZIP:
        return message.body
    unpacking = zlib.decompressobj(wbits=_GZIP)
    try:
        plain = unpacking.decompress(message.body, _MAX_BODY_BYTES)
    except zlib.error:
        return message.body
    # A few KB may unpack to GBs: such a body, and a truncated one, is shown as it came.
    return plain if unpacking.eof else message.body


def _ms(moment: Timestamp) -> int:
    return int(moment.seconds) * 1_000 + int(moment.nanos) // 1_000_000
