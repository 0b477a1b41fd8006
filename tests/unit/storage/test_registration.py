"""A storage node registers, heartbeats, and registers again where it was forgotten."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from google.protobuf.message import Message

from strata.meta.v1 import meta_pb2 as meta
from strata_storage.cluster.registration import Registration, RegistrationError


class FakeNameserver:
    """A channel to a nameserver that answers with prepared outcomes and notes the requests."""

    def __init__(self, *outcomes: meta.MetaOutcome.ValueType) -> None:
        self.outcomes = list(outcomes)
        self.requests: list[Message] = []

    async def call(
        self,
        method: str,
        request: Message,
        response_type: type[Any],
        *,
        timeout_s: float | None = None,
    ) -> Any:
        """See `strata_angelia.ports.Channel`."""
        assert method.startswith("/strata.meta.v1.MetaService/")
        assert timeout_s == 5
        self.requests.append(request)
        outcome = self.outcomes.pop(0)
        response = response_type(status=meta.MetaStatus(outcome=outcome, reason="because"))
        if response_type is meta.RegisterNodeResponse:
            row = meta.RaftGroup(
                raft_group=3, replicas=[meta.Replica(replica_id=8, node_id="storage-a")]
            )
            slots = meta.SlotRange(first_slot=10, slot_count=4, raft_group=3)
            response.replicas.add(raft_group=row, replica_id=8, slots=[slots])
        return response

    async def stream(
        self, method: str, request: Message, response_type: type[Any]
    ) -> AsyncIterator[Any]:
        """See `strata_angelia.ports.Channel`."""
        raise AssertionError("a registration needs unary calls only")
        yield

    async def close(self) -> None:
        """See `strata_angelia.ports.Channel`."""


def registration(nameserver: FakeNameserver) -> Registration:
    """A storage node's."""
    return Registration(
        nameserver,
        "storage-a",
        ["inproc:storage"],
        boot_id=77,
        timeout_s=5,
    )


async def test_registering_tells_what_is_hosted() -> None:
    """The node tells its id, address and boot, and learns replicas, peers and slots."""
    nameserver = FakeNameserver(meta.META_OUTCOME_OK)
    (hosted,) = await registration(nameserver).register()
    assert (hosted.raft_group, hosted.replica_id) == (3, 8)
    assert hosted.nodes == {8: "storage-a"}
    assert list(hosted.slots) == [(10, 4)]
    node = meta.Node(
        node_id="storage-a",
        kind=meta.NODE_KIND_STORAGE,
        endpoints=["inproc:storage"],
        boot_id=77,
    )
    assert nameserver.requests == [meta.RegisterNodeRequest(node=node)]


async def test_a_heartbeat_that_is_not_known_registers_again() -> None:
    """OK is enough; NOT_FOUND is followed by a registration; a refusal is an error."""
    ok, lost = meta.META_OUTCOME_OK, meta.META_OUTCOME_NOT_FOUND
    nameserver = FakeNameserver(ok, lost, ok, meta.META_OUTCOME_UNAVAILABLE)
    node = registration(nameserver)
    await node.heartbeat()
    await node.heartbeat()
    first = meta.HeartbeatRequest(node_id="storage-a", boot_id=77, full=True)
    second = meta.HeartbeatRequest(node_id="storage-a", boot_id=77)
    assert nameserver.requests[:2] == [first, second]
    assert isinstance(nameserver.requests[2], meta.RegisterNodeRequest)
    with pytest.raises(RegistrationError, match="because"):
        await node.heartbeat()
