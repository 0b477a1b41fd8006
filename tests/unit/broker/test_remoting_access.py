"""Access control of the remoting protocol: who signed a request, and what the signer may do."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from types import SimpleNamespace
from typing import Any

import pytest

from strata.meta.v1 import meta_pb2
from strata_broker.app import BrokerApp
from strata_broker.base.config import BrokerConfig
from strata_mq.access import content_signature_is_right
from strata_remoting import (
    ACCESS_KEY,
    SIGNATURE,
    AdminCode,
    OffsetPlace,
    RecallHandle,
    RemotingCommand,
    RequestCode,
    ResponseCode,
    encode_recall_handle,
    physical_offset,
)
from strata_testing import until
from strata_testing.broker import broker_config
from strata_testing.broker.fake_meta import FakeMeta
from strata_testing.broker.keys import cluster_key_row, policy_row, secret_of, user_row
from strata_testing.remoting_client import RemotingClient, send_fields, signed

WRONG_SIGNATURES = 3


@pytest.fixture
def config() -> BrokerConfig:
    return broker_config(
        access_control={"mode": "on", "max_wrong_signatures": WRONG_SIGNATURES},
        remoting={"port": 0},
    )


@pytest.fixture
def meta() -> FakeMeta:
    """`ann` publishes to `orders` and consumes with `readers`; `bob` may do nothing.

    `cat` may do everything with the consumer group `readers`, and nothing with any topic.
    """
    fake = FakeMeta()
    for name in ("orders", "secrets"):
        fake.add_topic(name)
    fake.add_topic("%RETRY%readers")
    for name in ("readers", "others"):
        fake.add_group(meta_pb2.ConsumerGroup(name=name))
    fake.put(
        cluster_key_row(),
        *(user_row(name) for name in ("ann", "bob", "cat")),
        user_row("root", admin=True),
        policy_row(1, "ann", "topic:orders", "pub", "sub"),
        policy_row(2, "ann", "group:readers", "sub"),
        policy_row(3, "cat", "group:readers", "all"),
    )
    return fake


class Clients:
    """Clients of users, each on a connection of its own."""

    def __init__(self, app: BrokerApp, stack: AsyncExitStack) -> None:
        self._app = app
        self._stack = stack

    async def of(self, user: str, secret: str | None = None) -> RemotingClient:
        """Return a client that signs with a user's key; no user: it does not sign."""
        keys = (user, secret_of(user) if secret is None else secret) if user else None
        client = RemotingClient(self._app.shown()["nameserver"], keys=keys)
        return await self._stack.enter_async_context(client)


@pytest.fixture
async def clients(app: BrokerApp) -> AsyncIterator[Clients]:
    async with AsyncExitStack() as stack:
        yield Clients(app, stack)


def test_a_signature_covers_all_fields_in_order_and_the_body() -> None:
    """As RocketMQ's AclUtils puts them together; the signature itself is no part of it."""
    command = RemotingCommand(10, 1, {"b": "2", "a": "1", SIGNATURE: "x", ACCESS_KEY: "ann"}, b"!")
    assert command.signed_content() == b"ann12!"
    once = signed(RemotingCommand(10, 1, {"b": "2", "a": "1"}, b"!"), ("ann", "12345678"))
    assert not content_signature_is_right("12345678", b"ann12!", "\ud800")
    # printf 'ann12!' | openssl dgst -sha1 -hmac 12345678 -binary | base64
    assert once.fields[SIGNATURE] == "9lgzq17wBITJIDjHlC1RHTuDL6A="


async def test_a_reply_needs_the_right_to_publish_to_the_topic_of_replies(
    clients: Clients, meta: FakeMeta
) -> None:
    """Its route is refused without the right, too; nobody hears of the reply."""
    topic = "DefaultCluster_REPLY_TOPIC"
    asker, bob = await clients.of("ann"), await clients.of("bob")
    await asker.heartbeat("asker", "", {}, producers=["p"])
    fields = send_fields(topic, REPLY_TO_CLIENT="asker", CORRELATION_ID="1")
    for code, given in (
        (RequestCode.SEND_REPLY_MESSAGE_V2, fields),
        (RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic}),
    ):
        refused = await bob.ask(code, given, b"pong")
        assert refused.code == ResponseCode.NO_PERMISSION
        assert f"Topic:{topic}" in refused.remark
    assert asker.told == []
    meta.put(policy_row(3, "bob", f"topic:{topic}", "pub"))

    async def is_allowed() -> bool:
        answer = await bob.ask(RequestCode.SEND_REPLY_MESSAGE_V2, fields, b"pong")
        return answer.code == ResponseCode.SUCCESS

    await until(is_allowed)
    assert [one.body for one in asker.told] == [b"pong"]


async def test_a_user_may_do_what_its_policies_say(clients: Clients) -> None:
    """The same policies as for gRPC clients; refusals have RocketMQ's code and text."""
    ann = await clients.of("ann")
    assert (await ann.route("orders"))["queueDatas"]
    await ann.send("orders", b"x")
    await ann.heartbeat("me", "readers", {"orders": "*"})
    # A consumer sends to the topic of its retries with the right to consume.
    await ann.send("%RETRY%readers", b"again")
    forbidden: list[tuple[RequestCode, dict[str, object], str]] = [
        (RequestCode.SEND_MESSAGE_V2, send_fields("secrets"), "Topic:secrets"),
        (RequestCode.SEND_MESSAGE_V2, send_fields("%RETRY%others"), "Group:others"),
        (RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "secrets"}, "Topic:secrets"),
        (RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": "others"}, "Group:others"),
        (
            RequestCode.UNREGISTER_CLIENT,
            {"clientID": "me", "consumerGroup": "others"},
            "Group:others",
        ),
        (
            RequestCode.GET_MAX_OFFSET,
            {"topic": "secrets", "queueId": 0},
            "Topic:secrets",
        ),
        (
            RequestCode.QUERY_CONSUMER_OFFSET,
            {"topic": "orders", "queueId": 0, "consumerGroup": "others"},
            "Group:others",
        ),
    ]
    for code, fields, resource in forbidden:
        answer = await ann.ask(code, fields)
        assert answer.code == ResponseCode.NO_PERMISSION, (code, answer)
        assert answer.remark == (
            f"User:ann has no permission to access {resource} from 127.0.0.1, no matched policies."
        )
    for code in (RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ):
        body = {"consumerGroup": "others", "clientId": "me", "mqSet": []}
        answer = await ann.ask(code, body=json.dumps(body).encode())
        assert answer.code == ResponseCode.NO_PERMISSION
    for group, topic in (("others", "orders"), ("readers", "secrets")):
        with pytest.raises(Exception, match="no permission"):
            await ann.heartbeat("me", group, {topic: "*"})
    bob = await clients.of("bob")
    assert (await bob.ask(RequestCode.SEND_MESSAGE_V2, send_fields("orders"), b"x")).code == (
        ResponseCode.NO_PERMISSION
    )


async def test_a_pull_needs_the_group_and_the_topic(clients: Clients) -> None:
    """Its refusal is an answer to the pull."""
    ann = await clients.of("ann")
    for topic, group in (("orders", "others"), ("secrets", "readers")):
        answer, found = await ann.pull(topic, group, 0, 0)
        assert (answer.code, found) == (ResponseCode.NO_PERMISSION, [])


@pytest.mark.parametrize(
    "code",
    [
        AdminCode.DELETE_TOPIC_IN_BROKER,
        AdminCode.DELETE_TOPIC_IN_NAMESRV,
        AdminCode.GET_TOPIC_CONFIG,
        AdminCode.GET_TOPIC_STATS_INFO,
        AdminCode.GET_EARLIEST_MSG_STORETIME,
        AdminCode.QUERY_MESSAGE,
        AdminCode.QUERY_CONSUME_QUEUE,
        AdminCode.INVOKE_BROKER_TO_RESET_OFFSET,
        AdminCode.UPDATE_AND_CREATE_TOPIC,
        AdminCode.SET_MESSAGE_REQUEST_MODE,
        RequestCode.SEND_MESSAGE,
        RequestCode.PULL_MESSAGE,
        RequestCode.GET_MAX_OFFSET,
        RequestCode.UPDATE_CONSUMER_OFFSET,
        RequestCode.POP_MESSAGE,
        RequestCode.PEEK_MESSAGE,
        RequestCode.NOTIFICATION,
        RequestCode.BATCH_ACK_MESSAGE,
        RequestCode.QUERY_ASSIGNMENT,
        RequestCode.QUERY_CONSUMER_OFFSET,
        RequestCode.GET_MIN_OFFSET,
        RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
        RequestCode.ACK_MESSAGE,
        RequestCode.CHANGE_MESSAGE_INVISIBLETIME,
        AdminCode.QUERY_CONSUME_TIME_SPAN,
        AdminCode.VIEW_BROKER_STATS_DATA,
        AdminCode.QUERY_TOPIC_CONSUME_BY_WHO,
        AdminCode.QUERY_SUBSCRIPTION_BY_CONSUMER,
        AdminCode.CONSUME_MESSAGE_DIRECTLY,
        AdminCode.UPDATE_AND_CREATE_TOPIC_LIST,
        RequestCode.GET_ROUTEINFO_BY_TOPIC,
        RequestCode.LITE_PULL_MESSAGE,
        RequestCode.SEND_MESSAGE_V2,
        RequestCode.SEND_BATCH_MESSAGE,
        RequestCode.RECALL_MESSAGE,
    ],
)
@pytest.mark.parametrize("user", ["bob", "cat"])
async def test_requests_do_not_tell_which_topics_there_are(
    clients: Clients, code: AdminCode | RequestCode, user: str
) -> None:
    """A user without a right to a topic gets the same answer whether the topic exists or not."""
    bob = await clients.of(user)
    fields: dict[str, object] = {
        "queueId": 99, "key": "k", "group": "readers", "consumerGroup": "readers", "sysFlag": 0,
        "timestamp": 0, "offset": 0, "extraInfo": "0 0 1000 0 0 strata-1 0 0 handle",
        "index": 0, "count": 1, "readQueueNums": 1, "writeQueueNums": 1, "producerGroup": "p",
        "queueOffset": 0, "commitOffset": 0, "invisibleTime": 1_000, "pollTime": 0, "maxMsgNums": 1,
        "statsName": "TOPIC_PUT_NUMS", "msgId": "m", "clientId": "c", "a": "p", "e": 0,
    }  # fmt: skip
    answers = []
    for name in ("secrets", "unknown"):
        asked: dict[str, object] = {
            "topic": name,
            "consumerGroup": "readers",
            "clientId": "c",
            "strategyName": "AVG",
        }
        ack = {"c": "readers", "t": name, "b": "AQ=="}
        handle = encode_recall_handle(RecallHandle(name, "strata-r00", 0, "id", "own"))
        named = {"topic": name, "b": name, "statsKey": name, "recallHandle": handle}
        queues = {"topicName": name, "readQueueNums": 1, "writeQueueNums": 1}
        in_body: dict[int, dict[str, object]] = {
            AdminCode.UPDATE_AND_CREATE_TOPIC_LIST: {"topicConfigList": [queues]},
            RequestCode.QUERY_ASSIGNMENT: asked,
            AdminCode.SET_MESSAGE_REQUEST_MODE: asked | {"mode": "POP"},
            RequestCode.BATCH_ACK_MESSAGE: {"acks": [ack]},
        }
        body = json.dumps(in_body[code]).encode() if code in in_body else b""
        answers.append(await bob.ask(code, fields | named, body))
    assert [answer.code for answer in answers] == [ResponseCode.NO_PERMISSION] * 2
    remarks = [answer.remark.replace("unknown", "secrets") for answer in answers]
    assert remarks[0] == remarks[1]


@pytest.mark.parametrize(
    ("code", "field"),
    [
        (AdminCode.DELETE_SUBSCRIPTIONGROUP, "groupName"),
        (AdminCode.CLONE_GROUP_OFFSET, "destGroup"),
        (AdminCode.INVOKE_BROKER_TO_RESET_OFFSET, "group"),
        (AdminCode.GET_SUBSCRIPTIONGROUP_CONFIG, "group"),
        (AdminCode.QUERY_TOPICS_BY_CONSUMER, "group"),
        (AdminCode.GET_CONSUME_STATS, "consumerGroup"),
        (AdminCode.GET_CONSUMER_RUNNING_INFO, "consumerGroup"),
        (AdminCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, "groupName"),
        (RequestCode.PULL_MESSAGE, "consumerGroup"),
        (RequestCode.POP_MESSAGE, "consumerGroup"),
        (RequestCode.NOTIFICATION, "consumerGroup"),
        (RequestCode.QUERY_CONSUMER_OFFSET, "consumerGroup"),
        (RequestCode.UPDATE_CONSUMER_OFFSET, "consumerGroup"),
        (RequestCode.GET_CONSUMER_LIST_BY_GROUP, "consumerGroup"),
    ],
)
@pytest.mark.parametrize("user", ["bob", "ann"])
async def test_requests_do_not_tell_which_groups_there_are(
    clients: Clients, code: AdminCode | RequestCode, field: str, user: str
) -> None:
    """A user without a right to a group gets the same answer whether the group exists or not."""
    bob = await clients.of(user)
    fields: dict[str, object] = {
        "srcGroup": "x", "topic": "orders", "clientId": "c", "queueId": 0, "sysFlag": 0,
        "queueOffset": 0, "maxMsgNums": 1, "invisibleTime": 1_000, "pollTime": 0, "commitOffset": 0,
        "order": "true",
    }  # fmt: skip
    answers = [
        await bob.ask(code, fields | {field: name}, json.dumps({"groupName": name}).encode())
        for name in ("others", "unknown")
    ]
    assert [answer.code for answer in answers] == [ResponseCode.NO_PERMISSION] * 2
    remarks = [answer.remark.replace("unknown", "others") for answer in answers]
    assert remarks[0] == remarks[1]


async def test_a_message_of_an_unreadable_topic_is_not_sent_back(
    clients: Clients, app: BrokerApp
) -> None:
    """It looks missing, as that of a topic that does not exist."""
    topic = app.view.topic("", "secrets")
    assert topic is not None
    ann = await clients.of("ann")
    for topic_id in (topic.topic_id, topic.topic_id + 1_000):
        offset = physical_offset(OffsetPlace(topic_id, 0, 0))
        fields = {"group": "readers", "offset": offset, "delayLevel": 0}
        answer = await ann.ask(RequestCode.CONSUMER_SEND_MSG_BACK, fields)
        assert (answer.code, answer.remark) == (
            ResponseCode.SYSTEM_ERROR,
            f"look message by offset failed, {offset}",
        )


async def test_the_number_of_a_topic_does_not_tell_its_name(
    clients: Clients, app: BrokerApp
) -> None:
    """A place names its topic by number; a message there looks missing without the right to it."""
    topic = app.view.topic("", "secrets")
    assert topic is not None
    bob = await clients.of("bob")
    for topic_id in (topic.topic_id, topic.topic_id + 1_000):
        offset = physical_offset(OffsetPlace(topic_id, 0, 0))
        answer = await bob.ask(AdminCode.VIEW_MESSAGE_BY_ID, {"offset": offset})
        assert (answer.code, answer.remark) == (
            ResponseCode.SYSTEM_ERROR,
            f"can not find message by the offset, {offset}",
        )


async def test_nobody_is_let_in_without_a_right_signature(clients: Clients) -> None:
    """No signature, an unknown user, a wrong key, a request that was changed after it was made."""
    unsigned = await clients.of("")
    answer = await unsigned.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "orders"})
    assert (answer.code, answer.remark) == (
        ResponseCode.NO_PERMISSION,
        "username cannot be null.",
    )
    answer = await unsigned.ask(9_999)
    assert answer.code == ResponseCode.NO_PERMISSION, "kinds of requests are not told either"
    stranger = await clients.of("eve")
    answer = await stranger.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "orders"})
    assert (answer.code, answer.remark) == (
        ResponseCode.NO_PERMISSION,
        "User:eve is not found.",
    )
    good = signed(
        RemotingCommand(RequestCode.GET_ROUTEINFO_BY_TOPIC, fields={"topic": "orders"}),
        ("ann", secret_of("ann")),
    )
    for changed in ({"topic": "secrets"}, {"more": "x"}, {SIGNATURE: "\u00e9"}):
        answer = await unsigned.ask(good.code, {**good.fields, **changed})
        assert (answer.code, answer.remark) == (
            ResponseCode.NO_PERMISSION,
            "check signature failed.",
        ), changed


async def test_guesses_of_keys_are_slowed_down(clients: Clients) -> None:
    """After some wrong signatures a right one from that address is not looked at for a while."""
    wrong = await clients.of("ann", "guess")
    for _ in range(WRONG_SIGNATURES):
        answer = await wrong.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "orders"})
        assert answer.remark == "check signature failed."
    right = await clients.of("ann")
    answer = await right.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "orders"})
    assert answer.remark.startswith("check signature failed. Too many wrong signatures")
    # Another user behind the same address goes on.
    assert (await (await clients.of("root")).route("secrets"))["queueDatas"]


async def test_a_name_of_any_length_is_not_kept(clients: Clients, app: BrokerApp) -> None:
    """It cannot be a user's, so that it is refused at once, and shortened in the text."""
    kept = len(app.access._wrong)
    stranger = await clients.of("x" * 60_000, "a-wrong-secret")
    refused = await stranger.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "orders"})
    assert refused.code == ResponseCode.NO_PERMISSION
    assert refused.remark == f"User:{'x' * 128}... is not found."
    assert len(app.access._wrong) == kept


async def test_a_letter_names_no_topic_that_its_sender_may_not_consume(clients: Clients) -> None:
    """An operator may send the letter there, with more rights than its sender has."""
    ann = await clients.of("ann")
    fields = send_fields("%RETRY%readers", RETRY_TOPIC="secrets") | {"j": 9, "l": 1}
    refused = await ann.ask(RequestCode.SEND_MESSAGE_V2, fields, b"x")
    assert refused.code == ResponseCode.NO_PERMISSION, refused.remark
    assert "Topic:secrets" in refused.remark


async def test_a_client_id_belongs_to_one_user(clients: Clients) -> None:
    """Nobody takes the place of another user's member of a group."""
    ann, root = await clients.of("ann"), await clients.of("root")
    await ann.heartbeat("me", "readers", {"orders": "*"})
    with pytest.raises(Exception, match="belongs to another user"):
        await root.heartbeat("me", "readers", {"orders": "*"})


async def test_the_audit_trail_tells_who_signed_and_who_was_refused(
    clients: Clients, app: BrokerApp
) -> None:
    """One event for a sign-in, whatever the number of requests; each refusal with its reason."""
    events: list[dict[str, Any]] = []
    app.audit.add(SimpleNamespace(write=lambda event: events.append(dict(event))))
    ann, guesser = await clients.of("ann"), await clients.of("ann", "guess")
    for _ in range(2):
        await ann.route("orders")
    await ann.ask(RequestCode.SEND_MESSAGE_V2, send_fields("secrets"), b"x")
    await ann.ask(RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": "others"})
    await guesser.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "orders"})
    signed_in = [event["user"] for event in events if event["event"] == "signed in"]
    assert signed_in == ["ann"]
    refused = [
        (event["user"], event["rpc"], event["resource"], event["reason"])
        for event in events
        if event["event"] == "refused"
    ]
    assert refused == [
        ("ann", "SEND_MESSAGE_V2", "topic:secrets", "no policy allows pub"),
        ("ann", "GET_CONSUMER_LIST_BY_GROUP", "group:others", "no policy allows sub"),
        ("ann", "GET_ROUTEINFO_BY_TOPIC", "", "wrong signature"),
    ]
