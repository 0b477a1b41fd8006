"""Receipt handles of a real node while the key of the cluster rotates."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.e2e.client import Client, Delivered, RefusedError

if TYPE_CHECKING:
    from tests.integration.cli.conftest import Node, StartNode

TOPIC, GROUP = "orders", "readers"
INVISIBLE_S = 60


@pytest.fixture
def node(start_node: StartNode, monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    """A node that controls access; a new cluster key signs at once."""
    node = start_node("--access-control", "on", STRATA_ACCESS_CONTROL_CLUSTER_KEY_DELAY_MS="0")
    admin = json.loads((node.data_dir / "first-admin.json").read_text())
    monkeypatch.setenv("STRATA_ACCESS_KEY", admin["access_key"])
    monkeypatch.setenv("STRATA_SECRET_KEY", admin["secret_key"])
    node.json("topic", "create", TOPIC)
    yield node


def keys_of(node: Node) -> tuple[str, str]:
    admin = json.loads((node.data_dir / "first-admin.json").read_text())
    return admin["access_key"], admin["secret_key"]


async def given(client: Client) -> Delivered:
    """Send a message and take a lease on it."""
    await client.send(TOPIC, [(client.new_message_id(), b"x")])
    async with asyncio.timeout(30):
        while True:
            for queue in await client.queues(TOPIC):
                for message in await client.receive(queue, GROUP, poll_s=1):
                    return message


async def test_a_handle_outlives_one_rotation_and_not_two(node: Node) -> None:
    """Two keys are valid while one takes the place of the other."""
    rotate = ("cluster", "rotate-key")
    async with Client(node.endpoint, invisible_s=INVISIBLE_S, keys=keys_of(node)) as client:
        kept = await given(client)
        await asyncio.to_thread(node.json, *rotate)
        await client.ack(TOPIC, GROUP, [kept])
        lost = await given(client)
        await asyncio.to_thread(node.json, *rotate)
        again = await given(client)
        await asyncio.to_thread(node.json, *rotate)
        with pytest.raises(RefusedError, match="INVALID_RECEIPT_HANDLE"):
            await client.ack(TOPIC, GROUP, [lost])
        await client.ack(TOPIC, GROUP, [again])
