"""Channels to endpoints, opened at first use; above a limit the least recently used is closed."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable

from strata_angelia.ports import Channel

ChannelFactory = Callable[[str], Channel]
"""Makes a channel to an endpoint (`host:port`, `inproc:NAME`); connecting waits for a call."""


class Channels:
    """A bounded set of channels by endpoint; they are owned here.

    Args:
        factory: makes one.
        maximum: how many are kept.
    """

    def __init__(self, factory: ChannelFactory, maximum: int) -> None:
        self._factory = factory
        self._maximum = maximum
        self._channels: OrderedDict[str, Channel] = OrderedDict()
        self._closing: set[asyncio.Future[None]] = set()

    def get(self, endpoint: str) -> Channel:
        """Return the channel to an endpoint."""
        channel = self._channels.get(endpoint)
        if channel is None:
            channel = self._channels[endpoint] = self._factory(endpoint)
            if len(self._channels) > self._maximum:
                _, unused = self._channels.popitem(last=False)
                closing = asyncio.ensure_future(unused.close())
                self._closing.add(closing)
                closing.add_done_callback(self._closing.discard)
        self._channels.move_to_end(endpoint)
        return channel

    async def close(self) -> None:
        """Close all; calls under way fail with UNAVAILABLE."""
        channels, self._channels = self._channels, OrderedDict()
        await asyncio.gather(*(channel.close() for channel in channels.values()), *self._closing)
