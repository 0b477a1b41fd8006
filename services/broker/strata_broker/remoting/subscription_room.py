"""Bytes of subscriptions that remoting consumers told of: of all, a client, an address.

A heartbeat may have as many bytes of expressions as its body, and they are kept while the client is
a member of its consumer group.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from sys import getsizeof
from typing import NamedTuple

from strata_broker.base.remoting_config import RemotingSection
from strata_broker.base.shares import Owner, OwnerShares, SharedLimit, all_owners_of, most_each
from strata_broker.remoting.heartbeats import RemotingSubscription
from strata_runtime.limits import Limit
from strata_runtime.metrics import Metrics

# A subscription takes these beside its texts.
_OBJECT_BYTES = 200


class HeldSubscriptions(NamedTuple):
    """Room that the subscriptions of one member take.

    Attributes:
        owners: see `all_owners_of`.
        size_bytes: about the memory that they take.
    """

    owners: Sequence[Owner]
    size_bytes: int


class SubscriptionRoom:
    """See the module docstring. Used on the event loop only.

    Args:
        config: limits.
        metrics: where use and refusals are shown.
    """

    def __init__(self, config: RemotingSection, metrics: Metrics) -> None:
        most = most_each(
            config.max_subscription_bytes_per_client, config.max_subscription_bytes_per_address
        )
        self._bytes = SharedLimit(
            Limit(
                "remoting subscriptions", config.max_subscription_bytes, "bytes", metrics=metrics
            ),
            OwnerShares("bytes of remoting subscriptions", most, metrics),
        )

    def try_hold(
        self,
        client_id: str,
        peer: str,
        subscriptions: Mapping[str, RemotingSubscription],
        before: HeldSubscriptions | None,
    ) -> HeldSubscriptions | None:
        """Take room for the subscriptions of a member; None: there is none, and `before` is kept.

        Args:
            client_id: of the member.
            peer: `host:port` of its connection.
            subscriptions: by topic.
            before: room of the member's earlier ones, which the new ones replace.
        """
        size_bytes = sum(
            getsizeof(topic) + getsizeof(one.expression) + _OBJECT_BYTES
            for topic, one in subscriptions.items()
        )
        held = HeldSubscriptions(all_owners_of(client_id, peer), size_bytes)
        if before is not None:
            self.give_back(before)
        if self._bytes.try_take(*held) is None:
            return held
        if before is not None:
            full = self._bytes.try_take(*before)
            assert full is None, "nobody took it meanwhile"
        return None

    def give_back(self, held: HeldSubscriptions) -> None:
        """Return what `try_hold` took."""
        self._bytes.give_back(*held)
