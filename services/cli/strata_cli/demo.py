"""`make run`: a standalone node, a topic, and messages through the v2 protocol, all checked.

The node is a separate process, started and stopped like any other, so the demonstration shows what
a user gets.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from apache.rocketmq.v2 import definition_pb2
from strata.admin.v1 import admin_pb2
from strata.meta.v1 import meta_pb2
from strata_cli import messaging
from strata_cli.client import AdminClient, connect
from strata_cli.errors import CliError
from strata_cli.options import DEFAULT_ENDPOINT, Common
from strata_cli.views import message_view

TOPIC = "demo"
GROUP = "demo-readers"
MESSAGES = 3

_STOP_TIMEOUT_S = 30.0


def run(data_dir: Path, *, once: bool) -> None:
    """Run the demonstration.

    Args:
        data_dir: of the node.
        once: end after the messages instead of staying up until Ctrl-C.

    Raises:
        CliError: the node did not start, or a message did not come back.
    """
    # SIGTERM must end the node too, as Ctrl-C does.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    print(f"Starting a standalone node, its data in {data_dir} ...", flush=True)
    with _node(data_dir) as (process, fields):
        endpoint = fields["grpc"]
        print(f"It serves clients at {endpoint}, TLS and plaintext.", flush=True)
        with connect(Common(endpoint=endpoint)) as client:
            _create_topic(client)
            _send_and_receive(client)
        if once:
            return
        print(f"\nTry it:  .venv/bin/strata topic list --endpoint {endpoint}", flush=True)
        if "console" in fields:
            print(f"Look at it:  http://{fields['console']}/", flush=True)
        print("The node stays up until Ctrl-C.", flush=True)
        try:
            status = process.wait()
        except KeyboardInterrupt:
            print("\nStopping.", flush=True)
            return
        raise CliError(f"the node ended by itself with status {status}")


@contextmanager
def _node(data_dir: Path) -> Iterator[tuple[subprocess.Popen[str], dict[str, str]]]:
    """Run a node; yield its process and the fields of its ready line."""
    port = _default_port_or_any()
    process = subprocess.Popen(  # noqa: S603 - our own program
        [
            *(sys.executable, "-m", "strata_cli.main", "standalone"),
            *("--data-dir", str(data_dir), "--grpc-port", str(port)),
        ],
        # A terminal is for what the demonstration says.
        env={"STRATA_NODE_AUDIT_LOG": "false"} | os.environ,
        stdout=subprocess.PIPE,
        text=True,
        # Ctrl-C is for us; the node gets SIGTERM from here, once.
        start_new_session=True,
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line.startswith("ready "):
            raise CliError("the node did not start; the reason is above")
        fields = dict(field.split("=", 1) for field in line.split()[1:])
        yield process, fields
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _default_port_or_any() -> int:
    """Return the default port if it is free, else 0."""
    host, _, port = DEFAULT_ENDPOINT.rpartition(":")
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, int(port)))
        except OSError:
            return 0
    return int(port)


def _create_topic(client: AdminClient) -> None:
    listed = client.call(client.admin.ListTopics, admin_pb2.ListTopicsRequest(namespace=""))
    if any(topic.name == TOPIC for topic in listed.topics):
        print(f"Topic {TOPIC} is there from an earlier run.")
        return
    topic = meta_pb2.Topic(name=TOPIC, type=meta_pb2.TOPIC_TYPE_NORMAL, queue_count=4)
    request = admin_pb2.CreateTopicRequest(topic=topic)
    created = client.call(client.admin.CreateTopic, request).topic
    print(f"Created topic {created.name} with {created.queue_count} queues.")


def _send_and_receive(client: AdminClient) -> None:
    topic = definition_pb2.Resource(name=TOPIC)
    group = definition_pb2.Resource(name=GROUP)
    sent = set()
    for number in range(1, MESSAGES + 1):
        outgoing = messaging.Outgoing(
            topic=topic,
            body=f"Hello, message {number}".encode(),
            tag="greeting",
            keys=[f"hello-{number}"],
            message_group="",
            properties={"number": str(number)},
        )
        receipt = messaging.send(client, outgoing)
        sent.add(receipt.message_id)
        print(f"sent      {receipt.message_id}  offset {receipt.offset}")
    missing = set(sent)
    while missing:
        received = messaging.receive(
            client, topic, group, count=MESSAGES, tag="*", wait_s=10, invisible_s=30
        )
        if not received:
            raise CliError(f"{len(missing)} of {len(sent)} messages did not come back")
        messaging.acknowledge(client, group, received)
        for message in received:
            view = message_view(message)
            missing.discard(view["message_id"])
            place = f"queue {view['queue']} offset {view['offset']}"
            print(f"received  {view['message_id']}  {place}  {view['body']!r}  acked")
    print(f"All {len(sent)} messages came back.")


if __name__ == "__main__":
    from strata_cli.main import run as run_command

    sys.exit(run_command(["demo", *sys.argv[1:]]))
