"""Transactional messages of remoting producers, over two brokers and three storage nodes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from strata.meta.v1 import meta_pb2
from strata_broker.base.config import BrokerConfig
from strata_remoting import (
    PulledMessage,
    RemotingCommand,
    RequestCode,
    ResponseCode,
    decode_messages,
    decode_properties,
)
from strata_testing import until
from strata_testing.remoting_client import RemotingClient, send_fields
from strata_testing.storage_node import small_config
from tests.integration.broker.cluster_brokers import ClusterBroker, brokers_over, topic_row
from tests.integration.broker.remoting_brokers import (
    GROUP,
    KEY,
    clients,
    pulled_from,
    remoting_config,
)
from tests.integration.broker.remoting_brokers import brokers as brokers
from tests.integration.storage.storage_cluster import ClusterUnderTest, cluster_of

COMMIT, ROLLBACK, UNKNOWN = 8, 12, 0
PREPARED = 4
TOPICS = {7: ("orders", meta_pb2.TOPIC_TYPE_NORMAL), 9: ("deals", meta_pb2.TOPIC_TYPE_TRANSACTION)}


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[ClusterUnderTest]:
    """Three nodes that check soon and often."""
    config = small_config(transaction_check_interval_ms=300, max_transaction_checks=1_000)
    async for made in cluster_of(tmp_path, 3, groups=2, config=config):
        for number, row in made.stub.groups.items():
            row.broker_name = f"strata-{number}"
            made.stub.write(meta_pb2.Change(raft_group=row))
        for topic_id, (name, kind) in TOPICS.items():
            made.stub.write(meta_pb2.Change(topic=topic_row(topic_id, name, kind)))
        group = meta_pb2.ConsumerGroup(consumer_group_id=20, name=GROUP)
        made.stub.write(meta_pb2.Change(consumer_group=group))
        yield made


def asking_config() -> BrokerConfig:
    """Brokers that say soon which producers they have."""
    config = remoting_config().model_copy()
    transaction = config.transaction.model_copy(update={"first_check_ms": 300})
    session = config.session.model_copy(update={"report_interval_ms": 200})
    return config.model_copy(update={"transaction": transaction, "session": session})


@pytest.fixture
def config() -> BrokerConfig:
    return asking_config()


async def send_half(
    client: RemotingClient, body: bytes, group: str = "payers", **properties: str
) -> RemotingCommand:
    """Send as the transactional producer of Java does."""
    properties |= {"TRAN_MSG": "true", "PGROUP": group}
    fields = send_fields("deals", 1, PREPARED, **properties) | {"a": group}
    return await client.call(RequestCode.SEND_MESSAGE_V2, fields, body)


def end_fields(
    transaction_id: str, decision: int, *, group: str = "payers", is_check: bool = False
) -> dict[str, object]:
    """The header of an END_TRANSACTION."""
    return {
        "topic": "deals", "producerGroup": group, "tranStateTableOffset": 0, "commitLogOffset": 0,
        "commitOrRollback": decision, "fromTransactionCheck": str(is_check).lower(), "msgId": KEY,
        "transactionId": transaction_id,
    }  # fmt: skip


async def committed(client: RemotingClient) -> list[PulledMessage]:
    return await pulled_from(client, "deals")


async def test_a_message_is_seen_once_it_is_committed(brokers: Sequence[ClusterBroker]) -> None:
    """By consumers of both protocols; one that is rolled back is never seen."""
    async with clients(brokers, topic="deals") as [client]:
        sent = {
            body: await send_half(client, body, UNIQ_KEY=f"{KEY[:-1]}{number}", TAGS="t", color="x")
            for number, body in enumerate((b"commit", b"roll back", b"wait"))
        }
        ids = {body: answer.fields["transactionId"] for body, answer in sent.items()}
        assert len(set(ids.values())) == 3
        assert await committed(client) == []
        for body, decision in ((b"roll back", ROLLBACK), (b"commit", COMMIT), (b"wait", UNKNOWN)):
            await client.call(RequestCode.END_TRANSACTION, end_fields(ids[body], decision))
        # A repeat is answered as the first one, and the other decision comes too late.
        await client.call(RequestCode.END_TRANSACTION, end_fields(ids[b"commit"], COMMIT))
        late = await client.ask(RequestCode.END_TRANSACTION, end_fields(ids[b"commit"], ROLLBACK))
        assert late.code == ResponseCode.SYSTEM_ERROR
        [one] = await committed(client)
        assert (one.body, one.queue_id) == (b"commit", 1)
        properties = decode_properties(one.properties)
        shown = {name: properties[name] for name in ("UNIQ_KEY", "TAGS", "color", "PGROUP")}
        assert shown == {"UNIQ_KEY": f"{KEY[:-1]}0", "TAGS": "t", "color": "x", "PGROUP": "payers"}
        got = await brokers[0].client.receive_all("deals", GROUP, polling_s=1)
        assert [(each.body, each.system_properties.message_id) for each in got] == [
            (b"commit", f"{KEY[:-1]}0")
        ]


async def test_a_producer_of_the_group_is_asked(brokers: Sequence[ClusterBroker]) -> None:
    """Also after the sender has gone; a producer of another group is asked nothing."""
    async with clients(brokers, 3, topic="deals") as [sender, stranger, other]:
        await stranger.heartbeat("stranger", "", {}, producers=["sellers"])
        await send_half(stranger, b"theirs", "sellers")
        answer = await send_half(sender, b"ours", UNIQ_KEY=KEY)
        await sender.__aexit__()
        await other.heartbeat("other", "", {}, producers=["payers", "CLIENT_INNER_PRODUCER"])
        await until(lambda: bool(other.told))
        question = other.told[0]
        assert (question.code, question.is_oneway) == (RequestCode.CHECK_TRANSACTION_STATE, True)
        assert question.fields["transactionId"]
        assert (question.fields["topic"], question.fields["msgId"]) == ("deals", KEY)
        [asked] = decode_messages(question.body)
        assert asked.body == b"ours"
        properties = decode_properties(asked.properties)
        assert (properties["PGROUP"], properties["UNIQ_KEY"]) == ("payers", KEY)
        decided = end_fields(question.fields["transactionId"], COMMIT, is_check=True)
        await other.call(RequestCode.END_TRANSACTION, decided)
        assert [one.body for one in await committed(other)] == [b"ours"]
        assert answer.fields["transactionId"]
        await until(lambda: bool(stranger.told))
        for told in stranger.told:
            assert decode_messages(told.body)[0].body == b"theirs"


async def test_a_producer_that_says_goodbye_is_not_asked(
    brokers: Sequence[ClusterBroker],
) -> None:
    """Another producer of its group is."""
    async with clients(brokers, 2, topic="deals") as [first, second]:
        for client, name in ((first, "first"), (second, "second")):
            await client.heartbeat(name, "", {}, producers=["payers"])
        gone = {"clientID": "first", "producerGroup": "payers"}
        await send_half(second, b"x", UNIQ_KEY=KEY)
        await first.heartbeat("first", "", {}, producers=["payers"])
        await first.call(RequestCode.UNREGISTER_CLIENT, gone)
        first.told.clear()
        await until(lambda: len(second.told) > 2)
        assert first.told == []


async def test_a_group_is_asked_by_its_heartbeat_alone(
    cluster: ClusterUnderTest,
) -> None:
    """After the brokers' restart nobody has sent to the topic; another group is asked nothing."""
    async with (
        brokers_over(cluster, asking_config()) as old,
        clients(old, topic="deals") as [sender],
    ):
        await send_half(sender, b"ours", UNIQ_KEY=KEY)
    async with (
        brokers_over(cluster, asking_config()) as new,
        clients(new, 3, topic="deals") as [stranger, other, consumer],
    ):
        await stranger.heartbeat("stranger", "", {}, producers=["sellers"])
        await consumer.heartbeat("consumer", "", {}, producers=["CLIENT_INNER_PRODUCER"])
        await other.heartbeat("other", "", {}, producers=["payers"])
        await until(lambda: bool(other.told))
        [asked] = decode_messages(other.told[0].body)
        assert asked.body == b"ours"
        question = other.told[0].fields["transactionId"]
        await other.call(RequestCode.END_TRANSACTION, end_fields(question, COMMIT, is_check=True))
        assert [one.body for one in await committed(other)] == [b"ours"]
        assert (stranger.told, consumer.told) == ([], [])


async def test_decisions_on_nothing_are_refused(brokers: Sequence[ClusterBroker]) -> None:
    """A damaged id, a decision that is none, a flag without the property."""
    async with clients(brokers, topic="deals") as [client]:
        answer = await client.ask(RequestCode.END_TRANSACTION, end_fields("nothing", COMMIT))
        assert (answer.code, "INVALID_TRANSACTION_ID" in answer.remark) == (
            ResponseCode.SYSTEM_ERROR,
            True,
        )
        answer = await client.ask(RequestCode.END_TRANSACTION, end_fields("nothing", 4))
        assert answer.remark == "commitOrRollback is 4; 0, 8 and 12 are known"
        answer = await client.ask(
            RequestCode.SEND_MESSAGE_V2, send_fields("deals", 0, PREPARED), b"x"
        )
        assert (answer.code, "TRAN_MSG is missing" in answer.remark) == (
            ResponseCode.MESSAGE_ILLEGAL,
            True,
        )
        answer = await client.ask(
            RequestCode.SEND_MESSAGE_V2, send_fields("orders", 0, PREPARED, TRAN_MSG="true"), b"x"
        )
        assert answer.code == ResponseCode.MESSAGE_ILLEGAL
