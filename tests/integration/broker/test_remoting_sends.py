"""Remoting producers over two brokers and three storage nodes."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence

import lz4.frame
import pytest
import zstandard

from apache.rocketmq.v2 import definition_pb2
from strata_remoting import (
    BatchedMessage,
    RemotingCommand,
    RequestCode,
    ResponseCode,
    Serialization,
    decode_properties,
    encode_batch,
    encode_frame,
    encode_properties,
)
from strata_testing.remoting_client import RemotingRefusedError, send_fields
from tests.integration.broker.cluster_brokers import ClusterBroker
from tests.integration.broker.remoting_brokers import (
    GROUP,
    KEY,
    clients,
    pulled_from,
)
from tests.integration.broker.remoting_brokers import brokers as brokers
from tests.integration.broker.remoting_brokers import cluster as cluster
from tests.integration.broker.remoting_brokers import config as config


async def test_a_message_is_stored_in_the_queue_that_its_producer_chose(
    brokers: Sequence[ClusterBroker],
) -> None:
    """The answer names queue and offset, and a pull finds the message there, in both encodings."""
    async with clients(brokers, 2) as pair:
        for number, client in enumerate(pair):
            for queue in range(4):
                sent = await client.send("orders", b"%d" % queue, queue)
                assert (sent.fields["queueId"], sent.fields["queueOffset"]) == (
                    str(queue),
                    str(number),
                )
                assert len(sent.fields["msgId"]) == 32
        for queue in range(4):
            found = await pulled_from(pair[0], "orders", [queue])
            assert [(one.queue_id, one.queue_offset, one.body) for one in found] == [
                (queue, 0, b"%d" % queue),
                (queue, 1, b"%d" % queue),
            ]


async def test_a_grpc_consumer_gets_what_a_remoting_producer_sent(
    brokers: Sequence[ClusterBroker],
) -> None:
    """Id, tag, keys, properties and born time; RocketMQ's own properties stay out of sight."""
    async with clients(brokers) as [client]:
        await client.send(
            "orders", b"hello", 1, UNIQ_KEY=KEY, TAGS="a", KEYS="k1 k2", WAIT="true", color="red"
        )
    _, [got] = await brokers[0].client.receive("orders", GROUP, broker="strata-2", polling_s=5)
    system = got.system_properties
    assert (system.message_id, system.tag, list(system.keys)) == (KEY, "a", ["k1", "k2"])
    assert got.body == b"hello"
    assert dict(got.user_properties) == {"color": "red"}
    assert system.born_timestamp.seconds == 1_700_000_000
    assert system.message_type == definition_pb2.NORMAL


async def test_old_headers_and_batches(brokers: Sequence[ClusterBroker]) -> None:
    """SEND_MESSAGE has full names; a batch is stored in order and answered with all ids."""
    async with clients(brokers) as [client]:
        old = {
            "producerGroup": "p",
            "topic": "orders",
            "queueId": 2,
            "sysFlag": 0,
            "bornTimestamp": 5,
            "flag": 77,
            "properties": encode_properties({"TAGS": "x"}),
        }
        await client.call(RequestCode.SEND_MESSAGE, old, b"old")
        batch = encode_batch(
            BatchedMessage(b"%d" % number, encode_properties({"UNIQ_KEY": f"{KEY[:-1]}{number}"}))
            for number in range(3)
        )
        fields = {**send_fields("orders", 2), "m": "true"}
        sent = await client.call(RequestCode.SEND_BATCH_MESSAGE, fields, batch)
        assert sent.fields["queueOffset"] == "1"
        assert len(sent.fields["msgId"].split(",")) == 3
        found = await pulled_from(client, "orders", [2])
    assert [one.body for one in found] == [b"old", b"0", b"1", b"2"]
    assert (found[0].flag, found[0].born_ms) == (77, 5)
    assert decode_properties(found[0].properties)["TAGS"] == "x"


async def test_a_producer_may_leave_the_queue_to_the_broker(
    brokers: Sequence[ClusterBroker],
) -> None:
    """A negative queue id; all messages of a batch are in one queue."""
    batch = encode_batch([BatchedMessage(b"%d" % number, "") for number in range(3)])
    async with clients(brokers) as [client]:
        one = await client.send("orders", b"one", -1)
        fields = send_fields("orders", -7) | {"m": "true"}
        three = await client.call(RequestCode.SEND_BATCH_MESSAGE, fields, batch)
        for sent, bodies in ((one, {b"one"}), (three, {b"0", b"1", b"2"})):
            found = await pulled_from(client, "orders", [int(sent.fields["queueId"])])
            assert bodies <= {message.body for message in found}


async def test_a_fifo_topic_keeps_the_order_of_a_queue(brokers: Sequence[ClusterBroker]) -> None:
    """Messages for one queue of a FIFO topic are in that queue, in order, with one group."""
    async with clients(brokers) as [client]:
        for number in range(5):
            sent = await client.send("fifo", b"%d" % number, 3)
            assert sent.fields["queueId"] == "3"
        found = await pulled_from(client, "fifo", [3])
    assert [one.body for one in found] == [b"%d" % number for number in range(5)]
    assert len({decode_properties(one.properties)["__SHARDINGKEY"] for one in found}) == 1


@pytest.mark.parametrize(
    ("number", "compress"),
    [
        pytest.param(0, zlib.compress, id="zlib-of-old-clients"),
        pytest.param(1, lz4.frame.compress, id="lz4"),
        pytest.param(2, zstandard.compress, id="zstd"),
        pytest.param(3, zlib.compress, id="zlib"),
    ],
)
async def test_compressed_bodies_are_inflated_within_the_limit(
    brokers: Sequence[ClusterBroker], number: int, compress: Callable[[bytes], bytes]
) -> None:
    """A bomb is refused, a damaged body too; no consumer of either protocol gets one compressed."""
    flags = 1 | number << 8
    async with clients(brokers) as [client]:
        body = b"compress me " * 1_000
        await client.send("orders", compress(body), 0, flags=flags)
        [one] = await pulled_from(client, "orders", [0])
        assert one.body == body
        assert one.system_flag == 0
        [received] = await brokers[0].client.receive_all("orders", GROUP, polling_s=5)
        assert received.body == body
        assert received.system_properties.body_encoding == definition_pb2.IDENTITY
        for bad, text in (
            (compress(bytes(5 * 1024 * 1024)), "message body cannot exceed the max 4194304"),
            (b"junk" * 100, "the body cannot be inflated with"),
            (compress(body)[:-9], "the compressed body is cut off"),
        ):
            with pytest.raises(RemotingRefusedError, match=text) as refused:
                await client.send("orders", bad, 0, flags=flags)
            assert refused.value.code == ResponseCode.MESSAGE_ILLEGAL
        with pytest.raises(RemotingRefusedError, match="compressed with algorithm 5; zlib, lz4"):
            await client.send("orders", b"x", 0, flags=1 | 5 << 8)


@pytest.mark.parametrize(
    ("topic", "queue", "body", "properties", "code", "text"),
    [
        ("absent", 0, b"x", {}, ResponseCode.TOPIC_NOT_EXIST, "No topic route info in name"),
        (
            "orders",
            4,
            b"x",
            {},
            ResponseCode.INVALID_PARAMETER,
            r"request queueId\[4\] is illegal, .*writeQueueNums:\[4\] Producer: 127\.0\.0\.1:",
        ),
        ("orders", 0, b"", {}, ResponseCode.MESSAGE_ILLEGAL, "message body cannot be empty"),
        ("orders", 0, b"x", {"TAGS": "a|b"}, ResponseCode.MESSAGE_ILLEGAL, "tag cannot contain"),
        (
            "orders",
            0,
            b"x",
            {"DELAY": "3"},
            ResponseCode.MESSAGE_ILLEGAL,
            "expected type is NORMAL",
        ),
        ("orders", 0, b"x", {"TRAN_MSG": "true"}, ResponseCode.MESSAGE_ILLEGAL, "is TRANSACTION"),
        ("%DLQ%g", 0, b"x", {}, ResponseCode.NO_PERMISSION, "no writable queue"),
    ],
)
async def test_sends_that_are_refused(
    brokers: Sequence[ClusterBroker],
    topic: str,
    queue: int,
    body: bytes,
    properties: dict[str, str],
    code: ResponseCode,
    text: str,
) -> None:
    """The broker's own checks, with the codes of this protocol."""
    async with clients(brokers) as [client]:
        with pytest.raises(RemotingRefusedError, match=text) as refused:
            fields = send_fields(topic, queue) | {"i": encode_properties(properties)}
            await client.call(RequestCode.SEND_MESSAGE_V2, fields, body)
    assert refused.value.code == code
    assert not refused.value.remark.startswith("CODE")


async def test_a_one_way_send_is_stored_and_not_answered(brokers: Sequence[ClusterBroker]) -> None:
    """A request with the one-way flag gets no frame back."""
    async with clients(brokers) as [client]:
        fields = {name: str(value) for name, value in send_fields("orders", 1).items()}
        command = RemotingCommand(RequestCode.SEND_MESSAGE_V2, 900, fields, b"quiet").oneway()
        client.write(encode_frame(command, Serialization.JSON))
        _, [one] = await client.pull("orders", GROUP, 1, 0, wait_ms=10_000)
        assert one.body == b"quiet"
        assert client.told == []
