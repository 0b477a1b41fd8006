"""A real RocketMQ 5.5 with access control is copied: users, keys, rights, and messages."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from strata_remoting import AdminCode, RequestCode
from strata_testing.remoting_client import RemotingClient
from tests.e2e.standalone import Standalone
from tests.parts.rocketmq import KEYS, RocketMq

# The servers of RocketMQ need up to a minute to start.
pytestmark = pytest.mark.timeout(300)
SHOP = {"username": "shop", "password": "shopsecret1", "userType": "Normal"}
OLD = {"username": "old", "password": "oldsecret12", "userType": "Normal"}
ENTRIES = [
    {"resource": "Topic:orders*", "actions": ["Pub", "Sub"], "decision": "Allow"},
    {"resource": "Topic:orders-x", "actions": ["Pub"], "decision": "Deny"},
    {
        "resource": "Group:*",
        "actions": ["Sub"],
        "sourceIps": ["127.0.0.1", "10.0.0.0/8"],
        "decision": "Allow",
    },
]


@pytest.fixture
def rocketmq(tmp_path: Path) -> Iterator[RocketMq]:
    """The source, which checks signatures and rights."""
    folder = tmp_path / "rocketmq"
    folder.mkdir()
    servers = RocketMq(folder, has_access_control=True)
    try:
        servers.start()
        yield servers
    finally:
        servers.stop()


@pytest.fixture
def target(tmp_path: Path) -> Iterator[Standalone]:
    """The target."""
    node = Standalone(tmp_path / "data")
    node.start()
    yield node
    node.close()


async def furnish(broker: str) -> None:
    """Make users, an ACL, a topic and messages, as the super user."""
    async with RemotingClient(broker, keys=KEYS) as client:

        async def call(code: int, fields: dict[str, Any], body: object = None) -> None:
            await client.call(code, fields, b"" if body is None else json.dumps(body).encode())

        for user in (SHOP, OLD):
            await call(AdminCode.AUTH_CREATE_USER, {"username": user["username"]}, user)
        await call(
            AdminCode.AUTH_UPDATE_USER,
            {"username": "old"},
            {"username": "old", "userStatus": "disable"},
        )
        subject = "User:shop"
        policies = [{"policyType": "Custom", "entries": ENTRIES}]
        await call(
            AdminCode.AUTH_CREATE_ACL,
            {"subject": subject},
            {"subject": subject, "policies": policies},
        )
        topic = {
            **{"topic": "orders", "defaultTopic": "TBW102", "readQueueNums": "1"},
            **{"writeQueueNums": "1", "perm": "6", "topicFilterType": "SINGLE_TAG"},
            **{"topicSysFlag": "0", "order": "false", "attributes": "+message.type=NORMAL"},
        }
        await call(RequestCode.UPDATE_AND_CREATE_TOPIC, topic)
        for number in range(5):
            await client.send("orders", b"order-%d" % number, 0, UNIQ_KEY=f"ORDER{number}")


def test_users_rights_and_messages_move(
    rocketmq: RocketMq, target: Standalone, tmp_path: Path
) -> None:
    """With the keys of a super user; the secret keys of applications stay what they were."""
    asyncio.run(furnish(rocketmq.broker))
    keys = tmp_path / "tools.yml"
    keys.write_text(f"accessKey: {KEYS[0]}\nsecretKey: {KEYS[1]}\n")
    signed = ("--source-keys", str(keys))
    copied = target.strata("migrate", "access", rocketmq.nameserver, *signed)
    rows = {row["user"]: row for row in copied["users"]}
    assert {name: (row["admin"], row["disabled"]) for name, row in rows.items()} == {
        "old": (False, True),
        "rocketmq": (True, False),
        "shop": (False, False),
    }
    assert {row["secret_key"] for row in rows.values()} == {""}, "the source told them"
    assert {
        (one["resource"], one["decision"], tuple(one["sources"]))
        for one in rows["shop"]["policies"]
    } == {
        ("topic:orders*", "allow", ()),
        ("topic:orders-x", "deny", ()),
        ("group:*", "allow", ("10.0.0.0/8", "127.0.0.1/32")),
    }
    assert [row["notes"] for row in rows.values()] == [[], [], []]
    again = target.strata("migrate", "access", rocketmq.nameserver, *signed)
    assert [(row["exists"], row["policies"]) for row in again["users"]] == [(True, [])] * 3

    state = ("--state", str(tmp_path / "state.db"), "--topic", "orders")
    done = target.strata("migrate", "run", rocketmq.nameserver, *signed, *state)
    assert (done["messages"], done["refused"]) == (5, 0)
