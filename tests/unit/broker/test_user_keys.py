"""Keys that operators ask for, when the answer of a nameserver is lost and the call repeated."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from strata.meta.v1 import meta_pb2
from strata_broker.base.config import BrokerConfig
from strata_broker.metadata.metadata import MetadataView
from strata_broker.operators.access import AccessOperations
from strata_testing import ManualClock


class Nameserver:
    """Keeps what it is asked; the client sends the same bytes at each try."""

    def __init__(self) -> None:
        self.asked: list[Any] = []

    async def call(self, rpc: str, request: Any, response_type: type[Any]) -> Any:
        self.asked.append(request)
        response = response_type()
        if rpc != "RotateClusterKey":
            response.user.CopyFrom(request.user)
        return response


def operations() -> tuple[AccessOperations, Nameserver]:
    nameserver, view = Nameserver(), MetadataView()
    rows = [meta_pb2.ClusterKey(key_id=key_id, secret=bytes(32)) for key_id in (6, 7)]
    changes = [meta_pb2.Change(cluster_key=row) for row in rows]
    view.apply(meta_pb2.WatchResponse(revision=1, changes=changes))
    meta = cast(Any, SimpleNamespace(call=nameserver.call))
    made = AccessOperations(view, meta, config=BrokerConfig(), clock=ManualClock())
    return made, nameserver


async def test_keys_of_users_are_made_before_the_call() -> None:
    """A nameserver that made one at each try would void the one before, which clients use."""
    access, nameserver = operations()
    created = await access.create_user("shop", "", admin=False)
    rotated = await access.rotate_key("shop", "", 1_000)
    given = await access.rotate_key("shop", "a-secret-of-the-test", 1_000)
    sent = [request.user.secret_key for request in nameserver.asked]
    assert sent == [created.secret_key, rotated.secret_key, given.secret_key]
    assert [len(key) for key in sent] == [32, 32, 20]
    assert sent[0] != sent[1]


async def test_a_rotation_names_the_cluster_key_that_it_replaces() -> None:
    """So its repeat finds that it is replaced."""
    access, nameserver = operations()
    await access.rotate_cluster_key()
    assert nameserver.asked[0].newest_key_id == 7
