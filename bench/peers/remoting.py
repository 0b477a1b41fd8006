"""Enough of RocketMQ's remoting protocol to create topics and consumer groups without a JVM each.

A frame is its length (4 bytes), the length of its header (4), a header in JSON, and a body.
"""

from __future__ import annotations

import itertools
import json
import re
import socket
import struct
from typing import Any

from bench.peers.errors import PeerError

TIMEOUT_S = 10.0
SUCCESS = 0
UPDATE_TOPIC, ROUTE_OF_TOPIC, CLUSTER_INFO, UPDATE_GROUP = 17, 105, 106, 200
READ_AND_WRITE = 6
MASTER = "0"

_numbers = itertools.count(1)


def call(address: str, code: int, fields: dict[str, str], body: bytes = b"") -> bytes:
    """Call a name server or broker; return the body of its answer.

    Args:
        address: HOST:PORT.
        code: of the request.
        fields: of the request's header.
        body: of the request.

    Raises:
        OSError: no connection.
        PeerError: it refused; the text says why.
    """
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=TIMEOUT_S) as connection:
        connection.sendall(encode(code, fields, body))
        length = int.from_bytes(_read(connection, 4), "big")
        header, answer = decode(_read(connection, length))
    if header["code"] != SUCCESS:
        raise PeerError(f"{address} answered {header['code']}: {header.get('remark', '')[:300]}")
    return answer


def encode(code: int, fields: dict[str, str], body: bytes) -> bytes:
    """Return a request as a frame."""
    header = json.dumps(
        {
            "code": code,
            "language": "JAVA",
            "version": 501,
            "opaque": next(_numbers),
            "flag": 0,
            "extFields": fields,
            "serializeTypeCurrentRPC": "JSON",
        }
    ).encode()
    return struct.pack(">II", 4 + len(header) + len(body), len(header)) + header + body


def decode(frame: bytes) -> tuple[dict[str, Any], bytes]:
    """Return header and body of a frame whose length was taken off."""
    # The highest byte is the serialization of the header: 0 is JSON.
    length = int.from_bytes(frame[:4], "big") & 0xFFFFFF
    header = json.loads(frame[4 : 4 + length])
    assert isinstance(header, dict)
    return header, frame[4 + length :]


def create_topic(broker: str, topic: str, queues: int) -> None:
    """Create a topic of normal messages at a broker.

    Raises:
        OSError: no connection.
        PeerError: the broker refused.
    """
    fields = {
        "topic": topic,
        "defaultTopic": "TBW102",
        "readQueueNums": str(queues),
        "writeQueueNums": str(queues),
        "perm": str(READ_AND_WRITE),
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": "0",
        "order": "false",
        "attributes": "+message.type=NORMAL",
    }
    call(broker, UPDATE_TOPIC, fields)


def create_group(broker: str, group: str) -> None:
    """Create a consumer group at a broker.

    Raises:
        OSError: no connection.
        PeerError: the broker refused.
    """
    settings = {
        "groupName": group,
        "consumeEnable": True,
        "consumeFromMinEnable": True,
        "consumeBroadcastEnable": True,
        "retryQueueNums": 1,
        "retryMaxTimes": 16,
        "brokerId": 0,
        "whichBrokerWhenConsumeSlowly": 1,
        "notifyConsumerIdsChangedEnable": True,
    }
    call(broker, UPDATE_GROUP, {}, json.dumps(settings).encode())


def has_route(name_server: str, topic: str) -> bool:
    """Whether a name server knows a topic.

    Raises:
        OSError: no connection.
        PeerError: it does not know the topic.
    """
    return bool(call(name_server, ROUTE_OF_TOPIC, {"topic": topic}))


def masters(name_server: str) -> list[str]:
    """Return the addresses of the masters that a name server knows.

    Raises:
        OSError: no connection.
        PeerError: the name server refused.
    """
    return masters_in(call(name_server, CLUSTER_INFO, {}).decode())


def masters_in(text: str) -> list[str]:
    """Return the masters in a cluster's description: JSON whose numeric keys lack their quotes.

    Raises:
        PeerError: it is something else.
    """
    # A DLedger broker has the number -1 until a leader is elected.
    quoted = re.sub(r"([{,])(-?\d+):", r'\1"\2":', text)
    try:
        table = json.loads(quoted)["brokerAddrTable"]
    except (ValueError, KeyError) as error:
        raise PeerError(f"a cluster's description cannot be read: {error}: {text[:300]}") from None
    found = (broker["brokerAddrs"].get(MASTER, "") for broker in table.values())
    return sorted(address for address in found if address)


def _read(connection: socket.socket, count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        part = connection.recv(count - len(data))
        if not part:
            raise ConnectionError("the connection was closed")
        data += part
    return bytes(data)
