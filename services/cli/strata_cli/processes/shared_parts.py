"""Parts that the members of a container share: connections to nameservers, the block cache.

The event loop and the pool of threads for short work are the process's, so all members have them
together. Everything else, such as the writer and reader threads of a storage node, belongs to one
member: a member that waits for its disk holds up no other member.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, TypeVar

from google.protobuf.message import Message

from strata_angelia.ports import UNAVAILABLE, AngeliaError, Channel
from strata_state.rocksdb_store import SharedBlockCache

Response = TypeVar("Response", bound=Message)


class SharedConnections:
    """One channel per endpoint for all members, closed when no member uses it.

    Args:
        open_channel: makes a channel to an endpoint.
    """

    def __init__(self, open_channel: Callable[[str], Channel]) -> None:
        self._open_channel = open_channel
        # Endpoint -> its channel and how many leases it has.
        self._channels: dict[str, tuple[Channel, int]] = {}

    def __len__(self) -> int:
        return len(self._channels)

    def lease(self, endpoint: str) -> Channel:
        """Return a channel that its holder closes for itself alone."""
        channel, leases = self._channels.get(endpoint) or (self._open_channel(endpoint), 0)
        self._channels[endpoint] = (channel, leases + 1)
        return LeasedChannel(channel, lambda: self._given_back(endpoint))

    def _given_back(self, endpoint: str) -> Channel | None:
        """Count a lease that ended; return the channel if it was the last one."""
        channel, leases = self._channels[endpoint]
        if leases > 1:
            self._channels[endpoint] = (channel, leases - 1)
            return None
        del self._channels[endpoint]
        return channel


class LeasedChannel:
    """A `Channel` over a connection that others use, too.

    Closing it refuses further calls. Calls under way end with their deadline, streams with their
    reader: the connection stays for the other members.

    Args:
        channel: the shared one.
        give_back: ends the lease; returns the channel if it is to be closed.
    """

    def __init__(self, channel: Channel, give_back: Callable[[], Channel | None]) -> None:
        self._channel = channel
        self._give_back = give_back
        self._is_closed = False

    async def call(
        self,
        method: str,
        request: Message,
        response_type: type[Response],
        *,
        timeout_s: float | None = None,
    ) -> Response:
        """See `Channel.call`."""
        self._check()
        return await self._channel.call(method, request, response_type, timeout_s=timeout_s)

    async def stream(
        self, method: str, request: Message, response_type: type[Response]
    ) -> AsyncIterator[Response]:
        """See `Channel.stream`."""
        self._check()
        responses: Any = self._channel.stream(method, request, response_type)
        async with aclosing(responses):
            async for response in responses:
                yield response

    async def close(self) -> None:
        """See `Channel.close`."""
        if self._is_closed:
            return
        self._is_closed = True
        unused = self._give_back()
        if unused is not None:
            await unused.close()

    def _check(self) -> None:
        if self._is_closed:
            raise AngeliaError(UNAVAILABLE, "the channel is closed")


@dataclass(frozen=True, slots=True)
class SharedParts:
    """See the module docstring.

    Attributes:
        connections: to nameservers.
        block_cache: of the rows of all storage nodes.
    """

    connections: SharedConnections
    block_cache: SharedBlockCache
