"""Room for AckMessages that wait for storage: for all, and for each client and connection."""

from __future__ import annotations

from collections.abc import Sequence

from strata_broker.base.receive_config import AckSection
from strata_broker.base.shares import SHARING, Owner, OwnerShares
from strata_runtime.limits import Limit
from strata_runtime.metrics import Metrics


class AckRoom:
    """See the module docstring. Used on the event loop only.

    Args:
        config: the limits.
        metrics: shows how much is used.
    """

    def __init__(self, config: AckSection, metrics: Metrics) -> None:
        self._bytes = Limit("ack requests", config.max_bytes_waiting, "bytes", metrics=metrics)
        most = config.max_bytes_waiting_per_client
        self._byte_shares = OwnerShares("ack bytes", dict.fromkeys(SHARING, most), metrics)
        most = config.max_waiting_per_client
        self._entry_shares = OwnerShares("acks", dict.fromkeys(SHARING, most), metrics)

    def take_bytes(self, owners: Sequence[Owner], size_bytes: int) -> bool:
        """Take room for the bytes of requests; return whether there was room."""
        if not self._byte_shares.try_take(owners, size_bytes):
            return False
        if self._bytes.try_take(size_bytes):
            return True
        self._byte_shares.give_back(owners, size_bytes)
        return False

    def take_entries(self, owners: Sequence[Owner], entries: int) -> bool:
        """Take room for entries of requests; return whether there was room."""
        return self._entry_shares.try_take(owners, entries)

    def give_back(self, owners: Sequence[Owner], size_bytes: int, entries: int) -> None:
        """Return what was taken for requests."""
        self._bytes.give_back(size_bytes)
        self._byte_shares.give_back(owners, size_bytes)
        self._entry_shares.give_back(owners, entries)
