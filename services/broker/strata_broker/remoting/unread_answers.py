"""Bytes of answers that remoting clients have not read: of all, a connection, an address.

An answer counts from its writing until the transport has taken it. One that finds no room is not
written: its request fails, so messages that it was to bring are given back.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

from strata_broker.base.remoting_config import RemotingSection
from strata_broker.base.shares import Full, OwnerShares, SharedLimit
from strata_edge.addresses import network_of_peer
from strata_runtime.limits import Limit
from strata_runtime.metrics import Metrics

_SMALL_BYTES = 4 << 10
"""Answers of sends, acks and refusals: not worth the counting, and never refused."""


_TEXTS = {
    Full.SHARE: "this client, or its address, has too many unread answers "
    "(remoting.max_unread_bytes_per_connection, remoting.max_unread_bytes_per_address)",
    Full.ALL: "clients have too many unread answers (remoting.max_unread_bytes)",
}


class UnreadAnswers:
    """See the module docstring. Used on the event loop only.

    Args:
        config: limits.
        metrics: where use and refusals are shown.
    """

    def __init__(self, config: RemotingSection, metrics: Metrics) -> None:
        self._most_bytes = min(
            config.max_unread_bytes_per_connection,
            config.max_unread_bytes_per_address,
            config.max_unread_bytes,
        )
        most = {
            "connection": config.max_unread_bytes_per_connection,
            "address": config.max_unread_bytes_per_address,
        }
        self._bytes = SharedLimit(
            Limit("unread remoting answers", config.max_unread_bytes, "bytes", metrics=metrics),
            OwnerShares("bytes of unread remoting answers", most, metrics),
        )

    def holding(self, peer: str, size_bytes: int) -> AbstractContextManager[None]:
        """Hold the bytes of an answer until the block ends.

        A connection that has read everything may have one answer of any size, if its address has
        room.

        Args:
            peer: `host:port` of the client.
            size_bytes: of the frame.

        Raises:
            RequestError: TOO_MANY_REQUESTS, as the block begins: this client, or all together,
                read too slowly.
        """
        if size_bytes <= _SMALL_BYTES:
            return nullcontext()
        owners = ("connection", peer), ("address", network_of_peer(peer))
        return self._bytes.holding(owners, min(size_bytes, self._most_bytes), _TEXTS)
