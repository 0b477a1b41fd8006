"""Bytes of frames that still arrive: of all remoting connections, and of each address."""

from __future__ import annotations

from strata_broker.base.remoting_config import RemotingSection
from strata_broker.base.shares import OwnerShares
from strata_edge.addresses import network_of_peer
from strata_runtime.limits import Limit
from strata_runtime.metrics import Metrics


class UnfinishedFrames:
    """See the module docstring. Used on the event loop only.

    Args:
        config: limits.
        metrics: where use and refusals are shown.
    """

    def __init__(self, config: RemotingSection, metrics: Metrics) -> None:
        self._limit = Limit(
            "unfinished remoting frames", config.max_unfinished_bytes, "bytes", metrics=metrics
        )
        most = {"address": config.max_unfinished_bytes_per_address}
        self._shares = OwnerShares("bytes of unfinished remoting frames", most, metrics)

    def refused(self, peer: str, size_bytes: int) -> str:
        """Take room for so many more bytes; return the name of the limit that has none, "": taken.

        Args:
            peer: `host:port` of the client.
            size_bytes: positive.
        """
        owners = (("address", network_of_peer(peer)),)
        if not self._shares.try_take(owners, size_bytes):
            return "remoting.max_unfinished_bytes_per_address"
        if not self._limit.try_take(size_bytes):
            self._shares.give_back(owners, size_bytes)
            return "remoting.max_unfinished_bytes"
        return ""

    def give_back(self, peer: str, size_bytes: int) -> None:
        """Return what `refused` took."""
        self._limit.give_back(size_bytes)
        self._shares.give_back((("address", network_of_peer(peer)),), size_bytes)
