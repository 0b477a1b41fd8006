"""The audit trail: what it tells, and what a flood of refusals costs it."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

import pytest

from apache.rocketmq.v2 import definition_pb2
from strata.admin.v1 import admin_pb2
from strata.meta.v1 import meta_pb2
from strata_broker.base.audit import Audited, AuditRecorder, AuditSection
from strata_broker.base.metrics import METRICS
from strata_broker.operators.audit_topic import AUDIT_TOPIC
from strata_broker.servicers.audit import SECRET_FIELDS, shown
from strata_runtime.audit import AuditEvent
from strata_runtime.metrics import Metrics
from strata_testing import ManualClock, until
from strata_testing.broker import broker_config, broker_under_test, network_of
from strata_testing.broker.fake_edge import ADMIN, FakeEdge
from strata_testing.broker.fake_meta import FakeMeta
from strata_testing.broker.fake_storage import FakeStorage

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor, FieldDescriptor

WHO = Audited("shop", "10.0.0.1:4711", "client-1")


class Sink:
    """Keeps events."""

    def __init__(self) -> None:
        self.events: list[AuditEvent] = []

    def write(self, event: AuditEvent) -> None:
        self.events.append(event)


class Trail:
    """A recorder, its sink, its clock and its metrics."""

    def __init__(self, **config: int) -> None:
        self.sink, self.clock, self.metrics = Sink(), ManualClock(), Metrics()
        self.metrics.declare(METRICS)
        section = AuditSection(**config)  # type: ignore[arg-type]
        self.recorder = AuditRecorder([self.sink], section, self.clock, metrics=self.metrics)

    def told(self) -> list[AuditEvent]:
        events, self.sink.events = self.sink.events, []
        return events


def test_a_change_of_which_nobody_knows_the_end_is_an_event_of_its_outcome() -> None:
    """It is never left out, as no change is."""
    trail = Trail(max_refusals_per_s=1, max_refusals_per_address_per_s=1)
    for _ in range(50):
        trail.recorder.unclear_change(WHO, "DeleteTopic", "name: orders")
    told = trail.told()
    assert len(told) == 50
    assert {(event["event"], event["outcome"]) for event in told} == {("changed", "unknown")}
    assert {(event["rpc"], event["request"]) for event in told} == {("DeleteTopic", "name: orders")}


def test_an_event_says_who_did_what_from_where() -> None:
    """Long texts are cut off: a line stays a line."""
    trail = Trail()
    trail.recorder.changed(WHO, "DeleteTopic", "name: " + "x" * 600)
    trail.recorder.refused(WHO, "SendMessage", "topic:orders", "no policy allows pub")
    trail.recorder.signed_in(WHO)
    who = {"user": "shop", "peer": "10.0.0.1:4711", "client_id": "client-1"}
    changed, refused, signed_in = trail.told()
    assert (
        changed
        == {
            "time_ms": trail.clock.wall_ms(),
            "event": "changed",
            "outcome": "done",
            "rpc": "DeleteTopic",
            "request": "name: " + "x" * 494 + "...",
        }
        | who
    )
    assert (
        refused
        == {
            "time_ms": trail.clock.wall_ms(),
            "event": "refused",
            "outcome": "refused",
            "rpc": "SendMessage",
            "resource": "topic:orders",
            "reason": "no policy allows pub",
        }
        | who
    )
    assert (signed_in["event"], signed_in["outcome"]) == ("signed in", "done")


def test_a_flood_of_one_address_hides_no_other() -> None:
    """Its refusals have a rate; what was left out is in its next event and in a metric."""
    trail = Trail(max_refusals_per_address_per_s=2)
    for number in range(1_000):
        trail.recorder.refused(Audited(f"user-{number}", f"10.0.0.1:{number}"), "x", "", "no")
    trail.recorder.refused(Audited("other", "10.0.0.2:1"), "x", "", "no")
    events = trail.told()
    assert len(events) == 21
    assert events[-1]["user"] == "other"
    trail.clock.advance(1)
    trail.recorder.refused(Audited("again", "10.0.0.1:7"), "x", "", "no")
    assert trail.told()[0]["left_out"] == 980
    assert b'strata_broker_audit_left_out_total{event="refused"} 980.0' in trail.metrics.render()


def test_floods_of_many_addresses_are_bounded_together() -> None:
    """Memory and events both; a change is told all the same."""
    trail = Trail(max_refusals_per_s=5, max_addresses=100)
    for number in range(1_000):
        trail.recorder.refused(Audited("", f"[2001:db8::{number:x}]:1"), "x", "", "no")
    trail.recorder.changed(WHO, "DeleteTopic", "")
    events = trail.told()
    assert len(events) == 51
    assert events[-1]["event"] == "changed"
    trail.metrics.read_gauges()
    assert b"strata_broker_audit_addresses 100.0" in trail.metrics.render()


def test_a_sign_in_is_told_once_in_a_while() -> None:
    """For each user and address: keys sign every call."""
    trail = Trail(sign_in_interval_ms=60_000)
    for peer in ("10.0.0.1:1", "10.0.0.1:2", "10.0.0.2:1"):
        trail.recorder.signed_in(WHO._replace(peer=peer))
    assert [event["peer"] for event in trail.told()] == ["10.0.0.1:1", "10.0.0.2:1"]
    trail.clock.advance(61)
    trail.recorder.signed_in(WHO)
    trail.recorder.signed_in(WHO._replace(user="mail"))
    assert [event["user"] for event in trail.told()] == ["shop", "mail"]


@pytest.mark.parametrize(
    "request_",
    [
        admin_pb2.CreateUserRequest(name="shop", secret_key="planted"),
        admin_pb2.RotateUserKeyRequest(name="shop", secret_key="planted"),
        meta_pb2.UpdateUserRequest(user=meta_pb2.User(name="shop", previous_secret_key="planted")),
        meta_pb2.WatchResponse(
            changes=[
                meta_pb2.Change(user=meta_pb2.User(name="shop", secret_key="planted")),
                meta_pb2.Change(cluster_key=meta_pb2.ClusterKey(secret=b"planted")),
            ],
            cluster_id="shop",
        ),
    ],
)
def test_a_request_is_shown_without_its_secrets(request_: object) -> None:
    """At any depth; the caller's message keeps them."""
    before = str(request_)
    text = shown(request_)  # type: ignore[arg-type]
    assert "planted" not in text
    assert "shop" in text
    assert str(request_) == before


def test_every_secret_field_is_known() -> None:
    """A field of our protos whose name says that it is a secret is left out of every event."""
    suspicious = {
        field.name
        for file in (admin_pb2.DESCRIPTOR, meta_pb2.DESCRIPTOR)
        for message in file.message_types_by_name.values()
        for field in _fields(message)
        if any(word in field.name for word in ("secret", "password", "token"))
    }
    assert suspicious - SECRET_FIELDS == {"page_token", "next_page_token"}


def _fields(message: Descriptor) -> list[FieldDescriptor]:
    return list(message.fields)


async def test_events_are_messages_of_a_topic() -> None:
    """The broker makes the topic; a body is the event, its tag the kind, its keys who and where."""
    meta, edge = FakeMeta(), FakeEdge()
    storage = FakeStorage(meta.slots)
    config = broker_config(audit={"topic": True})
    broker = broker_under_test(edge, network_of(meta, storage), config=config)
    async with broker:
        topic = meta_pb2.Topic(name="made", type=meta_pb2.TOPIC_TYPE_NORMAL, queue_count=4)
        request = admin_pb2.CreateTopicRequest(topic=topic)
        await edge.call(ADMIN + "CreateTopic", request, admin_pb2.CreateTopicResponse)
        await until(lambda: broker.app.view.topic("", AUDIT_TOPIC) is not None)
        status, messages = await _all(broker)
    assert status == definition_pb2.OK
    message = messages[0]  # the consumer's first receive may have made the second event
    body = json.loads(message.body)
    assert (body["event"], body["rpc"]) == ("changed", "CreateTopic")
    assert message.system_properties.tag == "changed"
    assert "127.0.0.1" in message.system_properties.keys


async def _all(broker: object) -> tuple[int, list[definition_pb2.Message]]:
    client = broker.client  # type: ignore[attr-defined]
    for _ in range(1_000):
        for name in ("strata-1", "strata-2"):
            status, messages = await client.receive(AUDIT_TOPIC, "auditors", broker=name)
            if messages:
                return status.code, messages
        await asyncio.sleep(0)
    raise AssertionError("no event came")


def test_a_large_request_is_shown_by_its_sizes() -> None:
    """A batch of topics is told by how many they are."""
    batch = admin_pb2.CreateTopicsRequest(
        topics=[meta_pb2.Topic(name=f"topic-{number:08}") for number in range(500)]
    )
    assert shown(batch) == f"500 topics, {batch.ByteSize()} bytes"


def test_padding_hides_nothing_of_a_change() -> None:
    """Fields that nobody knows, and long values, leave what was changed in the event."""
    # A field of bytes with the number 1,000.
    padding = b"\xc2\x3e\x88\x27" + b"x" * 5_000
    name = b"\x12\x06orders"
    deleted = admin_pb2.DeleteTopicRequest.FromString(name + padding)
    assert deleted.name == "orders"
    assert 'name: "orders"' in shown(deleted)

    policy = meta_pb2.Policy(user="mallory", resource="*", actions=["all"], sources=["x" * 5_000])
    created = shown(admin_pb2.CreatePolicyRequest(policy=policy))
    assert 'policy { user: "mallory", resource: "*", 1 actions, 1 sources }' in created

    user = admin_pb2.RotateUserKeyRequest(name="shop\n", secret_key="planted" * 1_000)
    rotated = shown(user)
    assert rotated.startswith('name: "shop\\n", ')
    assert "planted" not in rotated
    assert len(shown(admin_pb2.DeleteTopicRequest(name="y" * 5_000))) < 250
