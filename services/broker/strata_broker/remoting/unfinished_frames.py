"""Bytes of frames that still arrive: of all remoting connections, and of each address."""

from __future__ import annotations

from strata_broker.base.remoting_config import RemotingSection
from strata_broker.base.shares import Full, Owner, OwnerShares, SharedLimit
from strata_edge.addresses import network_of_peer
from strata_runtime.limits import Limit
from strata_runtime.metrics import Metrics

_KEYS = {
    Full.SHARE: "remoting.max_unfinished_bytes_per_address",
    Full.ALL: "remoting.max_unfinished_bytes",
}


class UnfinishedFrames:
    """See the module docstring. Used on the event loop only.

    Args:
        config: limits.
        metrics: where use and refusals are shown.
    """

    def __init__(self, config: RemotingSection, metrics: Metrics) -> None:
        most = {"address": config.max_unfinished_bytes_per_address}
        self._bytes = SharedLimit(
            Limit(
                "unfinished remoting frames", config.max_unfinished_bytes, "bytes", metrics=metrics
            ),
            OwnerShares("bytes of unfinished remoting frames", most, metrics),
        )

    def refused(self, peer: str, size_bytes: int) -> str:
        """Take room for so many more bytes; return the name of the limit that has none, "": taken.

        Args:
            peer: `host:port` of the client.
            size_bytes: positive.
        """
        full = self._bytes.try_take(_owners(peer), size_bytes)
        return "" if full is None else _KEYS[full]

    def give_back(self, peer: str, size_bytes: int) -> None:
        """Return what `refused` took."""
        self._bytes.give_back(_owners(peer), size_bytes)


def _owners(peer: str) -> tuple[Owner, ...]:
    return (("address", network_of_peer(peer)),)
