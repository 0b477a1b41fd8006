"""A connector: sends the lines of a file to a topic and keeps its position in StrataMQ.

    python docs/examples/file_connector.py --file orders.txt --topic orders

The position is an item of the table `connector-positions`, moved by compare-and-set after every
batch of lines is stored. Killed at any moment and started again, the connector goes on exactly
where it was:

- the message id of a line is made of the connector's name and of where the line begins, so a line
  that is sent again because the position was not moved in time is stored once (a broker knows the
  ids of the last minutes);
- the position names the version it was read with, so of two connectors with one name only one
  moves on: the other one stops.

It needs grpcio and StrataMQ's `strata-kv` and `strata-proto`, and a node with `plugins = ["kv"]`.
"""

from __future__ import annotations

import argparse
import hashlib
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import grpc

from apache.rocketmq.v2 import definition_pb2, service_pb2, service_pb2_grpc
from strata_kv.client import KvClient, Table
from strata_kv.errors import KvUnknownOutcomeError

POSITIONS = "connector-positions"
LINES_PER_BATCH = 100
PAUSE_S = 0.2


class Line(NamedTuple):
    """A line without its end, and where it begins and the next one begins, in bytes."""

    text: bytes
    begins_at: int
    ends_at: int


class Position:
    """How far a connector has come: an item that only its owner moves.

    Args:
        table: where it is kept.
        name: of the connector.
    """

    def __init__(self, table: Table, name: str) -> None:
        self._table = table
        self._key = name.encode()
        item = table.get(self._key)
        self.offset = 0 if item is None else int(item.value)
        self._version = 0 if item is None else item.version

    def move(self, offset: int) -> None:
        """Move to an offset.

        Raises:
            SystemExit: another connector of this name moved it.
        """
        value = b"%d" % offset
        try:
            moved = self._table.compare_and_set(self._key, value, version=self._version)
        except KvUnknownOutcomeError:
            # The answer was lost: it was moved by us, or it is where it was.
            item = self._table.get(self._key)
            if item is not None and (item.version, item.value) == (self._version + 1, value):
                self.offset, self._version = offset, item.version
                return
            return self.move(offset)
        if not moved.done:
            raise SystemExit(f"another connector works on {self._key.decode()}: {moved.current}")
        self.offset, self._version = offset, moved.version


class Topic:
    """Sends lines to one topic.

    Args:
        channel: to a broker.
        name: of the topic.
        connector: name of the connector; makes message ids.
    """

    def __init__(self, channel: grpc.Channel, name: str, connector: str) -> None:
        self._stub = service_pb2_grpc.MessagingServiceStub(channel)
        self._topic = definition_pb2.Resource(name=name)
        self._connector = connector

    def send(self, lines: Sequence[Line]) -> None:
        """Store lines, in their order; repeats until the broker has them.

        Raises:
            SystemExit: the broker refuses them.
        """
        request = service_pb2.SendMessageRequest(messages=map(self._message, lines))
        while True:
            try:
                response = self._stub.SendMessage(request, timeout=5, metadata=_metadata())
            except grpc.RpcError as failure:
                if failure.code() not in (
                    grpc.StatusCode.UNAVAILABLE,
                    grpc.StatusCode.DEADLINE_EXCEEDED,
                ):
                    raise SystemExit(failure.details()) from None
            else:
                if response.status.code == definition_pb2.Code.OK:
                    return
                if response.status.code < 42_900:
                    raise SystemExit(response.status.message)
            time.sleep(PAUSE_S)

    def _message(self, line: Line) -> definition_pb2.Message:
        message = definition_pb2.Message(topic=self._topic, body=line.text)
        properties = message.system_properties
        properties.message_id = self._message_id(line)
        properties.body_encoding = definition_pb2.Encoding.IDENTITY
        # One group: consumers get the lines in their order.
        properties.message_group = self._connector
        properties.message_type = definition_pb2.MessageType.FIFO
        properties.born_timestamp.GetCurrentTime()
        properties.born_host = socket.gethostname()
        return message

    def _message_id(self, line: Line) -> str:
        """Return the same id whenever this line is sent: version 01 and 16 bytes."""
        name = f"{self._connector}:{line.begins_at}".encode()
        return "01" + hashlib.blake2b(name, digest_size=16).hexdigest().upper()


def read_lines(file: Path, offset: int, count: int) -> list[Line]:
    """Return whole lines from an offset on; none: there is no more yet."""
    lines: list[Line] = []
    with file.open("rb") as source:
        source.seek(offset)
        while len(lines) < count:
            text = source.readline()
            if not text.endswith(b"\n"):
                # Somebody still writes it.
                break
            lines.append(Line(text[:-1], offset, offset + len(text)))
            offset += len(text)
    return lines


def run(arguments: argparse.Namespace) -> None:
    """Send what is in the file; with --follow also what comes."""
    channel = grpc.insecure_channel(arguments.endpoint)
    with KvClient(arguments.endpoint) as client:
        position = Position(client.table(POSITIONS), arguments.name)
        print(f"at {position.offset}", flush=True)
        topic = Topic(channel, arguments.topic, arguments.name)
        while True:
            lines = read_lines(arguments.file, position.offset, LINES_PER_BATCH)
            if lines:
                topic.send(lines)
                position.move(lines[-1].ends_at)
            elif arguments.follow:
                time.sleep(PAUSE_S)
            else:
                break
    channel.close()
    print(f"done at {position.offset}", flush=True)


def _metadata() -> tuple[tuple[str, str], ...]:
    return (("x-mq-client-id", f"file-connector@{socket.gethostname()}"),)


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--file", type=Path, required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--name", default="file-connector")
    parser.add_argument("--endpoint", default="127.0.0.1:8081")
    parser.add_argument("--follow", action="store_true")
    run(parser.parse_args())
    return 0


if __name__ == "__main__":
    sys.exit(main())
