"""Servers of several transports that stop as one."""

from __future__ import annotations

import asyncio

import pytest
from google.protobuf.descriptor import ServiceDescriptor

from strata_storage.process.servers import Servers


class StubServer:
    """A server that stops when a test lets it, or fails.

    Attributes:
        grace_s: seconds that it was given; None: it was not told to stop.
        has_stopped: it has.
    """

    def __init__(self, may_stop: asyncio.Event, *, fails: bool = False) -> None:
        self.grace_s: float | None = None
        self.has_stopped = False
        self._may_stop = may_stop
        self._fails = fails

    def register(self, service: ServiceDescriptor, handler: object) -> None:
        raise AssertionError(service.full_name)

    async def start(self) -> str:
        return "h:1"

    async def stop(self, grace_s: float) -> None:
        self.grace_s = grace_s
        if self._fails:
            raise OSError("no room")
        await self._may_stop.wait()
        self.has_stopped = True


async def test_servers_share_one_grace() -> None:
    """All are told to stop before the first has stopped; a second grace would be cut in two."""
    may_stop = asyncio.Event()
    each = [StubServer(may_stop), StubServer(may_stop)]
    stop = asyncio.ensure_future(Servers(each).stop(7.0))
    for _ in range(5):
        await asyncio.sleep(0)
    graces_s = [server.grace_s for server in each]
    may_stop.set()
    await stop

    assert graces_s == [7.0, 7.0]
    assert [server.has_stopped for server in each] == [True, True]


async def test_a_server_that_does_not_stop_holds_none_back() -> None:
    """The others are stopped before its failure is told."""
    may_stop = asyncio.Event()
    may_stop.set()
    each = [StubServer(may_stop, fails=True), StubServer(may_stop)]
    with pytest.raises(OSError, match="no room"):
        await Servers(each).stop(7.0)

    assert each[1].has_stopped
