"""A `Transport` between drivers in one process: for tests and simulation.

Delivery is a callback on the event loop; a filter decides what gets through. Queues are bounded
per node and class, so that dropping (rule 15) can be exercised.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence

from strata_multiraft.ports import Envelope, TrafficClass

Receiver = Callable[[Sequence[Envelope]], None]
Passes = Callable[[str, str], bool]


class MemoryNetwork:
    """Connects nodes by id.

    Args:
        passes: tells whether messages get from one node to another now.
        max_queued: messages under way to one node in one class.
    """

    def __init__(
        self, passes: Passes = lambda source, target: True, max_queued: int = 4096
    ) -> None:
        self._passes = passes
        self._max_queued = max_queued
        self._receivers: dict[str, Receiver] = {}
        self._queued: Counter[tuple[str, TrafficClass]] = Counter()

    def connect(self, node_id: str, receiver: Receiver) -> None:
        """Let a node receive; a node that connects again replaces its earlier life."""
        self._receivers[node_id] = receiver

    def transport(self, node_id: str) -> MemoryTransport:
        """Return the sending side of a node."""
        return MemoryTransport(self, node_id)

    def send(
        self, source: str, target: str, envelopes: Sequence[Envelope], traffic: TrafficClass
    ) -> bool:
        """Deliver in the next turn of the event loop."""
        queue = (target, traffic)
        if self._queued[queue] + len(envelopes) > self._max_queued:
            return False
        self._queued[queue] += len(envelopes)
        asyncio.get_running_loop().call_soon(self._deliver, source, target, envelopes, traffic)
        return True

    def _deliver(
        self, source: str, target: str, envelopes: Sequence[Envelope], traffic: TrafficClass
    ) -> None:
        self._queued[(target, traffic)] -= len(envelopes)
        receiver = self._receivers.get(target)
        if receiver is not None and self._passes(source, target):
            receiver(envelopes)


class MemoryTransport:
    """`Transport` of one node."""

    def __init__(self, network: MemoryNetwork, node_id: str) -> None:
        self._network = network
        self._node_id = node_id

    def send(self, node_id: str, envelopes: Sequence[Envelope], traffic: TrafficClass) -> bool:
        """See `ports.Transport`."""
        return self._network.send(self._node_id, node_id, envelopes, traffic)
