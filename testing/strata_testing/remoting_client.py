"""A client of the remoting protocol in a few lines: it sends requests and matches answers."""

from __future__ import annotations

import asyncio
import base64
import hmac
import itertools
import json
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Self

from strata_remoting import (
    ACCESS_KEY,
    SIGNATURE,
    FrameLimits,
    PulledMessage,
    RemotingCommand,
    RemotingFrameReader,
    RequestCode,
    ResponseCode,
    Serialization,
    decode_messages,
    decode_properties,
    encode_frame,
    encode_properties,
)

TIMEOUT_S = 20.0


class RemotingRefusedError(Exception):
    """An answer whose code is not SUCCESS."""

    def __init__(self, answer: RemotingCommand) -> None:
        super().__init__(f"{answer.code}: {answer.remark}")
        self.code = answer.code
        self.remark = answer.remark


class RemotingClient:
    """One connection; an async context manager.

    Args:
        address: HOST:PORT.
        serialization: encoding of its requests.
        keys: access key and secret key that sign its requests; None: it does not sign.
        tls: for its connection; None: plaintext.
    """

    def __init__(
        self,
        address: str,
        serialization: Serialization = Serialization.JSON,
        *,
        keys: tuple[str, str] | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._address = address
        self._tls = tls
        self._keys = keys
        self._serialization = serialization
        self._opaque = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[RemotingCommand]] = {}
        self.told: list[RemotingCommand] = []
        # Code of its answers to what the broker asks; None: it answers nothing.
        self.answers: ResponseCode | None = ResponseCode.SUCCESS
        self.ended = asyncio.Event()

    @property
    def host(self) -> str:
        """The host that it connects to."""
        return self._address.rpartition(":")[0]

    async def __aenter__(self) -> Self:
        host, _, port = self._address.rpartition(":")
        self._input, self._output = await asyncio.open_connection(host, int(port), ssl=self._tls)
        self._reader = asyncio.ensure_future(self._read())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._output.close()
        self._reader.cancel()
        await asyncio.wait((self._reader,))

    async def ask(
        self, code: int, fields: Mapping[str, object] | None = None, body: bytes = b""
    ) -> RemotingCommand:
        """Send a request and return its answer, whatever it says."""
        texts = {name: str(value) for name, value in (fields or {}).items()}
        command = signed(RemotingCommand(code, next(self._opaque), texts, body), self._keys)
        answer: asyncio.Future[RemotingCommand] = asyncio.get_running_loop().create_future()
        self._waiting[command.opaque] = answer
        self.write(encode_frame(command, self._serialization))
        async with asyncio.timeout(TIMEOUT_S):
            return await answer

    async def call(
        self, code: int, fields: Mapping[str, object] | None = None, body: bytes = b""
    ) -> RemotingCommand:
        """Send a request and return its answer.

        Raises:
            RemotingRefusedError: the answer's code is not SUCCESS.
        """
        answer = await self.ask(code, fields, body)
        if answer.code != ResponseCode.SUCCESS:
            raise RemotingRefusedError(answer)
        return answer

    def write(self, data: bytes) -> None:
        """Write bytes as they are."""
        self._output.write(data)

    async def route(self, topic: str) -> Any:
        """Return the route of a topic."""
        answer = await self.call(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic})
        return json.loads(answer.body)

    async def send(
        self, topic: str, body: bytes, queue: int = 0, flags: int = 0, **properties: str
    ) -> RemotingCommand:
        """Send one message with the header of SEND_MESSAGE_V2."""
        return await self.call(
            RequestCode.SEND_MESSAGE_V2, send_fields(topic, queue, flags, **properties), body
        )

    async def heartbeat(
        self,
        client_id: str,
        group: str,
        subscriptions: Mapping[str, str],
        *,
        producers: Sequence[str] = (),
    ) -> RemotingCommand:
        """Tell that a consumer lives; no group: a mere producer, of the groups `producers`."""
        data = {
            "clientID": client_id,
            "producerDataSet": [{"groupName": name} for name in producers],
            "consumerDataSet": [
                {
                    "groupName": group,
                    "messageModel": "CLUSTERING",
                    "subscriptionDataSet": [
                        {"topic": topic, "subString": expression, "expressionType": "TAG"}
                        for topic, expression in subscriptions.items()
                    ],
                }
            ]
            if group
            else [],
        }
        return await self.call(RequestCode.HEART_BEAT, body=json.dumps(data).encode())

    async def pull(
        self, topic: str, group: str, queue: int, offset: int, *, wait_ms: int = 0, tags: str = "*"
    ) -> tuple[RemotingCommand, list[PulledMessage]]:
        """Pull with a subscription of its own."""
        fields = {
            "consumerGroup": group,
            "topic": topic,
            "queueId": queue,
            "queueOffset": offset,
            "maxMsgNums": 32,
            "sysFlag": 0b110 if wait_ms else 0b100,
            "commitOffset": 0,
            "suspendTimeoutMillis": wait_ms,
            "subscription": tags,
            "subVersion": 0,
            "expressionType": "TAG",
        }
        answer = await self.ask(RequestCode.PULL_MESSAGE, fields)
        return answer, decode_messages(answer.body)

    async def pop(
        self,
        topic: str,
        group: str,
        *,
        queue: int = -1,
        invisible_ms: int = 60_000,
        wait_ms: int = 0,
        **fields: object,
    ) -> tuple[RemotingCommand, list[PulledMessage]]:
        """Pop as Java's push consumers do."""
        wanted = {
            "consumerGroup": group,
            "topic": topic,
            "queueId": queue,
            "maxMsgNums": 32,
            "invisibleTime": invisible_ms,
            "pollTime": wait_ms,
            "bornTime": 1_700_000_000_000,
            "initMode": 0,
            "expType": "TAG",
            "exp": "*",
            "order": "false",
        }
        answer = await self.ask(RequestCode.POP_MESSAGE, wanted | fields)
        return answer, decode_messages(answer.body)

    async def ack_pop(
        self, group: str, message: PulledMessage, extra_info: str | None = None
    ) -> RemotingCommand:
        """Ack a popped message, by the extra info that came with it or by another one."""
        return await self.ask(RequestCode.ACK_MESSAGE, popped_fields(group, message, extra_info))

    async def change_pop(
        self, group: str, message: PulledMessage, invisible_ms: int
    ) -> RemotingCommand:
        """Change when a popped message is visible again."""
        fields = popped_fields(group, message) | {"invisibleTime": invisible_ms}
        return await self.ask(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, fields)

    async def batch_ack(
        self, group: str, messages: Sequence[PulledMessage], **changes: object
    ) -> RemotingCommand:
        """Ack popped messages as RocketMQ's Java client does, by numbers of their extra infos.

        Args:
            group: consumer group.
            messages: popped.
            changes: fields of each element that have other values.
        """
        body = {"acks": batch_acks(group, messages, **changes), "brokerName": "any"}
        return await self.ask(RequestCode.BATCH_ACK_MESSAGE, body=json.dumps(body).encode())

    async def notification(
        self, topic: str, group: str, *, queue: int = -1, wait_ms: int = 0
    ) -> RemotingCommand:
        """Ask whether something can be popped."""
        fields = {
            "consumerGroup": group,
            "topic": topic,
            "queueId": queue,
            "pollTime": wait_ms,
            "bornTime": 1_700_000_000_000,
        }
        return await self.ask(RequestCode.NOTIFICATION, fields)

    async def peek(
        self, topic: str, group: str, *, queue: int = -1, most: int = 32
    ) -> tuple[RemotingCommand, list[PulledMessage]]:
        """Read what could be popped."""
        fields = {
            "consumerGroup": group,
            "topic": topic,
            "queueId": queue,
            "maxMsgNums": most,
        }
        answer = await self.ask(RequestCode.PEEK_MESSAGE, fields)
        return answer, decode_messages(answer.body)

    def _answer(self, asked: RemotingCommand) -> None:
        """Answer a request of the broker, if it wants an answer."""
        if self.answers is not None and not asked.is_oneway and not asked.is_response:
            self.write(encode_frame(asked.answered(self.answers, "as told"), self._serialization))

    async def _read(self) -> None:
        frames = RemotingFrameReader(FrameLimits(max_frame_bytes=64 * 1024 * 1024))
        try:
            while data := await self._input.read(65_536):
                frames.feed(data)
                for frame in frames.frames():
                    waiting = self._waiting.pop(frame.command.opaque, None)
                    if frame.command.is_response and waiting is not None:
                        waiting.set_result(frame.command)
                    else:
                        self.told.append(frame.command)
                        self._answer(frame.command)
        except ConnectionError:
            pass
        finally:
            self.ended.set()
            for waiting in self._waiting.values():
                if not waiting.done():
                    waiting.set_exception(ConnectionResetError("the connection ended"))


def signed(command: RemotingCommand, keys: tuple[str, str] | None) -> RemotingCommand:
    """Return a request with the signature that Java's AclClientRPCHook would give it."""
    if keys is None:
        return command
    with_key = replace(command, fields={**command.fields, ACCESS_KEY: keys[0]})
    digest = hmac.digest(keys[1].encode(), with_key.signed_content(), "sha1")
    return replace(
        with_key, fields={**with_key.fields, SIGNATURE: base64.b64encode(digest).decode()}
    )


def batch_acks(
    group: str, messages: Sequence[PulledMessage], **changes: object
) -> list[dict[str, object]]:
    """The elements of a batch ack: one for each queue, first offset and time of a pop."""
    found: dict[tuple[str, ...], dict[str, object]] = {}
    bits: dict[tuple[str, ...], int] = {}
    for message in messages:
        words = decode_properties(message.properties)["POP_CK"].split(" ")
        key: tuple[str, ...] = (words[4], words[6], words[0], words[1])
        found.setdefault(
            key,
            {
                "c": group,
                "t": message.topic,
                "r": words[4],
                "so": int(words[0]),
                "q": int(words[6]),
                "rq": int(words[3]),
                "pt": int(words[1]),
                "it": int(words[2]),
            },
        )
        bits[key] = bits.get(key, 0) | 1 << (int(words[7]) - int(words[0]))
    for key, element in found.items():
        data = bits[key].to_bytes(bits[key].bit_length() // 8 + 1, "little")
        element["b"] = base64.b64encode(data).decode()
    return [element | changes for element in found.values()]


def popped_fields(
    group: str, message: PulledMessage, extra_info: str | None = None
) -> dict[str, object]:
    """The header of a request about a popped message."""
    return {
        "consumerGroup": group,
        "topic": message.topic,
        "queueId": message.queue_id,
        "offset": message.queue_offset,
        "extraInfo": extra_info or decode_properties(message.properties)["POP_CK"],
    }


def send_fields(topic: str, queue: int = 0, flags: int = 0, **properties: str) -> dict[str, object]:
    """The header of a SEND_MESSAGE_V2."""
    return {
        "a": "producers",
        "b": topic,
        "c": "TBW102",
        "d": 4,
        "e": queue,
        "f": flags,
        "g": 1_700_000_000_000,
        "h": 0,
        "i": encode_properties(properties),
        "j": 0,
        "k": "false",
        "m": "false",
    }
