"""Connections that the members of a container share."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from strata.meta.v1 import meta_pb2
from strata_angelia.ports import AngeliaError
from strata_cli.processes.shared_parts import SharedConnections


class RecordedChannel:
    """Answers every call, and remembers whether it was closed."""

    def __init__(self) -> None:
        self.is_closed = False

    async def call(self, *_: object, **__: object) -> Any:
        return meta_pb2.GetIdentityResponse(cluster_id="c")

    async def stream(self, *_: object) -> AsyncIterator[Any]:
        yield meta_pb2.WatchResponse(revision=1)
        yield meta_pb2.WatchResponse(revision=2)

    async def close(self) -> None:
        self.is_closed = True


async def test_a_connection_ends_with_its_last_user() -> None:
    """One member that stops leaves the connection to the others; the next user gets a new one."""
    opened: list[RecordedChannel] = []

    def open_channel(_: str) -> RecordedChannel:
        opened.append(RecordedChannel())
        return opened[-1]

    connections = SharedConnections(open_channel)
    first, second = connections.lease("a:1"), connections.lease("a:1")
    other = connections.lease("b:2")
    assert len(opened) == len(connections) == 2

    await first.close()
    await first.close()
    assert not opened[0].is_closed
    with pytest.raises(AngeliaError, match="closed"):
        await first.call("/x", meta_pb2.GetIdentityRequest(), meta_pb2.GetIdentityResponse)
    answer = await second.call("/x", meta_pb2.GetIdentityRequest(), meta_pb2.GetIdentityResponse)
    assert answer.cluster_id == "c"
    stream = second.stream("/y", meta_pb2.WatchRequest(), meta_pb2.WatchResponse)
    assert [each.revision async for each in stream] == [1, 2]

    await second.close()
    assert opened[0].is_closed
    assert not opened[1].is_closed
    await other.close()
    assert len(connections) == 0
    connections.lease("a:1")
    assert len(opened) == 3
