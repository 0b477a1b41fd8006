"""A `Transport` between drivers in one process.

Messages sent to a node in one turn of the event loop arrive in the next, ordered by class as in the
real transport (`PeerQueue`). A filter decides which messages pass. Queues are bounded per node and
class, so that dropping (rule 15) can be exercised.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Sequence

from strata_multiraft.base import Envelope, TrafficClass
from strata_multiraft.peering import PeerQueue, TransportOptions

Receiver = Callable[[Sequence[Envelope]], None]
Passes = Callable[[str, str], bool]


class MemoryNetwork:
    """Connects nodes by id.

    Args:
        passes: tells whether messages get from one node to another now.
        options: limits of what waits from one node to another.

    Attributes:
        is_full: nothing is taken, as if all queues were full.
    """

    def __init__(
        self,
        passes: Passes = lambda source, target: True,
        options: TransportOptions | None = None,
    ) -> None:
        options = options or TransportOptions()
        self.is_full = False
        self._passes = passes
        self._max_frame_bytes = options.max_frame_bytes
        self._receivers: dict[str, Receiver] = {}
        self._queues: defaultdict[tuple[str, str], PeerQueue] = defaultdict(
            lambda: PeerQueue(options)
        )

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
        queue = self._queues[source, target]
        waits = queue.has_any()
        if self.is_full or not queue.offer(envelopes, traffic):
            return False
        if not waits:
            asyncio.get_running_loop().call_soon(self._deliver, source, target)
        return True

    def _deliver(self, source: str, target: str) -> None:
        queue = self._queues[source, target]
        while queue.has_any():
            envelopes, _ = queue.take(self._max_frame_bytes, only_control=False)
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
