"""Calls to a RocketMQ cluster, over sockets, against servers that answer as RocketMQ does."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager

import pytest

from strata_cli.errors import CliError
from strata_cli.migrate.access_rows import SourceRule, SourceUser
from strata_cli.migrate.connections import (
    ClusterKeys,
    RemotingConnections,
    SourceRefusedError,
    SourceUnreachableError,
)
from strata_cli.migrate.source import Retained, RocketMqSource
from strata_cli.migrate.source_rows import (
    SourceBroker,
    SourceGroup,
    SourceQueue,
    SourceTopic,
    parse_json,
)
from strata_mq.access import content_signature_is_right
from strata_remoting import (
    ACCESS_KEY,
    SIGNATURE,
    AdminCode,
    FrameLimits,
    PulledMessage,
    RemotingCommand,
    RemotingFrameReader,
    RequestCode,
    ResponseCode,
    Serialization,
    Store,
    encode_frame,
    encode_message,
)

HOST = "127.0.0.1"
QUEUE = SourceQueue("orders", "broker-a", 1)
Answer = Callable[[RemotingCommand], RemotingCommand]

TOPICS = {
    "topicConfigTable": {
        "orders": {
            "attributes": {"message.type": "FIFO"},
            "order": False,
            "perm": 6,
            "readQueueNums": 4,
            "topicName": "orders",
            "writeQueueNums": 8,
        },
        # As 4.9 writes it.
        "older": {"order": True, "perm": 4, "readQueueNums": 2, "writeQueueNums": 2},
    }
}
GROUPS = {
    "subscriptionGroupTable": {
        "plain": {"groupName": "plain", "retryMaxTimes": 3},
        "steady": {
            "consumeMessageOrderly": True,
            "groupRetryPolicy": {
                "type": "CUSTOMIZED",
                "customizedRetryPolicy": {"next": [1_000, 5_000]},
            },
        },
        "growing": {
            "groupRetryPolicy": {
                "type": "EXPONENTIAL",
                "exponentialRetryPolicy": {"initial": 100, "max": 9_000, "multiplier": 3},
            },
        },
    }
}
OFFSETS = b'{"offsetTable":{"orders@plain":{0:17,1:4},"%RETRY%plain@plain":{0:2}}}'


class ScriptedServer:
    """A nameserver and a broker at one port.

    Attributes:
        answers: by request code.
        asked: every request.
        address: HOST:PORT.
    """

    def __init__(self) -> None:
        self.answers: dict[int, Answer] = {}
        self.asked: list[RemotingCommand] = []
        self.address = ""
        self._writers: list[asyncio.StreamWriter] = []

    def says(
        self, code: int, body: bytes = b"", *, answer: int = 0, fields: Mapping[str, str] = {}
    ) -> None:
        """Set the answer to a kind of request."""
        self.answers[code] = lambda request: request.answered(
            answer, "as scripted", fields=fields, body=body
        )

    def hang_up(self) -> None:
        """Close all connections."""
        for writer in self._writers:
            writer.close()
        self._writers.clear()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one connection."""
        self._writers.append(writer)
        frames = RemotingFrameReader(FrameLimits())
        while data := await reader.read(65_536):
            frames.feed(data)
            for frame in frames.frames():
                self.asked.append(frame.command)
                answer = self.answers[frame.command.code](frame.command)
                # A server also sends requests of its own, which nobody here waits for.
                told = RemotingCommand(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, answer.opaque)
                writer.write(encode_frame(told.oneway(), Serialization.JSON))
                writer.write(encode_frame(answer, Serialization.JSON))
        writer.close()


@asynccontextmanager
async def cluster(
    timeout_s: float = 10.0, keys: ClusterKeys | None = None
) -> AsyncIterator[tuple[ScriptedServer, RocketMqSource]]:
    """Yield a server that describes itself, and a source that asks it."""
    scripted = ScriptedServer()
    server = await asyncio.start_server(scripted.serve, HOST, 0)
    scripted.address = f"{HOST}:{server.sockets[0].getsockname()[1]}"
    # RocketMQ writes the numbers of brokers without quotes.
    table = '{"brokerAddrTable":{"broker-a":{"brokerAddrs":{0:"%s",1:"10.0.0.9:1"},"cluster":"c"}}}'
    scripted.says(RequestCode.GET_BROKER_CLUSTER_INFO, (table % scripted.address).encode())
    scripted.says(RequestCode.GET_ALL_TOPIC_CONFIG, json.dumps(TOPICS).encode())
    scripted.says(RequestCode.GET_ALL_SUBSCRIPTION_GROUP_CONFIG, json.dumps(GROUPS).encode())
    scripted.says(RequestCode.GET_ALL_CONSUMER_OFFSET, OFFSETS)
    connections = RemotingConnections(timeout_s, keys)
    try:
        # The first nameserver does not exist; the second one answers.
        yield scripted, RocketMqSource(connections, [f"{HOST}:1", scripted.address])
    finally:
        await connections.close()
        scripted.hang_up()
        server.close()
        await server.wait_closed()


async def test_a_cluster_describes_itself() -> None:
    """Topics with types and queues, groups with retries, offsets; also as RocketMQ 4.9 writes."""
    async with cluster() as (scripted, source):
        [rows] = await source.describe()
    assert rows.broker == SourceBroker("broker-a", "c", scripted.address)
    assert rows.topics == {
        "orders": SourceTopic("orders", 4, 8, 6, "FIFO"),
        "older": SourceTopic("older", 2, 2, 4, "", is_ordered=True),
    }
    assert rows.groups == {
        "plain": SourceGroup("plain", False, 3),
        "steady": SourceGroup("steady", True, 16, (1_000, 5_000)),
        "growing": SourceGroup("growing", False, 16, (), (100, 9_000, 3.0)),
    }
    assert rows.positions == {
        ("plain", "orders"): {0: 17, 1: 4},
        ("plain", "%RETRY%plain"): {0: 2},
    }


def test_bare_keys_are_found_outside_of_texts_only() -> None:
    """A text that looks like such a key stays as it is."""
    text = b'{"a":"{0:1,2:3}",-1:{7 :"x\\",8:"},"b":[{5:6}]}'
    assert parse_json(text, "it") == {"a": "{0:1,2:3}", "-1": {"7": 'x",8:'}, "b": [{"5": 6}]}
    with pytest.raises(CliError, match="it cannot be read"):
        parse_json(b"<html>", "it")


def pulled(offset: int) -> PulledMessage:
    store = Store.of(HOST, 1)
    return PulledMessage(
        queue_id=1,
        queue_offset=offset,
        physical_offset=0,
        born_ms=1,
        born=store,
        stored_ms=2,
        store=store,
        topic="orders",
        body=b"m%d" % offset,
        properties="",
    )


async def test_a_pull_consumes_nothing_and_says_where_the_next_one_begins() -> None:
    """The request names no group of an application, stores no offset and does not wait."""
    window = {"minOffset": "3", "maxOffset": "9", "nextBeginOffset": "6"}
    async with cluster() as (scripted, source):
        body = b"".join(encode_message(pulled(offset)) for offset in (3, 4, 5))
        scripted.says(RequestCode.PULL_MESSAGE, body, fields=window)
        found = await source.pull(QUEUE, 4, 1_000_000)
        assert [one.body for one in found.messages] == [b"m4", b"m5"]
        assert (found.next_offset, found.window) == (6, Retained(3, 9))
        asked = scripted.asked[-1].fields
        assert (asked["consumerGroup"], asked["sysFlag"], asked["queueId"]) == (
            "TOOLS_CONSUMER",
            "4",
            "1",
        )
        assert int(asked["maxMsgNums"]) <= 1_024
        for code in (
            ResponseCode.PULL_NOT_FOUND,
            ResponseCode.PULL_RETRY_IMMEDIATELY,
            ResponseCode.PULL_OFFSET_MOVED,
        ):
            scripted.says(RequestCode.PULL_MESSAGE, body, answer=code, fields=window)
            found = await source.pull(QUEUE, 4, 10)
            assert (found.messages, found.next_offset) == ([], 6)


async def test_refusals_and_damage_are_told_with_the_place() -> None:
    """A refusal has the server's text; a damaged message names queue and offset."""
    async with cluster() as (scripted, source):
        scripted.says(RequestCode.PULL_MESSAGE, answer=ResponseCode.NO_PERMISSION)
        with pytest.raises(SourceRefusedError, match="answered 16: as scripted"):
            await source.pull(QUEUE, 4, 10)
        damaged = bytearray(encode_message(pulled(4)))
        damaged[damaged.index(b"m4")] ^= 1
        scripted.says(
            RequestCode.PULL_MESSAGE,
            bytes(damaged),
            fields={"minOffset": "0", "maxOffset": "9", "nextBeginOffset": "5"},
        )
        with pytest.raises(CliError, match="orders/broker-a/1 at offset 4"):
            await source.pull(QUEUE, 4, 10)


async def test_the_next_call_connects_again() -> None:
    """A connection that the server closed fails what waits, and nothing else."""
    async with cluster() as (scripted, source):
        scripted.says(RequestCode.GET_MIN_OFFSET, fields={"offset": "2"})
        scripted.says(RequestCode.GET_MAX_OFFSET, fields={"offset": "7"})
        assert await source.window(QUEUE) == Retained(2, 7)

        def vanish(request: RemotingCommand) -> RemotingCommand:
            scripted.hang_up()
            return request.answered(ResponseCode.SUCCESS)

        scripted.answers[RequestCode.PULL_MESSAGE] = vanish
        with pytest.raises(SourceUnreachableError, match=f"cannot reach {scripted.address}"):
            await source.pull(QUEUE, 0, 1)
        assert await source.window(QUEUE) == Retained(2, 7)


async def test_no_nameserver_is_one_clear_error() -> None:
    """The error names the address that was asked last."""
    connections = RemotingConnections(5.0)
    source = RocketMqSource(connections, [f"{HOST}:1"])
    with pytest.raises(SourceUnreachableError, match=r"cannot reach 127\.0\.0\.1:1"):
        await source.describe()
    await connections.close()


async def test_users_and_acls_are_asked_for_with_signatures() -> None:
    """Every request is signed, those to the nameserver too; an old broker is told apart."""
    keys = ClusterKeys("root", "rootsecret1")
    async with cluster(keys=keys) as (scripted, source):
        scripted.says(AdminCode.AUTH_LIST_USER, b'[{"username":"shop","password":"shopsecret1"}]')
        scripted.says(
            AdminCode.AUTH_LIST_ACL,
            b'[{"subject":"User:shop","policies":[{"policyType":"Default","entries":[{"resource":'
            b'"Topic:*","actions":["Pub"],"decision":"Allow"}]}]}]',
        )
        found = await source.access()
        assert found.users == {"shop": SourceUser("shop", "shopsecret1")}
        assert found.rules == [SourceRule("shop", "Topic:*", frozenset(("pub",)), is_default=True)]
        assert len(scripted.asked) == 3
        for request in scripted.asked:
            assert request.fields[ACCESS_KEY] == "root"
            content, signature = request.signed_content(), request.fields[SIGNATURE]
            assert content_signature_is_right("rootsecret1", content, signature)
        scripted.says(AdminCode.AUTH_LIST_USER, answer=ResponseCode.REQUEST_CODE_NOT_SUPPORTED)
        with pytest.raises(CliError, match=r"no ACL 2\.0: give its plain_acl\.yml"):
            await source.access()
