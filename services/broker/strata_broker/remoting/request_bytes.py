"""Bytes of remoting requests that are carried out: of all, a client, a connection, an address.

A request keeps its frame while it waits, and most requests may have a body as large as a frame that
nobody reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager

from strata_broker.base.remoting_config import RemotingSection
from strata_broker.base.shares import Full, Owner, OwnerShares, SharedLimit, most_each
from strata_runtime.limits import Limit
from strata_runtime.metrics import Metrics

_TEXTS = {
    Full.SHARE: "this client, or its address, has too many bytes of requests under way "
    "(remoting.max_request_bytes_per_client, remoting.max_request_bytes_per_address)",
    Full.ALL: "clients have too many bytes of requests under way (remoting.max_request_bytes)",
}


class RequestBytes:
    """See the module docstring. Used on the event loop only.

    Args:
        config: limits.
        metrics: where use and refusals are shown.
    """

    def __init__(self, config: RemotingSection, metrics: Metrics) -> None:
        self._most_bytes = min(
            config.max_request_bytes_per_client,
            config.max_request_bytes_per_address,
            config.max_request_bytes,
        )
        most = most_each(config.max_request_bytes_per_client, config.max_request_bytes_per_address)
        self._bytes = SharedLimit(
            Limit("remoting requests", config.max_request_bytes, "bytes", metrics=metrics),
            OwnerShares("bytes of remoting requests", most, metrics),
        )

    def holding(self, owners: Sequence[Owner], size_bytes: int) -> AbstractContextManager[None]:
        """Hold the bytes of a request until the block ends.

        A client without another request may have one of any size, if its address has room.

        Args:
            owners: see `all_owners_of`.
            size_bytes: of its frame.

        Raises:
            RequestError: TOO_MANY_REQUESTS, as the block begins.
        """
        return self._bytes.holding(owners, min(size_bytes, self._most_bytes), _TEXTS)
