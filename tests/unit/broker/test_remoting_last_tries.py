"""Messages that a consumer gives up by a send: limits, repeats, and the topic that they name."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from apache.rocketmq.v2 import definition_pb2
from strata.meta.v1 import meta_pb2
from strata_broker.app import BrokerApp
from strata_broker.base.config import BrokerConfig
from strata_broker.remoting import json_bodies
from strata_broker.remoting.given_up import letter_of, reconsume_times
from strata_broker.remoting.incoming import new_message
from strata_broker.remoting.property_names import PREFIX, STORED_RECONSUME_TIMES
from strata_broker.remoting.send_backs import _copy_of as copy_of
from strata_broker.remoting.send_headers import SendHeader
from strata_mq.requests import TopicType
from strata_remoting import AdminCode, RemotingCommand, RequestCode, ResponseCode, encode_properties
from strata_testing.broker import broker_config
from strata_testing.broker.fake_meta import FakeMeta
from strata_testing.remoting_client import RemotingClient, send_fields

GROUP, RETRIES = "g", "%RETRY%g"
KEY = "7F00000100002A9F0000000000000102"
MOST_BYTES = 1_000


@pytest.fixture
def config() -> BrokerConfig:
    return broker_config(remoting={"port": 0}, send={"max_body_bytes": MOST_BYTES})


@pytest.fixture
def meta() -> FakeMeta:
    fake = FakeMeta()
    fake.add_topic("orders")
    fake.add_topic(RETRIES, meta_pb2.TOPIC_TYPE_MIXED)
    fake.add_group(meta_pb2.ConsumerGroup(name=GROUP))
    return fake


@pytest.fixture
async def client(app: BrokerApp) -> AsyncIterator[RemotingClient]:
    async with RemotingClient(app.shown()["nameserver"]) as connected:
        yield connected


async def give_up(client: RemotingClient, body: bytes, times: int = 4) -> RemotingCommand:
    """Send a message whose three tries are used up, as the orderly push consumer of Java does."""
    fields = send_fields(RETRIES, RETRY_TOPIC="orders", UNIQ_KEY=KEY) | {"j": times, "l": 3}
    return await client.ask(RequestCode.SEND_MESSAGE_V2, fields, body)


async def test_a_letter_keeps_to_the_limits_of_a_message(client: RemotingClient) -> None:
    """A body that an ordinary send may not have is refused; the largest allowed one is not."""
    refused = await give_up(client, bytes(MOST_BYTES + 1))
    assert refused.code == ResponseCode.MESSAGE_ILLEGAL, refused.remark
    assert refused.remark == f"message body cannot exceed the max {MOST_BYTES}"
    staged = await give_up(client, bytes(MOST_BYTES))
    assert staged.code != ResponseCode.MESSAGE_ILLEGAL, staged.remark


async def test_a_heartbeat_is_parsed_once(
    client: RemotingClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its body may be large, and parsing it takes the event loop; operators see it all the same."""
    parsed = []

    def loads(body: bytes) -> Any:
        parsed.append(body)
        return json.loads(body)

    monkeypatch.setattr(json_bodies, "json", SimpleNamespace(loads=loads))
    await client.heartbeat("me", GROUP, {"orders": "*", RETRIES: "*"}, producers=["p"])
    assert len(parsed) == 1
    fields = {"producerGroup": "p", "topic": "orders"}
    shown = await client.call(AdminCode.GET_PRODUCER_CONNECTION_LIST, fields)
    assert [one["clientId"] for one in json.loads(shown.body)["connectionSet"]] == ["me"]


@pytest.mark.parametrize(
    ("text", "times"),
    [("3", 3), ("9" * 10, 1 << 20), ("9" * 5_000, 0), ("-1", 0), ("\u0663", 0), ("", 0)],
)
def test_a_number_of_tries_may_be_any_text(text: str, times: int) -> None:
    """A text without meaning counts as no try; a message with it can still be given up."""
    message = definition_pb2.Message()
    message.user_properties[STORED_RECONSUME_TIMES] = text
    assert reconsume_times(message) == times


@pytest.mark.parametrize(("topic", "origin"), [("orders", "orders"), (RETRIES, "secrets")])
def test_only_a_retry_names_the_topic_that_it_is_from(topic: str, origin: str) -> None:
    """A producer may write the property, too; a letter would be sent to that topic later."""
    message = definition_pb2.Message()
    message.topic.name = topic
    message.user_properties[f"{PREFIX}RETRY_TOPIC"] = "secrets"
    assert letter_of(message, GROUP).topic.name == origin


def test_a_copy_for_a_retry_names_the_topic_of_its_original() -> None:
    """Only a copy that comes back again keeps the name that the broker gave it."""
    message = definition_pb2.Message()
    message.user_properties[f"{PREFIX}RETRY_TOPIC"] = "secrets"
    row = topic_row_of("orders")
    name = f"{PREFIX}RETRY_TOPIC"
    assert copy_of(message, row, is_again=False).user_properties[name] == "orders"
    assert copy_of(message, row, is_again=True).user_properties[name] == "secrets"


@pytest.mark.parametrize(
    ("topic", "written", "known_as"),
    [
        ("orders", "another", KEY),
        (RETRIES, "another", "another"),
        (RETRIES, "x" * 256, KEY),
        (RETRIES, "", KEY),
    ],
)
def test_only_a_retry_says_by_which_id_its_original_is_known(
    topic: str, written: str, known_as: str
) -> None:
    """A gRPC producer may write the property, too, and with any text."""
    message = definition_pb2.Message()
    message.topic.name = topic
    message.system_properties.message_id = KEY
    message.user_properties[f"{PREFIX}UNIQ_KEY"] = written
    assert letter_of(message, GROUP).system_properties.message_id == known_as


def test_a_copy_for_a_retry_has_the_id_of_its_original() -> None:
    """Its letter has that id too, whatever the producer wrote; a copy of a copy keeps it."""
    message = definition_pb2.Message()
    message.system_properties.message_id = KEY
    for name in ("UNIQ_KEY", "ORIGIN_MESSAGE_ID"):
        message.user_properties[f"{PREFIX}{name}"] = "another"
    row = topic_row_of("orders")
    for name in (f"{PREFIX}UNIQ_KEY", f"{PREFIX}ORIGIN_MESSAGE_ID"):
        assert copy_of(message, row, is_again=False).user_properties[name] == KEY
        assert copy_of(message, row, is_again=True).user_properties[name] == "another"


def test_a_client_writes_no_property_of_the_broker() -> None:
    """Its own properties are kept; names with the broker's prefix are dropped."""
    wanted = encode_properties({f"{PREFIX}letter": "x", f"{PREFIX}UNIQ_KEY": "x", "color": "red"})
    header = SendHeader("p", "orders", 0, 0, 0, 0, "", 0, None, False)
    made = new_message(header, b"", wanted, topic_row_of("orders"), 0)
    assert dict(made.user_properties) == {"color": "red"}


def topic_row_of(name: str) -> Any:
    """Return the parts of a topic that are used here."""
    return SimpleNamespace(name=name, namespace="", topic_type=TopicType.NORMAL)
