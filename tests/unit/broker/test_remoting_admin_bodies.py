"""Bodies of operators' tools: configurations of topics and groups, and Java's JSON."""

from __future__ import annotations

from typing import Any

import pytest

from strata.meta.v1 import meta_pb2
from strata_broker.remoting.admin.bodies import object_keyed, with_object_keys
from strata_broker.remoting.admin.group_configs import shown_group, wanted_group
from strata_broker.remoting.admin.policies import shown_acl, shown_resource
from strata_broker.remoting.admin.queue_entries import java_hash
from strata_broker.remoting.admin.topic_configs import shown_topic, wanted_topic
from strata_broker.remoting.answers import RemotingRefusal
from strata_broker.remoting.json_bodies import read_object
from strata_remoting import AdminCode, RemotingCommand, RemotingError, ResponseCode

MOST = 4_096


def topic_fields(**changed: Any) -> dict[str, Any]:
    """The fields of UPDATE_AND_CREATE_TOPIC as mqadmin sends them."""
    fields = {"topic": "orders", "readQueueNums": "8", "writeQueueNums": "8", "perm": "6"}
    return {**fields, **changed}


def test_maps_with_objects_as_keys_are_written_as_java_reads_them() -> None:
    """An object in front of the colon, at any depth, and texts of people as they are."""
    queue = {"brokerName": "b", "queueId": 0, "topic": "t"}
    value = {"name": "größe", "list": [{"table": object_keyed([(queue, {"n": 1}), (queue, 2)])}]}
    answer = with_object_keys(RemotingCommand(AdminCode.GET_CONSUME_STATS), value)
    key = '{"brokerName":"b","queueId":0,"topic":"t"}'
    table = f'{{{key}:{{"n":1}},{key}:2}}'
    assert answer.body.decode() == f'{{"name":"größe","list":[{{"table":{table}}}]}}'
    assert answer.code == ResponseCode.SUCCESS


def test_a_topic_without_a_type_takes_every_kind_of_message() -> None:
    """As with a broker of RocketMQ; a type is an attribute, with or without its sign."""
    assert wanted_topic(topic_fields()).new() == meta_pb2.Topic(
        name="orders", queue_count=8, type=meta_pb2.TOPIC_TYPE_MIXED
    )
    for attributes in ("+message.type=fifo", {"message.type": "FIFO"}):
        wanted = wanted_topic(topic_fields(attributes=attributes))
        assert wanted.new().type == meta_pb2.TOPIC_TYPE_FIFO


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"topic": ""}, "The specified topic is blank."),
        ({"readQueueNums": "4"}, "topic orders: 4 queues to read and 8 to write"),
        ({"readQueueNums": "-1"}, "readQueueNums is no number: '-1'"),
        ({"readQueueNums": "0", "writeQueueNums": "0"}, "topic orders: 0 queues"),
        ({"perm": "4"}, "topic orders: permission 4; every topic can be read and written (6)"),
        ({"attributes": "+message.type=WHAT"}, "topic orders: unknown message.type WHAT"),
        ({"attributes": "+queue.type=LMQ"}, "topic orders: attribute +queue.type is not supported"),
        ({"attributes": "+message.type=DEAD_LETTER"}, "topic orders: unknown message.type"),
    ],
)
def test_a_topic_that_cannot_be_is_refused_with_the_reason(
    changed: dict[str, Any], text: str
) -> None:
    """A tool can say more than this cluster can do."""
    with pytest.raises(RemotingRefusal) as refused:
        wanted_topic(topic_fields(**changed))
    assert refused.value.code == ResponseCode.SYSTEM_ERROR
    assert refused.value.text.startswith(text)


def test_a_topic_grows_and_never_shrinks() -> None:
    """The mask names what changes; nothing changes if all is as it is wanted."""
    wanted = wanted_topic(topic_fields())
    topic = meta_pb2.Topic(name="orders", queue_count=4, type=meta_pb2.TOPIC_TYPE_NORMAL)
    assert wanted.change(topic) == ["queue_count"]
    assert topic.queue_count == 8
    assert wanted.change(topic) == []
    typed = wanted_topic(topic_fields(attributes="+message.type=DELAY"))
    assert typed.change(topic) == ["type"]
    with pytest.raises(RemotingRefusal, match="has 9 queues, and queues are only ever added"):
        wanted.change(meta_pb2.Topic(name="orders", queue_count=9))


def test_a_dead_letter_topic_is_shown_as_one_to_read() -> None:
    """Its queues are those that it has now."""
    row = meta_pb2.Topic(name="%DLQ%g", type=meta_pb2.TOPIC_TYPE_DEAD_LETTER)
    shown = shown_topic(row, 2)
    assert (shown["perm"], shown["readQueueNums"], shown["attributes"]) == (4, 2, {})


def test_a_group_is_what_its_configuration_says() -> None:
    """Retries are the attempts after the first one; both kinds of policies are kept."""
    data: dict[str, Any] = {"groupName": "g", "retryMaxTimes": 3, "consumeMessageOrderly": True}
    group = wanted_group(data)
    assert (group.name, group.max_attempts, group.fifo) == ("g", 4, True)
    assert group.WhichOneof("backoff") is None
    policies = (
        {"type": "CUSTOMIZED", "customizedRetryPolicy": {"next": [1_000, 5_000]}},
        {
            "type": "EXPONENTIAL",
            "exponentialRetryPolicy": {"initial": 5_000, "max": 7_200_000, "multiplier": 2},
        },
    )
    for policy in policies:
        shown = shown_group(wanted_group({**data, "groupRetryPolicy": policy}))
        assert (shown["groupRetryPolicy"], shown["retryMaxTimes"]) == (policy, 3)


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"groupName": 7}, "The specified group is blank."),
        ({"consumeEnable": False}, "consumer group g: a group cannot be switched off"),
        ({"retryMaxTimes": -1}, "consumer group g: retryMaxTimes is -1"),
        ({"retryMaxTimes": True}, "consumer group g: retryMaxTimes is True"),
        (
            {"groupRetryPolicy": {"type": "CUSTOMIZED", "customizedRetryPolicy": {"next": []}}},
            "consumer group g: a retry policy has 1 to 64 delays",
        ),
    ],
)
def test_a_group_that_cannot_be_is_refused_with_the_reason(
    changed: dict[str, Any], text: str
) -> None:
    """A tool can say more than this cluster can do."""
    with pytest.raises(RemotingRefusal) as refused:
        wanted_group({"groupName": "g", **changed})
    assert refused.value.text.startswith(text)


def test_tags_have_the_hashes_of_java() -> None:
    """As a broker of RocketMQ shows them; the second one is the smallest number of 32 bits."""
    assert java_hash("tagA") == 3_552_231
    assert java_hash("polygenelubricants") == -(1 << 31)
    assert java_hash("größe-unpaid") == 1_656_300_577


@pytest.mark.parametrize("body", [b"[" * 4_000, b"\xff", b"[]", b" " * (MOST + 1)])
def test_a_body_that_is_no_object_is_refused(body: bytes) -> None:
    """Before it is parsed if it is too large."""
    with pytest.raises(RemotingError):
        read_object(body, MOST)


def test_policies_of_a_user_are_an_acl() -> None:
    """With RocketMQ's words; a user without policies has an ACL without entries."""
    policy = meta_pb2.Policy(
        user="alice",
        resource="topic:orders*",
        actions=["pub", "sub"],
        decision=meta_pb2.POLICY_DECISION_DENY,
        sources=["10.0.0.0/8"],
    )
    entry = {
        "actions": ["Pub", "Sub"],
        "decision": "Deny",
        "resource": "Topic:orders*",
        "sourceIps": ["10.0.0.0/8"],
    }
    assert shown_acl("User:alice", [policy]) == {
        "policies": [{"entries": [entry], "policyType": "Custom"}],
        "subject": "User:alice",
    }
    assert shown_acl("User:bob", []) == {"policies": [], "subject": "User:bob"}
    assert [shown_resource(one) for one in ("*", "cluster:nodes", "group:n/g")] == [
        "*",
        "Cluster:nodes",
        "Group:n/g",
    ]
