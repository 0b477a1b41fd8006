"""Remoting producers take delayed messages back."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from strata.meta.v1 import meta_pb2
from strata_broker.app import BrokerApp
from strata_broker.base.config import BrokerConfig
from strata_remoting import RequestCode, ResponseCode, decode_recall_handle, encode_recall_handle
from strata_testing.broker import broker_config
from strata_testing.broker.fake_meta import FakeMeta
from strata_testing.broker.fake_storage import FakeStorage
from strata_testing.remoting_client import RemotingClient

KEY = "7F00000100002A9F0000000000000102"


@pytest.fixture
def config() -> BrokerConfig:
    return broker_config(remoting={"port": 0})


@pytest.fixture
def meta() -> FakeMeta:
    fake = FakeMeta()
    for name in ("later", "other"):
        fake.add_topic(name, meta_pb2.TOPIC_TYPE_MIXED)
    return fake


@pytest.fixture
async def client(app: BrokerApp) -> AsyncIterator[RemotingClient]:
    async with RemotingClient(app.shown()["nameserver"]) as connected:
        yield connected


async def test_a_delayed_message_is_recalled(client: RemotingClient, storage: FakeStorage) -> None:
    """By the handle of its answer; a message that is not delayed has none."""
    name = (await client.route("later"))["queueDatas"][0]["brokerName"]
    sent = await client.send("later", b"x", 0, DELAY="18", UNIQ_KEY=KEY)
    handle = decode_recall_handle(sent.fields["recallHandle"])
    assert handle[:2] == ("later", name)
    assert handle.message_id == KEY
    fields = {"producerGroup": "p", "topic": "later", "recallHandle": sent.fields["recallHandle"]}
    assert len(storage.pending.waiting) == 1
    answer = await client.call(RequestCode.RECALL_MESSAGE, fields)
    assert answer.fields["msgId"] == KEY
    assert not storage.pending.waiting
    assert "recallHandle" not in (await client.send("later", b"now", 0)).fields


async def test_handles_that_are_refused(client: RemotingClient, storage: FakeStorage) -> None:
    """Another topic's, and none; the message stays."""
    sent = await client.send("later", b"x", 0, DELAY="18", UNIQ_KEY=KEY)
    handle = sent.fields["recallHandle"]
    for topic, text, remark in (
        ("other", handle, "recall failed, topic not match"),
        ("later", handle[:-1], "recall handle is invalid"),
        ("later", "", "recall handle is invalid"),
    ):
        answer = await client.ask(
            RequestCode.RECALL_MESSAGE, {"topic": topic, "recallHandle": text}
        )
        assert (answer.code, answer.remark) == (ResponseCode.ILLEGAL_OPERATION, remark)
    forged = encode_recall_handle(decode_recall_handle(handle)._replace(handle="forged"))
    answer = await client.ask(
        RequestCode.RECALL_MESSAGE, {"topic": "later", "recallHandle": forged}
    )
    assert answer.code == ResponseCode.ILLEGAL_OPERATION
    assert len(storage.pending.waiting) == 1
