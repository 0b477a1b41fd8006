"""Every RPC on a real node, on the port for clients and on the operators' port, by who calls it.

The matrix of all rights is `tests/integration/broker/test_access_matrix.py`, whose nameserver and
storage node are doubles; here everything behind the broker is real.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import NamedTuple

import grpc
import pytest

from strata_mq.access import Session
from strata_testing.broker.keys import signed
from tests.e2e.leftovers import free_disk
from tests.integration.broker.access_calls import (
    ADMIN,
    CONTAINER,
    GROUP,
    LET_IN,
    NAMESPACE,
    PEER,
    STRATA,
    TABLE,
    TOPIC,
    call,
)
from tests.integration.broker.test_access_matrix import ADMINS, RIGHTS
from tests.integration.cli.conftest import Node

NOBODY, OWNER = "nobody", "owner"
# Other brokers have a port of their own, and so has a container.
SERVED = sorted(name for name in RIGHTS if not name.startswith((PEER, CONTAINER)))
OPERATED = [name for name in SERVED if name.startswith((STRATA, ADMIN))]


class Scene(NamedTuple):
    """A node with users.

    Attributes:
        ports: addresses, by what they are for.
        secrets: secret keys by user.
        session: temporary keys of the owner.
    """

    ports: dict[str, str]
    secrets: dict[str, str]
    session: Session


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """A node that controls access: an admin, a user without policies, one with all rights."""
    folder = tmp_path_factory.mktemp("access") / "data"
    node = Node(
        folder,
        *("--access-control", "on", "--admin-port", "0", "--plugins", "kv"),
        environment={"STRATA_ACCESS_CONTROL_MAX_WRONG_SIGNATURES": "100000"},
    )
    try:
        fields = dict(part.split("=", 1) for part in node.ready_line.split()[1:])
        admin = json.loads((folder / "first-admin.json").read_text())
        root, secret = admin["access_key"], admin["secret_key"]
        keys = {"STRATA_ACCESS_KEY": root, "STRATA_SECRET_KEY": secret}
        with pytest.MonkeyPatch.context() as environment:
            for name, value in keys.items():
                environment.setenv(name, value)
            secrets = {
                user: node.json("user", "create", user)["secret_key"] for user in (NOBODY, OWNER)
            }
            node.json(
                *("policy", "create", OWNER, "--resource", "*", "--actions", "all"),
                *("--decision", "allow"),
            )
            node.json("topic", "create", TOPIC, "--namespace", NAMESPACE)
            node.json("group", "create", GROUP, "--namespace", NAMESPACE)
            node.json("kv", "create", TABLE, "--namespace", NAMESPACE)
            made = node.json("user", "session", OWNER, "--duration", "10m")
        session = Session(OWNER, made["secret_key"], made["session_token"], 0)
        ports = {"clients": fields["grpc"], "operators": fields["admin"]}
        yield Scene(ports, {root: secret, **secrets}, session)
    finally:
        code, _, err = node.stop()
        assert code == 0, err[-2_000:]
        assert "Traceback" not in err
        free_disk(folder)


@pytest.mark.parametrize("port", ["clients", "operators"])
async def test_every_rpc_asks_who_calls(scene: Scene, port: str) -> None:
    """No key, a wrong key, an expired date; a user without policies; all rights; temporary keys."""
    async with grpc.aio.insecure_channel(scene.ports[port]) as channel:
        for name in SERVED if port == "clients" else OPERATED:
            assert (await call(channel, name, {})).outcome == "UNAUTHORIZED", name
            wrong = signed(OWNER, "wrong")
            assert (await call(channel, name, wrong)).outcome == "UNAUTHORIZED", name
            stranger = await call(channel, name, signed(NOBODY, scene.secrets[NOBODY]))
            wanted = "FORBIDDEN" if RIGHTS[name] else "let in"
            assert stranger.outcome == wanted, (name, stranger)


@pytest.mark.parametrize("port", ["clients", "operators"])
async def test_every_rpc_lets_in_who_may(scene: Scene, port: str) -> None:
    """All rights do, but not for what only admins may; temporary keys are as good as others."""
    temporary = signed(OWNER, scene.session.secret_key, token=scene.session.token)
    async with grpc.aio.insecure_channel(scene.ports[port]) as channel:
        for name in SERVED if port == "clients" else OPERATED:
            if name.endswith(("/DeleteTopic", "/DeleteConsumerGroup", "/DeleteTable")):
                # The other users need what these calls delete.
                continue
            for keys in (signed(OWNER, scene.secrets[OWNER]), temporary):
                answer = await call(channel, name, keys)
                if RIGHTS[name] == ADMINS:
                    assert answer.outcome == "FORBIDDEN", name
                else:
                    assert answer == LET_IN, name


async def test_an_admin_may_do_everything(scene: Scene) -> None:
    """On both ports; the last calls delete what the others used."""
    root, *_ = scene.secrets
    keys = signed(root, scene.secrets[root])
    last = [name for name in SERVED if "/Delete" in name]
    for port, names in (("clients", SERVED), ("operators", OPERATED)):
        async with grpc.aio.insecure_channel(scene.ports[port]) as channel:
            for name in [one for one in names if one not in last] + [
                one for one in last if one in names
            ]:
                assert await call(channel, name, keys) == LET_IN, name
